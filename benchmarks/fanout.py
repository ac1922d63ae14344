"""Measures how long a job on many hosts takes to start and end, and the CPU time that it takes on the login host.

It is compared with ``pdsh`` running a bare Popen loop on each host, and with one ``ssh`` for each host, side by side,
doing the same. The hosts are namespaces of this machine (``tests/cluster``) and share its cores, so only the ratios are
meaningful. They have no Bireme: its agent is sent to them. Run it as ``python benchmarks/fanout.py [--hosts 3,64,256]
[--ranks 2,1,1] [--rounds 5]``, as root or with user namespaces.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
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


def cpu() -> float:
    """The CPU time of all processes that were started and waited for, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(testbed: Testbed, command: list[str]) -> tuple[float, float]:
    """Run a command on the login host; return its time and the CPU time used there, in seconds.

    Raises:
        subprocess.CalledProcessError: the command fails.
    """
    begin, used = time.perf_counter(), cpu()
    testbed["login"].run(command, timeout=300)
    return time.perf_counter() - begin, cpu() - used


def contest(hosts: int, ranks: int, rounds: int) -> None:
    state = tempfile.mkdtemp(prefix="fanout-")
    hide = [str(ROOT / "src" / "bireme")]
    with Testbed(hosts, state=state, share=[str(ROOT), sys.prefix], hide=hide) as testbed:
        names = [f"node{number}" for number in range(1, hosts + 1)]
        bare = shlex.join((sys.executable, str(BARE), str(ranks), sys.executable, str(EMPTY)))
        ssh = "".join(f"ssh -T -x -o BatchMode=yes {name} {shlex.quote(bare)} & " for name in names)
        commands = {
            "pdsh": ["pdsh", "-R", "ssh", "-S", "-f", str(hosts), "-w", ",".join(names), bare],
            "ssh": ["sh", "-c", f"{ssh}wait"],
            "bireme": [
                *(os.path.join(os.path.dirname(sys.executable), "bireme"), "run", "-q"),
                *("--hosts", ",".join(f"{name}:{ranks}" for name in names), str(EMPTY)),
            ],
        }
        for command in commands.values():
            timed(testbed, command)  # warm up: compile bytecode, fill caches
        found = [
            {name: timed(testbed, commands[name]) for name in (commands if turn % 2 else reversed(commands))}
            for turn in range(rounds)
        ]
    walls = {name: statistics.median(row[name][0] for row in found) * 1000 for name in commands}
    cpus = {name: statistics.median(row[name][1] for row in found) * 1000 / hosts for name in commands}
    to_pdsh = statistics.median(row["bireme"][0] / row["pdsh"][0] for row in found)
    to_ssh = statistics.median(row["bireme"][1] / row["ssh"][1] for row in found)
    print(f"{hosts:5} hosts x {ranks} ranks")
    for name in commands:
        print(f"      {name:8}{walls[name]:8.0f} ms   CPU of the login host {cpus[name]:6.1f} ms for each host")
    print(f"      bireme / pdsh, time: {to_pdsh:.2f}   bireme / ssh, CPU: {to_ssh:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="3,64,256", metavar="N,…", help="numbers of hosts (%(default)s)")
    parser.add_argument("--ranks", default="2,1,1", metavar="N,…", help="ranks on each host (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds (%(default)s)")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if why := unavailable("pdsh"):
        sys.exit(f"cannot create a test cluster: {why}")
    for hosts, ranks in zip(options.hosts.split(","), options.ranks.split(","), strict=True):
        contest(int(hosts), int(ranks), options.rounds)


if __name__ == "__main__":
    main()
