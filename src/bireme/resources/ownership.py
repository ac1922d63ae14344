"""Finds out who owns a file, folder or socket and who else can change it, before anything there is believed.

A folder of mode 0700 is not enough: who may write to one of its parents can rename it away, and put another there.
Also has the folder of the cache.
"""

from __future__ import annotations

import _socket
import os
import stat
import sys
import time
from errno import ENOTDIR

from bireme import drafts
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


_MOST_LINKS = 40


def check_owned(path: str, *, hint: str = "") -> None:
    """Refuse a folder or file that others can change or replace.

    Each folder on the way from ``/`` must be this user's or root's, and not be writable by others. A sticky one, such
    as ``/tmp``, may be, where the next part is this user's or root's. Links are followed: nobody else can have made
    them there. As each part is checked before the next one, others have no time to exchange one.

    Args:
        hint: what the user can type, unless a part of the path is theirs and only has the wrong mode.

    Raises:
        BadInputError: others can change it.
        OSError: it does not exist, or cannot be examined.
    """
    # The root of a user namespace may be nobody there; who owns "/" is to be trusted anyway.
    trusted, links, sticky = (0, os.geteuid(), os.stat("/").st_uid), 0, False
    here, parts = "", _parts(os.path.join(os.getcwd(), path))
    while parts:
        part = parts.pop()
        if part == "..":
            here = here.rpartition("/")[0]
            sticky = bool(os.lstat(here or "/").st_mode & stat.S_ISVTX)
            continue
        here += f"/{part}"
        found = os.lstat(here)
        is_link = stat.S_ISLNK(found.st_mode)
        if found.st_uid not in trusted and (sticky or not is_link):
            raise BadInputError(f"{here} belongs to {name_of(found.st_uid)}, not to this user or root", hint=hint)
        if is_link:
            links += 1
            if links > _MOST_LINKS:
                raise BadInputError(f"too many links in {path}", hint=hint)
            target = os.readlink(here)
            here = "" if os.path.isabs(target) else here.rpartition("/")[0]
            sticky = sticky and bool(here)
            parts += _parts(target)
            continue
        who, sticky = who_else_writes(found, here), bool(found.st_mode & stat.S_ISVTX)
        if who and not (sticky and parts):
            ours = found.st_uid == os.geteuid()
            raise BadInputError(f"{who} can write to {here}", hint=f"chmod go-w {here}" if ours else hint)


def make_owned(path: str, *, hint: str = "") -> None:
    """Create a folder for this user alone, and what is missing above it; refuse one that others can change or replace.

    Args:
        hint: as for `check_owned`.

    Raises:
        BadInputError: others can change it.
        OSError: it cannot be created.
    """
    try:
        check_owned(path, hint=hint)
    except FileNotFoundError:
        above = os.path.dirname(path.rstrip("/"))
        if above and not os.path.isdir(above):
            make_owned(above, hint=hint)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        check_owned(path, hint=hint)
    if not os.path.isdir(path):
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), path)


def who_else_writes(found: os.stat_result, path: str = "") -> str:
    """Who besides the owner and root can write to a file or folder: "everyone", "its group", or "" for nobody.

    Args:
        path: its path, to look for an access control list.
    """
    if found.st_mode & stat.S_IWOTH:
        return "everyone"
    return "its group" if found.st_mode & stat.S_IWGRP and not _is_alone_in_group(found, path) else ""


def _is_alone_in_group(found: os.stat_result, path: str) -> bool:
    """Whether the owner is the only member of the group, as where each user has a group of their own."""
    import grp
    import pwd

    try:
        if path and "system.posix_acl_access" in os.listxattr(path):
            return False  # the mode shows what the list allows to anyone
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except (KeyError, OSError, AttributeError):
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and {*group.gr_mem} <= {owner.pw_name}


def reason_to_pass_over(path: str, fd: int = -1) -> str:
    """The reason not to trust a file that we have found, and no user has named; "" if nobody else can have written it.

    Anybody can put a file into a shared folder such as ``/tmp``. The mode of the folder does not matter: another user
    who can write to the folder can replace the file only by one that they own.

    Args:
        path: the file. If it is a link, the link must also belong to this user or root.
        fd: a descriptor of the file, if it is open; otherwise ``path`` is used.

    Raises:
        OSError: the file does not exist.
    """
    link, found = os.lstat(path), os.stat(path) if fd < 0 else os.fstat(fd)
    for what, owner in (("it", found.st_uid), ("the link", link.st_uid)):
        if owner not in (0, os.geteuid()):
            return f"{what} belongs to {name_of(owner)}"
    who = who_else_writes(found)
    return f"{who} can write to it" if who else ""


def _parts(path: str) -> list[str]:
    """The parts of a path that lead anywhere, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def peer_of(connection: _socket.socket | socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that has connected to a local socket or listens on it, from the kernel.

    The pid is 0 if that process is in another pid namespace, as in a container.
    """
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    return int.from_bytes(credentials[:4], sys.byteorder), int.from_bytes(credentials[4:8], sys.byteorder)


def name_of(uid: int) -> str:
    """The name of a user; ``user 1234`` if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_KEPT = 30 * 86400
"""Seconds for which a file is kept that is not written again."""


def cache_folder(environ: Mapping[str, str], home: str = "") -> str:
    """Bireme's folder in the user's cache.

    Args:
        home: the value of ``XDG_CACHE_HOME`` to use instead of that in the environment; "": none.
    """
    cache = home or environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "bireme")


def keep(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file of the cache, and remove old ones from its folder. Errors are ignored: it can be made again."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        drafts.write(path, data, mode=mode, sync=True)
        check_owned(folder)  # else somebody could lead us to files of another kind by a link
        for name in os.listdir(folder):
            other = os.path.join(folder, name)
            if os.lstat(other).st_mtime < time.time() - _KEPT:
                drafts.remove(other)
    except (OSError, BadInputError):
        pass
