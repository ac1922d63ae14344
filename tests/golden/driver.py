"""Types commands of Bireme in this process, under a virtual clock, with programs that are simulated.

The only file of the golden records that names anything of Bireme. It uses:

- ``bireme.cli.main.main(argv)``: the command line;
- ``bireme.process.guardian.start``, replaced: the start of a ``bireme run``, of which the simulation gets the command
  line and the files of its output, and answers with the events of a guardian (``down``, ``empty``);
- ``bireme.result.outcome`` and ``report_record.of_outcome``: what a run writes to its ``--report``;
- ``bireme.errors.INTERNAL``: the exit code of a bug of ours;
- ``bireme.resources.devices.discover`` and ``nvidia.smallest_memory``, replaced: which GPUs this machine has;
- of the standard library, replaced before anything of Bireme is imported: ``time.monotonic``, ``time.time``,
  ``select.epoll`` (nothing waits, the clock jumps), ``os.waitpid`` for simulated processes, ``os.fsync``, ``sum``.

Use it in a process of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import heapq
import io
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

EPOCH = 1_790_000_000.0 - 8
"""The time of day at which every study begins: some seconds before a full minute."""


class World:
    """The clock, and what will happen."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, now: float = 1000.0) -> None:
        self.now = now
        self._serial = count()
        self._future: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._future, (max(when, self.now), next(self._serial), do))

    def advance(self, seconds: float | None) -> None:
        """Let the next thing happen, unless that takes longer than a waiting caller waits."""
        if self._future and (seconds is None or self._future[0][0] <= self.now + seconds):
            self.now, _, do = heapq.heappop(self._future)
            do()
        elif seconds is None:
            raise AssertionError("the tuner waits, and nothing will happen any more")
        else:
            self.now += seconds


WORLD = World()
_PIDS = count(1 << 40)


class _Epoll:
    """The real one, but waiting is instant: the clock jumps."""

    def __init__(self) -> None:
        self._real = _epoll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        ready = self._real.poll(0, maxevents)
        if ready or timeout == 0:
            return ready
        WORLD.advance(None if timeout is None or timeout < 0 else timeout)
        return self._real.poll(0, maxevents)


_epoll = select.epoll
_waitpid = os.waitpid


def install() -> None:
    """Replace the clock. To be called before Bireme is imported."""
    assert not any(name.partition(".")[0] == "bireme" for name in sys.modules), "Bireme has the real clock already"
    os.environ["TZ"] = "UTC"
    time.tzset()
    time.monotonic = lambda: WORLD.now
    time.time = lambda: EPOCH - 1000.0 + WORLD.now
    time.sleep = lambda seconds: setattr(WORLD, "now", WORLD.now + seconds)
    select.epoll = _Epoll  # type: ignore[misc, assignment]
    os.fsync = os.fdatasync = lambda fd: None
    os.waitpid = lambda pid, options: (pid, 0) if pid >= 1 << 40 else _waitpid(pid, options)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    if sys.version_info >= (3, 12):  # which adds floats more exactly: in the last bits, that decides ties
        builtins.sum = plain_sum  # type: ignore[assignment]
    from bireme.process import guardian

    guardian.start = lambda workers, **_: Run(workers[0])  # type: ignore[assignment, return-value]


def plain_sum(numbers: Iterable[Any], start: Any = 0) -> Any:
    """As `sum` adds before Python 3.12."""
    for number in numbers:
        start = start + number
    return start


# -- a run -----------------------------------------------------------------------------------------------


class Launched(NamedTuple):
    """The ``bireme run`` that the tuner starts: its options, the program's arguments, its exports, and when."""

    options: dict[str, str]
    args: list[str]
    exports: dict[str, str]
    folder: str
    when: float


class Happening(NamedTuple):
    """What a run does: texts on stdout or stderr (1, 2) or in files (by path), each after some seconds; and its end.

    ``report``: further fields of its ``--report``; None: it leaves none. ``deaf``: a signal does not end it.
    """

    writes: Sequence[tuple[float, int | str, str]] = ()
    seconds: float = 1.0
    code: int = 0
    report: Mapping[str, Any] | None = MappingProxyType({})
    deaf: bool = False


Program = Callable[[Launched], Happening]
PROGRAM: list[Program] = []
"""The program that all runs run; the last one."""

_FLAGS = ("--timestamps",)


class Run:
    """A simulated ``bireme run``, with the interface of a guardian's handle."""

    def __init__(self, worker: Any) -> None:
        self.pid = next(_PIDS)
        self.commands = -1
        self.events, self._write = os.pipe()
        self._out = {1: os.dup(worker.stdout), 2: os.dup(worker.stderr)}
        words = list(worker.argv[worker.argv.index("run") + 1 :])
        self._launched = _launched(words, worker.cwd)
        self._when, self._is_program = self._launched.when, "BIREME_TRIAL" in self._launched.exports
        self._happening = PROGRAM[-1](self._launched)
        self._over = False
        for seconds, where, text in self._happening.writes:
            WORLD.at(WORLD.now + seconds, lambda where=where, text=text: self._put(where, text))  # type: ignore[misc]
        done = self._happening
        limit = float(self._launched.options.get("--time_limit", "inf"))
        if done.seconds > limit:
            late = {"cause": "time limit", "note": f"the time limit of {limit:g} s"}
            done = done._replace(seconds=limit, code=124, report=late)
        WORLD.at(WORLD.now + done.seconds, lambda: self._end(done.code, done.report))

    def _put(self, where: int | str, text: str) -> None:
        if self._over:
            return
        if isinstance(where, str):
            with open(os.path.join(self._launched.folder, where), "w", encoding="utf-8") as file:
                file.write(text)
            return
        # Seconds of the world's day, cut to milliseconds; of a program, since it began. The records are of such times.
        now, began = (seconds % 86400 // 1 + seconds % 1 for seconds in (time.time(), EPOCH - 1000.0 + self._when))
        second = now // 1 + float(f"{now % 1 * 1000 // 1 / 1000:.3f}")
        rank = f"[{second - began if self._is_program else second!r} localhost:0] "
        os.write(self._out[where], "".join(f"{rank}{line}\n" for line in text.split("\n")).encode())

    def _end(self, code: int, report: Mapping[str, Any] | None) -> None:
        if self._over:
            return
        self._over = True
        took = round(WORLD.now - self._launched.when, 6)
        if report is not None:
            from bireme.result.outcome import Outcome, RankEnd
            from bireme.result.report_record import of_outcome

            given = dict(report)
            end = RankEnd(
                rank=0,
                host="localhost",
                device="",
                pid=7,
                code=code,
                by_signal=False,
                seconds=max(0.0, took - 0.5),
                stopped=False,
                detail=given.pop("detail", ""),
            )
            first = end if given.get("cause") == "rank failed" else None
            outcome = Outcome(exit_code=code, seconds=took, ends=(end,), first=first, **{"cause": "ok", **given})
            with open(os.path.join(self._launched.folder, self._launched.options["--report"]), "w") as file:
                json.dump(of_outcome(outcome), file)
        status = code << 8 if code < 128 else code - 128
        os.write(self._write, f"down 0 {status}\nempty\n".encode())

    def tell(self, *words: object) -> None:
        if words[0] == "kill":
            WORLD.at(WORLD.now, lambda: self._end(137, None))
        elif words[0] == "rank" and words[1] in (signal.SIGINT, signal.SIGTERM) and not self._happening.deaf:
            code = 128 + int(str(words[1]))
            WORLD.at(WORLD.now + 0.25, lambda: self._end(code, {"cause": "signal", "signum": code - 128}))

    def read(self) -> list[list[str]]:
        return [line.split() for line in os.read(self.events, 65536).decode().splitlines()]

    def close(self, **_: object) -> None:
        for fd in (self.events, self._write, *self._out.values()):
            os.close(fd)


def _launched(words: list[str], folder: str) -> Launched:
    """The parts of the command line of a run; the script ends in ``.py``."""
    options: dict[str, str] = {}
    exports: dict[str, str] = {}
    place = 0
    while not words[place].endswith(".py"):
        name, joined, value = words[place].partition("=")
        if not joined and name not in _FLAGS:
            place += 1
            value = words[place]
        if name == "--export":
            key, _, text = value.partition("=")
            exports[key] = text
        else:
            options[name] = value
        place += 1
    return Launched(options, words[place + 1 :], exports, folder, WORLD.now)


# -- a command -------------------------------------------------------------------------------------------


class Screen(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A new working directory, in memory if possible."""
    here, shared = os.getcwd(), "/dev/shm"
    path = tempfile.mkdtemp(prefix="golden-", dir=shared if os.access(shared, os.W_OK) else None)
    os.chdir(path)
    try:
        yield path
    finally:
        os.chdir(here)
        shutil.rmtree(path)


def type_command(*words: str, program: Program | None = None, signals: Sequence[float] = ()) -> Screen:
    """Type a command in the working directory.

    Args:
        words: the command line without ``bireme``.
        program: what its runs run.
        signals: seconds from now at which Ctrl+C is pressed.
    """
    from bireme.cli.main import main
    from bireme.errors import INTERNAL

    PROGRAM.append(program or _none)
    pressed = [True]
    for seconds in signals:
        WORLD.at(WORLD.now + seconds, lambda: signal.raise_signal(signal.SIGINT) if pressed else None)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), _messages() as said:
            code = main(list(words))
    finally:
        pressed.clear()
        PROGRAM.pop()
    WORLD.reset(WORLD.now)
    if code == INTERNAL:
        raise AssertionError(f"bireme {' '.join(words)}\n{out.getvalue()}\n{said[0]}")
    return Screen(code, out.getvalue(), said[0])


@contextlib.contextmanager
def _messages() -> Iterator[list[str]]:
    """Catch what is written to descriptor 2; the list has it afterwards."""
    said: list[str] = []
    sys.stderr.flush()
    was = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(was, 2)
            os.close(was)
            file.seek(0)
            said.append(file.read().decode())


def converse(*words: str, lines: Iterator[dict[str, Any]], replies: list[dict[str, Any]]) -> Screen:
    """Type a command that answers each line of JSON on stdin by one on stdout.

    Args:
        words: the command line without ``bireme``.
        lines: what is typed.
        replies: gets the answers.
    """
    from bireme.cli.main import main

    class Answers(io.StringIO):
        def write(self, text: str) -> int:
            replies.extend(json.loads(line) for line in text.splitlines() if line.strip())
            return len(text)

    was = sys.stdin
    sys.stdin = map("{}\n".format, map(json.dumps, lines))  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(Answers()), _messages() as said:
            code = main(list(words))
    finally:
        sys.stdin = was
    return Screen(code, "", said[0])


@contextlib.contextmanager
def gpus(capacity: int | None) -> Iterator[None]:
    """While this machine has eight GPUs with so much memory; None: it has none."""
    from bireme.resources import devices, nvidia

    was = devices.discover, nvidia.smallest_memory
    there = devices.Devices("cpu", ("0",)) if capacity is None else devices.Devices("cuda", tuple("01234567"))
    devices.discover = lambda *_, **__: there  # type: ignore[assignment]
    nvidia.smallest_memory = lambda ids: capacity  # type: ignore[assignment]
    try:
        yield
    finally:
        devices.discover, nvidia.smallest_memory = was


def _none(launched: Launched) -> Happening:
    raise AssertionError(f"nothing should run: {launched.args}")


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """While another process has this file open and locked, as a tuner that runs has its journal."""
    import fcntl

    ready, told = os.pipe()
    stay, leave = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(leave)
            with open(path, "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                os.write(told, b"x")
                os.read(stay, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        yield
    finally:
        for fd in (ready, told, stay, leave):
            os.close(fd)
        _waitpid(pid, 0)
