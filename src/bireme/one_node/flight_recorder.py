"""Finds out which collectives the ranks of this node wait in, where they use NCCL: from PyTorch, and from NCCL itself.

A process group of NCCL makes a pipe for its rank. When something is written to it, PyTorch's flight recorder writes
what it holds to a file, within a second or so (PyTorch's "ProcessGroupNCCL Environment Variables"). And one process of
each node answers questions about the whole job on a port (NCCL's user guide, "RAS").
"""

from __future__ import annotations

import io
import os
import pickle
import re
import stat

from bireme.planning.environment import RAS_ADDRESS, RECORDED, RECORDER_PIPE
from bireme.regular_file import read_regular
from bireme.result.collectives import GroupProgress
from bireme.result.stacks import RankStack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, ClassVar, NoReturn

    from bireme.loop import Loop

_BEAT = 0.05
"""Seconds between two looks for the files."""
_MOST = 1 << 22
"""Bytes of a file that is read: to take a larger one apart would hold up the agent."""
_MOST_GROUPS, _LONGEST = 64, 200
"""Process groups of a rank that are told, those in which it waits first, and characters of a text about one."""
_MOST_NUMBER, _MOST_MEMBERS = 1 << 63, 1 << 17
"""What numbers are below (PyTorch counts in 64 bits), and characters of a list of ranks that is taken apart."""
_QUESTION = b"TIMEOUT 1\nSTATUS\n"
_MOST_BYTES, _MOST_LINES = 1 << 16, 12
"""Bytes that are read of NCCL's answer, and its lines that are kept."""
_HEADS = ("Errors", "Warnings")


class FlightRecorder:
    """Asks ranks once.

    Args:
        environ: what the ranks have been given.
        on_end: called when all that could be asked have answered.

    Attributes:
        found: the process groups of each rank that has answered.
        nccl: what NCCL finds wrong; "": nothing, or it does not say.
    """

    def __init__(
        self, loop: Loop, environ: Mapping[str, str], ranks: Iterable[int], on_end: Callable[[], object]
    ) -> None:
        self._loop, self._on_end = loop, on_end
        self.found: dict[int, tuple[GroupProgress, ...]] = {}
        self.nccl = ""
        self._files: dict[int, tuple[str, object, object]] = {}  # …: its path, what was there, and what was seen last
        pipe, file = environ.get(RECORDER_PIPE, ""), environ.get(RECORDED, "")
        for rank in ranks:
            path = f"{file}{rank}"
            before = _signature(path)
            if pipe and file and _poke(f"{pipe}{rank}.pipe"):
                self._files[rank] = path, before, before
        self._socket: socket.socket | None = None
        self._said = bytearray()
        if self._files:
            self._timer = loop.after(_BEAT, self._look)
            self._ask_nccl(environ.get(RAS_ADDRESS, ""))

    @property
    def ended(self) -> bool:
        """Whether nobody is to answer any more."""
        return not self._files and self._socket is None

    def _look(self) -> None:
        for rank, (path, before, last) in list(self._files.items()):
            seen = _signature(path)
            found = _read(path) if seen == last and seen not in (None, before) else None  # once it rests
            if found is not None:
                self.found[rank] = found
                del self._files[rank]
            else:
                self._files[rank] = path, last if seen == last else before, seen
        if self._files:
            self._timer = self._loop.after(_BEAT, self._look)
        elif self.ended:
            self._on_end()

    def _ask_nccl(self, address: str) -> None:
        import socket

        host, _, port = address.rpartition(":")
        if host not in ("localhost", "127.0.0.1", "[::1]"):  # to look a name up may take seconds
            return
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), _BEAT)
            self._socket.sendall(_QUESTION)
            self._socket.setblocking(False)
        except (OSError, ValueError):
            self._leave_nccl()  # an older version, or it is off
        else:
            self._loop.watch(self._socket.fileno(), self._hear_nccl)

    def _hear_nccl(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._said += data
        if data and len(self._said) < _MOST_BYTES:
            return
        self._loop.unwatch(self._socket.fileno())
        self._leave_nccl()
        self.nccl = trouble(self._said.decode(errors="replace"))
        if self.ended:
            self._on_end()

    def _leave_nccl(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def close(self) -> None:
        """Wait no more."""
        if self._files:
            self._timer.cancel()
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
        self._leave_nccl()


def recorded(prefix: str, ranks: Iterable[int]) -> tuple[RankStack, ...]:
    """What ranks have written by themselves."""
    found = ((rank, _read(f"{prefix}{rank}")) for rank in ranks)
    return tuple(RankStack(rank=rank, groups=groups) for rank, groups in found if groups)


def _read(path: str) -> tuple[GroupProgress, ...] | None:
    """The progress in a file; None: it is not whole."""
    try:
        return progress(read_regular(path, os.O_NOFOLLOW, _MOST))
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    except Exception:  # of a version that we do not know
        return ()


class _Plain(pickle._Unpickler):
    """Reads numbers, texts and what contains them: nothing that a rank has written is run here.

    Python's own reader, since that in C makes room for as many objects as the number of one says.
    """

    dispatch: ClassVar[dict[int, Callable[[pickle.Unpickler], None]]] = {**pickle._Unpickler.dispatch}
    dispatch.pop(pickle.BYTEARRAY8[0])  # it makes room for as many bytes as a file says, and PyTorch writes none

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"{module}.{name}")


def progress(dump: bytes) -> tuple[GroupProgress, ...]:
    """How far the rank was with each process group that wrote this dump (version 2 of the flight recorder).

    Raises:
        EOFError, pickle.UnpicklingError: it is not whole.
    """
    recorded = _Plain(io.BytesIO(dump)).load()
    members = {
        group["name"]: tuple(map(_number, re.findall(r"\d+", group["ranks"])))
        for group in recorded.get("pg_config", {}).values()
        if len(group["ranks"]) <= _MOST_MEMBERS
    }
    groups: dict[str, GroupProgress] = {}
    for entry in recorded["entries"]:
        if entry["is_p2p"]:
            continue
        name, label = map(_line, entry["process_group"])
        label = label if label and label != "undefined" else name
        new = GroupProgress(name=name, label=label, called=0, members=members.get(name, ()))
        group = groups.get(name, new)
        number = _number(entry["collective_seq_id"])
        group = group.replace(called=max(group.called, number))
        if not group.waits and not entry["retired"] and entry["state"] != "completed":
            what = _line(entry["profiling_name"]).rpartition(":")[2]
            sizes = [[_number(size) for size in each[:_LONGEST]] for each in entry["input_sizes"][:_LONGEST]]
            group = group.replace(waits=number, what=f"{what} {sizes}"[:_LONGEST])
        groups[name] = group
    return tuple(sorted(groups.values(), key=lambda group: not group.waits)[:_MOST_GROUPS])


def _number(said: Any) -> int:
    """A number that has a form in our protocol; what contains others has none."""
    number = int(said)
    if not 0 <= number < _MOST_NUMBER:
        raise ValueError(said)
    return number


def _line(said: Any) -> str:
    """A text, on one line and not long."""
    if not isinstance(said, str | int):
        raise TypeError(said)  # texts that contain one another can be endless
    return " ".join(str(said).split())[:_LONGEST]


def trouble(said: str) -> str:
    """The errors and warnings in an answer of NCCL, at most `_MOST_LINES` lines."""
    lines = [line.rstrip() for line in said.splitlines()]
    starts = [place for place, line in enumerate(lines) if line in ("Errors", "Warnings")]
    kept = (
        [line for line in lines[starts[0] :] if line.strip("=") and line not in ("Errors", "Warnings")]
        if starts
        else []
    )
    return "\n".join(kept[:_MOST_LINES] + ["…"] * (len(kept) > _MOST_LINES))


def _poke(path: str) -> bool:
    """Write to a pipe that somebody reads; whether there is one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def _signature(path: str) -> object:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
