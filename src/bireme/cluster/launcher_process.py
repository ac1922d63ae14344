"""The launcher processes (one ``ssh`` per node, or one ``mpirun`` or ``srun`` for all) that start the agents.

They are started through a guardian, each in its own session: the terminal's Ctrl+C must not end them before the ranks
have been stopped in order, and they must not outlive the command.
"""

from __future__ import annotations

import os

from bireme import signal_numbers as signal
from bireme.process import kernel
from bireme.process.worker import WorkerStart
from bireme.result.outcome import exit_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen

    from bireme.loop import Loop
    from bireme.process.guardian import Handle

_KEPT = 8192
"""Bytes kept of what a launcher process prints on stderr."""
_LONGEST = 4096
"""Bytes of a line that are examined."""

_TERM_WAIT = 3.0
"""Seconds between SIGTERM and SIGKILL for a launcher process."""
_TERM_WAIT_WITH_ALLOCATION = 15.0
"""The same for one that has to give back an allocation, which nothing would do after SIGKILL."""


def cancel(argv: tuple[str, ...]) -> None:
    """Cancel an allocation by this command, and wait for it. What goes wrong, the command says itself."""
    import subprocess

    try:
        # its own session, so that another Ctrl+C does not reach it
        subprocess.run(
            argv, stdin=subprocess.DEVNULL, timeout=_TERM_WAIT_WITH_ALLOCATION, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired):
        pass


class LauncherProcess:
    """The launcher processes of one job.

    Args:
        on_exit: called with (index, exit code, signal) at the end of each process. The signal is 0 unless another
            process killed it.
        on_line: called with (index, line) for each line of a process's stderr.
        at_once: how many to start at first; the others wait for :meth:`fork`.
        allocates: whether they may own an allocation, and so get more time to end.
    """

    def __init__(
        self,
        loop: Loop,
        start_guardian: Callable[..., Handle],
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
        self._start_guardian = start_guardian
        self._loop, self._on_exit, self._on_line = loop, on_exit, on_line
        self._on_lost, self._on_over = on_lost, on_over
        self._commands, self._environ = commands, environ
        self._at_once, self._at_start, self._at_loss = at_once, at_start, at_loss
        self._term_wait = _TERM_WAIT_WITH_ALLOCATION if allocates else _TERM_WAIT
        self._stderr: dict[int, bytes] = {}
        self._errs: dict[int, int] = {}
        self._handle: Handle | None = None
        self._over = self._lost = False
        self._ended: set[int] = set()
        self._aside: list[Popen[bytes]] = []

    def start(self, *, channels: bool) -> list[tuple[int, int]]:
        """Fork the guardian and, through it, the first processes.

        Args:
            channels: whether to connect stdin and stdout of each process to pipes.

        Returns:
            (descriptor to read from, descriptor to write to) of each process; empty without ``channels``.
        """
        files_limit = kernel.allow_files(8 * len(self._commands))
        null = os.open(os.devnull, os.O_RDWR)
        ours: list[tuple[int, int]] = []
        theirs: list[int] = [null]
        starts = []
        for index, argv in enumerate(self._commands):
            err_read, err_write = self._loop.pipe()
            stdin, stdout = null, err_write
            if channels:
                stdin, our_write = self._loop.pipe()
                our_read, stdout = self._loop.pipe()
                ours.append((our_read, our_write))
                theirs += [stdin, stdout]
            theirs.append(err_write)
            starts.append(
                WorkerStart(
                    argv=argv, env=dict(self._environ), cwd=os.getcwd(), stdin=stdin, stdout=stdout, stderr=err_write
                )
            )
            self._watch_stderr(index, err_read)
        self._handle = self._start_guardian(
            starts,
            at_start=self._at_start,
            at_loss=self._at_loss,
            at_once=self._at_once,
            files_limit=files_limit,
            farewell=self._term_wait,
        )
        self._loop.watch(self._handle.events, self._hear)
        for fd in theirs:
            self._loop.close_fd(fd)
        return ours

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return self._over or self._lost

    def move(
        self,
        loop: Loop,
        *,
        on_exit: Callable[[int, int, int], None],
        on_line: Callable[[int, str], None],
        on_lost: Callable[[int], None],
        on_over: Callable[[], None],
    ) -> None:
        """Go on in another loop, as the one of before has been closed."""
        self._loop, self._on_exit, self._on_line = loop, on_exit, on_line
        self._on_lost, self._on_over = on_lost, on_over
        if self._handle is not None:
            loop.watch(self._handle.events, self._hear)
        for index, fd in self._errs.items():
            self._watch_err(index, fd)

    def _watch_stderr(self, index: int, fd: int) -> None:
        self._loop.set_blocking(fd, False)
        self._stderr[index], self._errs[index] = b"", fd
        self._watch_err(index, fd)

    def _watch_err(self, index: int, fd: int) -> None:
        self._loop.watch(fd, lambda: self._read_stderr(index))

    def _read_stderr(self, index: int) -> bool:
        """Read stderr of a launcher process; return whether there was anything."""
        try:
            data = self._loop.read(self._errs[index], 65536)
        except (BlockingIOError, KeyError):
            return False
        if not data:
            fd = self._errs.pop(index)
            self._loop.unwatch(fd)
            self._loop.close_fd(fd)
            return False
        begun = self._stderr[index].rpartition(b"\n")[2]
        self._stderr[index] = (self._stderr[index] + data)[-_KEPT:]
        for line in (begun + data).split(b"\n")[:-1]:
            self._on_line(index, line[:_LONGEST].decode(errors="replace"))
        return True

    def stderr(self, index: int) -> str:
        """What a process has printed on stderr so far, at most the last 8 KiB."""
        while self._read_stderr(index):
            pass
        return self._stderr[index].decode(errors="replace").strip()

    def fork(self, index: int) -> None:
        """Start a process that was not started at first."""
        if self._handle is not None:
            self._handle.tell("fork", index)

    def end(self, index: int) -> None:
        """Kill one process whose node is lost: it would wait forever."""
        self._ended.add(index)
        if self._handle is not None:
            self._handle.tell("rank", int(signal.SIGKILL), index)

    def kill(self) -> None:
        """Kill all processes at once."""
        self._ended.update(self._stderr)
        if self._handle is not None:
            self._handle.tell("kill")

    def terminate(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL later: ``srun`` needs time to give back an allocation."""
        self._ended.update(self._stderr)
        if self._handle is not None:
            self._handle.tell("rank", int(signal.SIGTERM), "*")
        self._loop.after(self._term_wait, self.kill)

    def run_aside(self, argv: tuple[str, ...]) -> None:
        """Run a short command beside the launcher; :meth:`close` waits for it."""
        from subprocess import DEVNULL, Popen

        try:
            # its own session, so that another Ctrl+C does not reach it
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
            gone.wait()
            if not self._over:  # it was killed, and the launcher processes with it
                self._lose(gone.pid)
            self._end()
            return
        for word, *args in events:
            if word == "down":
                index, status = int(args[0]), int(args[1])
                killed = os.WIFSIGNALED(status) and index not in self._ended
                self._on_exit(index, exit_code(status), os.WTERMSIG(status) if killed else 0)
            elif word == "unborn":
                self._stderr[int(args[0])] = f"cannot be started: {os.strerror(int(args[1]))}".encode()
                self._on_exit(int(args[0]), 126, 0)
            elif word == "unguarded":
                self._lost = True
                for index in self._stderr:
                    self._stderr[index] = f"cannot be started: {os.strerror(int(args[0]))}".encode()
                    self._on_exit(index, 126, 0)
            elif word in ("lost", "alone"):
                self._lose(int(args[0]) if args else self._handle.pid)
            elif word == "empty":
                self._end()
            elif word == "deserted":
                self.kill()  # such as a ControlMaster that ssh left behind

    def _lose(self, pid: int) -> None:
        if not self._lost:
            self._lost = True
            self._on_lost(pid)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._on_over()

    def close(self, *, wait: bool = False) -> None:
        """Close the pipes; a guardian that is still alive then ends everything below it.

        Args:
            wait: for its end.
        """
        handle, self._handle = self._handle, None  # the timer of `terminate` may still come, in a loop that goes on
        if handle is not None:
            self._loop.unwatch(handle.events)
            handle.close()
            if self._over or wait:  # it has reported so and is ending
                handle.wait()
        for fd in self._errs.values():
            self._loop.unwatch(fd)
            self._loop.close_fd(fd)
        self._errs.clear()
        for process in self._aside:
            from subprocess import TimeoutExpired

            try:
                process.wait(self._term_wait)
            except TimeoutExpired:
                process.kill()
                process.wait()
