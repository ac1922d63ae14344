"""An append-only record of a study on disk, with one writer, that survives being killed between any two bytes.

A line a record: the first 16 hexadecimal digits of the BLAKE2b digest of the rest, a blank, the record as JSON. The
first line says what the file is. A record counts when its line is whole: `append` returns when the disk has it.

An append that was interrupted leaves a torn end, which the next start cuts off. It is one piece without a newline:

- the beginning of a line, where the writer was killed or the disk was full: up to 16 hexadecimal digits, then a blank,
  then printable ASCII that begins with a brace and is not a whole object;
- the same (of any length, also none) and then nothing but zeros, where the power failed: the new size of the file had
  reached the disk, and the bytes had not.

Nothing else is cut off. A line that ends in a newline and does not agree with its digest, or an end of another form,
was not written by `append`: something else has changed the file, and we leave it alone. The first line may be cut short
like any other: to move a finished file into place instead could replace one that another has just locked.

The file is read piece by piece: a journal of any size takes the memory of its longest record.

The lock is that of POSIX (``fcntl``) on the file itself: unlike ``flock``'s it is not inherited by what we fork, so
that it goes the moment we do, and over NFS it reaches other hosts. It also goes when we close any other descriptor of
the file: nobody else in this process opens it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator, Mapping

from bireme.errors import BadInputError, BiremeError

FORMAT = {"journal": "bireme", "version": 1}

_PIECE = 1 << 20
_LONGEST = 1 << 24
"""Bytes of a line."""

_BEGINNING = re.compile(rb"[0-9a-f]{0,15}|[0-9a-f]{16}(?: (?:\{[ -~]*)?)?")
"""The beginning of a record's line."""


class Journal:
    """An open journal. Made by `open`."""

    def __init__(self, path: str, fd: int, note: str, first: int, size: int) -> None:
        self.path, self.note = path, note
        self._fd, self._size, self._pid = fd, size, os.getpid()
        self._old = range(first, size)
        self._refusal = ""

    @classmethod
    def open(cls, path: str) -> Journal:
        """Open a journal or begin one, and replay it.

        Raises:
            BadInputError: it cannot be opened, another process writes it, or it is damaged or of another version.
            BiremeError: the disk cannot take its first line.
        """
        if _identity(path) in _OURS:  # a process is not in its own way, and closing a second descriptor would unlock
            raise _in_use(path)
        fd = _open(path)
        try:
            _lock(fd, path)
            first, whole, torn = _check(path, fd)
            note = ""
            if torn:
                os.ftruncate(fd, whole)
                note = f"a torn record of {torn} bytes at the end of {path} was cut off"
            os.lseek(fd, whole, os.SEEK_SET)
            journal = cls(path, fd, note, first, whole)
            if not whole:
                journal.append(FORMAT)
                _sync_folder(path)
            return journal
        except BaseException as error:
            _close(fd)
            if isinstance(error, OSError):
                raise _cannot(path, "opened", error) from error
            raise

    @property
    def records(self) -> Iterator[dict[str, object]]:
        """What the file held when it was opened, read from it anew each time.

        Raises:
            BiremeError: the journal is closed.
        """
        if self._fd < 0:
            raise BiremeError(self._refusal)
        for line in _lines(self._fd, self._old.start, self._old.stop):
            record = _parse(line[:-1])
            if record is None:
                raise BiremeError(f"{self.path} was changed by something else while it was open")
            yield record

    def append(self, record: Mapping[str, object], *, sync: bool = True) -> None:
        """Write a record.

        Args:
            record: what JSON can write.
            sync: return only when the disk has it.

        Raises:
            ValueError: it holds a number that JSON does not know, such as NaN, or is longer than 16 MiB.
            TypeError: JSON cannot write it, or would make strings of its names.
            BiremeError: the disk cannot, and the file is as it was before; or it could not be cut back, is closed, or
                belongs to the process that we were forked from.
        """
        if os.getpid() != self._pid:  # the descriptor came along, the lock did not
            raise BiremeError(f"{self.path} is written by process {self._pid}, not by a fork of it")
        if self._refusal:
            raise BiremeError(self._refusal, hint="open it again: what is torn is then cut off")
        line = _line(record)
        size = self._size + len(line)
        try:
            _write(self._fd, line)
            if sync:
                os.fdatasync(self._fd)
            self._size = size
        except BaseException as error:  # a signal's handler may raise anything, too
            self._take_back()
            if isinstance(error, OSError):
                raise BiremeError(f"{self.path} cannot be written: {error.strerror}", hint=_MEND) from error
            raise

    def _take_back(self) -> None:
        self._refusal = failed = f"{self.path} cannot be cut back to its last whole record"
        try:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            self._refusal = ""
        except OSError as error:
            self._refusal = f"{failed}: {error.strerror}"

    def close(self) -> None:
        """Let go of the file and its lock; a second time it does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:  # its number may soon be another file's
            self._refusal = f"{self.path} is closed"
            _close(fd)


_OURS: set[tuple[int, int, int]] = set()
"""The journals that this process writes, by process, device and inode: what we fork has a copy, and no lock."""

_MEND = "make room, or mend the disk; what was written by then is kept"
_ELSEWHERE = "choose another results_dir"
_PRIVATE = 0o600
"""The script's arguments stand in the records, and what is secret among them."""


def _open(path: str) -> int:
    try:
        if os.path.islink(path) and os.lstat(path).st_uid not in (0, os.geteuid()):
            raise BadInputError("is another user's link", hint=_ELSEWHERE, where=path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    except OSError as error:
        raise _cannot(path, "opened", error) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):  # a named pipe would let us wait for ever
        os.close(fd)
        raise BadInputError("is not a file", hint=_ELSEWHERE, where=path)
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:  # made by an earlier version, or copied
        os.fchmod(fd, _PRIVATE)
    return fd


def _cannot(path: str, be: str, error: OSError) -> BadInputError:
    return BadInputError(f"cannot be {be}: {error.strerror}", hint=f"mend that, or {_ELSEWHERE}", where=path)


def _lock(fd: int, path: str) -> None:
    """Take the lock, and leave our name beside the file for whoever comes second."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        raise _in_use(path) from None
    except OSError as error:
        raise _cannot(path, "locked", error) from None
    _OURS.add(_identity(fd))
    try:
        owner = os.open(_owner(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _PRIVATE)
        with open(owner, "w") as file:
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
    except OSError:
        pass  # a courtesy


def _close(fd: int) -> None:
    _OURS.discard(_identity(fd))
    os.close(fd)


def _identity(file: str | int) -> tuple[int, int, int]:
    """(our process, device, inode) of a path or a descriptor; of what is not there, one that nothing has."""
    try:
        found = os.stat(file)
    except OSError:
        return -1, -1, -1
    return os.getpid(), found.st_dev, found.st_ino


def _owner(path: str) -> str:
    return f"{path}.owner"


def _in_use(path: str) -> BadInputError:
    try:
        with open(_owner(path), errors="replace") as file:
            who = file.read(200)
    except OSError:
        who = ""
    return BadInputError(
        f"another tuner is at work here: {who or 'its name is not known'}",
        hint=f"wait for its end, or {_ELSEWHERE}",
        where=path,
    )


def _lines(fd: int, place: int, end: int | None = None) -> Iterator[bytes]:
    """The lines of a file from one place on, each with its newline; the last one may lack it.

    What is longer than any record comes without its rest, and then nothing more.
    """
    begun = b""
    while piece := os.pread(fd, _PIECE if end is None else min(_PIECE, end - place), place):
        place += len(piece)
        *lines, begun = (begun + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(begun) > _LONGEST:
            break
    if begun:
        yield begun


def _check(path: str, fd: int) -> tuple[int, int, int]:
    """(where the records begin, where they end, bytes of a torn one behind them)."""
    first = place = 0
    for number, line in enumerate(_lines(fd, 0), 1):
        record = _parse(line[:-1]) if line.endswith(b"\n") else None
        if number == 1:
            if record is None and not _is_ours(line):
                raise BadInputError("is no journal of Bireme", hint=_ELSEWHERE, where=path)
            if record is not None and record != FORMAT:
                raise BadInputError(
                    f"is a journal of another version: {json.dumps(record)[:80]}",
                    hint=f"go on with the Bireme that began it, or {_ELSEWHERE}",
                    where=f"{path}:1",
                )
            first = len(line)
        if record is None:
            if not _is_torn(line):
                raise BadInputError(
                    "the journal is damaged: this line is no record, and no append that was cut short",
                    hint=f"restore it from a copy, cut it off from here (sed -i '{number},$d'), or {_ELSEWHERE}",
                    where=f"{path}:{number}",
                )
            return (first, place, len(line)) if place else (0, 0, len(line))
        place += len(line)
    return first, place, 0


def _is_torn(line: bytes) -> bool:
    """Whether an append that was cut short can have left this, the last piece of the file."""
    begun = line.rstrip(b"\0")
    if len(line) > _LONGEST or not _BEGINNING.fullmatch(begun):
        return False
    try:
        json.loads(begun[17:])
    except (ValueError, RecursionError):
        return True
    return begun[:16] == _digest(begun[17:])  # only its newline is missing; an object that was cut short is none


def _is_ours(data: bytes) -> bool:
    """Whether this could be the beginning of our first line; after a power cut, the rest of it may be zeros."""
    first = _line(FORMAT)
    return len(data) <= len(first) and first.startswith(data.rstrip(b"\0"))


def _parse(line: bytes) -> dict[str, object] | None:
    digest, blank, text = line.partition(b" ")
    if not blank or digest != _digest(text):
        return None
    try:
        record = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Records have the same names: kept once, they are half of the memory less."""
    return {sys.intern(name): value for name, value in pairs}


def _line(record: Mapping[str, object]) -> bytes:
    _check_names(record)
    text = json.dumps(dict(record), separators=(",", ":"), allow_nan=False).encode("ascii")
    line = _digest(text) + b" " + text + b"\n"
    if len(line) > _LONGEST:
        raise ValueError(f"a record of {len(line)} bytes is too long")
    return line


def _check_names(value: object) -> None:
    """Raises TypeError: a name is not a string. JSON would make one of it, and of two that then are alike lose one."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"names must be strings, not {name!r}")
            _check_names(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_names(inner)


def _digest(text: bytes) -> bytes:
    """Not a CRC: it finds what has changed, however much of it, and costs a microsecond."""
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode("ascii")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(path: str) -> None:
    """The file's name has to be on disk as well as what is in it."""
    try:
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that may be written but not read; most file systems keep the name anyway
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not every file system knows how
            raise
    finally:
        os.close(folder)
