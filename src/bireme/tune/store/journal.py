"""The journal: a study's append-only record on disk, with one writer; survives a kill between any two bytes.

Each line is a record: the first 16 hexadecimal digits of the BLAKE2b digest of the rest, a blank, the record as JSON.
The first line identifies the file. A record counts when its line is complete; `append` returns when the disk has it.

An interrupted append leaves an incomplete record at the end, which the next start cuts off. It has no newline and is
one of:

- the beginning of a line, where the writer was killed or the disk was full: up to 16 hexadecimal digits, then a blank,
  then printable ASCII that begins with a brace and is not a whole object;
- the same (of any length, also none) and then nothing but zeros, where the power failed: the new size of the file had
  reached the disk, and the bytes had not.

Nothing else is cut off. A line with a newline that does not match its digest, or an end of another form, was not
written by `append`: another program changed the file, and it is left alone. The first line may be incomplete like any
other: moving a finished file into place instead could replace a file that another process has just locked.

The file is read in pieces, so a journal of any size takes only the memory of its longest record.

The lock is a POSIX lock (``fcntl``) on the file itself. Unlike a ``flock`` lock it is not inherited by forked
processes, so it is released the moment this process ends, and over NFS it holds for other hosts too. It is also
released when this process closes any other descriptor of the file, so nothing else here may open it.
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
import struct
import sys
from collections.abc import Callable, Iterator, Mapping

from bireme.errors import BadInputError, BiremeError
from bireme.resources.ownership import name_of

FORMAT = {"journal": "bireme", "version": 1}

_PIECE = 1 << 20
_LONGEST = 1 << 24
"""Bytes of a line."""

_BEGINNING = re.compile(rb"[0-9a-f]{0,15}|[0-9a-f]{16}(?: (?:\{[ -~]*)?)?")
"""The beginning of a record's line."""


class Journal:
    """An open journal; `open` creates one.

    Attributes:
        note: what was cut off at the start; "": nothing.
        follower: is told each record that has been appended.
    """

    def __init__(self, path: str, fd: int, note: str, first: int, size: int) -> None:
        self.path, self.note = path, note
        self._fd, self._size, self._pid = fd, size, os.getpid()
        self._old = range(first, size)
        self._refusal = ""
        self.follower: Callable[[Mapping[str, object]], None] | None = None

    @classmethod
    def open(cls, path: str) -> Journal:
        """Open or create a journal, check all its records, and cut off an incomplete last one."""
        if _identity(path) in _OURS:  # a process is not in its own way, and closing a second descriptor would unlock
            raise _in_use(path)
        fd = _open(path)
        try:
            _lock(fd, path)
            first, whole, torn = _check(path, fd)
            note = ""
            if torn:
                os.ftruncate(fd, whole)
                note = f"cut off an incomplete record of {torn} bytes at the end of {path}"
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
        """The records that the file held when it was opened, read again each time.

        Raises:
            BiremeError: the journal is closed.
        """
        if self._fd < 0:
            raise BiremeError(self._refusal)
        for line in _lines(self._fd, self._old.start, self._old.stop):
            record = _parse(line[:-1])
            if record is None:
                raise BiremeError(f"{self.path} was changed by another program while it was open")
            yield record

    def append(self, record: Mapping[str, object], *, sync: bool = True) -> None:
        """Write a record.

        Args:
            record: any JSON object.
            sync: return only when the disk has it.

        Raises:
            ValueError: it contains a number that is not JSON, such as NaN, or is longer than 16 MiB.
            TypeError: it is not JSON, or has a key that is not a string.
            BiremeError: it cannot be written, and the file is as it was before; or the file could not be cut back, is
                closed, or belongs to the parent process of this one.
        """
        if os.getpid() != self._pid:  # a fork inherits the descriptor, but not the lock
            raise BiremeError(f"{self.path} is written by process {self._pid}, not by a fork of it")
        if self._refusal:
            raise BiremeError(self._refusal, hint="open it again: that cuts off the incomplete record")
        line = _line(record)
        size = self._size + len(line)
        try:
            _write(self._fd, line)
            if sync:
                os.fdatasync(self._fd)
            self._size = size
        except BaseException as error:  # a signal handler may raise any exception
            self._take_back()
            if isinstance(error, OSError):
                raise BiremeError(f"{self.path} cannot be written: {error.strerror}", hint=_HINT) from error
            raise
        if self.follower is not None:
            self.follower(record)

    def _take_back(self) -> None:
        self._refusal = failed = f"{self.path} cannot be cut back to its last whole record"
        try:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            self._refusal = ""
        except OSError as error:
            self._refusal = f"{failed}: {error.strerror}"

    def close(self) -> None:
        """Close the file and release its lock. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:  # the number may soon belong to another file
            self._refusal = f"{self.path} is closed"
            _close(fd)


_OURS: set[tuple[int, int, int]] = set()
"""The journals open in this process, by process id, device and inode: a fork has a copy of this set, but no lock."""

_HINT = "free some space or repair the disk; everything written before is kept"
_ELSEWHERE = "choose another results_dir"
_PRIVATE = 0o600
"""The records contain the script's arguments, which may be secret."""


def _open(path: str) -> int:
    try:
        if os.path.islink(path) and os.lstat(path).st_uid not in (0, os.geteuid()):
            raise BadInputError("is a symbolic link of another user", hint=_ELSEWHERE, where=path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        folder = os.stat(os.path.dirname(path) or ".")
    except OSError as error:
        raise _cannot(path, "opened", error) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid(), folder.st_uid):
        os.close(fd)
        foreign = stat.S_ISREG(found.st_mode) and f"belongs to {name_of(found.st_uid)}"
        raise BadInputError(foreign or "is not a regular file", hint=_ELSEWHERE, where=path)
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:  # created by an earlier version, or copied
        os.fchmod(fd, _PRIVATE)
    return fd


def _cannot(path: str, be: str, error: OSError) -> BadInputError:
    return BadInputError(f"cannot be {be}: {error.strerror}", hint=f"fix that, or {_ELSEWHERE}", where=path)


def _lock(fd: int, path: str) -> None:
    """Take the lock, and write our pid and host into a file beside it, for the message of a second process."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        raise _in_use(path) from None
    except OSError as error:
        raise _cannot(path, "locked", error) from None
    _OURS.add(_identity(fd))
    try:
        owner = os.open(_owner(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, _PRIVATE)
        with open(owner, "w") as file:
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
    except OSError:
        pass  # only the message of a second process is less helpful


def _close(fd: int) -> None:
    _OURS.discard(_identity(fd))
    os.close(fd)


def _identity(file: str | int) -> tuple[int, int, int]:
    """(our pid, device, inode) of a path or descriptor; (-1, -1, -1) if it does not exist."""
    try:
        found = os.stat(file)
    except OSError:
        return -1, -1, -1
    return os.getpid(), found.st_dev, found.st_ino


def _owner(path: str) -> str:
    return f"{path}.owner"


def _in_use(path: str) -> BadInputError:
    try:
        fd = os.open(_owner(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        fd = -1
    try:
        owner = os.read(fd, 200).decode(errors="replace")
    except OSError:
        owner = ""
    finally:
        if fd >= 0:
            os.close(fd)
    return BadInputError(
        f"another tuner is using this folder: {owner or 'an unknown process'}",
        hint=f"wait until it ends, or {_ELSEWHERE}",
        where=path,
    )


def _lines(fd: int, place: int, end: int | None = None) -> Iterator[bytes]:
    """The lines of a file from an offset on, each with its newline; the last one may lack it.

    Stops after the beginning of a line that is longer than any record.
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


def read(path: str) -> Iterator[dict[str, object]]:
    """The whole records of a journal that another process may be writing: without its lock, and changing nothing."""
    if _identity(path) in _OURS:
        raise BiremeError(f"{path} is open in this process")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=path) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadInputError("is not a regular file", where=path)
        for place, (record, _) in enumerate(_records(path, fd)):
            if place and record is not None:
                yield record
    finally:
        os.close(fd)


def is_open(path: str) -> bool:
    """Whether another process has the journal open, so that its study is running. Asks, and takes no lock."""
    darwin = sys.platform == "darwin"
    form = "qqihh" if darwin else "hhqqi"  # struct flock
    question = (0, 0, 0, fcntl.F_RDLCK, 0) if darwin else (fcntl.F_RDLCK, 0, 0, 0, 0)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        answer = struct.unpack(form, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(form, *question)))
        return bool(answer[3 if darwin else 0] != fcntl.F_UNLCK)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)


def _check(path: str, fd: int) -> tuple[int, int, int]:
    """(offset of the first record, offset behind the last one, bytes of an incomplete record after that)."""
    first = place = 0
    for record, size in _records(path, fd):
        first = first or size
        if record is None:
            return (first, place, size) if place else (0, 0, size)
        place += size
    return first, place, 0


def _records(path: str, fd: int) -> Iterator[tuple[dict[str, object] | None, int]]:
    """Each line's record, that of the file itself first, and its size; the last one may be None: it is incomplete."""
    for number, line in enumerate(_lines(fd, 0), 1):
        record = _parse(line[:-1]) if line.endswith(b"\n") else None
        if number == 1:
            if record is None and not _is_ours(line):
                raise BadInputError("is not a journal of Bireme", hint=_ELSEWHERE, where=path)
            if record is not None and record != FORMAT:
                raise BadInputError(
                    f"is a journal of another version: {json.dumps(record)[:80]}",
                    hint=f"continue with the version of Bireme that began it, or {_ELSEWHERE}",
                    where=f"{path}:1",
                )
        if record is None and not _is_torn(line):
            raise BadInputError(
                "the journal is damaged: this line is neither a record nor an interrupted append",
                hint=f"restore it from a copy, cut it off from here (sed -i '{number},$d'), or {_ELSEWHERE}",
                where=f"{path}:{number}",
            )
        yield record, len(line)


def _is_torn(line: bytes) -> bool:
    """Whether an interrupted append can have left this last line."""
    begun = line.rstrip(b"\0")
    if len(line) > _LONGEST or not _BEGINNING.fullmatch(begun):
        return False
    try:
        json.loads(begun[17:])
    except (ValueError, RecursionError):
        return True
    return begun[:16] == _digest(begun[17:])  # only its newline is missing: an incomplete object is not valid JSON


def _is_ours(data: bytes) -> bool:
    """Whether this could be the beginning of our first line; after a power failure the rest may be zeros."""
    first = _line(FORMAT)
    return len(data) <= len(first) and first.startswith(data.rstrip(b"\0"))


def _parse(line: bytes) -> dict[str, object] | None:
    digest, blank, text = line.partition(b" ")
    if not blank or digest != _digest(text):
        return None
    try:
        # Records share their keys: to intern these halves the memory.
        record = json.loads(text, object_pairs_hook=lambda pairs: {sys.intern(name): value for name, value in pairs})
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _line(record: Mapping[str, object]) -> bytes:
    _check_names(record)
    text = json.dumps(dict(record), separators=(",", ":"), allow_nan=False).encode("ascii")
    line = _digest(text) + b" " + text + b"\n"
    if len(line) > _LONGEST:
        raise ValueError(f"a record of {len(line)} bytes is too long")
    return line


def _check_names(value: object) -> None:
    """Raises TypeError: a key is not a string. JSON would convert it, and two keys could become the same."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"names must be strings, not {name!r}")
            _check_names(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_names(inner)


def _digest(text: bytes) -> bytes:
    """The digest of a record. Unlike a CRC it finds changes of any size, and takes only a microsecond."""
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode("ascii")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(path: str) -> None:
    """Sync the folder, so that the file's name is on disk as well as its content."""
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
