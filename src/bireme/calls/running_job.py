"""A job as an object: started without waiting, in a process of its own, from any thread (`bireme.start`)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import IO, TYPE_CHECKING, Any

from bireme import errors, isolated
from bireme import signal_numbers as signal
from bireme.calls import rank_side
from bireme.calls.command_side import HEAD, OUTCOME
from bireme.errors import BiremeError
from bireme.options.python_interface import in_python
from bireme.result.outcome import Outcome
from bireme.validate import build

if TYPE_CHECKING:
    from typing_extensions import Self

    from bireme.job import JobSpec

Stream = IO[str] | Callable[[str], object] | int | None
"""Where output goes: a file, a function that gets each line, ``subprocess.DEVNULL``; None: where ours goes."""

_IN_MEMORY = 1 << 20
"""Bytes of an answer that are kept in memory; a larger one goes through a file."""

_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_fork() -> None:
    """The end of the caller must end its jobs, also where a fork of the caller lives on."""
    for each in list(_open):
        if (fd := each.detach()) >= 0:
            os.close(fd)  # `each.close` would wait for the end of its file


os.register_at_fork(after_in_child=_close_in_fork)


def in_thread(target: Callable[..., None], *args: Any) -> threading.Thread:
    """Run a function in a thread that does not keep the program from ending."""
    thread = threading.Thread(target=target, args=args, name="bireme-job", daemon=True)
    thread.start()
    return thread


class Job:
    """A job that runs. `bireme.start` makes it.

    Args:
        spec: the job.
        stdout, stderr: where its output goes.
        on_answer: for ranks of functions: called in a thread of this object with the rank, the number of the call,
            the kind (``r`` or ``e``), and the object that was answered; with -1 when the rank has ended.
    """

    def __init__(
        self,
        spec: JobSpec,
        *,
        stdout: Stream = None,
        stderr: Stream = None,
        on_answer: Callable[[int, int, bytes, Any], object] = lambda *_: None,
    ) -> None:
        self.spec = spec
        self._on_answer = on_answer
        self._inboxes: defaultdict[int, _Inbox] = defaultdict(_Inbox)
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._callbacks: list[Callable[[Job], object]] = []
        self._lock = threading.Lock()
        self._writes = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        out, write_out = _destination("stdout", sys.stdout if stdout is None else stdout)
        err, write_err = _destination("stderr", sys.stderr if stderr is None else stderr)
        self._socket, theirs = socket.socketpair()
        heard, told = os.pipe()
        if not spec.events:
            spec = spec.replace(events=f"/proc/self/fd/{told}")
        _open.add(self._socket)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    isolated.command("bireme.calls.command_side"),
                    stdin=theirs.fileno(),
                    stdout=out,
                    stderr=err,
                    pass_fds=(told,),
                    start_new_session=True,  # signals of the terminal are for the caller alone
                )
        except OSError as error:
            self._socket.close()
            os.close(heard)
            raise BiremeError(f"cannot start a process: {error.strerror}") from None
        finally:
            os.close(told)
        pipes = ((self._process.stdout, write_out), (self._process.stderr, write_err))
        self._followers = [in_thread(_pass_on, pipe, write, self._fail) for pipe, write in pipes if pipe is not None]
        self._followers.append(in_thread(self._hear_events, heard))
        text = json.dumps(spec.as_dict()).encode()
        self.send(HEAD.pack(0, len(text)), text)
        self.thread = in_thread(self._listen)

    # -- for users -----------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process that runs the job."""
        return self._process.pid

    @property
    def outcome(self) -> Outcome | None:
        """How the job has ended; None: it has not."""
        return self._outcome

    def done(self) -> bool:
        """Whether the job has ended."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for the end of the job.

        Raises:
            TimeoutError: it is still running after ``timeout`` seconds; it goes on.
            BadInputError: it cannot be run as described; nothing has been started.
            BiremeError: it could not be started.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the job is still running after {timeout:g} s")
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def stop(self, *, now: bool = False) -> None:
        """Stop the job as Ctrl+C does, and return at once; ``now``: kill its ranks without a time to save anything."""
        for signum in (signal.SIGTERM, signal.SIGINT) if now else (signal.SIGTERM,):
            if not self._ended.is_set():
                self._process.send_signal(signum)

    def add_done_callback(self, callback: Callable[[Job], object]) -> None:
        """Call ``callback`` with this job when it has ended, in a thread of this object; at once if it has."""
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def events(self) -> Iterator[dict[str, Any]]:
        """What happens to the job, from its start to its end (``docs/jobs.md`` lists the events).

        Raises:
            ValueError: the job writes its events to a file, as its field ``events`` says.
        """
        if self.spec.events:
            raise ValueError(f"the events of this job are written to {self.spec.events}")
        place = 0
        while True:
            with self._news:
                while place == len(self._events) and not self._ended.is_set():
                    self._news.wait()
                news = self._events[place:]
            yield from news
            place += len(news)
            if not news and self._ended.is_set():
                return

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """In asyncio: the events."""
        import asyncio

        loop, events = asyncio.get_running_loop(), self.events()
        while (event := await loop.run_in_executor(None, lambda: next(events, None))) is not None:
            yield event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the job if it runs, and wait for its end; Ctrl+C meanwhile kills its ranks."""
        self.stop()
        interrupted = None
        while not self.done():
            try:
                self._ended.wait()
            except KeyboardInterrupt as error:
                interrupted = error
                self.stop(now=True)
        if interrupted is not None:
            raise interrupted

    def __await__(self) -> Generator[Any, None, Outcome]:
        """In asyncio: the outcome, as of `wait`. A task that is cancelled meanwhile stops the job."""
        import asyncio

        loop = asyncio.get_running_loop()
        end = loop.create_future()

        def conclude() -> None:
            if not end.done():
                end.set_result(None)

        self.add_done_callback(lambda _: loop.call_soon_threadsafe(conclude))
        try:
            yield from end.__await__()
        except asyncio.CancelledError:
            self.stop()
            raise
        return self.wait()

    # -- the process ---------------------------------------------------------------------------------

    def _hear_events(self, heard: int) -> None:
        with open(heard, encoding="utf-8", errors="replace") as file:
            for line in file:
                with self._news:
                    self._events.append(json.loads(line))
                    self._news.notify_all()

    def send(self, *parts: bytes) -> None:
        """Send something to the process, and so to the ranks of functions."""
        with self._writes, contextlib.suppress(OSError):  # it has ended, which `_listen` sees
            for part in parts:
                self._socket.sendall(part)

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb", buffering=1 << 18) as file:
                while len(head := file.read(HEAD.size)) == HEAD.size:
                    rank, size = HEAD.unpack(head)
                    if rank == OUTCOME:
                        self._conclude(json.loads(file.read(size)))
                        break
                    if not size:
                        self._on_answer(rank, -1, b"", None)
                    for number, kind, answer in self._inboxes[rank].feed(file.read(size)):
                        self._on_answer(rank, number, kind, answer)
                        del answer  # it may be large, and the next one come late
        except OSError:
            pass
        for inbox in self._inboxes.values():
            inbox.close()
        code = self._process.wait()
        for each in self._followers:
            each.join()
        signum = {-signal.SIGTERM: signal.SIGTERM, 128 + signal.SIGINT: signal.SIGINT}.get(code)
        if signum is not None and self._outcome is None:  # before it has started anything
            self._outcome = Outcome(exit_code=128 + signum, cause="signal", seconds=0.0, signum=signum)
        elif self._outcome is None and self._error is None:
            self._error = BiremeError(f"the process of the job was ended (exit code {code})")
        self._socket.close()
        with self._lock, self._news:
            self._ended.set()
            self._news.notify_all()
        for callback in self._callbacks:
            callback(self)

    def _conclude(self, said: dict[str, Any]) -> None:
        if "outcome" in said:
            self._outcome = build(Outcome, said["outcome"])
            return
        name, what, hint, where = said["error"]
        error = getattr(errors, name, BiremeError)(what, hint=hint, where=where)
        self._fail(in_python(error) if isinstance(error, errors.BadInputError) else error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error


class _Inbox:
    """Puts the answers of one rank together."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0  # bytes of the piece that are still to come
        self._number, self._kind = 0, b""
        self._answer = tempfile.SpooledTemporaryFile(_IN_MEMORY)

    def feed(self, data: bytes) -> Generator[tuple[int, bytes, Any], None, None]:
        """Yield (number of the call, kind, object) of each answer that the data completes."""
        view = memoryview(data)
        while view:
            if len(self._head) < rank_side.ANSWER.size:
                missing = rank_side.ANSWER.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) < rank_side.ANSWER.size:
                    return
                self._number, self._kind, self._left = rank_side.ANSWER.unpack(self._head)
                if self._kind not in b"pr":
                    self._answer.seek(0)
            piece, view = view[: self._left], view[self._left :]
            self._left -= self._answer.write(piece)
            if self._left:
                return
            self._head.clear()
            if self._kind != b"p":
                whole, self._answer = self._answer, tempfile.SpooledTemporaryFile(_IN_MEMORY)
                with whole:
                    answer = self._read(whole)  # which may change the kind
                    yield self._number, self._kind, answer
                    del answer

    def close(self) -> None:
        """Close the file for the next answer, which will not come."""
        self._answer.close()

    def _read(self, whole: IO[bytes]) -> Any:
        """The object that was answered, or the error by which it cannot be read here."""
        try:
            whole.seek(0)
            return pickle.load(whole)
        except BaseException as error:  # SystemExit would end this thread
            self._kind = b"e"
            return b"", f"{type(error).__name__}: {error}", f"its result cannot be unpickled here: {error}"


def _destination(name: str, stream: Stream) -> tuple[Any, Callable[[str], object] | None]:
    """What a process writes to, and what gets the lines if that is a pipe."""
    if stream is None or isinstance(stream, int):
        return subprocess.DEVNULL if stream is None else stream, None
    if isinstance(stream, io.TextIOWrapper):  # a file or terminal; others, such as Jupyter's, only look like one
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            return stream.fileno(), None
    if hasattr(stream, "write"):
        return subprocess.PIPE, stream.write
    if not callable(stream):
        raise TypeError(f"{name}: expected a file, a function or subprocess.DEVNULL, not {stream!r}")
    return subprocess.PIPE, lambda line: stream(line.rstrip("\n"))


def _pass_on(pipe: IO[bytes], write: Callable[[str], object] | None, on_error: Callable[[Exception], object]) -> None:
    """Pass on the lines that come from a pipe, until an error of the caller's code ends that."""
    with io.TextIOWrapper(pipe, encoding="utf-8", errors="replace", newline="\n") as text:
        for line in text:
            try:
                if write is not None:
                    write(line)
            except Exception as error:
                on_error(error)
                write = None
