"""What a rank of functions does: takes calls from its stdin, a socket, runs them, and answers there.

It runs in the ranks' Python, 3.8 or later, imports the standard library only, and is sent as source (`BOOT`).

To a rank come frames of ``!iIQ``: the rank that is meant (-1: all), the number of the call (0: what all calls need),
the length of the body. A call without a body is the end. A rank that stays first says what it is, as an answer to
call 0. A rank answers with frames of ``!IcI``: the number of the
call, the kind of the piece, its length: ``p`` for a piece of what follows, ``r`` for the last piece of a result, ``e``
for the last one of an error, ``x`` if all pieces so far are void. Results and errors are pickles.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys

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
_PIECE = 1 << 20


class _Answers:
    """A file that `pickle` writes to, which sends what it is given in frames."""

    def __init__(self, fd: int) -> None:
        self._fd, self.call = fd, 0
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

    def finish(self, kind: bytes) -> None:
        """Send the last piece."""
        self._send(kind, self._kept)
        self._kept = bytearray()

    def void(self) -> None:
        """Take back the pieces of this answer."""
        self._kept = bytearray()
        self._send(b"x", b"")

    def _send(self, kind: bytes, data: bytes | bytearray | memoryview) -> None:
        head = ANSWER.pack(self.call, kind, len(data))
        if len(data) < 1 << 16:
            head, data = head + bytes(data), b""
        for part in (head, data):
            view = memoryview(part)
            while view:
                view = view[os.write(self._fd, view) :]


class _Sources:
    """Finds modules that were sent as source: cloudpickle of the caller's version, and ours where it is missing."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self._sources:
            return None
        from importlib.machinery import ModuleSpec, PathFinder

        there = PathFinder.find_spec(name) if name == "bireme" else None
        if there is not None and there.origin:  # a folder of that name has none
            return there
        is_package = any(other.startswith(name + ".") for other in self._sources)
        return ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        exec(compile(self._sources[name], "<sent>/" + name.replace(".", "/") + ".py", "exec"), module.__dict__)


def main() -> NoReturn:
    """Take calls until there are no more; a call that fails ends the rank, unless they are to stay."""
    fd = os.dup(0)
    os.set_inheritable(fd, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    rank = int(os.environ["RANK"])
    take = _reader(fd, rank)
    setup = pickle.loads(take()[1])
    places = [os.path.normpath(os.path.join(os.getcwd(), place)) for place in setup["path"]]
    sys.path[:] = [place for place in places if place not in sys.path] + [place for place in sys.path if place]
    sys.meta_path.insert(0, _Sources(setup["sources"]))
    sys.modules["__main__"].__dict__.pop("take", None)
    if setup["stays"]:
        take = _in_a_thread(take)
    answers = _Answers(fd)
    if setup["stays"]:
        answers.write(pickle.dumps((int(os.environ["WORLD_SIZE"]), os.uname().nodename)))
        answers.finish(b"r")
    while True:
        number, body = take()
        if not body:
            break
        answers.call = number
        is_well = _run(body, answers, setup["stays"])
        if not is_well and not setup["stays"]:
            _leave(1)
    _leave(0)


def _reader(fd: int, rank: int) -> Callable[[], tuple[int, bytes | bytearray]]:
    """What returns the next call for this rank, as its number and body; the end has no body."""

    def take(size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = os.readv(fd, [view])
            if not got:
                raise EOFError
            view = view[got:]
        return data

    def following() -> tuple[int, bytes | bytearray]:
        try:
            while True:
                meant, number, size = CALL.unpack(take(CALL.size))
                if meant in (rank, ALL):
                    return number, take(size)
                while size:
                    size -= len(take(min(size, _PIECE)))
        except EOFError:  # the caller is gone, and the job is being stopped
            return 0, b""

    return following


def _in_a_thread(take: Callable[[], tuple[int, bytes | bytearray]]) -> Callable[[], tuple[int, bytes | bytearray]]:
    """Go on reading while a call runs: what is meant for others must not wait for this rank."""
    import threading
    from queue import SimpleQueue

    waiting: Any = SimpleQueue()

    def read() -> None:
        while True:
            call = take()
            waiting.put(call)
            if not call[1]:
                return

    threading.Thread(target=read, name="bireme-calls", daemon=True).start()
    return lambda: waiting.get()


def _run(body: bytes | bytearray, answers: _Answers, stays: bool) -> bool:
    """Run one call and answer; returns whether it succeeded."""
    try:
        function, args, kwargs, each = pickle.loads(body)
        body = b""
        result = list(map(function, *args)) if each else function(*args, **kwargs)
    except SystemExit as error:
        if stays:
            return _fail(error, answers)
        # as of a script
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        _leave(code or 0)
    except BaseException as error:
        return _fail(error, answers)
    try:
        _dump(result, answers)
    except Exception as error:
        answers.void()
        what = f"the result of type {type(result).__module__}.{type(result).__qualname__} cannot be sent: {error}"
        return _fail(TypeError(what).with_traceback(None), answers)
    answers.finish(b"r")
    return True


def _dump(thing: object, file: Any) -> None:
    """Pickle; by cloudpickle if the call came by it, as only that knows classes that have travelled by value."""
    (sys.modules.get("cloudpickle") or pickle).Pickler(file, 5).dump(thing)


def _fail(error: BaseException, answers: _Answers) -> bool:
    """Answer with an error: its pickle, "" where it has none; its traceback; how it is called."""
    import traceback
    from io import BytesIO

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith("bireme/calls/rank_side.py"):
        trace = trace.tb_next  # no frames of ours
    text = "".join(traceback.format_exception(type(error), error, trace))
    error.__traceback__ = error.__context__ = error.__cause__ = None
    try:
        file = BytesIO()
        _dump(error, file)
        itself = file.getvalue()
        pickle.loads(itself)  # some can be pickled, and not read back
    except Exception:
        itself = b""
    answers.write(pickle.dumps((itself, text, f"{type(error).__name__}: {error}")))
    answers.finish(b"e")
    return False


def _leave(code: int) -> NoReturn:
    """End as a script ends: what was registered with `atexit` runs, and threads are waited for."""
    raise SystemExit(code)


if __name__ == "bireme_rank_side":
    main()
