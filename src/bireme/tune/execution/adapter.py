"""What the adapters of DeepSpeed and of any other program share: a study's trials run as experiments."""

from __future__ import annotations

import glob
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bireme.logs.lines import SINCE
from bireme.tune.execution.experiment import End, LaunchRequest
from bireme.tune.execution.slot_scheduler import Order, Shape, SlotReservation, Task
from bireme.tune.execution.trial_launch import Launch
from bireme.tune.space.points import Point
from bireme.tune.store.folder import LOCK
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import StudyRecords
from bireme.tune.store.resume import Successor, resume
from bireme.tune.study.study import Study
from bireme.tune.study.trial import Trial, TrialResult
from bireme.value import Value


class Setting(Value):
    """How all trials of a study are run.

    Attributes:
        environ: the environment of each ``bireme run``.
        limit: seconds after which a trial is stopped; None: never.
        ships: whether trials run in a copy of the working tree (``--ship``).
    """

    launch: Launch
    shape: Shape
    args: tuple[str, ...]
    environ: Mapping[str, str]
    limit: float | None = None
    order: Order = "fifo"
    ships: bool = False

    @property
    def side_by_side(self) -> int:
        """How many trials run at the same time."""
        slots = self.launch.pool.slots.values()
        return max(1, sum(len(ids) // self.shape.slots for ids in slots) // self.shape.nodes)


class RealJob(Value):
    """The command of the real job; ``exports``: the words in it that set environment variables to what was found."""

    command: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()


class Blocks:
    """Runs the trials of a block, which are compared with each other, one after the other on the same slots.

    Args:
        ask: the next trial, then pending for the study; None if there is none now.
    """

    def __init__(self, ask: Callable[[], Trial | None]) -> None:
        self._ask = ask
        self._held: list[Trial] = []
        self._busy: dict[str, str] = {}
        self._places: dict[str, SlotReservation] = {}

    def next(self) -> Trial | None:
        """The next trial that may be queued now; None if there is none."""
        for held in self._held:
            if held.block not in self._busy.values():
                self._held.remove(held)
                return self._begin(held)
        while (trial := self._ask()) is not None:
            if trial.block not in self._busy.values():
                return self._begin(trial)
            self._held.append(trial)
        return None

    def _begin(self, trial: Trial) -> Trial:
        if trial.block:
            self._busy[trial.name] = trial.block
        return trial

    def pinned(self, trial: Trial) -> SlotReservation | None:
        """The only slots that the trial may get; None: any."""
        return self._places.get(trial.block)

    def started(self, trial: Trial, reservation: SlotReservation) -> None:
        """The trial runs on these slots; so do the others of its block."""
        if trial.block:
            self._places[trial.block] = reservation

    def ended(self, name: str) -> None:
        """The trial has ended, or will not run."""
        self._busy.pop(name, None)


class Adapter(ABC):
    """A study of one kind, as far as kinds differ: how it resumes, and how a trial of it becomes an experiment.

    Attributes:
        setting: how its trials are run.
        folders: where it is kept, the folder of the results first.
        bounds: what may differ from one start to the next.
        lock: the name of the file that the trials of a tuner lock as long as one of them lives.
        study: what proposes trials, once it has begun.
    """

    folders: tuple[str, ...]
    bounds: Mapping[str, Any]
    lock = LOCK
    study: Study

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._pending: dict[str, Trial] = {}

    # -- the study -----------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Create the folders."""

    def resume(self, journal: Journal) -> tuple[StudyRecords, Sequence[str]]:
        """Resume the study of the journal, or begin one; returns what is known of it, and what the user is told."""
        return resume(journal, self._successor())

    @abstractmethod
    def _successor(self) -> Successor:
        """What identifies the study, and what may have changed."""

    def begin(self, known: StudyRecords) -> Sequence[str]:
        """Go on with what is known of the study; returns what the user is told."""
        self.study = self._study_of(known)
        self._since = time.monotonic() - known.elapsed
        self._blocks = Blocks(self.study.ask)
        return ()

    @abstractmethod
    def _study_of(self, known: StudyRecords) -> Study:
        """The study, with what is known of it."""

    def clean_up(self) -> None:  # noqa: B027  (only one kind has something to do)
        """Called when no trial of an earlier tuner is left."""

    @property
    def search_left(self) -> int | None:
        """How many trials of the search may still end at most; None: unknown."""
        return None

    @property
    def left_out(self) -> Mapping[str, object]:
        """Facts for the journal about what was not tried."""
        return {}

    def table(self) -> str:
        """What stands before the summary."""
        return ""

    @abstractmethod
    def write_best(self, best: Point) -> RealJob:
        """Write the files of the real job with the best point."""

    def write_baseline(self, baseline: Point) -> RealJob:
        """Write the files of the job that the best point is compared with; none if that is the best itself."""
        return RealJob()

    # -- its trials ----------------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str:
        """Why nothing is left to try; "" while something is left or pending."""
        return self.study.over

    @property
    def elapsed(self) -> float:
        """Seconds that the study has taken, earlier runs of it included."""
        return time.monotonic() - self._since

    @property
    def finalists(self) -> Mapping[str, object]:
        """What the rounds compare, for the journal; {} before they begin."""
        return self.study.finalists

    def next(self) -> Task | None:
        """The next trial as an experiment to run; None if there is nothing to start now."""
        trial = self._blocks.next()
        if trial is None:
            return None
        self._pending[trial.name] = trial
        return Task(key=trial.name, shape=self.setting.shape, pinned=self._blocks.pinned(trial))

    @abstractmethod
    def _file(self, name: str, file: str) -> str:
        """The path of a file of a trial."""

    @abstractmethod
    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """What to start for a trial, whose files are written; ``place``: see `Client.launch_request`."""

    def starting(self, name: str) -> Mapping[str, object]:
        """The trial's point and phase, for those who look at a study while it runs."""
        trial = self._pending[name]
        return {"point": dict(trial.point), "phase": trial.phase, **({"round": trial.round} if trial.round else {})}

    @abstractmethod
    def judge(self, name: str, end: End) -> TrialResult:
        """The result of a run that has ended."""

    @abstractmethod
    def tell(self, name: str, result: TrialResult) -> Mapping[str, object]:
        """Report the result of a pending trial to the study; returns facts for its record in the journal."""

    def _words(
        self, name: str, reservation: SlotReservation, place: int, args: Sequence[str], options: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The command line of a trial that starts now, without ``bireme run``."""
        self._blocks.started(self._pending[name], reservation)
        limit = () if self.setting.limit is None else ("--time_limit", f"{self.setting.limit:g}")
        report = ("--timestamps", "--output", "prefix", "--report", self._file(name, "outcome.json"))
        return self.setting.launch.command(
            name, reservation, place, options=(*report, *limit, *options), args=tuple(args)
        )

    def _carried(self, files: Iterable[str], results: Iterable[str], folder: str) -> tuple[str, ...]:
        """Options that send files to a trial which runs in a copy of the tree, and bring its results to a folder."""
        if not self.setting.ships:
            return ()
        inside = (path for path in results if not os.path.isabs(path) and ".." not in path.split("/"))
        folder = folder and os.path.relpath(folder)
        sent = (word for path in files for word in ("--ship_also", path))
        return (*sent, *(word for path in inside for word in ("--fetch", f"{glob.escape(path)}:{folder}")))

    def _request(self, name: str, words: Sequence[str]) -> LaunchRequest:
        environ = {**self.setting.environ, SINCE: repr(time.monotonic())}
        grace = self.setting.launch.grace
        return LaunchRequest.of_run(words, environ, lambda file: self._file(name, file), grace=grace)

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until a run has certainly left nothing on other nodes."""
        return self.setting.launch.settling(reservation, end.report)

    def _ended(self, name: str) -> Trial:
        """A trial is not pending any more."""
        self._blocks.ended(name)
        return self._pending.pop(name)

    def re_enqueue(self, name: str) -> None:
        """A trial was not measured: it may be proposed again."""
        self._ended(name)
        self.study.drop(name)

    def fail(self, name: str) -> None:
        """The infrastructure failed a trial too often: it is not proposed again in this run."""
        self._ended(name)
        self.study.give_up(name)
