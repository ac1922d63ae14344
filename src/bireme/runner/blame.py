"""Where several nodes were lost: whose fault is it?"""

from __future__ import annotations

from bireme.resources.reach import reachable
from bireme.runner.member import addresses_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.agent.session import Session
    from bireme.runner.member import Member
    from bireme.runner.voyage import Voyage


def blame_the_lost(session: Session, voyage: Voyage, members: Sequence[Member]) -> None:
    """Put right the session's verdict, which blames whom it has heard of first."""
    lost = [member for member in members if member.state == "lost"]
    if len(lost) < 2 or session.verdict.cause != "agent lost":
        return
    if voyage.one_by_one:
        at_fault = {*session.verdict.hosts, *(member.name for member in lost)}
        session.verdict.hosts = tuple(member.name for member in members if member.name in at_fault)
    else:
        _blame_the_silent(session, lost, voyage.spec.ssh_port or 22)


def _blame_the_silent(session: Session, lost: Sequence[Member], port: int) -> None:
    """An engine of all nodes takes every agent along when it loses one: the one that is silent is to blame."""
    dead = tuple(member.name for member in lost if not reachable(addresses_of(member.name), port, seconds=1.0))
    if dead:
        note = f"agent lost on {', '.join(dead)}: the node does not answer any more"
        session.trouble("agent lost", note, float("-inf"), dead)
