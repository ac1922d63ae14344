"""The messages of an agent and its runner about a tree of files (``--ship``) or files to fetch (``--fetch``).

A tree is sent after an `Ask` with a `TreeOffer`, and before the agent's `Hello`::

    agent → runner   Need()               the manifest; not if the agent has it
    runner → agent   the manifest, in pieces
    agent → runner   Need(places)         the contents of these files; not if it has all of them
    runner → agent   the contents, one after the other, in pieces
    agent → runner   Shipped(wrong)       the tree is complete, or cannot be made, which the `Hello` will say; or a file
                                          is not what the manifest says, and the job begins again

Files come home once nothing of the job is left on the node::

    runner → agent   Fetch(patterns)        which files are there?
    agent → runner   Found(files), …        in several messages, without what is as it was sent
    runner → agent   Want(places, digests)  the digests of some files, to tell whether two nodes have the same
    agent → runner   Digests(…), …
    runner → agent   Want(places)           the contents of some files
    agent → runner   the contents, one after the other, in pieces
    agent → runner   Skipped(why)           no more comes of this file, which was changed or cannot be read

Both sides have the entries of the files, so the contents are nothing but their data, without holes. With `Taken`,
either side grants the other one to send as many bytes again.
"""

from __future__ import annotations

from io import BytesIO

from bireme.control.frames import PIECE_HEAD, put_piece_head
from bireme.control.messages import Message, Taken
from bireme.errors import ProtocolError
from bireme.ship.inside import AWAIT
from bireme.ship.manifest import Entry, is_path, is_valid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from bireme.control.channel import Channel
    from bireme.loop import Loop

    Source: TypeAlias = Callable[[memoryview], Iterator[int | OSError]]

AT_ONCE = 256
"""Files in one message."""
MOST = 1 << 18
"""Files that one node may name."""
WINDOW = 1024 * 1024
"""Bytes that may be sent before the other side has taken them: few enough to stay in the CPU's caches."""
GRANT = WINDOW // 2
"""Bytes that are taken before the other side is granted as many."""
_PIECE = 256 * 1024
"""Bytes of the longest piece: what comes after it, such as a ping, waits no longer than it takes."""
_STEP = 0.01
"""Seconds of work after which the loop may do something else."""
_PAUSE = 0.0005


class Need(Message):
    """Send the files in these places of the manifest; none: the manifest."""

    places: tuple[int, ...] = ()
    of_tree = True

    def check(self) -> str:
        """Refuse places that are out of order, or stand twice."""
        ascending = all(first < second for first, second in zip((-1, *self.places), self.places, strict=False))
        return "" if ascending else "places out of order"


class Shipped(Message):
    """I need nothing more of the tree; what came as the file in a place of the manifest may have been another one."""

    wrong: int | None = None
    of_tree = True

    def check(self) -> str:
        """Refuse a negative place."""
        return "a negative place" if self.wrong is not None and self.wrong < 0 else ""


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
            if file.kind == "folder" or not is_valid(file):
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


FROM_AGENT = {cls.__name__: cls for cls in (Need, Taken, Shipped, Found, Digests, Skipped)}
"""What an agent may send in addition where the job has a tree or brings files home, by name."""


class Outgoing:
    """Sends pieces over a channel, no more of them ahead than the other side grants.

    Args:
        on_error: called when a file cannot be sent; returns whether to go on with the next file.
    """

    def __init__(self, channel: Channel, on_error: Callable[[OSError], bool]) -> None:
        self._channel, self._on_error = channel, on_error
        self._frame = bytearray(PIECE_HEAD + _PIECE)
        self._sizes: Iterator[int | OSError] = iter(())
        self._window = WINDOW
        channel.widen()

    def send(self, source: Source) -> None:
        """Send what this puts into a buffer, again and again."""
        self._sizes = source(memoryview(self._frame)[PIECE_HEAD:])
        self._channel.feed(self._more)

    def send_text(self, text: bytes) -> None:
        """Send this."""
        file = BytesIO(text)
        self.send(lambda buffer: iter(lambda: file.readinto(buffer), 0))

    def grant(self, size: int) -> None:
        """Let so much more be sent, for so much that was taken."""
        if size > WINDOW - self._window:
            raise ProtocolError("it has taken more than was sent")
        self._window += size
        self._channel.feed(self._more)

    def end(self) -> None:
        """Send nothing more."""
        self._sizes = iter(())

    def _more(self) -> memoryview:
        """The next frame; an empty one if there is none, or the other side has not taken enough."""
        size: int | OSError = 0
        while self._window > 0 and not isinstance(size := next(self._sizes, 0), int):
            if not self._on_error(size):
                self.end()
        put_piece_head(self._frame, size := size if isinstance(size, int) else 0)
        self._window -= size
        return memoryview(self._frame)[: PIECE_HEAD + size if size else 0]


def in_steps(loop: Loop, steps: Iterator[float | None], most: float = _STEP) -> None:
    """Do something in steps of no more than ``most`` seconds, between which the loop does what else there is.

    Args:
        steps: each yields the seconds until the next, if that has to wait; `AWAIT`: somebody calls us again.
    """
    end = loop.now() + most
    for pause in steps:
        if pause or loop.now() >= end:
            if pause != AWAIT:
                loop.after(pause or _PAUSE, lambda: in_steps(loop, steps, most))
            return
