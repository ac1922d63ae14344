"""The folders and text files of studies, each written completely or not at all; and the lock of experiments."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Sequence
from types import TracebackType

from bireme import drafts
from bireme.errors import BadInputError, BiremeError
from bireme.resources.ownership import name_of

SUMMARY = "summary.txt"
PROBE = ".bireme"
"""The name of a temporary file that is created to test whether a folder is writable."""

PRIVATE = 0o600
"""Files that contain commands or arguments are private: they may contain secrets such as ``--export TOKEN=…``."""


def prepare(folder: str, *, hint: str, where: str = "") -> None:
    """Create a folder of the user's choice, if it is missing."""
    try:
        os.makedirs(folder, exist_ok=True)
        fd, probe = drafts.create(os.path.join(folder, PROBE))
        us = os.fstat(fd).st_uid  # on some shared disks root is called "nobody"
        os.close(fd)
        drafts.remove(probe)
        refuse_others(folder, us, hint=f"{hint}; to read its study: bireme tune report {folder}", where=where)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be written to: {error.strerror}", hint=hint, where=where) from None


def hide(folder: str) -> None:
    """Let git ignore a study's folder, so that ``--ship`` sends only those of its files that a trial needs."""
    if os.path.relpath(os.path.realpath(folder), os.path.realpath(".")).startswith(".."):
        what = f"{folder} is not below the working directory, of which the trials get a copy"
        raise BadInputError(what, hint="name a folder below it as results_dir", where="--ship")
    if not os.path.lexists(os.path.join(folder, ".gitignore")):
        write_text(os.path.join(folder, ".gitignore"), "*\n", sync=False)


def make_folder(path: str) -> None:
    """Create a folder in it, if it is missing."""
    try:
        os.makedirs(path, exist_ok=True)
        refuse_others(path, os.stat(os.path.dirname(path)).st_uid)
    except OSError as error:
        raise BiremeError(f"{path} cannot be created: {error.strerror}") from error


def refuse_others(path: str, us: int, *, hint: str = "choose another folder", where: str = "") -> None:
    """Refuse a file or folder, or a link to one, of another user than this one, root, and ``us``.

    Raises:
        OSError: it is not there.
    """
    for what, owner in ((path, os.stat(path).st_uid), (f"the link {path}", os.lstat(path).st_uid)):
        if owner not in (0, os.geteuid(), us):
            raise BadInputError(f"{what} belongs to {name_of(owner)}", hint=hint, where=where)


def write_text(path: str, text: str, *, mode: int = 0o666, sync: bool = True) -> None:
    """Replace a file atomically: a reader finds the old or the new text, with ``sync`` also after a power failure."""
    try:
        drafts.write(path, text.encode("utf-8"), mode=mode, sync=sync)
    except (OSError, UnicodeError) as error:
        raise BiremeError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def write_command(path: str, command: Sequence[str], *, sync: bool = True) -> None:
    """Write a command line, for this user alone."""
    write_text(path, shlex.join(command) + "\n", mode=PRIVATE, sync=sync)


# -- the lock of experiments --------------------------------------------------------------------------

LOCK = "trials.lock"


class ExperimentsLock:
    """Makes a tuner wait until no experiment of an earlier tuner is left; released when all who hold it have closed it.

    When a tuner dies its experiments end by themselves, and their slots are not free until then. The tuner and the
    guardians of its experiments hold this lock as long as any of their processes lives. So a tuner that gets the lock
    knows that none is left. ``path``: its file, created if missing.
    """

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if os.fstat(self._fd).st_uid == os.geteuid():  # anyone who can read it could take the lock and block us
                os.fchmod(self._fd, 0o600)
        except OSError as error:
            raise BadInputError(f"cannot be opened: {error.strerror}", where=path) from None

    def fileno(self) -> int:
        """The file descriptor, for the guardians to hold."""
        return self._fd

    def taken(self) -> bool:
        """Take the lock if it is free; return whether we have it now."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Wait until the lock is free, and take it."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __enter__(self) -> ExperimentsLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
