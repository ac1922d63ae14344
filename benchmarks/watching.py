"""Measures what it costs to watch a job: its steps with ``--hang_timeout auto`` and ``off``, and ``bireme top``.

The steps are those of a training on two ranks that writes a line for each. Both ways run in each round, in turn first;
what counts is the ratio of the two. For ``top``, 1,000 ranks run on eight nodes, which are process namespaces of this
machine, so it needs root. Run it as ``python benchmarks/watching.py [--rounds 10] [--steps 3000] [--ranks 1000]``.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import contest

NODES, SECONDS = 8, 20
RUN = [sys.executable, "-m", "bireme", "run"]


def steps_of(how: str, steps: int) -> tuple[float, float]:
    """How long the steps of one job took, and the processor time of its command meanwhile, in seconds."""
    words = [
        "-q",
        "--accelerator",
        "cpu",
        "--num_gpus",
        "2",
        "--hang_timeout",
        how,
        contest.program("steps.py"),
        str(steps),
    ]
    with tempfile.TemporaryFile() as out:
        job = subprocess.Popen([*RUN, *words], stdout=out)
        used = 0.0
        while job.poll() is None:
            try:
                used = processor_time(job.pid)
            except OSError:
                break
            time.sleep(0.02)
        assert job.wait() == 0
        out.seek(0)
        found = re.search(rb"seconds ([\d.]+)", out.read())
    assert found is not None
    return float(found[1]), used


def compare(rounds: int, steps: int) -> None:
    """Print what both ways took."""
    took: dict[str, list[tuple[float, float]]] = {"auto": [], "off": []}
    for number in range(rounds):
        for how in ("auto", "off") if number % 2 else ("off", "auto"):
            took[how].append(steps_of(how, steps))
    seconds, used = (
        {how: statistics.median(each[place] for each in found) for how, found in took.items()} for place in (0, 1)
    )
    more = (used["auto"] - used["off"]) / seconds["off"]
    print(f"steps with --hang_timeout auto, times those with off: {seconds['auto'] / seconds['off']:.3f}")
    print(f"processor time of the command, more with auto, as a part of the time of the steps: {more:.2%}")


def processor_time(pid: int) -> float:
    """Seconds of processor time of a process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def agents() -> list[int]:
    """The agents of our nodes."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_ours = b"BENCHMARK_NODE=" in Path(f"/proc/{pid}/environ").read_bytes()
            if is_ours and Path(f"/proc/{pid}/comm").read_text().startswith("python"):
                found.append(int(pid))
        except OSError:
            continue
    return found


def drain(terminal: int) -> None:
    """Read what is shown, until its end."""
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        pass  # the end of a terminal


def top(ranks: int) -> None:
    """Print what ``bireme top`` takes of a core."""
    hosts = ",".join(f"n{number}:{ranks // NODES}" for number in range(NODES))
    node = "unshare -p -f --mount-proc env BENCHMARK_NODE={host}"
    words = ["--launcher", "exec", "--launcher_args", node, "--hosts", hosts, "--no_python"]
    with tempfile.TemporaryFile() as out:
        job = subprocess.Popen([*RUN, *words, "sh", "-c", "echo begins; exec sleep 1000"], stdout=out)
        while out.seek(0) or out.read().count(b"begins") < ranks // NODES * NODES:
            time.sleep(0.5)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "LINES": "50", "COLUMNS": "200"}
        os.execv(sys.executable, [sys.executable, "-m", "bireme", "top", str(job.pid)])
    threading.Thread(target=drain, args=(terminal,), daemon=True).start()
    time.sleep(4)
    measured = {"the job's process": [job.pid], "top": [pid], "a node": agents()}
    begin = {name: sum(map(processor_time, pids)) for name, pids in measured.items()}
    time.sleep(SECONDS)
    for name, pids in measured.items():
        used = (sum(map(processor_time, pids)) - begin[name]) / SECONDS / len(pids)
        print(f"bireme top, {ranks} ranks on {NODES} nodes, a sample each second: {name} takes {used:.2%} of a core")
    os.write(terminal, b"q")
    os.waitpid(pid, 0)
    job.terminate()
    job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="0: leave the steps out")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=1000, help="0: leave top out")
    args = parser.parse_args()
    if args.rounds:
        compare(args.rounds, args.steps)
    if args.ranks:
        top(args.ranks)


if __name__ == "__main__":
    main()
