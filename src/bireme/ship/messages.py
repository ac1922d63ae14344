"""The messages with which an agent asks for a tree of files (``--ship``), or tells which files it has (``--fetch``).

A tree is sent after an `Ask` with a `TreeOffer`, and before the agent's `Hello`::

    agent → runner   Need()               the manifest; not if there is a complete copy of the tree
    runner → agent   the manifest, in pieces
    agent → runner   Need(spans)          the contents of these files; not if other copies have all of them
    runner → agent   the contents, one after the other, in pieces
    agent → runner   Wrong(place)         this file is not what the manifest says: the job begins again
    agent → runner   Shipped()            the copy is complete, or cannot be made, which the `Hello` will say

Nodes may share a cache, as over NFS. Only one of their agents gets the tree; the runner answers the first `Need` of
each other one with `LookAgain`, once the first agent has finished.

Files come home once nothing of the job is left on the node::

    runner → agent   Fetch(patterns)        which files are there?
    agent → runner   Found(files), …        in several messages, without what is as it was sent
    runner → agent   Want(places, digests)  the digests of some files, to tell whether two nodes have the same
    agent → runner   Digests(…), …
    runner → agent   Want(places)           the contents of some files
    agent → runner   the contents, one after the other, in pieces
    agent → runner   Skipped(why)           no more comes of this file, which was changed or cannot be read

With `Taken`, either side grants the other one to send as many bytes again.
"""

from __future__ import annotations

from bireme.control.messages import Message, Taken
from bireme.ship.manifest import Entry, is_path, is_valid

AT_ONCE = 256
"""Files in one message."""
MOST = 1 << 18
"""Files that one node may name."""


class Need(Message):
    """Send files of the tree, or its manifest.

    Attributes:
        spans: the first place in the manifest, and the last one plus 1, of each span of files; empty: the manifest.
        cache: names the cache, which nodes may share; "": unknown.
    """

    spans: tuple[int, ...] = ()
    cache: str = ""
    of_tree = True

    def check(self) -> str:
        """Refuse spans that are empty, meet, overlap, or are out of order."""
        ascending = all(first < second for first, second in zip((-1, *self.spans), self.spans, strict=False))
        if len(self.spans) % 2 or not ascending:
            return "spans out of order"
        return ""


class Wrong(Message):
    """What came as the file at ``place`` of the manifest is another content."""

    place: int
    of_tree = True

    def check(self) -> str:
        """Refuse a negative place."""
        return "" if self.place >= 0 else "a negative place"


class Shipped(Message):
    """I need nothing more of the tree."""

    of_tree = True


class Found(Message):
    """Files that match.

    Attributes:
        files: some of them, without digests; paths are relative to the ranks' working directory.
        last: there are no more.
        problems: why some could not be found.
        special: the path of one that is neither a file nor a link, such as a FIFO; "": there is none.
        shared: whether the agent sees the runner's working directory as that of its ranks.
    """

    files: tuple[Entry, ...]
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
            if file.kind == "folder" or not is_valid(file) or not is_path(file.content):
                return f"the invalid file {file.path[:80]!r}"
        return "" if all(map(is_path, (*self.problems, self.special))) else "an invalid text"


class Digests(Message):
    """The SHA-256 of files, in the order in which they were asked for; "": it cannot be read."""

    digests: tuple[str, ...]
    of_fetch = True


class Skipped(Message):
    """The rest of the file that comes now does not."""

    why: str
    of_fetch = True


FROM_AGENT = {cls.__name__: cls for cls in (Need, Taken, Wrong, Shipped, Found, Digests, Skipped)}
"""What an agent may send in addition where the job has a tree or brings files home, by name."""
