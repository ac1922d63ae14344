"""The folder of a job's error files on one node: private, and locked by the process that reads them.

The last survivor of that process, watcher and guardian removes it. If all are killed at once it stays, without its
lock, until the next job that ends on this machine removes it.
"""

from __future__ import annotations

import fcntl
import os
import stat

from bireme.regular_file import listing, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def beginning(environ: Mapping[str, str]) -> str:
    """What the paths of such folders begin with here.

    It names this boot of this machine: whether a folder is locked on another one, which shares the disk, is not known.
    """
    boot = text_of("/proc/sys/kernel/random/boot_id")[:8] or os.uname().nodename
    for path in (environ.get("TMPDIR", ""), "/tmp", "."):  # `tempfile` is slow to import
        if path and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return os.path.join(os.path.abspath(path), f"bireme-{boot}")
    return f"/tmp/bireme-{boot}"


def make(path: str) -> int:
    """Make the folder; return the descriptor that holds its lock, -1 if it cannot be made: a job can run without."""
    while True:
        try:
            os.mkdir(path, 0o700)
        except OSError:
            return -1
        if (fd := _locked(path, fcntl.LOCK_EX)) >= 0:
            return fd  # else another job has removed it before it was locked


def remove(path: str) -> None:
    """Remove the folder and the files and empty folders in it, whoever has made them; links are not followed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(fd):
            if stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode):
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
        os.rmdir(path)
    except OSError:
        pass
    finally:
        os.close(fd)


def remove_left_behind(path: str) -> None:
    """Remove the folders of this user's dead jobs that lie beside this one."""
    beside, name = os.path.split(path)
    alike = name.rpartition("-")[0] + "-"
    for other in listing(beside):
        if other.startswith(alike) and other != name:
            place = os.path.join(beside, other)
            try:
                is_ours = os.lstat(place).st_uid == os.geteuid()
            except OSError:
                continue
            if is_ours and (fd := _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB)) >= 0:
                remove(place)
                os.close(fd)


def _locked(path: str, kind: int) -> int:
    """Lock a folder; return the descriptor that holds the lock, -1 if another one does, or if it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, kind)
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except OSError:
        pass
    os.close(fd)
    return -1
