"""Trainings that are quiet for a while and do not hang, many kinds: ``python -m tests.command.clean_jobs``.

All ranks but one wait in a collective for the one that does something else, or all do it. ``--hang_timeout auto`` must
stay silent, although the command is told to suspect a job after 5 s of silence instead of 30, and to look again after
2 s instead of 10. Each kind runs several times, with lengths that a seed draws. The exit code is 1 after a false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent, indent

from tests.cluster.planted_hangs import HURRIED
from tests.conftest import clean_environ

TRAINS = """
import os, pdb, random, socket, subprocess, sys, tempfile, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

rank, size, draw = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), random.Random(sys.argv[1])
quiet, odd = draw.uniform(9, 16), draw.randrange(size)
end = [0.0]

def goes_on(pause=0.08):
    "Until the quiet time is over; it begins with the first call."
    time.sleep(pause)
    end[0] = end[0] or time.time() + quiet
    return time.time() < end[0]

def computes(seconds=0.02):
    until = time.process_time() + seconds
    while time.process_time() < until: pass

def child(code):
    head = f"import os, sys, time\\nend = time.time() + {quiet}\\nwhile time.time() < end:\\n    "
    return [sys.executable, "-c", head + code]

def steps(count, pause=1.0):
    for step in range(count):
        dist.all_reduce(torch.zeros(1))
        if rank == 0: print("step", step, flush=True)
        time.sleep(pause)

class Slow(Dataset):
    def __len__(self): return 2
    def __getitem__(self, place):
        while goes_on(): computes()
        return place

dist.init_process_group("gloo")
"""

ODD = {
    "evaluates": "while goes_on(): computes()",
    "writes a checkpoint": """
        with tempfile.TemporaryFile() as file:
            while goes_on(): file.seek(0); file.write(bytes(1 << 20)); file.flush(); os.fsync(file.fileno())
        """,
    "reads its data": "while goes_on(): open(sys.executable, 'rb').read()",
    "compiles in a child": "subprocess.run(child('sum(range(300_000)); time.sleep(0.1)'))",
    "waits for a child that reads": "subprocess.run(child('open(sys.executable, \\'rb\\').read(); time.sleep(0.1)'))",
    "downloads": """
        sender = subprocess.Popen(child("os.write(1, bytes(20000)); time.sleep(0.1)"), stdout=subprocess.PIPE)
        while sender.stdout.read(4096): pass
        """,
    "downloads over the network": """
        server = socket.create_server(("127.0.0.1", 0))
        def sends():
            link = server.accept()[0]
            while goes_on(): link.sendall(bytes(40000))
            link.close()
        threading.Thread(target=sends).start()
        link = socket.create_connection(server.getsockname())
        while link.recv(4096): pass
        """,
    "a thread works": """
        def work():
            while goes_on(): computes()
        thread = threading.Thread(target=work); thread.start(); thread.join()
        """,
    "a worker of the data loader works": "list(DataLoader(Slow(), num_workers=1, multiprocessing_context='fork'))",
    "moves from function to function": """
        while goes_on(0): exec("def f(): time.sleep(0.5)\\nf()".replace("f()", f"f{time.time():.0f}()"))
        """,
    "shows a bar": "while goes_on(2): print('\\r%d' % time.time(), end='', flush=True)",
    "is debugged": "print('Pdb', flush=True); pdb.set_trace()",
    "is suspended": "print('Suspend', flush=True); time.sleep(2)",
}
"""What one rank does, while the others wait for it."""

ALL = {
    "all sleep": "steps(7); time.sleep(quiet)",
    "all wait for an event": "steps(7); threading.Event().wait(quiet)",
    "all compute": "steps(7)\nwhile goes_on(): computes()",
    "all serve": """
        steps(7)
        server = socket.create_server(("127.0.0.1", 0)); server.settimeout(quiet)
        try: server.accept()
        except TimeoutError: pass
        """,
    "slower and slower": "for pause in (0.5, 0.5, 1, 1, 2, 4, 8, 12): steps(1, pause)",
    "others have ended": "steps(7); time.sleep(quiet if rank == odd else 0)",
    "no cadence": "steps(3); time.sleep(quiet if rank == odd else 0)",
    "a long end": """
        steps(7); dist.destroy_process_group()
        import atexit; atexit.register(time.sleep, quiet if rank == odd else 0)
        """,
}
"""What all ranks do, instead."""


def source(kind: str) -> str:
    """The training of this kind."""
    if kind in ALL:
        return TRAINS + dedent(ALL[kind])
    work = indent(dedent(ODD[kind]).strip(), "    ")
    return f"{TRAINS}def work():\n{work}\nsteps(7)\nif rank == odd: work()\nsteps(3, 0.1)\n"


def alarm(folder: Path, kind: str, seed: int) -> str:
    """Run one job; what was said wrongly of it, "": nothing."""
    draw, name = random.Random(f"{kind} {seed}"), f"{kind.replace(' ', '-')}-{seed}"
    program, events = folder / f"{name}.py", folder / f"{name}.events"
    program.write_text(source(kind))
    ranks = draw.randint(2, 3)
    words = ["run", "--accelerator", "cpu", "--num_gpus", str(ranks), "--preload", "torch", "--keep", "--stdin", "all"]
    words += ["--events", str(events), str(program), str(seed)]
    command = subprocess.Popen(
        [sys.executable, "-c", HURRIED, *words],
        cwd=folder,
        env=clean_environ(OMP_NUM_THREADS="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert command.stdin and command.stdout
    said = []
    for line in command.stdout:
        said.append(line)
        if "] Pdb" in line:
            time.sleep(draw.uniform(9, 16))
            command.stdin.write("c\n")
            command.stdin.flush()
        elif "] Suspend" in line:
            os.kill(command.pid, signal.SIGTSTP)
            time.sleep(draw.uniform(9, 16))
            os.kill(command.pid, signal.SIGCONT)
    code = command.wait()
    command.stdin.close()
    found = [json.loads(line) for line in events.read_text().splitlines()]
    wrong = [each for each in found if each["event"] == "hang"]
    return "" if not wrong and not code else f"exit code {code}\n{wrong}\n{''.join(said)[-3000:]}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the kinds, and say of which jobs something was said."""
    parser = argparse.ArgumentParser(prog="python -m tests.command.clean_jobs", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="which; all if none is given")
    parser.add_argument("--times", type=int, default=10, help="jobs of each kind")
    parser.add_argument("--at_once", type=int, default=8, help="jobs side by side")
    options = parser.parse_args(words)
    jobs = [(kind, seed) for seed in range(options.times) for kind in options.kinds or (*ODD, *ALL)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        found = list(pool.map(lambda job: alarm(Path(folder), *job), jobs))
    for (kind, seed), said in zip(jobs, found, strict=True):
        if said:
            print(f"{kind}, seed {seed}: {said}")
    print(f"{found.count('')} of {len(found)} jobs without an alarm")
    return 0 if not any(found) else 1


if __name__ == "__main__":
    sys.exit(main())
