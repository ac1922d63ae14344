"""Flow control of output: limits how much a node may send before the runner has taken what came earlier (a window)."""

from __future__ import annotations

from bireme.control.messages import Credit
from bireme.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.control.messages import Output
    from bireme.logs.rankfiles import RankFiles

WINDOW = 1024 * 1024
"""Bytes of output that an agent may send before the runner has taken them."""
_CREDIT = 128 * 1024
"""Bytes that the runner takes before it grants the agent as many again."""
_IN_A_PIPE = 1024 * 1024
"""Bytes from one pipe by which an agent may exceed its window: it had read them before it stopped reading."""


class OutputCredit:
    """Takes the output of all agents, and grants each more credit as its output is taken."""

    def __init__(self, session: Session, members: Sequence[AgentHandle]) -> None:
        self._session, self._members = session, members
        self._held = False
        self.files: RankFiles | None = None
        """The log files that output is written to as well, if any."""

    def take(self, member: AgentHandle, frame: Output) -> None:
        """Take a chunk of a rank's output.

        Raises:
            ProtocolError: the agent sent more than it was given credit for.
        """
        if member.ungranted > WINDOW + _IN_A_PIPE * member.protocol.pipes:
            raise ProtocolError("it sent more output than it was given credit for")
        if self.files is not None:
            self.files.write(frame.rank, frame.data)
        self._session.chunk(frame.rank, frame.number, frame.data)
        member.ungranted += len(frame.data)
        self._grant(member)

    def hold(self) -> None:
        """Grant nothing more: the agents hold back their ranks' output."""
        self._held = True

    def release(self) -> None:
        """Grant again what was taken in the meantime."""
        self._held = False
        for member in self._members:
            self._grant(member)

    def close(self) -> None:
        """Close the log files."""
        if self.files is not None:
            self.files.close()

    def _grant(self, member: AgentHandle) -> None:
        if not self._held and member.ungranted >= _CREDIT:
            member.send(Credit(size=member.ungranted))
            member.ungranted = 0
