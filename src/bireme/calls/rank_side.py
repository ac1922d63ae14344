"""What a rank of functions does: takes calls from its stdin, a socket, runs them, and answers there.

It runs in the ranks' Python, 3.8 or later, imports the standard library only, and is sent as source (`BOOT`).

To a rank come frames of ``!iIQ``: the rank that is meant (-1: all), the number of the call (0: what all calls need),
the length of the body. Without a body, number 0 is the end, and another ends that call. A rank answers with frames of
``!IcI``: the number of the call, the kind, the length: ``p`` for a piece of a result and ``r`` for its last one. Others
are whole, and void the pieces before: ``e`` an error, ``m`` the port of a group, ``d`` how the process of the call has
died. All answers are pickles.

A rank that stays first says what it is, as an answer to call 0. Its calls are run by a process below it, which may die
and is replaced (`_Keeper`).
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

BOOT = """\
import os
def take(size, data=b""):
    while len(data) < size: data += os.read(0, size - len(data)) or os._exit(1)
    return data
size = int(take(8))
exec(compile(take(size), "bireme/calls/rank_side.py", "exec"), {"__name__": "bireme_rank_side"})"""
"""The program of a rank: it runs what is sent first, eight digits for the length and then the text of this module."""

CALL, ANSWER = struct.Struct("!iIQ"), struct.Struct("!IcI")
ALL = -1
ONE, EACH, GROUP = b"1", b"*", b"g"
"""How a call is made, the first byte of its body: once; for each element of its arguments; on ranks that meet at a port
of their own."""
_PIECE = 1 << 20


class _Result:
    """A file that `pickle` writes the result of a call to, which sends it in pieces."""

    def __init__(self, fd: int, number: int) -> None:
        self.fd, self.number = fd, number
        self._kept = bytearray()

    def write(self, data: bytes) -> int:
        with memoryview(data).cast("B") as view:
            size = len(view)
            if len(self._kept) + size < _PIECE:
                self._kept += view
                return size
            self._send(b"p", self._kept)
            for first in range(0, size, _PIECE):
                self._send(b"p", view[first : first + _PIECE])
        self._kept = bytearray()
        return size

    def finish(self) -> None:
        """Send the last piece."""
        self._send(b"r", self._kept)

    def _send(self, kind: bytes, data: bytes | bytearray | memoryview) -> None:
        head = ANSWER.pack(self.number, kind, len(data))
        if len(data) < 1 << 16:
            head, data = head + bytes(data), b""
        _write(self.fd, head, data)


def _answer(fd: int, number: int, kind: bytes, what: object) -> None:
    """Answer with what is no result."""
    said = pickle.dumps(what)
    _write(fd, ANSWER.pack(number, kind, len(said)), said)


def _find_sent(setup: Mapping[str, Any]) -> None:
    """Find the modules that were sent: cloudpickle of the caller's version, and ours where it is missing.

    Each comes as source, and as code for ranks of the caller's version of Python: to compile takes a while.
    """
    from importlib.machinery import PathFinder

    there = PathFinder.find_spec("bireme")
    is_installed = there is not None and there.origin  # a folder of that name has none
    is_alike = setup["magic"] == sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    sent = {
        name: code if is_alike else text
        for name, (text, code) in setup["sources"].items()
        if not (is_installed and name.startswith("bireme"))
    }
    scope: dict[str, Any] = {"__name__": "bireme_sent"}
    exec(setup["finder"], scope)
    scope["SentModules"](sent)


def main() -> NoReturn:
    """Take calls until there are no more; a call that fails ends the rank, unless they are to stay."""
    fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    rank = int(os.environ["RANK"])
    take = _reader(fd, rank)
    setup = pickle.loads(take()[1])
    places = [os.path.normpath(os.path.join(os.getcwd(), place)) for place in setup["path"]]
    sys.path[:] = [place for place in places if place not in sys.path] + [place for place in sys.path if place]
    _find_sent(setup)
    sys.modules["__main__"].__dict__.pop("take", None)
    if setup["stays"]:
        fd = _Keeper(fd, rank).in_a_new_process()
        take = _reader(fd, rank)
    while True:
        number, body = take()
        if not body:
            break
        try:
            is_well = _run(body, _Result(fd, number), take, setup)
        except BrokenPipeError:  # nobody hears the answer
            raise SystemExit(1) from None
        if not is_well and not setup["stays"]:
            raise SystemExit(1)
    raise SystemExit(0)  # as a script ends: what was registered with `atexit` runs, and threads are waited for


def _read(fd: int, size: int) -> bytearray:
    """Read so many bytes; EOFError: the other end is gone."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(fd, [view])
        if not got:
            raise EOFError
        view = view[got:]
    return data


def _write(fd: int, *parts: bytes | bytearray | memoryview) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]


def _reader(fd: int, rank: int) -> Callable[[], tuple[int, bytearray]]:
    """What returns the next call for this rank, as its number and body; the end has no body."""

    def following() -> tuple[int, bytearray]:
        try:
            while True:
                meant, number, size = CALL.unpack(_read(fd, CALL.size))
                if meant in (rank, ALL):
                    return number, _read(fd, size)
                while size:
                    size -= len(_read(fd, min(size, _PIECE)))
        except (EOFError, ConnectionResetError):  # the caller is gone, and the job is being stopped
            return 0, bytearray()

    return following


def _catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal, as far as one can see."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return any(line.startswith("SigCgt") and int(line.split()[1], 16) >> signum - 1 & 1 for line in file)
    except OSError:
        return True


class _Keeper:
    """Has the calls run by a process of its own: if that dies, its call is all that is lost, and another has its place.

    A thread passes on what comes from the caller, so that what is meant for others need not wait for this rank; another
    passes on answers, in whole pieces. Signals to the rank go to the process.
    """

    def __init__(self, caller: int, rank: int) -> None:
        import threading

        self._caller, self._rank = caller, rank
        self._lock, self._thread = threading.Condition(), threading.Thread
        self._number, self._begin = 0, 0.0  # of the call that runs
        self._dead = 0  # the call by which a process has died: nothing of it is for the next one
        self._pid, self._socket = 0, None  # type: int, Any
        self._ends = False

    def in_a_new_process(self) -> int:
        """Returns in each process that is to run calls: the descriptor from which they come, and of the answers."""
        import contextlib
        import signal
        import socket

        prctl: Any = None
        with contextlib.suppress(ImportError, AttributeError):  # not on Linux
            import ctypes

            prctl = ctypes.CDLL(None).prctl
        passed_on = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
        # They wait until this thread takes them: none comes between two processes, or to another thread.
        awaited = {signal.SIGCHLD, *(each for each in passed_on if signal.getsignal(each) != signal.SIG_IGN)}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        _answer(self._caller, 0, b"r", (int(os.environ["WORLD_SIZE"]), os.uname().nodename))
        hears = None
        while True:
            with self._lock:
                if self._ends:  # since it was said between two processes
                    os._exit(0)
                self._socket, theirs = socket.socketpair()
                self._pid = os.fork()
                self._lock.notify()
            if not self._pid:
                if prctl is not None:
                    prctl(1, 9)  # the kernel ends it with the rank
                os.setpgid(0, 0)  # with what it will have started
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                os.close(self._caller)
                self._socket.close()
                return theirs.detach()
            theirs.close()
            hears = hears or self._start(self._hear)
            answers = self._start(self._pass_on)
            while os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                signum = signal.sigwait(awaited)
                ends = signum not in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
                self._ends = self._ends or ends
                if ends or (signum != signal.SIGCHLD and _catches(self._pid, signum)):
                    os.kill(self._pid, signum)
            with contextlib.suppress(OSError):  # where it has left nothing
                if not self._ends:  # else the launcher asks first what it has left
                    os.killpg(self._pid, signal.SIGKILL)
            self._socket.shutdown(socket.SHUT_RDWR)  # what it has left elsewhere may have it open
            answers.join()
            with self._lock:
                pid, status = os.waitpid(self._pid, 0)
                number, self._pid, self._number = self._number, 0, 0
                self._dead = number or self._dead
            self._socket.close()
            if self._ends:
                if os.WIFSIGNALED(status):
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    os.kill(os.getpid(), os.WTERMSIG(status))
                os._exit(os.WEXITSTATUS(status))
            _answer(self._caller, number, b"d", (pid, status, time.monotonic() - self._begin))

    def _start(self, what: Callable[[], None]) -> Any:
        thread = self._thread(target=what, name="bireme-calls", daemon=True)
        thread.start()
        return thread

    def _hear(self) -> None:
        """Pass on calls to the process, and end it when its call is to end."""
        try:
            while True:
                head = _read(self._caller, CALL.size)
                meant, number, size = CALL.unpack(head)
                to: Any = None
                with self._lock:
                    if meant in (self._rank, ALL):
                        if not size and not number:
                            break
                        while not self._pid:  # it is being replaced
                            self._lock.wait()
                        if not size and number == self._number and self._pid:
                            os.kill(self._pid, 9)
                        elif size and number != self._dead:
                            to, self._number, self._begin = self._socket, number, time.monotonic()
                while head:
                    if to is not None:
                        try:
                            to.sendall(head)
                        except OSError:
                            to = None  # it has died, which the other thread sees
                    head = _read(self._caller, min(size, _PIECE))
                    size -= len(head)
        except (EOFError, ConnectionResetError):
            pass  # the caller is gone
        with self._lock:
            self._ends = True
            if self._pid:
                self._socket.shutdown(1)

    def _pass_on(self) -> None:
        """Pass on whole pieces of answers to the caller."""
        fd = self._socket.fileno()
        try:
            while True:
                head = _read(fd, ANSWER.size)
                _, kind, size = ANSWER.unpack(head)
                piece = _read(fd, size)
                if kind in b"re":
                    self._number = 0  # before the caller sends another
                _write(self._caller, head, piece)
        except (EOFError, OSError):
            pass
        with self._lock:
            if self._pid:
                os.kill(self._pid, 9)  # it has closed what we hear


def _run(
    body: bytearray,
    answer: _Result,
    take: Callable[[], tuple[int, bytearray]],
    setup: Mapping[str, Any],
) -> bool:
    """Run one call and answer; returns whether it succeeded."""
    try:
        how = body[:1]
        if how == GROUP:
            if os.environ["RANK"] == "0":
                import socket

                with socket.socket() as probe:
                    probe.bind(("", 0))
                    _answer(answer.fd, answer.number, b"m", probe.getsockname()[1])
            os.environ["MASTER_PORT"] = take()[1].decode()
        if setup["version"] != sys.version_info[:2] and b"cloudpickle" in body:
            here, there = (".".join(map(str, each)) for each in (sys.version_info[:2], setup["version"]))
            raise TypeError(
                f"a function that travels by value needs the same Python: {there} there, {here} on the ranks"
            )
        function, args, kwargs = pickle.loads(memoryview(body)[1:])
        result = list(map(function, *args)) if how == EACH else function(*args, **kwargs)
    except SystemExit as error:
        if setup["stays"]:
            return _fail(error, answer)
        raise  # as of a script
    except BaseException as error:
        return _fail(error, answer)
    try:
        _dump(result, answer)
    except BrokenPipeError:
        raise
    except BaseException as error:
        what = f"the result of type {type(result).__module__}.{type(result).__qualname__} cannot be sent: {error}"
        return _fail(TypeError(what).with_traceback(None), answer)
    answer.finish()
    return True


def _dump(thing: object, file: Any) -> None:
    """Pickle; by cloudpickle if the call came by it, as only that knows classes that have travelled by value."""
    (sys.modules.get("cloudpickle") or pickle).Pickler(file, 5).dump(thing)


def _fail(error: BaseException, answer: _Result) -> bool:
    """Answer with an error: its pickle, "" where it has none; its traceback; how it is called."""
    import traceback
    from io import BytesIO

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith("bireme/calls/rank_side.py"):
        trace = trace.tb_next  # no frames of ours
    text = "".join(traceback.format_exception(type(error), error, trace))
    for name in ("__traceback__", "__context__", "__cause__"):
        BaseException.__setattr__(error, name, None)  # its class may refuse that
    if isinstance(error, ModuleNotFoundError):
        vars(error)["__notes__"] = [f"it is missing in the ranks' Python, {sys.executable}"]
    try:
        file = BytesIO()
        _dump(error, file)
        itself = file.getvalue()
        pickle.loads(itself)  # some can be pickled, and not read back
    except Exception:
        itself = b""
    _answer(
        answer.fd,
        answer.number,
        b"e",
        (itself, text, "".join(traceback.format_exception_only(type(error), error)).strip()),
    )
    return False


if __name__ == "bireme_rank_side":
    main()
