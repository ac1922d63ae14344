"""Writes what was fetched below a folder of this machine: as a draft that is renamed, and never through a link.

The names come from other machines, so each folder is opened by itself, without following a link that is in its place.
"""

from __future__ import annotations

import os
import stat

from bireme.errors import BiremeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from bireme.ship.fetch_messages import FoundFile

    Here: TypeAlias = Literal["nothing", "same", "older", "newer"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeError(BiremeError):
    """A file cannot be written, but others may."""


def what_is_here(path: str, file: FoundFile) -> Here:
    """What there is already at the path of a file."""
    try:
        here = os.lstat(path)
    except OSError:
        return "nothing"
    if file.target:
        same = stat.S_ISLNK(here.st_mode) and os.readlink(path) == file.target
    else:
        same = stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (file.size, file.mtime)
    return "same" if same else "newer" if here.st_mtime_ns > file.mtime else "older"


class HomeFolders:
    """Makes and opens the folders of files, and keeps the last one open."""

    def __init__(self) -> None:
        self._last = ("", "", -1)
        self._umask = os.umask(0o22)
        os.umask(self._umask)
        self._written: set[tuple[int, int]] = set()

    def close(self) -> None:
        """Close the last folder."""
        if self._last[2] >= 0:
            os.close(self._last[2])
        self._last = ("", "", -1)

    def _folder(self, base: str, below: str) -> int:
        """The descriptor of a folder, which stays open until the next call.

        Raises:
            HomeError: a link or a file is in its place.
            OSError: it cannot be made.
        """
        if self._last[:2] == (base, below):
            return self._last[2]
        os.makedirs(base, exist_ok=True)
        fd = os.open(base, _FOLDER)
        done = ""
        for name in below.split("/") if below else ():
            done = os.path.join(done, name)
            above = fd
            try:
                try:
                    os.mkdir(name, dir_fd=above)
                except FileExistsError:
                    pass
                fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
            except NotADirectoryError:  # also for a link
                raise HomeError(f"{os.path.join(base, done)} is a link or a file here") from None
            finally:
                os.close(above)
        self.close()
        self._last = (base, below, fd)
        return fd

    def link(self, base: str, path: str, file: FoundFile) -> None:
        """Make a symbolic link.

        Raises:
            HomeError, OSError: as for `Draft`.
        """
        below, _, name = path.rpartition("/")
        folder, draft = self._folder(base, below), _draft_name()
        os.symlink(file.target, draft, dir_fd=folder)
        os.utime(draft, ns=(file.mtime, file.mtime), dir_fd=folder, follow_symlinks=False)
        self.rename(folder, draft, name, os.path.join(base, path), file)

    def draft(self, base: str, path: str) -> Draft:
        """Begin to write a file.

        Raises:
            HomeError, OSError: it cannot be written.
        """
        return Draft(self, self._folder(base, path.rpartition("/")[0]), base, path)

    def mode(self, wanted: int) -> int:
        """Permissions of a new file, as the umask allows them."""
        return wanted & ~self._umask

    def rename(self, folder: int, draft: str, name: str, path: str, file: FoundFile) -> None:
        """Give a draft its name.

        Raises:
            HomeError: another file of the job or a folder has it, or one that was changed meanwhile.
        """
        try:
            here = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            mine = (here.st_dev, here.st_ino) in self._written
            if mine or stat.S_ISDIR(here.st_mode) or here.st_mtime_ns > file.mtime:
                os.unlink(draft, dir_fd=folder)
                raise HomeError(f"{path} is another file of the job, a folder, or was changed here meanwhile")
        new = os.stat(draft, dir_fd=folder, follow_symlinks=False)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._written.add((new.st_dev, new.st_ino))


class Draft:
    """A file that is being written."""

    def __init__(self, folders: HomeFolders, folder: int, base: str, path: str) -> None:
        self._folders, self._base, self._path = folders, base, path
        self._name = _draft_name()
        self._folder = os.dup(folder)
        try:
            self._fd = os.open(self._name, _NEW, 0o600, dir_fd=self._folder)
        except OSError:
            os.close(self._folder)
            raise
        self.size = 0

    def write(self, data: memoryview) -> None:
        """Append data."""
        self.size += len(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def skip(self, size: int) -> None:
        """Leave a hole."""
        self.size += size
        os.lseek(self._fd, size, os.SEEK_CUR)

    def finish(self, file: FoundFile) -> None:
        """Give it its length, permissions, time and name.

        Raises:
            HomeError, OSError: that cannot be done; nothing is left of it.
        """
        try:
            os.ftruncate(self._fd, self.size)
            os.fchmod(self._fd, self._folders.mode(file.mode))
            os.utime(self._fd, ns=(file.mtime, file.mtime))
            name = self._path.rpartition("/")[2]
            self._folders.rename(self._folder, self._name, name, os.path.join(self._base, self._path), file)
        except (OSError, OverflowError, HomeError):
            self.drop()
            raise
        self._close()

    def drop(self) -> None:
        """Remove it."""
        try:
            os.unlink(self._name, dir_fd=self._folder)
        except OSError:
            pass
        self._close()

    def _close(self) -> None:
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1


def _draft_name() -> str:
    return f".{os.urandom(8).hex()}.tmp"
