"""Measures how long a job on many hosts takes to start and end, compared with ``pdsh`` running a bare Popen loop.

The hosts are namespaces of this machine (``tests/cluster``) and share its cores, so only the ratios are meaningful.
Run it as ``python benchmarks/fanout.py [--hosts 3,64] [--ranks 2,1] [--rounds 5]``, as root or with user namespaces.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.testbed import Testbed, unavailable  # noqa: E402

BARE = ROOT / "benchmarks" / "programs" / "bare.py"
EMPTY = ROOT / "benchmarks" / "programs" / "empty.py"


def timed(testbed: Testbed, command: list[str]) -> float:
    """Run a command on the login host and return its time in seconds. Raises an error if the command fails."""
    begin = time.perf_counter()
    testbed["login"].run(command, timeout=300)
    return time.perf_counter() - begin


def contest(hosts: int, ranks: int, rounds: int) -> None:
    state = tempfile.mkdtemp(prefix="fanout-")
    with Testbed(hosts, state=state, share=[str(ROOT), sys.prefix]) as testbed:
        names = ",".join(f"node{number}" for number in range(1, hosts + 1))
        bare = f"{sys.executable} {BARE} {ranks} {sys.executable} {EMPTY}"
        pdsh = ["pdsh", "-R", "ssh", "-S", "-f", str(hosts), "-w", names, bare]
        pool = ",".join(f"node{number}:{ranks}" for number in range(1, hosts + 1))
        ours = [sys.executable, "-m", "bireme", "run", "-q", "--hosts", pool, str(EMPTY)]
        timed(testbed, pdsh)  # warm up: compile bytecode, fill caches
        timed(testbed, ours)
        pairs = [(timed(testbed, pdsh), timed(testbed, ours)) for _ in range(rounds)]
    base = statistics.median(first for first, _ in pairs)
    mine = statistics.median(second for _, second in pairs)
    ratio = statistics.median(second / first for first, second in pairs)
    row = f"{hosts:5} hosts x {ranks} ranks"
    print(f"{row}   pdsh {base * 1000:7.0f} ms   bireme {mine * 1000:7.0f} ms   ratio {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="3,64", metavar="N,…", help="numbers of hosts (%(default)s)")
    parser.add_argument("--ranks", default="2,1", metavar="N,…", help="ranks on each host (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds (%(default)s)")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if why := unavailable("pdsh"):
        sys.exit(f"cannot create a test cluster: {why}")
    for hosts, ranks in zip(options.hosts.split(","), options.ranks.split(","), strict=True):
        contest(int(hosts), int(ranks), options.rounds)


if __name__ == "__main__":
    main()
