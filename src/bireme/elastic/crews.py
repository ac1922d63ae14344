"""The crews of an elastic job: that of one epoch, and the one that waits while too few nodes are available."""

from __future__ import annotations

from bireme.agent.crew_interface import Crew
from bireme.cluster.cluster_crew import ClusterCrew

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from bireme.agent.machine import Machine
    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.planning.start import StartPlan
    from bireme.process.pid_file import PidFile
    from bireme.result.outcome import Outcome

    class EpochObserver(Protocol):
        """Follows an epoch: keeps the roster of its nodes, and may end it."""

        def attach(self, session: Session) -> None:
            """The epoch's session runs."""

        def left_out(self, name: str, why: str) -> None:
            """A node cannot take part, for this reason."""

        def begun(self, names: tuple[str, ...], plan: StartPlan) -> None:
            """The ranks are being started on these nodes, in rank order."""

        def is_last(self, outcome: Outcome) -> bool:
            """Whether no epoch follows after this outcome."""

        def took_part(self) -> tuple[str, ...]:
            """The nodes of all epochs."""


class EpochCrew(ClusterCrew):
    """A crew for one epoch: it can begin without some of its nodes, and its end need not end the job.

    Args:
        pid_file: that of the whole elastic job.
        number: of the epoch, counted from 0.
    """

    def __init__(
        self,
        session: Session,
        job: ClusterJob,
        pid_file: PidFile,
        machine: Machine,
        *,
        number: int,
        observer: EpochObserver,
    ) -> None:
        super().__init__(session, job, pid_file, machine, observer.is_last)
        self._number, self._observer = number, observer

    def start(self) -> None:
        """Start the launcher, and wait for the nodes' answers."""
        super().start()
        self._observer.attach(self._session)

    def _unfit(self) -> list[AgentHandle]:
        """Begin without the unfit nodes; return those that prevent the epoch from beginning.

        In the first epoch, a node that answers and is unfit is a mistake that the user has to fix. Later, it is a node
        that came back too early.
        """
        if not self._all_fit:
            self._bootstrap.judge_by_filters()
        bad = self._bootstrap.unfit()
        mistakes = [member for member in bad if member.has_answered and not member.hint]
        if self._number == 0 and mistakes:
            return mistakes
        for member in bad:
            self.members.remove(member)
            if member.channel is not None:
                member.channel.close()
            self._launcher.end(member.index)
            why = (member.problems or [member.hint or "it did not answer"])[-1]
            self._observer.left_out(member.name, " ".join(why.split()))
        self._admitted = len(self.members) >= self._job.spec.min_nodes
        return [] if self._admitted else bad

    def _begun(self, names: tuple[str, ...], plan: StartPlan) -> None:
        self._observer.begun(names, plan)

    def _earlier(self) -> tuple[str, ...]:
        return self._observer.took_part()


class IdleCrew(Crew):
    """A crew without ranks: keeps an elastic job's session alive while too few nodes are available.

    Args:
        note: returns a text about which nodes are missing.
        seconds: how long to wait.
        gave_up: what to report after that time, before the note.
        attach: called with the session once it runs.
    """

    def __init__(
        self,
        session: Session,
        note: Callable[[], str],
        seconds: float,
        gave_up: str,
        attach: Callable[[Session], object],
    ) -> None:
        self._session, self._note, self._seconds, self._attach = session, note, seconds, attach
        self._gave_up = gave_up

    def start(self) -> None:
        """Begin to wait."""
        self._session.console.say("warning", f"waiting up to {self._seconds:.0f} s for nodes: {self._note()}")
        self._session.loop.after(self._seconds, self._give_up)
        self._attach(self._session)

    def _give_up(self) -> None:
        self._session.trouble("too few nodes", f"{self._gave_up}: {self._note()}", self._session.loop.now())

    def stop(self, signum: int) -> None:
        """End the session; there are no ranks to stop."""
        self._session.gone()
        self._session.over()
