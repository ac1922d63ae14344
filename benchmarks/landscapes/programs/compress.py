"""Compresses a file with ``zstd`` and prints how many MB/s of it arrive over a link of a given speed.

    bireme tune --param level=1,2,3,4,5,6,8,10,12 --param strategy=level,fast,dfast,lazy,btlazy2 \\
        --param window=17,20,23 --param threads=1,2 --maximize 'MB/s: {}' \\
        compress.py --level {level} --strategy {strategy} --window {window} --threads {threads} FILE

The time is that of the compression plus the size divided by the speed of the link (``--link``, MB/s): a high level
takes longer to compress, and less is sent. Without a file, the modules of Python's standard library are compressed,
one after the other.
"""

import argparse
import os
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

STRATEGIES = ["fast", "dfast", "greedy", "lazy", "lazy2", "btlazy2"]


def standard_library(size: int) -> str:
    """A file with the first ``size`` bytes of Python's standard library; made once."""
    path = Path(tempfile.gettempdir(), f"standard_library_{os.getuid()}_{size}")
    if not path.exists():
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py"))
        content = b"".join(each.read_bytes() for each in modules if "packages" not in str(each))
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(content[:size])
        part.rename(path)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--strategy", choices=["level", *STRATEGIES], default="level", help="level: that of the level")
    parser.add_argument("--window", type=int, default=20, help="window of 2^WINDOW bytes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--link", type=float, default=25, help="MB/s")
    parser.add_argument("file", nargs="?")
    args = parser.parse_args()

    source = args.file or standard_library(6_000_000)
    details = f"wlog={args.window}"
    if args.strategy != "level":
        details += f",strategy={STRATEGIES.index(args.strategy) + 1}"
    begin = time.perf_counter()
    command = ["zstd", "-q", "-c", f"-{args.level}", f"--zstd={details}", f"-T{args.threads}", source]
    size = len(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    seconds = time.perf_counter() - begin + size / (args.link * 1e6)
    print(f"size: {size}")
    print(f"MB/s: {os.path.getsize(source) / 1e6 / seconds:.6g}")


if __name__ == "__main__":
    main()
