"""Writes the file of ``--report``, the result of a job as JSON, either completely or not at all."""

from __future__ import annotations

import json
import os
import stat

from bireme import drafts
from bireme.errors import BadInputError
from bireme.logs.console import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHERE = "--report"


def prepare(path: str) -> str:
    """Check that the file can be written, and remove that of an earlier job; return its absolute path.

    Raises:
        BadInputError: the file cannot be written, or the path is something other than a regular file.
    """
    place = os.path.abspath(os.path.expanduser(path))
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):  # we would replace it: never a device or a link
            raise BadInputError(
                f"{path} is not a regular file",
                hint="name a file that does not exist yet, or a regular one",
                where=_WHERE,
            )
    except OSError:
        pass  # nothing is there yet; a problem with the folder shows below
    try:
        fd, draft = drafts.create(place)
        os.close(fd)
        os.unlink(draft)
        if os.path.exists(place):
            os.unlink(place)
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}", where=_WHERE) from None
    return place


def write(place: str, record: dict[str, Any]) -> None:
    """Write the file. A failure is printed, and does not change the exit code of the job."""
    try:
        drafts.write(place, f"{json.dumps(record, indent=1)}\n".encode("ascii"))
    except OSError as error:
        complain(f"cannot write the report {place}: {error.strerror}")
