"""One run of a simulated job that others ask, signal and preempt while all else goes wrong."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from bireme.cluster.cluster_crew import ClusterCrew
from bireme.job import JobSpec
from tests.simulation.run import Run
from tests.simulation.truth import Cause, Violation

if TYPE_CHECKING:
    from bireme.runner.session import Session

_LATE = 0.5
"""Seconds, beyond its patience, in which a question is answered."""
_LEFT = 5.0
"""Seconds of a preemption."""


class AskedRun(Run):
    """A job that others ask."""

    def __init__(self, seed: int, *, keep_log: bool = False) -> None:
        super().__init__(seed, keep_log=keep_log)
        self._draw = Random(f"asked {seed}")  # not the world's: with it all else would be another run
        self._session: Session | None = None
        self.faults.kinds = (*self.faults.kinds, (self.preempted, 3))

    def spec(self) -> JobSpec:
        return super().spec().replace(checkpoint_signal="USR2", preempt_signal=f"USR1@{_LEFT:g}")

    def starts(self, crew: ClusterCrew) -> None:
        """Plan who asks what, and when."""
        super().starts(crew)
        self._session = session = crew._session  # type: ignore[assignment]
        for _ in range(self._draw.randrange(1, 6)):
            asks = (self._look, self._look, self._measure, self._measure, self._signal)
            ask = self._draw.choice(asks) if self._draw.random() < 0.95 else self._kill
            when = self._draw.uniform(0.0, self.work + 2 * self.grace)
            for _ in range(self._draw.choice((1, 1, 2))):  # two at the same time get the same answers
                session.loop.after(when, lambda ask=ask: self._listens(session) and ask(session))  # type: ignore[misc]

    def preempted(self) -> None:
        """The scheduler announces it."""
        if self.process.loop is not None:
            cause = Cause("preempted", self.world.now, self.world.now, self.truth._read(self.world.now))
            self.truth.causes.append(cause)
            self.process.loop.signal(signal.SIGUSR1)
            self.world.after(_LEFT + self.heartbeat + _LATE, lambda: self._over(cause.when))

    def _over(self, since: float) -> None:
        """Nobody may use the nodes any more."""
        session = self._session
        if session is None or session.verdict.cause != "preempted" or self.process.halts(since, self.world.now):
            return
        for node in self.nodes.values():
            well = not node.given_up and not any(end > since for _, end in node.disturbed)
            if well and any(rank.status is None and rank.marked for rank in node.ranks):
                raise Violation(f"the time of a preemption is over, and ranks run on {node.name}")

    def _listens(self, session: Any) -> bool:
        """Whether the session still answers: it runs, and is not over."""
        process = self.process
        return process.alive and not process.stopped and self._session is session and not session._gone

    def _look(self, session: Session) -> None:
        self._asked(session, session.look, 5.5, lambda key: key[0])

    def _measure(self, session: Session) -> None:
        self._asked(session, session.measure, 1.0, lambda key: key)

    def _signal(self, session: Session) -> None:
        session.crew.signal_ranks(int(signal.SIGUSR2))

    def _kill(self, session: Session) -> None:
        self.truth.signal(int(signal.SIGINT))
        session.kill()

    def _asked(
        self, session: Any, put: Callable[[Any], object], patience: float, rank_of: Callable[[Any], int]
    ) -> None:
        begin, answers = self.world.now, 0

        def seconds() -> float | None:
            """How long it has been asked; None: it stood still meanwhile."""
            now = self.world.now
            return None if self.process.halts(begin, now) else self.process.awake(begin, now)

        def answered(found: dict[Any, Any]) -> None:
            nonlocal answers
            answers += 1
            self.world.note(f"asked {begin:.3f}, {len(found)} answers")
            if answers > 1:
                raise Violation("a question was answered twice")
            ranks = {process.rank for epoch in self.training.epochs.values() for process in epoch.ranks}
            if not set(map(rank_of, found)) <= ranks:
                raise Violation(f"an answer of ranks that there are not: {found}")
            if (seconds() or 0.0) > patience + _LATE:
                raise Violation(f"an answer after {self.world.now - begin:.3f} s")

        def check() -> None:
            if not answers and self._listens(session) and (seconds() or 0.0) > patience + _LATE - 0.01:
                raise Violation(f"a question is not answered for {self.world.now - begin:.3f} s")

        put(answered)
        self.world.after(patience + _LATE, check)
