"""Measures how fast a launcher passes on its ranks' output, and checks that every line arrives whole.

a  Two Python writers write a million lines of 100 bytes each into one file; ``bare`` does so without a launcher.
b  One writer in C writes 500 MB in lines of 100 bytes into a file and into /dev/null.
c  64 writers in C write 100 MB each without a newline; measures time and the launcher's peak memory.
d  As (a), with Python's own print, and with ``-u`` for all contestants, because Bireme adds it; for information.

The output of (a), (b, file) and (d) is read back. A line is *torn* if it is not one rank's line with that rank's label,
*lost* if no whole copy of it arrived, and *late* if it came after a later line of its rank.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, TypeAlias

import contest
from contest import Launcher, decimals

Results: TypeAlias = list[dict[str, Any]]

LINE = 100
LOGS = "torchrun-logs"
WORDS = re.compile(rb"\[20\d\d-(?!.*xxxx)")  # what deepspeed itself says on stdout


@dataclass(frozen=True)
class Way:
    """A launcher with the options that make it label lines.

    ``{}`` in ``label`` stands for the rank; an empty ``label`` means that lines are not labelled.
    """

    launcher: Launcher
    options: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Reading:
    """How many lines the file contains, and how many of the written lines are torn, lost or late."""

    lines: int
    torn: int
    lost: int
    late: int


def ways(launchers: dict[str, Launcher], folder: str) -> dict[str, Way]:
    """Every way of passing output on, for the launchers that are installed."""
    host = os.uname().nodename.partition(".")[0]
    known = {
        "bare": ("bare", (), ""),
        "bireme prefix": ("bireme", ("--output", "prefix"), f"[{host}:{{}}] "),
        "torchrun untagged": ("torchrun", (), ""),
        "torchrun --tee": ("torchrun", ("--tee", "3", "--log-dir", os.path.join(folder, LOGS)), "[default{}]:"),
        "deepspeed untagged": ("deepspeed", (), ""),
        "openmpi --tag-output": ("openmpi", ("--tag-output",), "[1,{}]<stdout>:"),
        "mpich -prepend-rank": ("mpich", ("-prepend-rank",), "[{}] "),
    }
    return {
        name: Way(launchers[launcher], options, label)
        for name, (launcher, options, label) in known.items()
        if launcher in launchers
    }


def read_back(file: BinaryIO, ranks: int, count: int, label: str) -> Reading:
    """Check every line of a file.

    Args:
        file: what the ranks wrote.
        ranks: the number of ranks.
        count: the number of lines that each rank wrote.
        label: the label before each line, with ``{}`` for the rank.
    """
    texts = [f"{label.format(rank)}rank {rank} line ".encode() + b"%09d " + b"x" * 77 + b"\n" for rank in range(ranks)]
    whole = [re.compile(re.escape(text).replace(rb"%09d", rb"(\d{9})")) for text in texts]
    where = len(label.format(0)) + 5  # the rank's digit
    following, arrived = [0] * ranks, [0] * ranks
    lines = torn = late = 0
    for line in file:
        lines += 1
        rank = line[where] - 48 if len(line) > where else -1
        if 0 <= rank < ranks:
            number = following[rank]
            if line == texts[rank] % number:  # nearly always
                following[rank] = number + 1
                arrived[rank] += 1
                continue
            if found := whole[rank].fullmatch(line):
                number = int(found[1])
                late += number < following[rank]
                following[rank] = max(following[rank], number + 1)
                arrived[rank] += 1
                continue
        if WORDS.match(line):
            lines -= 1
        else:
            torn += 1
    return Reading(lines, torn, sum(count - n for n in arrived), late)


def write_once(
    launcher: Launcher, command: list[str], path: str, check: Callable[[BinaryIO], Reading] | None = None
) -> tuple[float, Reading | None]:
    """Run a command with its stdout in a file, check the file, and remove it.

    Args:
        launcher: the contestant.
        command: the command line.
        path: the file.
        check: reads the file; ``None`` if it is not to be read.

    Returns:
        The time in seconds, and what ``check`` has found.
    """
    try:
        with open(path, "ab") as out:  # append mode: ranks that inherit the file do not overwrite each other
            took = contest.seconds(launcher, command, stdout=out)
        if check is None:
            return took, None
        with open(path, "rb", buffering=1 << 20) as file:
            return took, check(file)
    finally:
        if os.path.isfile(path):
            os.remove(path)
        shutil.rmtree(os.path.join(os.path.dirname(path), LOGS), ignore_errors=True)


def part_a(ways: dict[str, Way], args: Namespace, folder: str) -> Results:
    title = f"a  Two Python writers, {args.lines:,} lines of {LINE} bytes each, into one file"
    return two_writers(title, ways, args.rounds, folder, args.lines)


def part_d(ways: dict[str, Way], args: Namespace, folder: str) -> Results:
    title = f"d  Two Python writers, {args.print_lines:,} lines each with print and -u, into one file"
    return two_writers(title, ways, args.rounds, folder, args.print_lines, print_=True)


def two_writers(
    title: str, ways: dict[str, Way], rounds: int, folder: str, count: int, *, print_: bool = False
) -> Results:
    """Run the contest of two Python writers and print its table.

    Args:
        title: the title of the table.
        ways: the contestants.
        rounds: the number of rounds.
        folder: where the output goes.
        count: the number of lines that each writer writes.
        print_: write with Python's print, not through a buffer.
    """
    readings: dict[str, list[Reading]] = {name: [] for name in ways}

    def run(name: str) -> float:
        way = ways[name]
        words = [contest.program("writer.py"), str(count), "print" if print_ else "buffer"]
        command = way.launcher.script(2, *words, options=way.options)
        if print_ and way.launcher.no_python is None:  # we choose the interpreter's options
            command.insert(command.index(words[0]), "-u")
        path = os.path.join(folder, "output")
        took, reading = write_once(way.launcher, command, path, lambda file: read_back(file, 2, count, way.label))
        readings[name].append(reading)
        return took

    times = contest.take_turns({name: partial(run, name) for name in ways}, rounds, patience=60)
    rows, results = [], []
    for name, figures in times.items():
        there = [figure for figure in figures if figure is not None]
        middle, ratio = contest.median(there), contest.ratio(figures, times.get("bare"))
        speed = 2 * count * LINE / 1e6 / middle
        worst = max(readings[name], key=lambda reading: (reading.lost, reading.torn, reading.late))
        found = [f"{number:,}" for number in vars(worst).values()]
        best = contest.milliseconds(min(there))
        rows.append([name, contest.milliseconds(middle), best, decimals(ratio), decimals(speed, 0), *found, len(there)])
        results.append(
            {"name": name, "seconds": figures, "ratio": ratio, "readings": [vars(each) for each in readings[name]]}
        )
    header = ["way", "median ms", "min ms", "ratio", "MB/s", "lines", "torn", "lost", "late", "rounds"]
    contest.table(title, header, rows)
    return results


def part_b(ways: dict[str, Way], args: Namespace, folder: str) -> Results:
    count = args.c_lines
    writer = [compiled(folder), "lines", str(count)]
    readings: dict[str, Reading] = {}

    def run(name: str, path: str) -> float:
        way = ways[name]
        command = writer if name == "bare" else way.launcher.program(1, *writer, options=way.options)
        if path == os.devnull or name in readings:  # read back only once, because it takes longer than writing
            return write_once(way.launcher, command, path)[0]
        took, readings[name] = write_once(way.launcher, command, path, lambda it: read_back(it, 1, count, way.label))
        return took

    rows, results = [], []
    for path in (os.path.join(folder, "output"), os.devnull):
        times = contest.take_turns({name: partial(run, name, path) for name in ways}, args.rounds, patience=60)
        for name, figures in times.items():
            there = [figure for figure in figures if figure is not None]
            speeds = [count * LINE / 1e6 / figure for figure in there]
            into = path if path == os.devnull else "file"
            found = ["", ""] if into != "file" else [f"{readings[name].torn:,}", f"{readings[name].lost:,}"]
            middle, speed = contest.milliseconds(contest.median(there)), decimals(contest.median(speeds), 0)
            label = "writer alone" if name == "bare" else name
            rows.append([label, into, middle, speed, decimals(max(speeds), 0), *found, len(there)])
            results.append({"name": name, "into": into, "seconds": figures, "reading": vars(readings[name])})
    header = ["way", "into", "median ms", "MB/s", "best MB/s", "torn", "lost", "rounds"]
    contest.table(f"b  One writer in C, {count * LINE / 1e6:,.0f} MB in lines of {LINE} bytes", header, rows)
    return results


def part_c(ways: dict[str, Way], args: Namespace, folder: str) -> Results:
    writer, total = compiled(folder), args.flood_ranks * args.flood_mb
    rows, results = [], []
    for name, way in ways.items():
        if name == "bare":
            continue
        contest.progress(f"flood: {name}")
        words = writer, "flood", str(args.flood_mb * 1_000_000)
        command = way.launcher.program(args.flood_ranks, *words, options=way.options)
        begin = time.perf_counter()
        process = contest.start(way.launcher, command)
        try:
            peak = peak_mib(process, writer)
            took = time.perf_counter() - begin
            code = process.wait()
        finally:
            contest.sweep(process)
        rows.append([name, decimals(took, 1), decimals(total / took, 0), decimals(peak, 1), code])
        results.append({"name": name, "seconds": took, "peak_mib": peak, "code": code})
    contest.progress("")
    title = f"c  {args.flood_ranks} writers in C, {args.flood_mb} MB each without a newline, into /dev/null"
    contest.table(title, ["way", "seconds", "MB/s", "peak RSS MiB", "exit"], rows)
    return results


def peak_mib(process: subprocess.Popen[bytes], writer: str) -> float:
    """Wait for the command's end; return the sum of the peaks in MiB of all its processes that are not writers."""
    peaks: dict[int, int] = {}
    writers: set[int] = set()
    while not contest.wait(process, 0.05):
        for pid in contest.descendants() - writers:
            try:
                running = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            if running == writer:
                writers.add(pid)  # its memory before the exec does not count either
            else:
                peaks[pid] = max(peaks.get(pid, 0), contest.status_kib(pid, "VmHWM"))
    return sum(peak for pid, peak in peaks.items() if pid not in writers) / 1024


def compiled(folder: str) -> str:
    """The path of the writer in C, which is compiled at the first call."""
    path = os.path.realpath(os.path.join(folder, "writer"))
    if not os.path.exists(path):
        subprocess.run(["cc", "-O2", "-o", path, contest.program("writer.c")], check=True)
    return path


PARTS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d}


def main() -> int:
    parser = contest.arguments(__doc__, rounds=5)
    parser.add_argument("--part", default="a,b,c,d", metavar="LETTER,…", help="run only these parts (%(default)s)")
    parser.add_argument(
        "--dir", metavar="DIR", help="write files into DIR, on a disk (default: the temporary directory)"
    )
    parser.add_argument(
        "--lines", type=int, default=1_000_000, metavar="N", help="(a) lines of each rank (%(default)s)"
    )
    parser.add_argument("--c_lines", type=int, default=5_000_000, metavar="N", help="(b) lines (%(default)s)")
    parser.add_argument("--flood_ranks", type=int, default=64, metavar="N", help="(c) ranks (%(default)s)")
    parser.add_argument(
        "--flood_mb", type=int, default=100, metavar="MB", help="(c) megabytes of each rank (%(default)s)"
    )
    parser.add_argument("--print_lines", type=int, default=300_000, metavar="N", help="(d) lines (%(default)s)")
    args = parser.parse_args()
    launchers = contest.contestants(parser, args)
    parts = args.part.split(",")
    if {"b", "c"} & {*parts} and not shutil.which("cc"):
        print("left out, because there is no C compiler (cc): parts b and c")
        parts = [part for part in parts if part not in "bc"]
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        results = {part: PARTS[part](ways(launchers, folder), args, folder) for part in parts}
    contest.write_json(args.json, benchmark="output", results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
