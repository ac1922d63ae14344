"""Decides whether an environment file that we have found, and the user has not named, can be trusted.

Anybody can put a file into a shared folder such as ``/tmp``. So the owner of the file and its mode decide: they show
who can have written its content. The mode of the folder does not matter: another user who can write to the folder can
replace the file only by one that they own.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_FILE = ".bireme_env"
DEEPSPEED_ENV_FILE = ".deepspeed_env"
DEEPSPEED_ENV_FILE_VARIABLE = "DS_ENV_FILE"


def may_find_env_file(environ: Mapping[str, str], home: str, cwd: str) -> bool:
    """Whether there may be an environment file. If not, the modules that read one need not be imported."""
    if environ.get(DEEPSPEED_ENV_FILE_VARIABLE):
        return True
    names = (DEEPSPEED_ENV_FILE, ENV_FILE)
    return any(os.path.lexists(os.path.join(folder, name)) for folder in (home, cwd) for name in names)


def reason_to_pass_over(path: str, fd: int = -1) -> str:
    """The reason not to trust a file; "" if only this user and root can have written it.

    Args:
        path: the file. If it is a link, the link must also belong to this user or root.
        fd: a descriptor of the file, if it is open; otherwise ``path`` is used.

    Raises:
        OSError: the file does not exist.
    """
    from bireme.resources.owned_folder import who_else_writes  # only where there is such a file

    link, found = os.lstat(path), os.stat(path) if fd < 0 else os.fstat(fd)
    for what, owner in (("it", found.st_uid), ("the link", link.st_uid)):
        if owner not in (0, os.geteuid()):
            from bireme.resources.users import name_of

            return f"{what} belongs to {name_of(owner)}"
    who = who_else_writes(found)
    return f"{who} can write to it" if who else ""
