"""Whether a file that we have found, and that nobody has named, may be followed.

Anyone can put a file into a folder that others share, such as ``/tmp``. What counts is who can have written what stands
in it: its owner, and whom its mode lets write. The folder does not count: whoever may write there can put another file
in its place, but only one of their own.
"""

from __future__ import annotations

import os
import stat

from bireme.resources.users import name_of


def reason_to_pass_over(path: str, fd: int = -1) -> str:
    """Why a file is not to be followed; "": nobody but this user and root can have written it.

    Args:
        path: the file. A link to it must be theirs as well.
        fd: the file itself, where it is open; else it is looked for by its path.

    Raises:
        OSError: there is none.
    """
    link, found = os.lstat(path), os.stat(path) if fd < 0 else os.fstat(fd)
    for what, owner in (("it", found.st_uid), ("the link", link.st_uid)):
        if owner not in (0, os.geteuid()):
            return f"{what} belongs to {name_of(owner)}"
    if found.st_mode & stat.S_IWOTH:
        return "everyone can write to it"
    if found.st_mode & stat.S_IWGRP and not _is_private(found):
        return "its group can write to it"
    return ""


def _is_private(found: os.stat_result) -> bool:
    """Whether a file's group is its owner's alone, as where every user has a group of the same name (umask 002)."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and {*group.gr_mem} <= {owner.pw_name}
