"""Shared by the benchmarks: runs contestants in turn, prints tables, and finds the processes of a command.

The speed of a machine drifts, and other processes disturb it. So contestants take turns (A B C A B C …), each run is
divided by the bare loop's run of the same round, and the median of these ratios counts. Tables also show the minimum,
because noise only adds time. This works only on Linux, because processes are found in ``/proc``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
FEWEST = 3
"""The number of rounds that even the slowest contestant runs."""
PR_SET_CHILD_SUBREAPER = 36


# -- contestants -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launcher:
    """The parts of a launcher's command line: head, options, count, number of ranks, interpreter if needed, program."""

    name: str
    head: tuple[str, ...]
    count: tuple[str, ...]
    no_python: tuple[str, ...] | None = None  # None: the launcher always runs executables
    env: dict[str, str] = field(default_factory=dict)

    def script(self, ranks: int, *words: str, options: Iterable[str] = ()) -> list[str]:
        """The command that runs a Python script."""
        own = () if self.no_python is not None else (sys.executable,)
        return [*self.head, *options, *self.count, str(ranks), *own, *words]

    def program(self, ranks: int, *words: str, options: Iterable[str] = ()) -> list[str]:
        """The command that runs an executable."""
        return [*self.head, *(self.no_python or ()), *options, *self.count, str(ranks), *words]


def program(name: str) -> str:
    """The path of a program that the contestants run."""
    return os.path.join(PROGRAMS, name)


def _known(found: Callable[[str], str | None]) -> dict[str, Launcher | None]:
    """Every launcher by its name; ``None`` if it is not installed."""

    def peer(name: str, executable: str, *head: str, **more: object) -> Launcher | None:
        path = found(executable)
        return Launcher(name, (path, *head), **more) if path else None  # type: ignore[arg-type]

    bare = Launcher("bare", (sys.executable, program("bare.py")), ())
    # All launchers run ranks on the CPU, even on a machine with GPUs.
    return {
        "bare": bare,
        "bireme": peer(
            "bireme", "bireme", "run", "--accelerator", "cpu", count=("--num_gpus",), no_python=("--no_python",)
        ),
        "torchrun": peer(
            "torchrun", "torchrun", "--standalone", count=("--nproc-per-node",), no_python=("--no-python",)
        ),
        "deepspeed": peer(
            "deepspeed",
            "deepspeed",
            "--no_local_rank",
            count=("--num_accelerators",),
            no_python=("--no_python",),
            env={"DS_ACCELERATOR": "cpu"},
        ),
        "openmpi": peer("openmpi", "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", count=("-n",)),
        "mpich": peer("mpich", "mpirun.mpich", count=("-n",)),
    }


def arguments(doc: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options that the benchmarks of one machine share."""
    parser = argparse.ArgumentParser(description=doc.strip().split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each contestant runs (%(default)s)")
    parser.add_argument("--peers", action="append", default=[], metavar="DIR", help="also look for launchers in DIR")
    parser.add_argument(
        "--only", default="", metavar="NAME,…", help="run only these: " + ", ".join(_known(lambda _: ""))
    )
    parser.add_argument("--json", metavar="FILE", help="write every single measurement into this file")
    return parser


def contestants(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, Launcher]:
    """Return the selected launchers that are installed, and print the missing ones. Makes this process a subreaper."""
    places = os.pathsep.join([*args.peers, os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    known = _known(lambda name: shutil.which(name, path=places))
    wanted = args.only.split(",") if args.only else list(known)
    if strange := [name for name in wanted if name not in known]:
        parser.error(f"--only: unknown name: {strange[0]!r} (expected: {', '.join(known)})")
    missing = [name for name in wanted if known[name] is None]
    if "bireme" in missing:
        parser.error("bireme is not installed beside this interpreter: pip install --editable .")
    if missing:
        print(f"left out, because neither on PATH nor in a --peers directory: {', '.join(missing)}")
    adopt_orphans()
    return {name: launcher for name in known if name in wanted and (launcher := known[name])}


def environ(launcher: Launcher, **more: str) -> dict[str, str]:
    """A contestant's environment, without the variables that would change how its interpreter runs."""
    drop = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    return {**{name: value for name, value in os.environ.items() if name not in drop}, **launcher.env, **more}


# -- running -----------------------------------------------------------------------------------------------------------


def start(launcher: Launcher, command: Sequence[str], **kwargs: object) -> subprocess.Popen[bytes]:
    """Start a contestant's command in its own session, with stdin and output at ``/dev/null`` unless given."""
    for stream in ("stdin", "stdout", "stderr"):
        kwargs.setdefault(stream, subprocess.DEVNULL)
    kwargs.setdefault("cwd", tempfile.gettempdir())
    return subprocess.Popen(command, env=environ(launcher), start_new_session=True, **kwargs)  # type: ignore[call-overload]


def seconds(launcher: Launcher, command: Sequence[str], *, limit: float = 600, **kwargs: object) -> float:
    """Run a contestant's command to its end.

    Args:
        launcher: the contestant; its environment applies.
        command: the command line.
        limit: the longest time it may take, in seconds.
        kwargs: passed to ``Popen``.

    Returns:
        How long it took, in seconds.

    Raises:
        SystemExit: the command failed or reached the limit. This ends the benchmark.
    """
    with tempfile.TemporaryFile() as err:
        begin = time.perf_counter()
        process = start(launcher, command, stderr=err, **kwargs)
        try:
            ended = wait(process, limit)
        except BaseException:  # interrupted: the command has its own session and would run on
            sweep(process)
            raise
        took = time.perf_counter() - begin
        if ended and not process.wait():
            return took
        sweep(process)
        err.seek(0)
        words = err.read().decode(errors="replace")[-2000:]
    how = f"ended with {process.returncode}" if ended else f"had not ended after {limit:g} s"
    raise SystemExit(f"{launcher.name}: {' '.join(command)}\n{how}:\n{words}")


def wait(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait up to ``limit`` seconds for the end, and return whether it came.

    ``Popen.wait`` with a limit polls at intervals of up to 50 ms, which would distort the measurement.
    """
    fd = os.pidfd_open(process.pid)
    try:
        return bool(select.select([fd], [], [], limit)[0])
    finally:
        os.close(fd)


def take_turns(
    runs: dict[str, Callable[[], float]], rounds: int, *, patience: float = 30.0
) -> dict[str, list[float | None]]:
    """Run all contestants in turn.

    The first round does not count: it fills caches and compiles bytecode.

    Args:
        runs: by name, a function that runs the contestant once and returns its time in seconds.
        rounds: the number of rounds.
        patience: a contestant that has used this many seconds skips the rest, after :data:`FEWEST` rounds.

    Returns:
        The times of each contestant by round, in seconds; ``None`` for a round that it skipped.
    """
    for name, run in runs.items():
        progress(f"warming up: {name}")
        run()
    figures: dict[str, list[float | None]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            mine = figures[name]
            progress(f"round {number + 1} of {rounds}: {name}")
            mine.append(None if number >= FEWEST and sum(filter(None, mine)) > patience else run())
    progress("")
    return figures


def progress(text: str) -> None:
    """Show on a terminal what runs now."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


# -- figures -----------------------------------------------------------------------------------------------------------


def median(figures: Iterable[float | None]) -> float | None:
    """The median of the figures that are not ``None``."""
    there = [figure for figure in figures if figure is not None]
    return statistics.median(there) if there else None


def ratio(figures: Sequence[float | None], bare: Sequence[float | None] | None) -> float | None:
    """The median of the ratios to the bare loop, round by round."""
    if bare is None:
        return None
    return median(a / b for a, b in zip(figures, bare, strict=True) if a is not None and b)


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value * 1000:,.1f}" if value < 1 else f"{value * 1000:,.0f}"


def decimals(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: the first column to the left, figures to the right."""
    rows = [list(map(str, row)) for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *rows]) for i in range(len(header))]
    print(f"\n{title}\n")
    for row in [list(header), ["-" * width for width in widths], *rows]:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *rest]).rstrip())
    sys.stdout.flush()


def write_json(path: str | None, **results: object) -> None:
    """Write every measurement into a file, with facts about the machine that are needed to judge it."""
    if path is None:
        return
    load = os.getloadavg()[0]
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release, "python": platform.python_version(), "load": load}
    with open(path, "w") as file:
        json.dump({"machine": machine, **results}, file, indent=1)
        file.write("\n")


# -- processes ---------------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become a subreaper, so that whatever a command leaves behind becomes a child of ours and is found."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        pass  # the process has just ended
    return found


def descendants() -> set[int]:
    """All living processes below this one."""
    found: set[int] = set()
    fresh = children(os.getpid())
    while fresh:
        found.update(fresh)
        fresh = [child for pid in fresh for child in children(pid) if child not in found]
    return {pid for pid in found if stat(pid)[0] not in "ZX"}


def stat(pid: int) -> tuple[str, int]:
    """Return (state, parent) of a process; state ``X`` if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1])
    except OSError:
        return "X", 0


def status_kib(pid: int, name: str) -> int:
    """A size in KiB from ``/proc/PID/status``, such as ``VmHWM``; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(name + ":")), 0)
    except OSError:
        return 0


def unshared_kib(pid: int) -> int:
    """The memory in KiB that would be free without this process."""
    return _memory_kib(pid, "Private_Clean:", "Private_Dirty:")


def rss_kib(pid: int) -> int:
    """The resident memory of a process in KiB; exact, unlike ``VmRSS`` of a process with several threads."""
    return _memory_kib(pid, "Rss:")


def _memory_kib(pid: int, *names: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(names))
    except OSError:
        return status_kib(pid, "VmRSS")


def start_scene(
    launcher: Launcher, ranks: int, part: str, folder: str, *, options: Iterable[str] = ()
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start ``scene.py`` and wait until all its ranks have started.

    Args:
        launcher: the contestant.
        ranks: the number of ranks.
        part: what rank 1 does, see ``scene.py``.
        folder: an empty folder for the files of the scene.
        options: more options for the launcher.

    Returns:
        The command's process, and the pids of the ranks.

    Raises:
        SystemExit: the ranks did not start.
    """
    command = launcher.script(ranks, program("scene.py"), part, folder, options=options)
    with open(os.path.join(folder, "stderr"), "wb") as err:
        process = start(launcher, command, stderr=err)
    try:
        return process, _await_ranks(process, folder, ranks)
    except BaseException:
        sweep(process)
        raise


def _await_ranks(process: subprocess.Popen[bytes], folder: str, ranks: int, limit: float = 120) -> list[int]:
    deadline = time.monotonic() + limit
    while True:
        names = sorted((name for name in os.listdir(folder) if name.startswith("rank")), key=lambda n: int(n[4:]))
        if len(names) == ranks:
            return [int(open(os.path.join(folder, name)).read()) for name in names]
        if process.poll() is not None or time.monotonic() > deadline:
            code = process.returncode
            with open(os.path.join(folder, "stderr"), errors="replace") as file:
                words = file.read()[-2000:]
            raise SystemExit(f"{process.args}: {len(names)} of {ranks} ranks started; exit code {code}:\n{words}")
        time.sleep(0.005)


def sweep(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap everything below this process."""
    while left := descendants():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)
    process.wait()
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
