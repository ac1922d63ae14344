"""The messages with which an agent brings files home (``--fetch``), once nothing of the job is left on its node.

::

    runner → agent   Fetch(patterns)        which files are there?
    agent → runner   Found(files), …        in several messages
    runner → agent   Want(places, digests)  the digests of some files, to tell whether two nodes have the same
    agent → runner   Digests(…), …
    runner → agent   Want(places)           the contents of some files
    agent → runner   the contents, one after the other, in pieces

The contents are a stream of chunks, each with a head: its kind and a number. ``D``: so many bytes of data follow;
``H``: so many bytes are a hole; ``E``: the file ends; ``X``: it cannot be read, by the number of an error (0: it was
changed). With `FetchMore`, the runner grants the agent to send as many bytes again.
"""

from __future__ import annotations

import struct

from bireme.control.messages import Message
from bireme.value import Value

WINDOW = 1024 * 1024
"""Bytes of files that an agent may send before the runner has taken them."""
CHUNK = struct.Struct("!cQ")
"""The head of a chunk."""
AT_ONCE = 256
"""Files in one message."""
MOST = 1 << 18
"""Files that one node may name."""
_LONGEST = 4096


class FoundFile(Value):
    """A file or a symbolic link.

    Attributes:
        path: relative to the ranks' working directory.
        size: bytes of a file.
        mtime: when it was changed, in nanoseconds since the epoch.
        mode: its permissions.
        target: that of a link; "": it is a file.
    """

    path: str
    size: int
    mtime: int
    mode: int
    target: str = ""


class Found(Message):
    """Files that match.

    Attributes:
        files: some of them.
        last: there are no more.
        problems: why some could not be found.
        special: the path of one that is neither a file nor a link, such as a FIFO; "": there is none.
        shared: whether the agent sees the runner's working directory as that of its ranks.
    """

    files: tuple[FoundFile, ...]
    last: bool = False
    problems: tuple[str, ...] = ()
    special: str = ""
    shared: bool = False
    of_fetch = True

    def check(self) -> str:
        """Refuse what leads out of a folder, and texts that are too long."""
        if len(self.files) > AT_ONCE or len(self.problems) > AT_ONCE:
            return "too many files at once"
        for file in self.files:
            if not _is_inside(file.path) or file.size < 0 or not 0 <= file.mode <= 0o777 or not _is_text(file.target):
                return f"the invalid file {file.path[:80]!r}"
        texts = (*self.problems, self.special)
        return "" if all(map(_is_text, texts)) else "an invalid text"


class Digests(Message):
    """The SHA-256 of files, in the order in which they were asked for; "": it cannot be read."""

    digests: tuple[str, ...]
    of_fetch = True


def _is_inside(path: str) -> bool:
    return _is_text(path) and all(part not in ("", ".", "..") for part in path.split("/"))


def _is_text(text: str) -> bool:
    """Whether a text may be a path here."""
    try:
        return len(text.encode("utf-8", "surrogateescape")) < _LONGEST and "\0" not in text
    except UnicodeError:
        return False


FROM_AGENT = {cls.__name__: cls for cls in (Found, Digests)}
"""What an agent may send in addition where the job brings files home, by name."""
