"""What the display shows of a study of a program (`bireme.tune.board.Board`)."""

from __future__ import annotations

from collections.abc import Mapping

from bireme.tune.figures import Measure
from bireme.tune.printed_numbers import scaled
from bireme.tune.program.delivery import text_of
from bireme.tune.space import Point
from bireme.tune.study import Study, Trial
from bireme.tune.trial_result import TrialResult

_WORDS = {"noise": "baseline", "confirm": "round"}


class ProgramBoard:
    """The board of a study of a program.

    Args:
        study: the study.
        measure: what is measured.
        results: of the trials that ended, by name; the caller adds to it.
        trials: the trials that have been started, by name; the caller adds to it.
        units: the units of figures, by name; the caller adds to it.
    """

    def __init__(
        self,
        study: Study,
        measure: Measure,
        results: Mapping[str, TrialResult],
        trials: Mapping[str, Trial],
        units: Mapping[str, str],
    ) -> None:
        self._study, self._goal, self._results, self._trials = study, measure.goals[0], results, trials
        self._units = units

    @property
    def left(self) -> int | None:
        """How many trials may still end at most, running ones included; None if not known yet."""
        return self._study.left

    @property
    def done(self) -> int:
        """How many trials have ended."""
        return len(self._results)

    @property
    def best(self) -> str:
        """The best result so far in a few words; "" if there is none."""
        name = self._leader()
        return f"best {described(self._trials[name].point)}: {self.figure(name)}" if name else ""

    def title(self, name: str) -> str:
        """A trial is called by its name and its point, and by what it is for if that is not the search."""
        trial = self._trials[name]
        word = _WORDS.get(trial.phase, "")
        phase = f" [{word}{f' {trial.round}' if trial.phase == 'confirm' else ''}]" if word else ""
        return f"{name}{phase} {described(trial.point)}"

    def figure(self, name: str) -> str:
        """The figure of an ended trial with its unit; "" if it has none."""
        value = self._value(name)
        return "" if value is None else f"{self._goal.name} {scaled(value, self._units.get(self._goal.name, ''))}"

    def leads(self, name: str) -> bool:
        """Whether an ended trial is the best so far."""
        return self._trials[name].phase != "confirm" and self._leader() == name

    def _leader(self) -> str:
        sign = -1.0 if self._goal.direction == "maximize" else 1.0
        known = {
            name: value
            for name, result in self._results.items()
            if result.cause == "ok" and (value := self._value(name)) is not None
        }
        return min(known, key=lambda name: sign * known[name], default="")

    def _value(self, name: str) -> float | None:
        result = self._results.get(name)
        return None if result is None else result.metrics.get(self._goal.name)


def described(point: Point) -> str:
    """A point in the words of the command line: ``batch=64 compile=on``."""
    return " ".join(f"{name}={text_of(value)}" for name, value in point.items()) or "(no parameters)"
