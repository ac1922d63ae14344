"""Chooses the rendezvous address (MASTER_ADDR) of many nodes: an address of the first one that all others reach."""

from __future__ import annotations

from bireme.cluster.agent_handle import addresses_of
from bireme.control.messages import Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.runner.session import Session

_LEAVE_OUT = "leave the option out to let Bireme choose an address; --no_ssh_check uses this one without a test"


class RendezvousAddress:
    """Has the nodes try the addresses of the first one, and chooses."""

    def __init__(
        self,
        session: Session,
        cluster_job: ClusterJob,
        members: Sequence[AgentHandle],
        on_address: Callable[[str], None],
    ) -> None:
        self._session, self._cluster_job, self._members = session, cluster_job, members
        self._on_address = on_address
        self._tried: tuple[str, ...] = ()

    def find(self) -> None:
        """Have every other node try all addresses of the first node, or the one that the user gave."""
        first, *others = self._members
        spec, named = self._cluster_job.spec, self._cluster_job.spec.master_addr
        if spec.elastic and named and not _has_address(first, named):
            named = None  # the address belongs to the first node of an earlier epoch
        if named and (spec.elastic or not spec.preflight):
            self._on_address(named)
            return
        if not named and not others:
            self._on_address("127.0.0.1")
            return
        if not first.hello.port:  # taken, and passed over by --no_ssh_check: there is nothing to try
            note = f"{first.name} has no free port at which the ranks could meet"
            self._session.trouble("unfit", note, self._session.loop.now(), (first.name,))
            return
        self._tried = (named,) if named else first.hello.addresses
        if others:
            first.protocol.on("probed")
        for member in others or [first]:
            member.send(Probe(addresses=self._tried, port=first.hello.port))

    def probed(self, member: AgentHandle, reachable: tuple[str, ...]) -> None:
        """Take a node's answer: which of the addresses it can reach. Choose one once all have answered."""
        member.reachable = set(reachable)
        member.protocol.on("probed")
        if any(other.state != "probed" for other in self._members):
            return
        first, *others = self._members
        asked = others or [first]
        for address in self._tried:
            if all(address in other.reachable for other in asked):
                self._on_address(address)
                return
        cut = tuple(other.name for other in asked if not other.reachable)
        if named := self._cluster_job.spec.master_addr:
            note = f"{', '.join(cut)} cannot reach {first.name} at --master_addr {named}\n{_LEAVE_OUT}"
            self._session.trouble("unfit", note, self._session.loop.now(), cut)
            return
        reason = f"{', '.join(cut)} cannot reach any address" if cut else "no address is reachable from all nodes"
        addresses = ", ".join(self._tried) or "none"
        note = f"no address of {first.name} works for the rendezvous: {reason} (tried: {addresses})"
        if not self._cluster_job.spec.elastic:
            hint = "set one with --master_addr, and add --no_ssh_check to use it without a test"
            self._session.trouble("unfit", f"{note}\n{hint}", self._session.loop.now(), cut)
            return
        # An elastic job drops the nodes that reach no address, or else the first node, which not all of them reach.
        at_fault = cut if 0 < len(cut) < len(others) or len(others) == 1 else (first.name,)
        self._session.trouble("unfit", note, self._session.loop.now(), at_fault)


def _has_address(member: AgentHandle, named: str) -> bool:
    """Whether the address or name that the user gave belongs to this node."""
    return named == member.name or not {named, *addresses_of(named)}.isdisjoint(member.hello.addresses)
