"""A study for the user's own loop that is kept in a folder, where another program can continue it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.define.declarations import Declaration
from bireme.tune.space.points import Point, Points
from bireme.tune.store import records
from bireme.tune.store.folder import prepare
from bireme.tune.store.journal import Journal
from bireme.tune.store.resume import ProgramSuccessor, restore, resume
from bireme.tune.study import study
from bireme.tune.study.trial import Goal, Trial, TrialResult


class Study(study.Study):
    """Finds the best point of a space, and says how sure that is; see `bireme.tune.study.study.Study`.

    What was told is not asked again when the study is made with the same storage. A trial that an earlier program has
    asked for may still be told. With other choices, goals or bounds, what still holds is taken over.

    Args:
        storage: the folder in which the study is kept; "": it is not.
        options: those of `bireme.tune.study.study.Study`.

    Attributes:
        notes: what is said of the storage: what was resumed, and what does not hold any more.
    """

    def __init__(
        self,
        space: Points | Mapping[str, str | Sequence[object]],
        goals: Sequence[Goal] = (),
        *,
        storage: str = "",
        **options: Any,
    ) -> None:
        super().__init__(space, goals, **options)
        self.notes: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._decided = False  # whether the finalists are in the journal
        self._starts: dict[str, records.Record] = {}
        if storage:
            self._open(os.path.join(os.getcwd(), os.path.expanduser(storage)), options)

    def _open(self, folder: str, options: Mapping[str, Any]) -> None:
        prepare(folder, hint="choose another folder", where="storage")
        journal = Journal.open(os.path.join(folder, records.JOURNAL))
        space = self._space
        described = {
            **Declaration(space=space, bindings=()).as_record(),
            "goals": [{"name": goal.name, "direction": goal.direction} for goal in self._goals],
            "search": options.get("search", "model_based"),
            "seed": self._seed,
        }
        identity: records.Record = json.loads(json.dumps(described))
        try:
            known, self.notes = resume(journal, ProgramSuccessor(identity, folder, space))
            bounds = {name: options.get(name) for name in ("trials", "seconds", "confirm")}
            run = {"confidence": self._confidence, "effect": self._effect, **bounds}
            journal.append({"run": run}, sync=False)
            restore(self, known)
        except BaseException:
            journal.close()
            raise
        self._journal = journal
        self._starts = {name: start for name, start in known.starts.items() if name not in known.ends}
        self._names.update(self._starts)
        self._said_over = bool(known.over)

    def close(self) -> None:
        """Let others open the storage. The end of the program does the same."""
        if self._journal is not None:
            self._journal.close()

    def _append(self, record: Mapping[str, object], *, sync: bool = True) -> None:
        if self._journal is not None:
            self._journal.append({**record, "time": round(time.time(), 3)}, sync=sync)

    # -- ask and tell ----------------------------------------------------------------------------------

    def ask(self) -> Trial | None:
        """The next trial, which is then pending; None if there is nothing to start now, or ever (see ``over``)."""
        trial = super().ask()
        if self._journal is not None and trial is None and not self._said_over and (over := self.over):
            self._append({"over": over, "answer": self.answer.as_dict()})
            self._said_over = True
        return trial

    def _begin(self, trial: Trial) -> Trial:
        if trial.paired and not self._decided:
            self._append(self.finalists, sync=False)
            self._decided = True
        self._append({"start": trial.name, **_facts(trial)})
        self._said_over = False
        return super()._begin(trial)

    def tell(self, name: str, result: TrialResult | None = None, *, failed: str = "", **metrics: float) -> None:
        """Report the result of a pending trial, also of one that an earlier program has asked for."""
        result = result or self.result_of(name, failed, metrics)
        self._take_up(name)
        trial, earlier = self._pending.get(name), name in self._starts
        super().tell(name, result)
        self._starts.pop(name, None)
        if trial is None or not result.counts:
            return
        if earlier and trial.paired:
            self._earlier.append((trial.round, trial.point, self._measured.runs[-1].values))
        self._record(trial, result)

    def result_of(self, name: str, failed: str, metrics: Mapping[str, float]) -> TrialResult:
        """The result of a pending trial that ends now, also of one that an earlier program has asked for."""
        self._take_up(name)
        return super().result_of(name, failed, metrics)

    def _take_up(self, name: str) -> None:
        """Let a trial be pending if an earlier program has asked for it."""
        if name in self._pending or name not in self._starts:
            return
        start = self._starts[name]
        trial = records.trial_of({**start, "end": name})
        if trial.paired and self._rounds is not None:
            raise BadInputError(
                f"trial {name!r} belongs to a round that is over",
                hint="tell such a trial before you ask for the next one",
            )
        self._pending[name] = trial
        self._asked[name] = self._clock() - max(0.0, time.time() - float(start.get("time", time.time())))

    def _record(self, trial: Trial, result: TrialResult) -> None:
        told = {"ending": result.as_dict(), "elapsed": round(self._budget.elapsed, 3), "figures": dict(result.metrics)}
        told |= self.steps(trial.name)
        self._append({"end": trial.name, **_facts(trial), **told})

    def add_trial(self, point: Point, *, failed: str = "", **metrics: float) -> None:
        """Take over a result that was measured before; one that the storage has already is not told twice."""
        known = self._measured.in_phase("known")
        if self._journal is not None and any(
            run.trial.point == point and run.result.metrics == metrics and run.result.reason == failed for run in known
        ):
            return
        super().add_trial(point, failed=failed, **metrics)
        run = self._measured.runs[-1]
        self._record(run.trial, run.result)


def _facts(trial: Trial) -> dict[str, object]:
    """A trial in the journal, beside its name."""
    return {name: value for name, value in trial.as_dict().items() if name != "name"}
