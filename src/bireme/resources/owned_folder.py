"""Makes sure that only this user and root can change or replace what is at a path, before anything there is believed.

A folder of mode 0700 is not enough: who may write to one of its parents can rename it away, and put another there.
"""

from __future__ import annotations

import os
import stat
from errno import ENOTDIR

from bireme.errors import BadInputError
from bireme.resources.users import name_of

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


def _parts(path: str) -> list[str]:
    """The parts of a path that lead anywhere, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
