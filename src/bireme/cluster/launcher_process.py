"""The engine: the ``ssh`` sessions, or the one ``mpirun`` or ``srun``, through which the agents are reached.

They are started through a guardian, in sessions of their own: the terminal's Ctrl+C must not end them before the ranks
have been stopped in order, and they must not survive us.
"""

from __future__ import annotations

import os
import signal
from subprocess import DEVNULL, Popen, TimeoutExpired

from bireme.process import guardian, open_files
from bireme.process.worker import WorkerStart
from bireme.result.exit_status import exit_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.loop import Loop
    from bireme.process.guardian import Handle

_WORDS = 8192
"""Bytes that are kept of what an engine process says on its stderr."""
_LONGEST = 4096
"""Bytes of a line that is looked at."""


_FAREWELL = 3.0
"""Seconds between SIGTERM and SIGKILL for an engine."""
_GIVING_BACK = 15.0
"""The same for one that has an allocation to give back: killed by SIGKILL, it leaves that to nobody."""


class LauncherProcess:
    """The engine's processes.

    Args:
        loop: the event loop.
        commands: one command line for each process.
        environ: their environment.
        on_exit: called with (index, exit code, signal) at each process's end. The signal is 0, unless somebody else
            has killed it.
        on_line: called with (index, line) for each line of a process's stderr.
        on_lost: called with the pid when a process that guards the engine was killed.
        on_over: called when none is left.
        at_once: how many to start now; the others wait for :meth:`fork`.
        at_start, at_loss: called in the guardian before it forks, and when this process was lost.
        allocates: it may have an allocation.
    """

    def __init__(
        self,
        loop: Loop,
        commands: Sequence[tuple[str, ...]],
        environ: Mapping[str, str],
        *,
        on_exit: Callable[[int, int, int], None],
        on_line: Callable[[int, str], None],
        on_lost: Callable[[int], None],
        on_over: Callable[[], None],
        at_once: int,
        at_start: Callable[[], object],
        at_loss: Callable[[], object],
        allocates: bool,
    ) -> None:
        self._loop, self._on_exit, self._on_line = loop, on_exit, on_line
        self._on_lost, self._on_over = on_lost, on_over
        self._commands, self._environ = commands, environ
        self._at_once, self._at_start, self._at_loss = at_once, at_start, at_loss
        self._farewell = _GIVING_BACK if allocates else _FAREWELL
        self._words: dict[int, bytes] = {}
        self._errs: dict[int, int] = {}
        self._handle: Handle | None = None
        self._over = self._lost = False
        self._ended: set[int] = set()
        self._aside: list[Popen[bytes]] = []

    def start(self, *, channels: bool, keep: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Fork the guardian and, through it, the first processes.

        Args:
            channels: stdin and stdout of each process are wanted.
            keep: descriptors that the guardian holds as long as anything lives.

        Returns:
            (descriptor to read from, descriptor to write to) of each process; empty without ``channels``.
        """
        files_limit = open_files.allow_files(8 * len(self._commands))
        null = os.open(os.devnull, os.O_RDWR)
        ours: list[tuple[int, int]] = []
        theirs: list[int] = [null]
        starts = []
        for index, argv in enumerate(self._commands):
            err_read, err_write = os.pipe()
            stdin, stdout = null, err_write
            if channels:
                stdin, our_write = os.pipe()
                our_read, stdout = os.pipe()
                ours.append((our_read, our_write))
                theirs += [stdin, stdout]
            theirs.append(err_write)
            starts.append(WorkerStart(argv, dict(self._environ), os.getcwd(), stdin, stdout, err_write))
            self._watch_words(index, err_read)
        self._handle = guardian.start(
            starts,
            keep=keep,
            at_start=self._at_start,
            at_loss=self._at_loss,
            at_once=self._at_once,
            files_limit=files_limit,
            farewell=self._farewell,
        )
        self._loop.watch(self._handle.events, self._hear)
        for fd in theirs:
            os.close(fd)
        return ours

    def _watch_words(self, index: int, fd: int) -> None:
        os.set_blocking(fd, False)
        self._words[index], self._errs[index] = b"", fd
        self._loop.watch(fd, lambda: self._read_words(index))

    def _read_words(self, index: int) -> bool:
        """What an engine process says; return whether there was anything."""
        try:
            data = os.read(self._errs[index], 65536)
        except (BlockingIOError, KeyError):
            return False
        if not data:
            fd = self._errs.pop(index)
            self._loop.unwatch(fd)
            os.close(fd)
            return False
        begun = self._words[index].rpartition(b"\n")[2]
        self._words[index] = (self._words[index] + data)[-_WORDS:]
        for line in (begun + data).split(b"\n")[:-1]:
            self._on_line(index, line[:_LONGEST].decode(errors="replace"))
        return True

    def words(self, index: int) -> str:
        """What a process has said on its stderr so far."""
        while self._read_words(index):
            pass
        return self._words[index].decode(errors="replace").strip()

    def fork(self, index: int) -> None:
        """Start a process that was held back."""
        if self._handle is not None:
            self._handle.tell("fork", index)

    def end(self, index: int) -> None:
        """End one process whose host is lost: it would wait for ever."""
        self._ended.add(index)
        if self._handle is not None:
            self._handle.tell("rank", int(signal.SIGKILL), index)

    def kill(self) -> None:
        """End all processes at once."""
        self._ended.update(self._words)
        if self._handle is not None:
            self._handle.tell("kill")

    def terminate(self) -> None:
        """Ask all processes to end, and end them if they do not: ``srun`` has an allocation to give back."""
        self._ended.update(self._words)
        if self._handle is not None:
            self._handle.tell("rank", int(signal.SIGTERM), "*")
        self._loop.after(self._farewell, self.kill)

    def run_aside(self, argv: tuple[str, ...]) -> None:
        """Run a short command beside the engine; :meth:`close` waits for it."""
        try:
            # in a session of its own: a further Ctrl+C is not for it
            self._aside.append(
                Popen(
                    argv,
                    env=dict(self._environ),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    start_new_session=True,
                )
            )
        except OSError:
            pass

    def _hear(self) -> None:
        assert self._handle is not None
        events = self._handle.read()
        if events is None:
            gone, self._handle = self._handle, None
            self._loop.unwatch(gone.events)
            gone.close()
            os.waitpid(gone.pid, 0)
            if not self._over:  # killed, it has taken the engine with it
                self._lose(gone.pid)
            self._end()
            return
        for word, *args in events:
            if word == "down":
                index, status = int(args[0]), int(args[1])
                killed = os.WIFSIGNALED(status) and index not in self._ended
                self._on_exit(index, exit_code(status), os.WTERMSIG(status) if killed else 0)
            elif word == "unborn":
                self._words[int(args[0])] = f"cannot be started: {os.strerror(int(args[1]))}".encode()
                self._on_exit(int(args[0]), 126, 0)
            elif word == "unguarded":
                self._lost = True
                for index in self._words:
                    self._words[index] = f"cannot be started: {os.strerror(int(args[0]))}".encode()
                    self._on_exit(index, 126, 0)
            elif word in ("lost", "alone"):
                self._lose(int(args[0]) if args else self._handle.pid)
            elif word == "empty":
                self._end()
            elif word == "deserted":
                self.kill()  # a ControlMaster that ssh has left, or the like

    def _lose(self, pid: int) -> None:
        if not self._lost:
            self._lost = True
            self._on_lost(pid)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._on_over()

    def close(self) -> None:
        """Let go; a guardian that still lives ends everything below it."""
        if self._handle is not None:
            self._loop.unwatch(self._handle.events)
            self._handle.close()
            if self._over:  # it has said so, and ends
                os.waitpid(self._handle.pid, 0)
        for fd in self._errs.values():
            self._loop.unwatch(fd)
            os.close(fd)
        self._errs.clear()
        for process in self._aside:
            try:
                process.wait(self._farewell)
            except TimeoutExpired:
                process.kill()
                process.wait()
