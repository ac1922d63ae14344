"""What every study does: it searches, and then runs the best again in paired rounds. Starts no processes.

The next trial depends on the results alone, so a study that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from bireme.tune.space.points import Point
from bireme.tune.study.confirmation import Figures
from bireme.tune.study.paired_rounds import PairedRounds
from bireme.tune.study.trial import Trial

T = TypeVar("T", bound=Trial)
R = TypeVar("R")


class AnyStudy(ABC, Generic[T, R]):
    """Keeps the pending trials, and knows whether a search or its rounds are next. What these are, a subclass says."""

    def __init__(self) -> None:
        self._pending: dict[str, T] = {}
        self._given_up: dict[str, T] = {}
        self._rounds: PairedRounds | None = None

    def ask(self) -> T | None:
        """The next trial, which is then pending; None if there is nothing to start now, or ever (see ``over``)."""
        trial = self._next_search() if self._rounds is None else None
        if trial is None and self._comparing:
            self._rounds = self._rounds or self._first_rounds()
            run = None if self._rounds is None else self._rounds.next()
            trial = None if run is None else self._paired(*run)
        return None if trial is None else self._begin(trial)

    def _begin(self, trial: T) -> T:
        if trial.paired and self._rounds is not None:
            self._rounds.begin(trial.round, trial.point)  # before it counts as pending: that opens the round
        self._pending[trial.name] = trial
        return trial

    @property
    def _comparing(self) -> bool:
        """Whether rounds may begin: no trial of the search is pending."""
        return all(each.paired for each in self._pending.values())

    def _end(self, trial: T, done: R) -> None:
        """A trial has ended, a pending one or one of an earlier run of the study; ``done``: with its result."""
        self._pending.pop(trial.name, None)
        if not trial.paired:
            self._note(done)
        elif self._rounds is not None:
            self._rounds.tell(trial.round, trial.point, self._figures(done))

    def drop(self, name: str) -> None:
        """A pending trial was not measured: it may be proposed again."""
        trial = self._pending.pop(name)
        if trial.paired and self._rounds is not None:
            self._rounds.drop(trial.round, trial.point)
        else:
            self._forget(trial)

    def give_up(self, name: str) -> None:
        """A pending trial cannot be measured, for no reason of its own: it is not proposed again."""
        trial = self._given_up[name] = self._pending.pop(name)
        if trial.paired and self._rounds is not None:
            self._rounds.tell(trial.round, trial.point, ())
        else:
            self._rule_out(trial)

    @property
    def over(self) -> str:
        """Why nothing is left to start; "" while something is left or pending."""
        if self._pending or (self._rounds is None and self._searching):
            return ""
        rounds = self._rounds or self._first_rounds()
        return self._reason(rounds) if rounds is None or rounds.next() is None else ""

    # -- the search -----------------------------------------------------------------------------------

    @abstractmethod
    def _next_search(self) -> T | None:
        """The next trial of the search; None if there is none now."""

    @property
    @abstractmethod
    def _searching(self) -> bool:
        """Whether the search has more trials, where none is pending."""

    @abstractmethod
    def _note(self, done: R) -> None:
        """A trial of the search has ended."""

    @abstractmethod
    def _forget(self, trial: T) -> None:
        """A trial of the search was not measured: it may be proposed again."""

    @abstractmethod
    def _rule_out(self, trial: T) -> None:
        """A trial of the search cannot be measured: it is not proposed again."""

    # -- the rounds -----------------------------------------------------------------------------------

    @abstractmethod
    def _first_rounds(self) -> PairedRounds | None:
        """The rounds, made anew, before the first one begins; None: there is nothing to compare."""

    @abstractmethod
    def _paired(self, number: int, point: Point) -> T:
        """The trial of a point in a round."""

    @abstractmethod
    def _figures(self, done: R) -> Figures | None:
        """What the rounds compare; None: it failed; (): it has none."""

    @abstractmethod
    def _reason(self, rounds: PairedRounds | None) -> str:
        """Why nothing more is run; ``rounds``: none of them has a run left."""
