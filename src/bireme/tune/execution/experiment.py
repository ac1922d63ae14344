"""One running experiment: a ``bireme run`` under its own guardian. Ends it when its metrics are known or it cannot win.

If the tuner dies, the guardian ends the run, and the run ends its ranks on every node over the job's own channels. The
tuner learns of the end when no process of the experiment is left on this machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from bireme import drafts, isolated, jsontext
from bireme.errors import BiremeError
from bireme.job import DEFAULT_GRACE
from bireme.loop import Loop, Timer
from bireme.process import guardian
from bireme.process.worker import WorkerStart
from bireme.regular_file import open_regular, read_regular
from bireme.result.outcome import exit_code
from bireme.value import Value

_PATIENCE = 20.0
"""Seconds beyond the grace time that a run may take to end its job after SIGTERM, before it is killed."""

_TAIL = 65536
"""Bytes at the end of a log in which the reason for a failure is looked for."""


class LaunchRequest(Value):
    """What to start.

    Attributes:
        argv: the command line of a ``bireme run``.
        stdout, stderr: the files of its output, which are truncated first.
        report: the file of its ``--report``.
        grace: seconds that its ranks get to end after SIGTERM.
        end_reason: why the run is ended now: it cannot win any more, or has measured and goes on; "" while there is no
            reason. Called with the seconds since its start.
        every: seconds between two calls of ``end_reason``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    stderr: str
    report: str
    grace: float = DEFAULT_GRACE
    end_reason: Callable[[float], str] | None = None
    every: float = 5.0

    @classmethod
    def of_run(
        cls, words: Sequence[str], environ: Mapping[str, str], file: Callable[[str], str], *, grace: float
    ) -> LaunchRequest:
        """``bireme run WORDS``; ``file`` returns the path of one of the experiment's files."""
        return cls(
            argv=isolated.command("bireme", "run", *words),
            env=dict(environ),
            cwd=os.getcwd(),
            stdout=file("stdout.log"),
            stderr=file("stderr.log"),
            report=file("outcome.json"),
            grace=grace,
        )


class End(Value):
    """How a run ended.

    Attributes:
        exit_code: its exit code; 128 + n for signal n.
        report: what its ``--report`` wrote; None if it was killed before.
        seconds: its wall time.
        stopped: whether the tuner stopped it.
        end_reason: what the request's ``end_reason`` said when it was ended; "" if it was not.
    """

    exit_code: int
    report: Mapping[str, object] | None
    seconds: float
    stopped: bool
    end_reason: str = ""


class Experiment:
    """A running experiment, from its construction to the call of ``on_end``.

    Args:
        on_end: called once, when no process of it is left on this machine.
        keep: file descriptors that its guardian holds until then.
        files_limit: its (soft, hard) limits of open files; None: those of this process.
    """

    def __init__(
        self,
        loop: Loop,
        request: LaunchRequest,
        on_end: Callable[[End], None],
        keep: Sequence[int] = (),
        files_limit: tuple[int, int] | None = None,
    ) -> None:
        self._loop, self._request, self._on_end = loop, request, on_end
        self._keep, self._files_limit = keep, files_limit
        self._begin = time.monotonic()
        self._code = 128 + signal.SIGKILL
        self._stopped, self._end_reason = False, ""
        self._last_resort: Timer | None = None
        drafts.remove(request.report)
        self._handle: guardian.Handle | None = self._start()
        loop.watch(self._handle.events, self._hear)
        if request.end_reason is not None:
            loop.after(request.every, self._look)

    def _start(self) -> guardian.Handle:
        request = self._request
        with (
            open(os.devnull, "rb") as null,
            _new(request.stdout) as stdout,
            _new(request.stderr) as stderr,
        ):
            worker = WorkerStart(
                argv=request.argv,
                env=dict(request.env),
                cwd=request.cwd,
                stdin=null.fileno(),
                stdout=stdout.fileno(),
                stderr=stderr.fileno(),
            )
            return guardian.start(
                (worker,),
                keep=self._keep,
                at_loss=lambda: None,
                files_limit=self._files_limit,
                farewell=request.grace + _PATIENCE,
                watched=False,  # the run has a watcher and a guardian of its own
            )

    @property
    def alive(self) -> bool:
        """Whether a process of it may be left."""
        return self._handle is not None

    @property
    def grace(self) -> float:
        """Seconds that its ranks have to end."""
        return self._request.grace

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End it with this signal, and kill it if it has not ended after the grace time."""
        if self._handle is not None and not self._stopped:
            self._stopped = True
            self._end_with(signum)

    def _end_with(self, signum: int) -> None:
        assert self._handle is not None
        self._handle.tell("rank", int(signum), "*")
        self._last_resort = self._last_resort or self._loop.after(self._request.grace + _PATIENCE, self.kill)

    def _look(self) -> None:
        """End the run if there is a reason."""
        request = self._request
        if self._handle is None or self._stopped or request.end_reason is None:
            return
        self._end_reason = request.end_reason(time.monotonic() - self._begin)
        if self._end_reason:
            self._end_with(signal.SIGTERM)
        else:
            self._loop.after(request.every, self._look)

    def kill(self) -> None:
        """Kill it at once; its ranks on other nodes end because their channel closes."""
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
        end = End(
            exit_code=self._code,
            report=read_report(self._request.report),
            seconds=time.monotonic() - self._begin,
            stopped=self._stopped,
            end_reason="" if self._stopped else self._end_reason,
        )
        self._on_end(end)


def read_report(path: str) -> Mapping[str, object] | None:
    """Read what ``--report`` wrote; None if there is no valid report."""
    try:
        report = jsontext.loads(read_regular(path))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def tail(path: str) -> str:
    """The end of a log; "" if there is no log."""
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _new(path: str) -> BinaryIO:
    """Create a log that only the user can read: many programs print their arguments first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no FIFO stops us
    try:
        return open(os.open(path, flags, 0o600), "wb")
    except OSError as error:
        raise BiremeError(f"{path} cannot be written: {error.strerror}") from error
