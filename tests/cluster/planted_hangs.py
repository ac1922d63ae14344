"""Hangs that are planted in a training of two nodes with two ranks each: ``python -m tests.cluster.planted_hangs``.

Each kind stops one rank, while the others wait for it in the next collective. The script trains with gloo and prints
each step, so it has a cadence. A line for each kind says whether the odd rank and its line were named, and how many
seconds after the hang. ``--over slurm`` starts the jobs by Slurm; ``--auto`` leaves the time-out to be found out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import bireme as package
from tests.cluster.jobs import Jobs
from tests.cluster.testbed import Testbed

LONGEST = 150.0
"""Seconds of a job that does not end: nobody has found that it hangs."""
ODD = 3
"""The rank that hangs, the second one of node2."""
TIMEOUT = 5.0
"""Seconds for ``--hang_timeout``."""
STEPS = 7
"""After so many steps, in so many seconds, the rank hangs."""
HURRIED = """
from bireme.__main__ import command
from bireme.runner import hang_watch, quiet_time
quiet_time._LEAST, hang_watch._PAUSE = 5.0, 2.0
command()
"""
"""The command, which waits 7 s instead of 40 s until it says by itself that a job hangs."""

TRAINS = f"""
import asyncio, atexit, concurrent.futures, ctypes, fcntl, gc, importlib, logging, mmap, multiprocessing, os, pathlib
import queue, re, select, signal, socket, sqlite3, ssl, subprocess, sys, tempfile, threading, time, urllib.request
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

rank, here = int(os.environ["RANK"]), os.path.dirname(__file__)
path = tempfile.mkdtemp() + "/it"

def first_to(what):
    "Go on once another thread or process has done it."
    while not what():
        time.sleep(0.01)

%s

def train():
    for step in range(1000):
        if step == {STEPS} and rank == {ODD}:
            with open(sys.argv[1], "w") as file:
                file.write(str(time.time()))
            stuck()
        dist.all_reduce(torch.zeros(1))
        if rank == 0:
            print("step", step, flush=True)
        time.sleep(1 if step < {STEPS} else 0.1)

dist.init_process_group("gloo")
%s
train()
"""

KINDS = {
    # -- in Python
    "sleep": "time.sleep(1000)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "condition": "with (condition := threading.Condition()): condition.wait()",
    "semaphore": "threading.Semaphore(0).acquire()",
    "barrier of threads": "threading.Barrier(2).wait()",
    "queue": "queue.Queue().get()",
    "thread": "thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True); thread.start(); thread.join()",
    "future": "concurrent.futures.Future().result()",
    "pool that waits for itself": """
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: pool.submit(int).result()).result()
        """,
    "asyncio": """
        async def never(): await asyncio.get_running_loop().create_future()
        asyncio.run(never())
        """,
    "logging": """
        logging.getLogger().addHandler(handler := logging.StreamHandler())
        threading.Thread(target=handler.acquire, daemon=True).start()
        first_to(lambda: not handler.lock.acquire(blocking=False) or handler.lock.release())
        logging.warning("stuck")
        """,
    "import": """
        pathlib.Path(path + ".py").write_text("import time\\ntime.sleep(1000)")
        sys.path.insert(0, os.path.dirname(path))
        importlib.import_module("it")
        """,
    "collector": """
        class Ring:
            def __del__(self): time.sleep(1000)
        ring = Ring(); ring.ring = ring; del ring
        gc.collect()
        """,
    "signal handler": """
        signal.signal(signal.SIGALRM, lambda *_: time.sleep(1000))
        signal.alarm(1)
        while True: time.sleep(0.1)
        """,
    "waits for a file": "while not os.path.exists(path): time.sleep(0.05)",
    "spinning": "while True: pass",
    # -- in the kernel
    "full pipe": "os.write(os.pipe()[1], bytes(1 << 20))",
    "empty pipe": "os.read(os.pipe()[0], 1)",
    "fifo": "os.mkfifo(path); open(path)",
    "poll": "select.poll().poll()",
    "socket": "pair = socket.socketpair(); pair[0].recv(1)",
    "full socket": """
        pair = socket.socketpair()
        while True: pair[0].send(bytes(1 << 16))
        """,
    "accept": 'socket.create_server(("127.0.0.1", 0)).accept()',
    "server that is silent": """
        server = socket.create_server(("127.0.0.1", 0))
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/shard-7")
        """,
    "TLS handshake": """
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
        """,
    "lock of a file": """
        held = open(path, "w")
        if not os.fork():
            fcntl.lockf(held, fcntl.LOCK_EX); held.write("x"); held.flush(); time.sleep(1000)
        first_to(lambda: os.path.getsize(path))
        fcntl.lockf(held, fcntl.LOCK_EX)
        """,
    "locked database": """
        one, two = (sqlite3.connect(path, timeout=1000, isolation_level=None) for _ in range(2))
        one.execute("begin exclusive")
        two.execute("create table shards (name)")
        """,
    "dead file system": """
        fuse = os.open("/dev/fuse", os.O_RDWR); os.mkdir(path)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
        assert not ctypes.CDLL(None).mount(b"dead", path.encode(), b"fuse", 0, options)
        os.listdir(path)
        """,
    "signal": "signal.sigwait({signal.SIGUSR1})",
    "frozen": "os.kill(os.getpid(), signal.SIGSTOP)",
    # -- below other processes
    "child": 'os.waitpid(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000"), 0)',
    "output of a child": 'subprocess.run(["sleep", "1000"], capture_output=True)',
    "child with a full pipe": 'subprocess.Popen(["head", "-c1000000", "/dev/zero"], stdout=subprocess.PIPE).wait()',
    "lock of processes": "lock = multiprocessing.Lock(); lock.acquire(); lock.acquire()",
    "pool whose worker was killed": """
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.map(os._exit, [1])
        """,
    "worker of a data loader": """
        class Data(Dataset):
            def __len__(self): return 9
            def __getitem__(self, place): return time.sleep(1000) if place > 2 else place
        for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="fork"): pass
        """,
    "data set": """
        class Data(Dataset):
            def __len__(self): return 9
            def __getitem__(self, place): return time.sleep(1000) if place > 2 else place
        for batch in DataLoader(Data()): pass
        """,
    # -- in native code
    "native": "ctypes.CDLL(None).pause()",
    "native, with the interpreter's lock": "ctypes.PyDLL(None).pause()",
    "native, spinning": 're.match("(a|a)*$", "a" * 60 + "b")',
    "native, computing": """
        matrix = torch.rand(1500, 1500)
        while True: torch.linalg.svd(matrix)
        """,
    # -- in collectives
    "other collective": "dist.broadcast(torch.zeros(1), 0)",
    "left early": "dist.barrier()",
    "receives what nobody sends": "dist.recv(torch.zeros(1), 0)",
    "key that nobody sets": "dist.distributed_c10d._get_default_store().get('never')",
    "gathers objects": "dist.all_gather_object([None] * 4, 'x')",
    "other group": ("dist.all_reduce(torch.zeros(1), group=group)", "group = dist.new_group(range(4))"),
    "network of the ranks": """
        links = [f"/proc/self/fd/{fd}" for fd in range(3, 99)]
        inodes = {os.stat(each).st_ino for each in links if os.path.exists(each)}
        rows = [line.split() for line in open("/proc/self/net/tcp").readlines()[1:]]
        ports = ",".join({str(int(row[1].split(":")[1], 16)) for row in rows if int(row[9]) in inodes})
        drop = f"tcp sport {{ {ports} }} drop; tcp dport {{ {ports} }} drop;"
        hooks = ("input", "output")
        chains = " ".join(f"chain {hook} {{ type filter hook {hook} priority 0; {drop} }};" for hook in hooks)
        subprocess.run(["nft", f"table ip cut {{ {chains} }}"], check=True)
        """,
}
"""What the odd rank does in a function ``stuck``; with it, what all ranks do before the training."""

ALIKE = {"network of the ranks": "ranks 0-3 +all_reduce ← "}
"""Of these, all ranks hang alike: this is what is to be said."""

SAMPLE = "worker of a data loader"
"""It stands for all in the suite."""


def source(kind: str) -> str:
    """The training with this hang."""
    hang, before = KINDS[kind] if isinstance(KINDS[kind], tuple) else (KINDS[kind], "")
    body = textwrap.indent(textwrap.dedent(str(hang)).strip(), "    ")
    return TRAINS % (f"def stuck():\n{body}", before)


def plant(jobs: Jobs, kind: str, *, auto: bool = False, hurried: bool = False) -> tuple[bool, float, str]:
    """Run a job with this hang until it is found; whether its line was named, after which seconds, and the stacks."""
    name = "train-" + re.sub(r"\W+", "-", kind)
    program, planted, events = (jobs.shared / f"{name}.{end}" for end in ("py", "planted", "events"))
    program.write_text(source(kind))
    words = () if auto else ("--hang_timeout", f"{TIMEOUT:g}")
    words = (*words, "--on_hang", "stop", "--events", events, "--export", "OMP_NUM_THREADS=1", program, planted)
    command = jobs.command(*words, hosts="node[1-2]:2")
    if hurried:
        command[1:3] = ["-c", HURRIED]
    pipe = subprocess.PIPE
    process = jobs.login.popen(command, cwd=str(jobs.shared), stdout=pipe, stderr=pipe)
    try:
        out, err = (data.decode(errors="replace") for data in process.communicate(timeout=LONGEST))
    except subprocess.TimeoutExpired:
        jobs.login.kill(process, signal.SIGTERM)
        out, err = (data.decode(errors="replace") for data in process.communicate(timeout=60))
    found = [each for line in events.read_text().splitlines() if (each := json.loads(line))["event"] == "hang"]
    if not found:
        return False, 0.0, f"exit code {process.returncode}\n{out[-1000:]}{err[-3000:]}"
    stacks, first = found[0]["stacks"], found[0]["stacks"].splitlines()[0]
    where = rf"rank {ODD} on node2\b.*{re.escape(program.name)}:\d+ stuck\b"
    named = re.match(ALIKE.get(kind, where), first) is not None
    return named, found[0]["time"] - float(planted.read_text()), stacks


@contextmanager
def cluster(base: Path, over: str) -> Iterator[Testbed]:
    """Two nodes, which seem to have enough cores for all jobs."""
    share, hide = [str(Path(__file__).resolve().parents[2]), sys.prefix, str(base)], [os.path.dirname(package.__file__)]
    slurm = over == "slurm"
    with Testbed(2, state=tempfile.mkdtemp(prefix="testbed-"), share=share, hide=hide, slurm=slurm, cpus=64) as testbed:
        if slurm:
            testbed.slurm_ready()
        yield testbed


def main(words: Sequence[str] | None = None) -> int:
    """Plant the kinds, and say what was found; the exit code is 1 if one was not named in time."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.planted_hangs", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="which; all if none is given")
    parser.add_argument("--over", choices=("ssh", "slurm"), default="ssh")
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--at_once", type=int, default=2, help="jobs side by side")
    options = parser.parse_args(words)
    limit = 60.0 if options.auto else TIMEOUT + 10
    with tempfile.TemporaryDirectory() as base, cluster(Path(base), options.over) as testbed:

        def one(kind: str) -> bool:
            (shared := Path(base) / re.sub(r"\W+", "-", kind)).mkdir()
            begin = time.monotonic()
            named, seconds, said = plant(Jobs(testbed, options.over, shared), kind, auto=options.auto)
            good = named and seconds <= limit
            took = time.monotonic() - begin
            print(f"{'named' if good else 'NOT NAMED':9}  {seconds:5.1f} s  {kind}  ({took:.0f} s)", flush=True)
            print(textwrap.indent(said, "    "), flush=True)
            return good

        with ThreadPoolExecutor(options.at_once) as pool:
            found = list(pool.map(one, options.kinds or KINDS))
        print(f"{sum(found)} of {len(found)} named within {limit:g} s", flush=True)
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
