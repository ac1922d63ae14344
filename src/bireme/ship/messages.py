"""The messages with which an agent asks for a tree of files (``--ship``). The runner answers with pieces of bytes.

The conversation follows an `Ask` with a `TreeOffer`, and precedes the agent's `Hello`::

    agent → runner   Need()               the manifest; not if there is a complete copy of the tree
    runner → agent   the manifest, in pieces
    agent → runner   Need(spans)          the contents of these files; not if other copies have all of them
    runner → agent   the contents, one after the other, in pieces
    agent → runner   Wrong(place)         this file is not what the manifest says: the job begins again
    agent → runner   Shipped()            the copy is complete, or cannot be made, which the `Hello` will say

Nodes may share a cache, as over NFS. Only one of their agents gets the tree; the runner answers the first `Need` of
each other one with `LookAgain`, once the first agent has finished.

With `Taken`, the agent grants the runner to send as many bytes again.
"""

from __future__ import annotations

from bireme.control.messages import Message


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


class Taken(Message):
    """You may send ``size`` more bytes of the tree."""

    size: int
    of_tree = True

    def check(self) -> str:
        """Refuse a size that is not positive."""
        return "" if self.size > 0 else "a size that is not positive"


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


FROM_AGENT = {cls.__name__: cls for cls in (Need, Taken, Wrong, Shipped)}
"""What an agent may send in addition where the runner has offered a tree, by name."""
