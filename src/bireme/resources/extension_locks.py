"""Finds stale locks of PyTorch's extension builds: a killed build leaves one, and later builds wait for it forever.

PyTorch (``torch.utils.file_baton``) creates a file named ``lock`` in the folder of an extension that it compiles, keeps
it open, and removes it at the end. So a lock that no process has open is stale.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_named: set[str] = set()
"""The locks that were named. Later attempts of a job name only new ones, which earlier attempts may have left."""


def warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each stale lock of this user that was not named yet, with the command that removes it.

    Args:
        environ: the environment of the ranks, which says where they compile.
    """
    new = [path for path in stale(environ) if path not in _named]
    _named.update(new)
    return tuple(
        f"{path} is a stale lock of PyTorch: ranks that need this extension wait for it forever\n"
        f"  remove it, unless another machine is compiling the extension: {removal(path)}"
        for path in new
    )


def removal(path: str) -> str:
    """The command that removes a lock."""
    import shlex

    return shlex.join(("rm", path))


def stale(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The stale locks of this user."""
    locks = {os.path.realpath(path): path for path in _locks(environ)}
    if not locks:
        return ()
    for target in _open_files():
        locks.pop(target, None)
    return tuple(path for path in locks.values() if os.path.lexists(path))  # a build may have ended meanwhile


def _locks(environ: Mapping[str, str]) -> Iterator[str]:
    """Every lock below the folders in which PyTorch compiles: ``FOLDER/NAME`` or ``FOLDER/VERSION/NAME``."""
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME", os.path.join(home, ".cache") if home else "")
    root = environ.get("TORCH_EXTENSIONS_DIR") or (os.path.join(cache, "torch_extensions") if cache else "")
    for folder in _folders(root) if root else ():
        for build in (folder, *_folders(folder)):
            path = os.path.join(build, "lock")
            try:
                if os.lstat(path).st_uid == os.geteuid():  # we cannot see whether another user's process has it open
                    yield path
            except OSError:
                pass


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _open_files() -> Iterator[str]:
    """The paths of all files that processes of this user have open."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # it has ended, or belongs to another user
            continue
        for fd in fds:
            try:
                yield os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:  # closed meanwhile
                pass
