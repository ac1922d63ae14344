"""Sends a tree to the agents that have no copy of it (``--ship``), over their channels and beside everything else."""

from __future__ import annotations

from bireme.control.frames import PIECE_HEAD, put_piece_head
from bireme.control.ship_messages import WINDOW
from bireme.errors import ProtocolError
from bireme.resources.source_tree import ChangedError, Contents, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.control.ship_messages import Need, Taken
    from bireme.resources.source_tree import SourceTree

_PIECE = 256 * 1024
"""Bytes of the longest piece: what comes after it, such as a ping, waits no longer than it takes."""


class Shipment:
    """Answers what agents need of one tree.

    Args:
        session: told when a file was changed meanwhile.
        tree: the tree.
    """

    def __init__(self, session: Session, tree: SourceTree) -> None:
        self._session, self._tree = session, tree
        self._streams: dict[AgentHandle, _Stream] = {}
        self._announced = False

    def send(self, member: AgentHandle, need: Need) -> None:
        """Begin to send an agent what it needs.

        Raises:
            ProtocolError: there is no such thing in the tree, or it was sent already.
        """
        entries = self._tree.manifest.entries
        if not need.spans:
            if member in self._streams:
                raise ProtocolError("it asked twice for a manifest")
            self._streams[member] = _Stream(self, member, _Text(self._tree.manifest.text))
            return
        before = self._streams.get(member)
        if before is None or before.is_last or need.spans[-1] > len(entries):
            raise ProtocolError("it asked for files that it does not lack")
        before.change(Contents(self._tree, need.spans))
        if not self._announced:
            self._announced = True
            places = (range(*span) for span in zip(need.spans[::2], need.spans[1::2], strict=True))
            size = sum(entries[place].size for span in places for place in span)
            note = f"sending {as_text(size)} of {self._tree.roots[0]} to {member.name} (and maybe other nodes)"
            self._session.console.say("info" if size > WINDOW else "debug", note)

    def taken(self, member: AgentHandle, taken: Taken) -> None:
        """Go on: an agent has taken so much.

        Raises:
            ProtocolError: that was not sent.
        """
        stream = self._streams.get(member)
        if stream is None or taken.size > WINDOW - stream.window:
            raise ProtocolError("it has taken more of the tree than was sent")
        stream.grant(taken.size)

    def forget(self, member: AgentHandle) -> None:
        """Send nothing more: the agent needs nothing, or its copy has failed."""
        stream = self._streams.pop(member, None)
        if stream is not None:
            stream.end()

    def fail(self, error: ChangedError | OSError) -> None:
        """End the job: a file has changed, or cannot be read, so that no copy can be what the manifest says."""
        self._session.trouble("unfit", str(error), self._session.loop.now())


class _Text:
    """Bytes, read as the contents of files are."""

    def __init__(self, text: bytes) -> None:
        self._left = memoryview(text)

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer with what comes next; return the number of bytes."""
        part = self._left[: len(buffer)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)

    def close(self) -> None:
        """Do nothing."""


class _Stream:
    """What is sent to one agent: the manifest, then files. ``window``: bytes that it may be sent now."""

    def __init__(self, shipment: Shipment, member: AgentHandle, source: Contents | _Text) -> None:
        self._shipment, self._member, self._source = shipment, member, source
        if member.channel is not None:
            member.channel.widen()
        self._frame = bytearray(PIECE_HEAD + _PIECE)
        self.window = WINDOW
        self.is_last = False
        self._go()

    def change(self, source: Contents) -> None:
        """Send this next, and nothing after it."""
        self._source, self.is_last = source, True
        self._go()

    def grant(self, size: int) -> None:
        """Let so much more be sent."""
        self.window += size
        self._go()

    def end(self) -> None:
        """Send nothing more."""
        self._source.close()
        self._source = _Text(b"")

    def _go(self) -> None:
        if self._member.channel is not None:
            self._member.channel.feed(self._more)

    def _more(self) -> memoryview:
        """The next frame; nothing if there is none, or the agent has not taken enough."""
        frame, size = memoryview(self._frame), 0
        if self.window > 0:
            try:
                size = self._source.read_into(frame[PIECE_HEAD:])
            except (ChangedError, OSError) as error:
                self._shipment.fail(error)
        self.window -= size
        put_piece_head(self._frame, size)
        return frame[: PIECE_HEAD + size if size else 0]
