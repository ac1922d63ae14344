"""Writes what was fetched below a folder of this machine: as a draft that is renamed, and never through a link.

The names come from other machines, so each folder is opened by itself, without following a link that is in its place.
"""

from __future__ import annotations

import os
import stat

from bireme.errors import BiremeError
from bireme.ship import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from bireme.ship.manifest import Entry

    Here: TypeAlias = Literal["nothing", "same", "older", "newer"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeError(BiremeError):
    """A file cannot be written, but others may."""


def what_is_here(path: str, file: Entry) -> Here:
    """What there is already at the path of a file."""
    try:
        here = os.lstat(path)
    except OSError:
        return "nothing"
    if file.kind == "link":
        same = stat.S_ISLNK(here.st_mode) and os.readlink(path) == file.content
    else:
        same = stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (file.size, file.mtime)
    return "same" if same else "newer" if here.st_mtime_ns > file.mtime else "older"


class Home:
    """This machine, as files of one job come to it."""

    def __init__(self) -> None:
        self.umask = os.umask(0o22)
        os.umask(self.umask)
        self.written: set[tuple[int, int]] = set()
        """The devices and inodes of the files."""


def _open(base: str, below: str) -> int:
    """Make and open a folder.

    Raises:
        HomeError: a link or a file is in its place.
        OSError: it cannot be made.
    """
    os.makedirs(base, exist_ok=True)
    top = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return inside.open_folder(top, below, make=True)
    except NotADirectoryError:  # also for a link
        raise HomeError(f"a part of {os.path.join(base, below)} is a link or a file here") from None
    finally:
        os.close(top)


class Draft:
    """A file that is being written, or a symbolic link.

    Args:
        home: where it comes to.
        base: the folder that the user has named.
        path: where it goes, below.
        file: what it is.

    Raises:
        HomeError, OSError: it cannot be written.
    """

    def __init__(self, home: Home, base: str, path: str, file: Entry) -> None:
        self._home, self._path, self._file = home, os.path.join(base, path), file
        self._draft, self._name = f".{os.urandom(8).hex()}.tmp", os.path.basename(path)
        self.fd = -1
        self._folder = _open(base, os.path.dirname(path))
        try:
            if file.kind == "link":
                os.symlink(file.content, self._draft, dir_fd=self._folder)
            else:
                self.fd = os.open(self._draft, _NEW, 0o600, dir_fd=self._folder)
                if file.parts:
                    os.ftruncate(self.fd, file.size)
        except (OSError, ValueError):
            self.drop()
            raise

    def finish(self) -> None:
        """Give it its permissions, time and name.

        Raises:
            HomeError: another file of the job or a folder has the name, or one that was changed meanwhile.
            OSError, OverflowError: that cannot be done. Call `drop`.
        """
        file, folder = self._file, self._folder
        if self.fd >= 0:
            os.fchmod(self.fd, file.mode & ~self._home.umask)
        os.utime(self._draft, ns=(file.mtime, file.mtime), dir_fd=folder, follow_symlinks=False)
        try:
            here = os.stat(self._name, dir_fd=folder, follow_symlinks=False)
            mine = (here.st_dev, here.st_ino) in self._home.written
            if mine or stat.S_ISDIR(here.st_mode) or here.st_mtime_ns > file.mtime:
                raise HomeError(f"{self._path} is another file of the job, a folder, or was changed here meanwhile")
        except FileNotFoundError:
            pass
        new = os.stat(self._draft, dir_fd=folder, follow_symlinks=False)
        os.rename(self._draft, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        self._home.written.add((new.st_dev, new.st_ino))
        self._close()

    def drop(self) -> None:
        """Remove it."""
        try:
            os.unlink(self._draft, dir_fd=self._folder)
        except (OSError, ValueError):
            pass
        self._close()

    def _close(self) -> None:
        for fd in (self.fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self.fd = self._folder = -1
