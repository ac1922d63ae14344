"""What the display shows of a study of a program (`bireme.tune.execution.runner.Progress`)."""

from __future__ import annotations

from bireme.errors import counted
from bireme.tune.define.declarations import Declaration
from bireme.tune.metrics.metric import Measure
from bireme.tune.metrics.numbers import scaled
from bireme.tune.program.trials import ProgramTrials
from bireme.tune.report.tables import short
from bireme.tune.report.view import PHASES
from bireme.tune.space.points import Point
from bireme.tune.study.study import Study


class ProgramBoard:
    """The board of a study of a program.

    Args:
        study: the study.
        measure: what is measured.
        declaration: what varies.
        trials: the trials, those of earlier runs included.
    """

    def __init__(self, study: Study, measure: Measure, declaration: Declaration, trials: ProgramTrials) -> None:
        self._study, self._goal, self._declaration, self._all = study, measure.goals[0], declaration, trials

    @property
    def left(self) -> int | None:
        """How many trials may still end at most, running ones included; None if not known yet."""
        return self._study.left

    @property
    def outlook(self) -> str:
        """About how many more rounds decide everything; "" if it is too early to say."""
        more = self._study.more_rounds
        return f"about {counted(more, 'more round')}" if more else ""

    @property
    def done(self) -> int:
        """How many trials have ended."""
        return len(self._all.results)

    @property
    def best(self) -> str:
        """The best run so far in a few words; "" if there is none. What is best is for the rounds to say."""
        name = self._leader()
        if not name:
            return ""
        return f"best run {described(self._declaration, self._all.trials[name].point)}: {self.figure(name)}"

    def title(self, name: str) -> str:
        """A trial is called by its name and its point, and by what it is for if that is not the search."""
        trial = self._all.trials[name]
        word = PHASES.get(trial.phase, "")
        phase = f" [{word}{f' {trial.round}' if trial.phase == 'confirm' else ''}]" if word else ""
        return f"{name}{phase} {described(self._declaration, trial.point)}"

    def figure(self, name: str) -> str:
        """The figure of an ended trial with its unit; "" if it has none."""
        value = self._value(name)
        return "" if value is None else f"{self._goal.name} {scaled(value, self._all.units.get(self._goal.name, ''))}"

    def leads(self, name: str) -> bool:
        """Whether an ended trial is the best so far."""
        return self._all.trials[name].phase != "confirm" and self._leader() == name

    def _leader(self) -> str:
        sign = -1.0 if self._goal.direction == "maximize" else 1.0
        known = {
            name: value
            for name, result in self._all.results.items()
            if result.cause == "ok" and (value := self._value(name)) is not None
        }
        return min(known, key=lambda name: sign * known[name], default="")

    def _value(self, name: str) -> float | None:
        result = self._all.results.get(name)
        return None if result is None else result.metrics.get(self._goal.name)


def described(declaration: Declaration, point: Point) -> str:
    """A point in the words of the command line: ``batch=64 compile=on``."""
    return " ".join(f"{name}={short(text)}" for name, text in declaration.texts(point).items())
