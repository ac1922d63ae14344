"""How the nodes of an elastic job come together: by a rendezvous of PyTorch's, in which every node takes part.

The store is ours, beside the runner, so that no node's death takes it along; every epoch is a rendezvous of its own.
"""

from __future__ import annotations

import time

from bireme.backends.base import CONNECT_TIMEOUT
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bireme.agent.session import Session
    from bireme.loop import Timer
    from bireme.planning.exports import Exports
    from bireme.planning.start import StartPlan
    from bireme.runner.member import Member
    from bireme.runner.pidfile import PidFile
    from bireme.runner.store import Store
    from bireme.supervise.outcome import Cause

PATIENCE = 150.0
"""Seconds from the invitation to the end of the rendezvous: the nodes may yet have to import torch."""
JOIN_TIMEOUT = 600
"""The same for PyTorch's part in it, which would blame those that wait; ours comes first."""
LAST_CALL = 30.0
"""Seconds that enough nodes, once they have come, wait for others who were invited, as in PyTorch."""


class Epoch(Value):
    """What an elastic job adds to a voyage.

    Attributes:
        number: from 0.
        min_nodes: with fewer it does not start.
        store: where the nodes meet; None: nobody is to meet, only looked at.
        left_out: called with the name of a node that cannot take part, and why.
        begun: called with the nodes that take part, in rank order, and the plan.
        attach: called with the session once it runs: what goes on beside the job.
        pid_file: of the job.
        accelerator: what the job has run on so far: a node that has another by now is not what it was; "": nothing yet.
        exports: the variables that travel, as they were when the job began; None: as they are.
        connect_timeout: seconds that a node may take to accept a connection.
    """

    number: int
    min_nodes: int
    store: Store | None
    left_out: Callable[[str, str], object]
    begun: Callable[[tuple[str, ...], StartPlan], object]
    attach: Callable[[Session], object]
    pid_file: PidFile
    accelerator: str = ""
    exports: Exports | None = None
    connect_timeout: int = CONNECT_TIMEOUT


class Gathering:
    """One rendezvous.

    Args:
        members: the nodes that are fit.
        on_gathered: called with those that take part, in the order of their group ranks.
    """

    def __init__(
        self, session: Session, epoch: Epoch, run_id: str, on_gathered: Callable[[list[Member]], None]
    ) -> None:
        self._session, self._epoch, self._run_id, self._on_gathered = session, epoch, run_id, on_gathered
        self._members: Sequence[Member] = ()
        self._arrived: set[str] = set()
        self._last_call: Timer | None = None
        self._joined: dict[int, Member] = {}
        self._nodes = 0
        self._over = False
        self.begun = False

    def begin(self, members: Sequence[Member]) -> None:
        """Invite these as soon as the store is there."""
        assert self._epoch.store is not None
        self.begun, self._members = True, tuple(members)
        self._epoch.store.when_ready(self._session.loop, self._invite)

    def _invite(self, addresses: Sequence[str], port: int, problem: str) -> None:
        assert self._epoch.store is not None
        if problem:
            again = self._epoch.number > 0 and self._epoch.store.is_ours
            self._session.trouble("membership" if again else "unfit", problem, time.monotonic())
            return
        self._session.loop.after(PATIENCE, self._give_up)
        for member in self._members:
            member.send(
                "join",
                addresses=list(addresses),
                port=port,
                run_id=f"{self._run_id}.{self._epoch.number}",
                label=f"{member.index:06}.{member.name}",  # nodes are numbered in the order of these
                nodes=len(self._members),
                join_timeout=JOIN_TIMEOUT,
            )

    def arrived(self, member: Member) -> None:
        """A node has come, and waits for the others."""
        self._arrived.add(member.name)
        if len(self._arrived) >= self._epoch.min_nodes and self._last_call is None:
            self._last_call = self._session.loop.after(LAST_CALL, self._without_the_late)

    def _without_the_late(self) -> None:
        """Those who are there begin anew among themselves."""
        late = [member.name for member in self._members if member.name not in self._arrived]
        if self._over or not late:
            return
        for name in late:
            self._epoch.left_out(name, "it has not come to the rendezvous")
        self._session.trouble("membership", f"the rendezvous begins again without {', '.join(late)}", time.monotonic())

    def _give_up(self) -> None:
        """Who has not come by now does not come."""
        assert self._epoch.store is not None
        silent = tuple(member.name for member in self._members if member.name not in self._arrived)
        if self._over:
            return
        if len(silent) in (0, len(self._members)) and self._epoch.store.is_ours:
            self._epoch.store.close()
            self._session.trouble("membership", "the rendezvous store does not answer", time.monotonic())
        else:
            note = f"no answer in the rendezvous for {PATIENCE:g} s: {', '.join(silent)}"
            self._session.trouble("unfit", note, time.monotonic(), silent)

    def joined(self, member: Member, answer: dict[str, Any]) -> None:
        """A node's rendezvous is over: it has a place, or a problem."""
        if "group_rank" not in answer:
            assert self._epoch.store is not None
            trouble = self._epoch.store.trouble()
            if trouble:
                cause: Cause = "membership" if self._epoch.store.is_ours else "unfit"
                self._session.trouble(cause, trouble, time.monotonic())
                return
            note = f"{member.name} cannot take part in the rendezvous: {answer.get('error', 'no reason was given')}"
            self._session.trouble("unfit", note, time.monotonic(), (member.name,))
            return
        self._joined[int(answer["group_rank"])] = member
        self._nodes = int(answer["nodes"])
        if len(self._joined) == self._nodes:
            self._over = True
            self._on_gathered([self._joined[rank] for rank in sorted(self._joined)])
