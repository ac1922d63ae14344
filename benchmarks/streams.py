"""Measures how fast one command collects the output of ranks on three nodes, and what CPU time that costs it.

Two ranks on each node write lines of 100 bytes. ``cpu`` is the time of all processes on the machine of the command: the
runner and its ssh clients, or the launcher. The nodes are namespaces of this machine (``tests/cluster``), so writers,
sshd and runner share its cores, and only ratios are meaningful. ``bare`` is the writers alone, into /dev/null.
Run it as ``python benchmarks/streams.py [--lines 300000] [--rounds 3]``, as root or with user namespaces.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import contest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.testbed import Testbed, unavailable  # noqa: E402

HOSTS = ("node1", "node2", "node3")
RANKS = 2
LINE = 100


def ways(count: int) -> dict[str, list[str]]:
    """Each contestant's command on the login host. All except ``bare`` label their lines."""
    writer = [sys.executable, contest.program("writer.py"), str(count), "buffer"]
    names = ",".join(HOSTS)
    slots = ",".join(f"{host}:{RANKS}" for host in HOSTS)
    popen = f"{sys.executable} {contest.program('bare.py')} {RANKS} {' '.join(writer)}"
    here = [sys.executable, "-m", "bireme", "run", "-q"]
    mpi = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--host", slots, "-n", str(RANKS * len(HOSTS))]
    hydra = ["mpiexec.mpich", "-launcher", "ssh", "-hosts", names, "-ppn", str(RANKS), "-n", str(RANKS * len(HOSTS))]
    return {
        "bare": ["pdsh", "-R", "ssh", "-S", "-w", names, f"{popen} >/dev/null"],
        "bireme ssh": [*here, "--hosts", slots, "--output", "prefix", *writer[1:]],
        "bireme mpich": [*here, "--launcher", "mpich", "--hosts", slots, "--output", "prefix", *writer[1:]],
        "pdsh": ["pdsh", "-R", "ssh", "-S", "-w", names, popen],
        "openmpi --tag-output": [*mpi, "--tag-output", *writer],
        "mpich -prepend-rank": [*hydra, "-prepend-rank", *writer],
    }


def run(testbed: Testbed, command: list[str], path: str) -> tuple[float, float, int]:
    """Run a command on the login host, with its output in a file.

    Args:
        testbed: the cluster.
        command: the command line.
        path: the file.

    Returns:
        Seconds, CPU seconds on the command's machine, and the number of whole lines that arrived.

    Raises:
        SystemExit: the command failed.
    """
    with open(path, "wb") as out:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        process = testbed["login"].popen(command, stdout=out)
        code = process.wait(600)
        took = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with open(path, "rb") as file:
        whole = sum(line.endswith(b"x" * 77 + b"\n") and line.count(b"rank ") == 1 for line in file)
    os.remove(path)
    return took, cpu, whole


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lines", type=int, default=300_000, help="lines of each rank (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contestant runs (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write every single measurement into this file")
    options = parser.parse_args()
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    if why := unavailable("pdsh", "mpirun.openmpi", "mpiexec.mpich"):
        sys.exit(f"cannot create a test cluster: {why}")
    found: dict[str, list[tuple[float, float, int]]] = {}

    def once(testbed: Testbed, name: str, command: list[str], folder: str) -> Callable[[], float]:
        def measure() -> float:
            found.setdefault(name, []).append(run(testbed, command, os.path.join(folder, "output")))
            return found[name][-1][0]

        return measure

    with tempfile.TemporaryDirectory() as folder:
        state = tempfile.mkdtemp(prefix="streams-")
        with Testbed(len(HOSTS), state=state, share=[str(ROOT), sys.prefix]) as testbed:
            runs = {name: once(testbed, name, words, folder) for name, words in ways(options.lines).items()}
            times = contest.take_turns(runs, options.rounds, patience=120)
    report(times, found, options.lines)
    contest.write_json(options.json, benchmark="streams", results=[{"name": n, "runs": r} for n, r in found.items()])
    return 0


def report(times: dict[str, list[float | None]], found: dict[str, list[tuple[float, float, int]]], count: int) -> None:
    """Print the table.

    Args:
        times: the times of each contestant in seconds, without the first run, which has filled caches.
        found: the results of each contestant, including the first run.
        count: the number of lines of each rank.
    """
    total = count * RANKS * len(HOSTS)
    rows = []
    for name, figures in times.items():
        runs = found[name][1:]
        middle = contest.median(figures)
        cpu = statistics.median(each[1] for each in runs)
        lost = "" if name == "bare" else f"{max(total - each[2] for each in runs):,}"
        speed = total * LINE / 1e6 / (middle or 1)
        ratio = contest.decimals(contest.ratio(figures, times["bare"]))
        rows.append(
            [name, contest.milliseconds(middle), ratio, contest.decimals(speed, 0), contest.decimals(cpu), lost]
        )
    title = f"{len(HOSTS)} nodes x {RANKS} ranks, {count:,} lines of {LINE} bytes each"
    contest.table(title, ["way", "median ms", "ratio", "MB/s", "cpu s", "not whole"], rows)


if __name__ == "__main__":
    sys.exit(main())
