"""The file of ``--report``: how a job has ended, for a program to read. It appears whole or not at all."""

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
    """Make sure that the file can be written, and that none of an earlier job is there; return its absolute path.

    Raises:
        BadInputError: it cannot be written, or something other than a file stands there.
    """
    place = os.path.abspath(os.path.expanduser(path))
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):  # the file takes its place: not that of a device, or of a link
            raise BadInputError(f"{path} is no regular file", hint="the report is a file of its own", where=_WHERE)
    except OSError:
        pass  # whatever is wrong with the folder shows when we write there
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
    """Write the file. Where that cannot be done it is said, and the job's exit code stays what it is."""
    try:
        drafts.write(place, f"{json.dumps(record, indent=1)}\n".encode("ascii"))
    except OSError as error:
        complain(f"cannot write the report {place}: {error.strerror}")
