"""Measures what ``--ship`` costs: the first start, compared with one ``tar | ssh`` for each node, and the second one.

The hosts are namespaces of this machine (``tests/cluster``) and share its cores and its memory, in which the copies are
(each host has a ``/tmp`` of its own), so only the ratios are meaningful. The project is on the disk below ``/tmp``, and
older than two minutes, so that its digests are kept. Run it as ``python benchmarks/ship.py [--hosts 8] [--files 2000]
[--megabytes 200] [--rounds 3] [--settle 125]``, as root or with user namespaces.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.testbed import Testbed, unavailable  # noqa: E402

EMPTY = ROOT / "benchmarks" / "programs" / "empty.py"
CACHE = "/tmp/cache"
TAR = """
for node in {nodes}; do
    tar cf - -C {project} . | ssh $node "mkdir /tmp/by-tar && tar xf - -C /tmp/by-tar" &
done
wait
"""


def write_project(folder: Path, files: int, size: int) -> None:
    """Files of different sizes (a few large ones hold most of the bytes) in folders of a hundred."""
    noise = random.Random(1)
    weights = [noise.paretovariate(1.2) for _ in range(files)]
    scale = size / sum(weights)
    for number, weight in enumerate(weights):
        path = folder / f"part{number // 100}" / f"file{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise.randbytes(max(1, int(weight * scale))))
    (folder / "empty.py").write_text("")


def timed(testbed: Testbed, command: list[str], cwd: str = "/") -> float:
    """Run a command on the login host and return its time in seconds. Raises an error if the command fails."""
    begin = time.perf_counter()
    testbed["login"].run(command, cwd=cwd, timeout=600, env={"XDG_CACHE_HOME": CACHE})
    return time.perf_counter() - begin


def contest(hosts: int, files: int, megabytes: int, rounds: int, settle: float) -> None:
    state = tempfile.mkdtemp(prefix="ship-")
    rows = []
    project = tempfile.mkdtemp(prefix="project-")
    write_project(Path(project), files, megabytes * 1_000_000)
    time.sleep(settle)
    with Testbed(hosts, state=state, share=[str(ROOT), sys.prefix, project]) as testbed:
        testbed["login"].run(["git", "init", "-q", project])
        names = [node.name for node in testbed.nodes]
        by_tar = ["sh", "-c", TAR.format(nodes=" ".join(names), project=project)]
        pool = ",".join(f"{name}:1" for name in names)
        run = [sys.executable, "-m", "bireme", "run", "-q", "--accelerator", "cpu", "--hosts", pool]
        run += ["--export", f"XDG_CACHE_HOME={CACHE}"]
        for _ in range(rounds + 1):
            for node in testbed.nodes:
                node.run(["rm", "-rf", CACHE, "/tmp/by-tar"])
            tar = timed(testbed, by_tar)
            for node in testbed.nodes:
                node.run(["rm", "-rf", "/tmp/by-tar"])
            first = timed(testbed, [*run, "--ship", "empty.py"], project)
            again = timed(testbed, [*run, "--ship", "empty.py"], project)
            without = timed(testbed, [*run, str(EMPTY)])
            rows.append((tar, first, again, without))
    rows = rows[1:]  # the first round fills caches
    tar, first, again, without = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(row[1] / row[0] for row in rows)
    more = statistics.median(row[2] - row[3] for row in rows)
    print(f"{megabytes} MB in {files} files to {hosts} hosts, median of {rounds} rounds")
    print(f"tar | ssh side by side        {tar:6.2f} s")
    print(f"first start with --ship       {first:6.2f} s   ratio {ratio:.2f}")
    print(f"second start, unchanged       {again:6.2f} s   {more:.2f} s more than without")
    print(f"start without --ship          {without:6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=8, help="the number of hosts (%(default)s)")
    parser.add_argument("--files", type=int, default=2000, help="the number of files (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=200, help="their size together (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds (%(default)s)")
    parser.add_argument("--settle", type=float, default=125, help="seconds to wait for old files (%(default)s)")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if why := unavailable("tar"):
        sys.exit(f"cannot create a test cluster: {why}")
    contest(options.hosts, options.files, options.megabytes, options.rounds, options.settle)


if __name__ == "__main__":
    main()
