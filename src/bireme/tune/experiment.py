"""One experiment: a ``bireme run`` of its own, under a guardian of its own.

Whatever happens to the tuner, the guardian ends the run, and the run its ranks, on every node, by the job's own
channel. The tuner learns of the end when nothing of the experiment is left on this machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from bireme import jsontext
from bireme.errors import BiremeError
from bireme.loop import Loop, Timer
from bireme.process import guardian
from bireme.process.worker import WorkerStart
from bireme.result.exit_status import exit_code
from bireme.value import Value

_PATIENCE = 20.0
"""Seconds beyond the grace time that a run may take to end its job after SIGTERM, before it is killed."""


_LOOK = 5.0
"""Seconds between two looks at whether a run has given what it was started for."""

_TAIL = 65536
"""Bytes at the end of a log that are read for a reason."""


class Order(Value):
    """What to start. ``argv`` is a ``bireme run``; ``report`` the file that its ``--report`` writes.

    ``stdout`` and ``stderr`` are files, made anew. ``grace``: seconds that its ranks get to end. ``enough``: whether it
    has given what it was started for; a run that goes on nevertheless is ended. None: it ends by itself.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    stderr: str
    report: str
    grace: float = 10.0
    enough: Callable[[], bool] | None = None


class End(Value):
    """How the run ended.

    ``report`` is None when it did not live to write one. ``began`` in seconds since the epoch, ``seconds`` of wall
    time. ``stopped``: we had told it to stop. ``enough``: it had given what it was started for, and was ended.
    """

    exit_code: int
    report: Mapping[str, object] | None
    began: float
    seconds: float
    stopped: bool
    enough: bool = False


class Experiment:
    """An experiment under way, from its construction to the call of ``on_end``.

    Args:
        loop: the event loop.
        order: what to start.
        on_end: called once, when nothing is left of it on this machine.
        keep: descriptors that its guardian holds until then.
        files_limit: the limits of open files that it shall find, if not ours.

    Raises:
        BiremeError: its files cannot be written, or no process can be forked.
    """

    def __init__(
        self,
        loop: Loop,
        order: Order,
        on_end: Callable[[End], None],
        keep: Sequence[int] = (),
        files_limit: tuple[int, int] | None = None,
    ) -> None:
        self._loop, self._order, self._on_end = loop, order, on_end
        self._keep, self._files_limit = keep, files_limit
        self._began, self._begin = time.time(), time.monotonic()
        self._code = 128 + signal.SIGKILL
        self._stopped = self._enough = False
        self._last_resort: Timer | None = None
        _remove(order.report)
        self._handle: guardian.Handle | None = self._start()
        loop.watch(self._handle.events, self._hear)
        if order.enough is not None:
            loop.after(_LOOK, self._look)

    def _start(self) -> guardian.Handle:
        order = self._order
        with (
            open(os.devnull, "rb") as null,
            _new(order.stdout) as stdout,
            _new(order.stderr) as stderr,
        ):
            worker = WorkerStart(
                order.argv, dict(order.env), order.cwd, null.fileno(), stdout.fileno(), stderr.fileno()
            )
            return guardian.start(
                (worker,),
                keep=self._keep,
                at_loss=lambda: None,
                files_limit=self._files_limit,
                farewell=order.grace + _PATIENCE,
                watched=False,  # the run has a watcher and a guardian of its own
            )

    def stop(self) -> None:
        """Have it end in order, and be killed if it does not."""
        if self._handle is not None and not self._stopped:
            self._stopped = True
            self._terminate()

    def _terminate(self) -> None:
        assert self._handle is not None
        self._handle.tell("rank", int(signal.SIGTERM), "*")
        self._last_resort = self._last_resort or self._loop.after(self._order.grace + _PATIENCE, self.kill)

    def _look(self, seen: bool = False) -> None:
        """End a run that has given enough and still goes on at the next look: most end by themselves just now."""
        if self._handle is None or self._stopped or self._order.enough is None:
            return
        enough = self._order.enough()
        if enough and seen:
            self._enough = True
            self._terminate()
        else:
            self._loop.after(_LOOK, lambda: self._look(enough))

    def kill(self) -> None:
        """End it at once; what it has on other nodes ends as its channel closes."""
        if self._handle is not None:
            self._stopped = True
            self._handle.tell("kill")

    def signal(self, signum: int) -> None:
        """Pass SIGTSTP or SIGCONT on to the run, which does the same to its ranks."""
        if self._handle is not None:
            self._handle.tell("rank", signum, "*")

    def _hear(self) -> None:
        assert self._handle is not None
        events = self._handle.read()
        for word, *args in events or ():
            if word == "down":
                self._code = exit_code(int(args[1]))
            elif word == "unborn":
                self._code = 126
            elif word == "deserted":
                self._handle.tell("kill")  # a run that was killed may leave its own guardian at work
        if events is None or any(event[0] == "empty" for event in events):
            self._end()

    def _end(self) -> None:
        handle, self._handle = self._handle, None
        assert handle is not None
        self._loop.unwatch(handle.events)
        handle.close()
        os.waitpid(handle.pid, 0)
        if self._last_resort is not None:
            self._last_resort.cancel()
        seconds = time.monotonic() - self._begin
        report = read_report(self._order.report)
        self._on_end(End(self._code, report, self._began, seconds, self._stopped, self._enough and not self._stopped))


def read_report(path: str) -> Mapping[str, object] | None:
    """What ``--report`` wrote; None: there is nothing of use."""
    try:
        with open(path, encoding="utf-8") as file:
            report = jsontext.loads(file.read())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def tail(path: str) -> str:
    """The end of a log, where the reason stands; "" where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _new(path: str) -> BinaryIO:
    """A log, for the user alone: many programs begin by printing their arguments."""
    try:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")
    except OSError as error:
        raise BiremeError(f"{path} cannot be written: {error.strerror}") from error


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
