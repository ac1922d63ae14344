"""What the display shows of a DeepSpeed study (`bireme.tune.execution.runner.Progress`)."""

from __future__ import annotations

from bireme.tune.deepspeed.tuning import Tuning
from bireme.tune.report.tables import figure


class TuningBoard:
    """The board of a DeepSpeed study."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning

    @property
    def left(self) -> int | None:
        """How many trials may still end at most, running ones included; None if not known yet."""
        return self._tuning.left

    @property
    def outlook(self) -> str:
        """Nothing: a study that has begun knows how many trials are left."""
        return ""

    @property
    def done(self) -> int:
        """How many trials have ended."""
        return len(self._tuning.completed)

    @property
    def best(self) -> str:
        """The best result so far in a few words; "" if there is none."""
        best = self._tuning.best
        if best is None or best.value is None:
            return ""
        return f"best {best.trial.name}: {self._tuning.metric.show(best.value)}"

    def title(self, name: str) -> str:
        """A trial is called by its name, which is that of its folder."""
        return name

    def figure(self, name: str) -> str:
        """The figure of an ended trial with its unit; "" if it has none."""
        repeated = self._tuning.repeated.get(name)
        if repeated is not None:
            samples = repeated.result.samples if self._tuning.by_clock else None
            if samples is not None:
                return f"{figure(samples)} samples/s by the clock"
            return "" if repeated.value is None else self._tuning.metric.show(repeated.value)
        row = next((row for row in self._tuning.completed if row.trial.name == name), None)
        return "" if row is None or row.value is None else self._tuning.metric.show(row.value)

    def leads(self, name: str) -> bool:
        """Whether an ended trial is the best so far."""
        best = self._tuning.best
        return best is not None and best.trial.name == name
