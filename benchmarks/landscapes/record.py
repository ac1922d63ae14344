"""Records a landscape: runs each point of a program several times and keeps every figure as data.

    python benchmarks/landscapes/record.py NAME [--repeats 5] [--out FILE] [--points N]

All points run once, in random order, then all of them again, so that a drift of the machine is spread over the points.
The file is written as it goes: Ctrl+C ends a recording, and the same command continues it. The machine should do
nothing else meanwhile. README.md beside this file says what the programs are and how to read the data.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import json
import math
import os
import platform
import random
import runpy
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from landscapes import LANDSCAPES, Landscape, Point

MEMORY_WORDS = ("out of memory", "can't allocate memory", "Cannot allocate memory", "MemoryError")
LIMIT = 60.0
"""Seconds after which a run is ended and counted as failed."""


def short(number: float, digits: int = 4) -> float:
    """The number with a few significant digits."""
    return number if not number else round(number, digits - 1 - math.floor(math.log10(abs(number))))


def machine() -> str:
    """The processor, in words."""
    name = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}"


def start(landscape: Landscape, point: Point, output: int) -> int:
    """Start a run in a session of its own, and return its process id.

    A program with slow imports is forked from this process, which has them; it has used none of what it has imported.
    """
    command = landscape.arguments(point)
    environment = landscape.environment(point)
    if not landscape.modules:
        streams = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        return os.posix_spawn(command[0], command, {**os.environ, **environment}, file_actions=streams, setsid=True)
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(environment)
        sys.argv = command[1:]
        runpy.run_path(command[1], run_name="__main__")
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def end(pid: int) -> None:
    """End a run and what it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # forked a moment ago
        os.kill(pid, signal.SIGKILL)


def run(landscape: Landscape, point: Point) -> tuple[str, float | None, float]:
    """Run a point once: its cause, its figure and its seconds."""
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        pid = start(landscape, point, output.fileno())
        signal.signal(signal.SIGALRM, lambda *_: end(pid))
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            _, status = os.waitpid(pid, 0)
        except KeyboardInterrupt:
            os.waitpid(pid, 0)  # it removes what it has written
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.monotonic() - begin
        output.seek(0)
        text = output.read().decode(errors="replace")
    figure = landscape.figure(text)
    if status == 0 and figure is not None:
        return "ok", figure, seconds
    if seconds < LIMIT and any(words in text for words in MEMORY_WORDS):
        return "out of memory", None, seconds
    print(f"{dict(point)} failed: {text.strip().splitlines()[-1:]}", flush=True)
    return "failed", None, seconds


class Recording:
    """The data of a landscape, and its file."""

    def __init__(self, name: str, path: Path) -> None:
        self.path = path
        self.landscape = LANDSCAPES[name]
        self.trials: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.trials = {json.dumps(each["point"]): each for each in json.loads(path.read_text())["trials"]}

    def times(self, point: Point) -> int:
        """How many times the point has run."""
        trial = self.trials.get(json.dumps(point))
        return len(trial["seconds"]) if trial else 0

    def add(self, point: Point, cause: str, figure: float | None, seconds: float) -> None:
        """Add a run. A point of which one run failed counts as failed: nobody would choose it."""
        trial = self.trials.setdefault(
            json.dumps(point), {"point": dict(point), "cause": "ok", "figures": [], "seconds": []}
        )
        if cause != "ok":
            trial.update(cause=cause, figures=[])
        elif trial["cause"] == "ok" and figure is not None:
            trial["figures"].append(short(figure))
        trial["seconds"].append(short(seconds, 3))

    def save(self) -> None:
        """Write the file: one line for each trial, in the order of the points."""
        landscape = self.landscape
        head = {
            "program": landscape.program,
            "machine": machine(),
            "recorded": datetime.date.today().isoformat(),
            "parameters": [vars(each) for each in landscape.parameters],
            "goal": {"name": landscape.goal, "direction": landscape.direction},
        }
        lines = [self.trials[key] for key in map(json.dumps, landscape.points()) if key in self.trials]
        trials = ",\n".join(json.dumps(each, separators=(",", ":")) for each in lines)
        part = self.path.with_suffix(".part")
        part.write_text(f'{json.dumps(head)[:-1]}, "trials": [\n{trials}\n]}}\n')
        part.replace(self.path)

    def summary(self) -> str:
        """The noise, the best points and the sum of all seconds."""
        ok = [each for each in self.trials.values() if each["cause"] == "ok"]
        spreads = [deviation(each["figures"]) for each in ok if len(each["figures"]) > 1]
        causes = [each["cause"] for each in self.trials.values()]
        seconds = sum(sum(each["seconds"]) for each in self.trials.values())
        lines = [
            f"{len(causes)} points: {', '.join(f'{causes.count(each)} {each}' for each in sorted(set(causes)))}; "
            f"{seconds:.0f} s of runs"
        ]
        if spreads:
            worst = sorted(spreads)[int(0.9 * len(spreads))]
            lines.append(
                f"noise (relative standard deviation): median {statistics.median(spreads):.1%}, 90th {worst:.1%}"
            )
        best = sorted(ok, key=lambda each: statistics.median(each["figures"]), reverse=True)
        if self.landscape.direction == "minimize":
            best.reverse()
        lines += [f"{statistics.median(each['figures']):10.5g}  {each['point']}" for each in best[:5]]
        return "\n".join(lines)


def deviation(figures: list[float]) -> float:
    return statistics.stdev(figures) / statistics.mean(figures)


def record(recording: Recording, repeats: int, points: list[dict[str, object]], name: str) -> None:
    """Run what is left to run.

    Args:
        recording: where to add the runs.
        repeats: how many times each point runs.
        points: the points.
        name: of the landscape; the order of the points depends on it.
    """
    left = sum(max(0, repeats - recording.times(each)) for each in points)
    done, begin = 0, time.monotonic()
    saved = shown = begin
    for repeat in range(repeats):
        for point in random.Random(f"{name} {repeat}").sample(points, len(points)):
            if recording.times(point) > repeat:
                continue
            recording.add(point, *run(recording.landscape, point))
            done, now = done + 1, time.monotonic()
            if now - saved > 5:
                recording.save()
                saved = time.monotonic()
            if now - shown > 10:
                shown = now
                remaining = (now - begin) / done * (left - done)
                print(f"{name}: {done} of {left} runs, about {remaining:.0f} s to go", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=LANDSCAPES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--points", type=int, help="only so many points, at random and with the default: a first try")
    args = parser.parse_args()

    path = args.out or Path(__file__).parent / f"{args.name}.json"
    recording = Recording(args.name, path)
    landscape = recording.landscape
    points = landscape.points()
    default = {each.name: each.default for each in landscape.parameters}
    if args.points:
        rest = [each for each in points if each != default]
        points = [default, *random.Random(args.name).sample(rest, args.points - 1)]
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ["OMP_NUM_THREADS"] = "1"  # where it is no parameter
    for module in landscape.modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    print(f"{args.name}: {len(points)} points x {args.repeats}; load {os.getloadavg()[0]:.2f}", flush=True)
    run(landscape, default)  # fills caches; not recorded
    try:
        record(recording, args.repeats, points, args.name)
    except KeyboardInterrupt:
        print(f"interrupted: the same command continues {path}", file=sys.stderr)
        sys.exit(130)
    finally:
        if recording.trials:
            recording.save()
    print(recording.summary())


if __name__ == "__main__":
    main()
