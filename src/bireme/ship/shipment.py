"""Sends a tree to the agents that have no copy of it (``--ship``), over their channels and beside everything else."""

from __future__ import annotations

import os
from itertools import chain

from bireme.control.messages import LookAgain
from bireme.errors import ProtocolError
from bireme.ship.contents import WINDOW, ChangedError, Outgoing
from bireme.ship.source import as_text, forget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from bireme.control.channel import Channel
    from bireme.control.messages import Message, Taken
    from bireme.ship.messages import Need, Wrong
    from bireme.ship.source import SourceTree

    class Receiver(Protocol):
        """An agent."""

        channel: Channel | None

        @property
        def name(self) -> str:
            """Of its node."""

        def send(self, message: Message) -> None:
            """Send it a message."""

        def __hash__(self) -> int: ...


class Shipment:
    """Answers what agents need of one tree.

    Args:
        tree: the tree.
        say: shows a message, of this level.
        on_failure: called with the reason when a file was changed meanwhile.
    """

    def __init__(self, tree: SourceTree, say: Callable[[str, str], None], on_failure: Callable[[str], None]) -> None:
        self._tree, self._say, self._on_failure = tree, say, on_failure
        self._streams: dict[Receiver, Outgoing] = {}
        self._sent_files: set[Receiver] = set()
        self._announced = False
        self.changed = False
        """Whether a file is not what the manifest says."""
        self._first: dict[str, Receiver] = {}
        """The agent that gets the tree for each cache."""
        self._waiting: dict[Receiver, str] = {}
        """Agents that wait until another has filled the cache that they share."""
        self._tired: set[Receiver] = set()
        """Agents that have waited once, and still find no copy."""

    def send(self, member: Receiver, need: Need) -> None:
        """Begin to send an agent what it needs.

        Raises:
            ProtocolError: there is no such thing in the tree, or it was sent already.
        """
        if need.spans:
            self._send_files(member, need.spans)
        elif member in self._streams or member in self._waiting:
            raise ProtocolError("it asked twice for a manifest")
        elif need.cache in self._first and member not in self._tired:
            self._waiting[member] = need.cache
        else:
            if need.cache:
                self._first.setdefault(need.cache, member)
            assert member.channel is not None
            self._streams[member] = Outgoing(member.channel, self.fail)
            self._streams[member].send(self._tree.manifest.text)

    def _send_files(self, member: Receiver, spans: tuple[int, ...]) -> None:
        entries, stream = self._tree.manifest.entries, self._streams.get(member)
        if stream is None or member in self._sent_files or spans[-1] > len(entries):
            raise ProtocolError("it asked for files that it does not lack")
        self._sent_files.add(member)
        stream.send(self._tree.contents(spans))
        if not self._announced:
            self._announced = True
            places = chain.from_iterable(map(range, spans[::2], spans[1::2]))
            size = sum(entries[place].data for place in places)
            note = f"sending {as_text(size)} of {self._tree.roots[0]} to {member.name} (and maybe other nodes)"
            self._say("info" if size > WINDOW else "debug", note)

    def taken(self, member: Receiver, taken: Taken) -> None:
        """Go on: an agent has taken so much.

        Raises:
            ProtocolError: that was not sent.
        """
        if member not in self._streams:
            raise ProtocolError("it has taken more than was sent")
        self._streams[member].grant(taken.size)

    def forget(self, member: Receiver, *, done: bool) -> None:
        """Send an agent nothing more. Those that share its cache look again.

        Args:
            member: the agent.
            done: it needs nothing more; else it is lost.
        """
        self._waiting.pop(member, None)
        self._sent_files.discard(member)
        if member in self._streams:
            self._streams.pop(member).end()
        for cache in [cache for cache, first in self._first.items() if first is member]:
            del self._first[cache]
            for other in [other for other, waited in self._waiting.items() if waited == cache]:
                del self._waiting[other]
                if done:
                    self._tired.add(other)
                other.send(LookAgain())

    def wrong(self, _: Receiver, wrong: Wrong) -> None:
        """A file was not what the manifest says: forget its digest, and end this try of the job.

        Raises:
            ProtocolError: there is no such file.
        """
        entries = self._tree.manifest.entries
        if wrong.place >= len(entries):
            raise ProtocolError("it spoke of a file that is not in the tree")
        forget(self._tree, wrong.place, os.environ)
        path = os.path.join(self._tree.roots[0], entries[wrong.place].path)
        self.fail(ChangedError(path))

    def fail(self, error: ChangedError) -> bool:
        """End this try: a file has changed, or cannot be read, so that no copy can be what the manifest says."""
        self.changed = True
        self._on_failure(str(error))
        return False
