"""Flow control: takes what the ranks of other nodes write, and lets each node send no more than is taken."""

from __future__ import annotations

from bireme.control.messages import Credit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.control.messages import Output
    from bireme.logs.rankfiles import RankFiles

WINDOW = 1024 * 1024
"""Bytes of output that an agent may send before we have taken what it sent."""
_CREDIT = 128 * 1024
"""Bytes that are taken before the agent is told so."""


class FlowControl:
    """Takes the output of all members."""

    def __init__(self, session: Session, members: Sequence[AgentHandle]) -> None:
        self._session, self._members = session, members
        self._held = False
        self.files: RankFiles | None = None
        """Where it is written as well."""

    def take(self, member: AgentHandle, frame: Output) -> None:
        """A piece of what a rank has written."""
        if self.files is not None:
            self.files.write(frame.rank, frame.data)
        self._session.chunk(frame.rank, frame.number, frame.data)
        member.unpaid += len(frame.data)
        self._pay(member)

    def hold(self) -> None:
        """Give no more credit: the agents hold back what their ranks write."""
        self._held = True

    def release(self) -> None:
        """There is room again."""
        self._held = False
        for member in self._members:
            self._pay(member)

    def close(self) -> None:
        """Nothing more comes."""
        if self.files is not None:
            self.files.close()

    def _pay(self, member: AgentHandle) -> None:
        if not self._held and member.unpaid >= _CREDIT:
            member.send(Credit(size=member.unpaid))
            member.unpaid = 0
