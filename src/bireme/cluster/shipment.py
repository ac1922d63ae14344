"""Sends a tree to the agents that have no copy of it (``--ship``), over their channels and beside everything else."""

from __future__ import annotations

from bireme.control.frames import encode_piece
from bireme.control.ship_messages import WINDOW
from bireme.errors import ProtocolError
from bireme.resources.source_tree import ChangedError, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.control.ship_messages import Need, Taken
    from bireme.resources.source_tree import SourceTree

_PIECE = 128 * 1024
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
            self._streams[member] = _Stream(self, member, self._manifest())
            return
        before = self._streams.get(member)
        if before is None or before.is_last or need.spans[-1] > len(entries):
            raise ProtocolError("it asked for files that it does not lack")
        before.change(self._tree.contents(need.spans, _PIECE))
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

    def fail(self, error: ChangedError) -> None:
        """End the job: a file has changed, so that no copy can be what the manifest says."""
        self._session.trouble("unfit", str(error), self._session.loop.now())

    def _manifest(self) -> Iterator[bytes]:
        text = self._tree.manifest.text
        for begin in range(0, len(text), _PIECE):
            yield text[begin : begin + _PIECE]


class _Stream:
    """What is sent to one agent: the manifest, then files. ``window``: bytes that it may be sent now."""

    def __init__(self, shipment: Shipment, member: AgentHandle, pieces: Iterator[bytes]) -> None:
        self._shipment, self._member, self._pieces = shipment, member, pieces
        self.window = WINDOW
        self.is_last = False
        self._go()

    def change(self, pieces: Iterator[bytes]) -> None:
        """Send these pieces next, and no others after them."""
        self._pieces, self.is_last = pieces, True
        self._go()

    def grant(self, size: int) -> None:
        """Let so much more be sent."""
        self.window += size
        self._go()

    def end(self) -> None:
        """Send nothing more."""
        self._pieces = iter(())

    def _go(self) -> None:
        if self._member.channel is not None:
            self._member.channel.feed(self._more)

    def _more(self) -> bytes:
        """The next frame; nothing if there is none, or the agent has not taken enough."""
        if self.window <= 0:
            return b""
        try:
            piece = next(self._pieces, b"")
        except ChangedError as error:
            self._shipment.fail(error)
            return b""
        self.window -= len(piece)
        return encode_piece(piece) if piece else b""
