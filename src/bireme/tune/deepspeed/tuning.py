"""Decides which configuration to run next, and when a study is over: DeepSpeed's autotuning as a state machine.

Nothing is started here. There are up to five phases. What a phase decides depends only on its own trials and those of
earlier phases, so a resumed study continues exactly as it would have:

1. **profile**, if micro-batches are to be searched: a short run finds the number of parameters and the activation
memory.
2. **limits**, in the same case: for each memory group the micro-batches worth trying (`MemoryLimits`). Each run also
measures.
3. **search**: the listed configurations, in the order of ``tuner_type``.
4. **rest**, if ``fast`` is false: the default choices of each stage, the fastest first, unless it cannot win.
5. **confirm**, if it is wanted: the best configurations again in paired rounds (`bireme.tune.deepspeed.finals`).

How much is tried in the two phases before the last is decided in `bireme.tune.deepspeed.rounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from bireme.errors import counted
from bireme.tune.deepspeed.batch import TRAIN
from bireme.tune.deepspeed.config import SECTION
from bireme.tune.deepspeed.config_space import STAGE, TuningSpace
from bireme.tune.deepspeed.files import PROFILE
from bireme.tune.deepspeed.finals import Care, Finals, choose, why_none
from bireme.tune.deepspeed.memory_groups import MemoryGroups
from bireme.tune.deepspeed.memory_limits import MemoryLimits
from bireme.tune.deepspeed.results import METRICS, Metrics, ModelInfo, model_info, value_of
from bireme.tune.deepspeed.rounds import CompletedTrial, RecordedTrial, Round, Trial, given_keys
from bireme.tune.space.points import Point, Points, Union, key_of
from bireme.tune.study.confirmation import Figures
from bireme.tune.study.paired_rounds import PairedRounds
from bireme.tune.study.trial import Answer, Compared, Phase
from bireme.tune.study.trial_result import TrialResult

_MANY = 10_000
"""A grid search of more configurations than this begins with a warning."""

_LONGER = 0.15
"""A repeated run measures for this part of the time that the first run took, start included."""

_MOST_STEPS = 100
"""And for no more steps."""

__all__ = ["PROFILE", "CompletedTrial", "RecordedTrial", "Trial", "Tuning"]


class Tuning:
    """The decisions of a study.

    Args:
        world: ranks of each experiment.
        capacity: memory of a GPU in bytes; None if unknown.
        earlier: trials that ended in earlier runs, in the order of their ends.
        care: how sure the answer must be; None: every configuration is run once.
    """

    def __init__(
        self,
        space: TuningSpace,
        world: int,
        *,
        capacity: int | None = None,
        earlier: Iterable[RecordedTrial] = (),
        care: Care | None = None,
    ) -> None:
        self._pending: dict[str, Trial] = {}
        self._given_up: dict[str, Trial] = {}
        self._rounds: PairedRounds | None = None
        self.space, self.section = space, space.config.autotuning
        self.metric = METRICS[self.section.metric]
        self._completed: dict[str, CompletedTrial] = {}
        self._repeated: dict[str, CompletedTrial] = {}
        self._care = care
        self._notes: list[str] = []
        self._groups = MemoryGroups(space, world)
        self._memory_limits = MemoryLimits(space, self._groups, capacity, _given_info(space))
        self._profile = self._wants_profile()
        self._round: Round | None = None
        self._to_come: Iterator[Round] | None = None
        self._searched = False
        for each in earlier:
            self._take(each.trial, each.result, each.info)

    # -- what to run ---------------------------------------------------------------------------------

    def ask(self) -> Trial | None:
        """The next trial, which is then pending; None if there is nothing to start now, or ever (see ``over``)."""
        trial = self._next_search() if self._rounds is None else None
        if trial is None and all(each.paired for each in self._pending.values()):
            self._rounds = self._rounds or self._first_rounds()
            run = None if self._rounds is None else self._rounds.next()
            trial = None if run is None else self._paired(*run)
        if trial is None:
            return None
        if trial.paired and self._rounds is not None:
            self._rounds.begin(trial.round, trial.point)
        self._pending[trial.name] = trial
        return trial

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

    def _next_search(self) -> Trial | None:
        if self._profile:
            return None if PROFILE in self._pending else Trial(name=PROFILE, point={}, phase="profile")
        if self.space.micro is None and self._round is None:
            point = self._memory_limits.propose()
            if point is not None:
                return self._trial(point, "limits")
            if self._pending:
                return None  # their results decide what is searched
        return self._from_rounds()

    def _from_rounds(self) -> Trial | None:
        """The next trial of this round or a following one."""
        if self._round is None:
            self._round = self._first_round()
        while (point := self._round.ask()) is None:
            following = None if self._pending else self._following()
            if following is None:
                self._searched = not self._pending
                return None
            self._round = following
        return self._trial(point, self._round.phase)

    @property
    def _searching(self) -> bool:
        return not self._searched

    def _first_rounds(self) -> Finals | None:
        finalists = self._finalists
        if self._care is None or len(finalists) < 2:
            return None
        searched = sum(done.result.seconds for done in self.completed)
        return Finals(finalists, searched, self.clock, self._figure, self._care, self._repeated)

    @property
    def _finalists(self) -> list[CompletedTrial]:
        return choose(self.completed, self.clock, self._figure)

    @property
    def finals(self) -> Finals | None:
        """The rounds; None before the first."""
        return self._rounds if isinstance(self._rounds, Finals) else None

    @property
    def unrepeated(self) -> str:
        """Why nothing is run again; "" if something is, or there is nothing to compare."""
        if self._care is None or self._searching or self._rounds is not None:
            return ""
        return why_none(self.completed, self._finalists)

    def begin_rounds(self) -> None:
        """Take over the rounds of earlier runs of the study, also where capacity and budget are unknown."""
        self._searched, self._rounds = True, self._first_rounds()
        if self._rounds is not None:
            self._rounds.next()

    def _paired(self, number: int, point: Point) -> Trial:
        assert self.finals is not None
        return self.finals.trial(number, point)

    def _figures(self, done: CompletedTrial) -> Figures | None:
        assert self.finals is not None
        return self.finals.figures(done)

    def _trial(self, point: Point, phase: Phase) -> Trial:
        return Trial(name=self.space.name(point), point=point, phase=phase, seconds=self._predicted(point))

    def _predicted(self, point: Point) -> float | None:
        """The predicted duration: the mean of the trials of its stage that worked, or of all."""
        worked = [done for done in self._completed.values() if done.result.cause == "ok" and not done.trial.profile]
        alike = [done for done in worked if done.trial.point[STAGE] == point[STAGE]] or worked
        return sum(done.result.seconds for done in alike) / len(alike) if alike else None

    # -- rounds --------------------------------------------------------------------------------------

    def _first_round(self) -> Round:
        """The search among the listed configurations."""
        if self.space.micro is None:
            parts = [self._groups.part(number, sizes, listed=True) for number, sizes in self._memory_limits.in_reach()]
        else:
            parts = [self._groups.listed(stage, self.space.micro) for stage in self.space.stages]
        return self._make_round("search", Union(tuple(parts)), ("limits", "search"))

    def _following(self) -> Round | None:
        """The next round; None if there is none."""
        if self._to_come is None:
            reach = tuple(self._memory_limits.in_reach()) if not self.section.fast else ()
            self._to_come = (
                self._make_round("rest", self._groups.part(number, sizes), ("limits", "search", "rest"))
                for number, sizes in reach
                if self._groups.has_defaults(number)
            )
        return next(self._to_come, None)

    def _make_round(self, phase: Phase, points: Points, before: tuple[Phase, ...]) -> Round:
        completed = [done for done in self._completed.values() if done.trial.phase in before]
        counting = [done.trial for done in completed if done.trial.phase in ("search", "rest")]
        spent = sum(trial.phase != phase or trial.point not in points for trial in counting)
        made = Round(phase, points, self.space.config, completed, spent, self._excluded)
        for trial in self._given_up.values():
            if trial.point in points:
                made.pending[key_of(trial.point)] = dict(trial.point)
        return made

    def _excluded(self, point: Point) -> bool:
        return bool(self.space.impossible(point)) or self._memory_limits.ruled_out(point)

    def _reason(self, rounds: PairedRounds | None) -> str:
        causes = {done.result.cause for done in self.completed}
        if any(done.value is not None for done in self.completed):
            return (self._round.enough if self._round is not None else "") or "every configuration was measured"
        if causes <= {"out of memory"} and (causes or self._memory_limits.skipped):
            return "no configuration fits in memory"
        return "no configuration worked" if causes else "there is nothing to try"

    # -- results --------------------------------------------------------------------------------------

    def tell(self, name: str, result: TrialResult, info: ModelInfo | None = None) -> CompletedTrial:
        """Report the result of a pending trial, which says something about its configuration.

        Args:
            info: what it found, if it was the profiling run.
        """
        return self._take(self._pending[name], result, info)

    def _take(self, trial: Trial, result: TrialResult, info: ModelInfo | None) -> CompletedTrial:
        done = (self._repeated if trial.paired else self._completed)[trial.name] = self._complete(trial, result)
        if trial.profile:
            self._note_profile(result, info)
        self._pending.pop(trial.name, None)
        if not trial.paired:
            self._note(done)
        elif self._rounds is not None:
            self._rounds.tell(trial.round, trial.point, self._figures(done))
        return done

    def _note(self, done: CompletedTrial) -> None:
        if done.trial.profile:
            return
        self._memory_limits.tell(done)
        if self._round is not None and done.trial.point in self._round.points:
            self._round.tell(done)

    def _note_profile(self, result: TrialResult, info: ModelInfo | None) -> None:
        self._profile = False
        known = info is not None and info.params is not None
        self._memory_limits.learn(info if known else None)
        if result.cause == "out of memory":
            self._memory_limits.not_even_one()
        elif not known:
            reason = result.reason or (info.reason if info else "") or result.cause
            self._notes.append(f"{PROFILE}: {reason}; the memory that each stage needs was not estimated")

    def _complete(self, trial: Trial, result: TrialResult) -> CompletedTrial:
        if trial.profile or result.cause != "ok":
            return CompletedTrial(trial, result, None, result.reason)
        value, reason = value_of(Metrics(dict(result.metrics)), self.section.metric)
        if value is None and not trial.paired:
            result = result.replace(cause="no metric", reason=reason)
        return CompletedTrial(trial, result, value, reason)

    def _forget(self, trial: Trial) -> None:
        if trial.profile:
            return
        self._memory_limits.forget(trial.point)
        if self._round is not None:
            self._round.pending.pop(key_of(trial.point), None)

    def _rule_out(self, trial: Trial) -> None:
        if trial.profile:
            self._profile = False
        elif trial.phase == "limits":
            self._memory_limits.give_up(trial.point)

    # -- views ----------------------------------------------------------------------------------------

    @property
    def over(self) -> str:
        """Why the study is over; "" if a trial is pending, left to try, or could not be run."""
        return "" if self._given_up else self._over

    @property
    def _over(self) -> str:
        if self._pending or (self._rounds is None and self._searching):
            return ""
        rounds = self._rounds or self._first_rounds()
        return self._reason(rounds) if rounds is None or rounds.next() is None else ""

    @property
    def warning(self) -> str:
        """A warning before a grid search of very many configurations; "" if there is none."""
        if self.section.tuner_type != "gridsearch" or "tuner_num_trials" in given_keys(self.space.config):
            return ""
        micro = self.space.micro or range(1, self.section.num_tuning_micro_batch_sizes + 1)
        size = sum(self._groups.listed(stage, tuple(micro)).size for stage in self.space.stages)
        if size <= _MANY:
            return ""
        return (
            f"warning: gridsearch will try up to {size:,} configurations; "
            "to try fewer, set autotuning.tuner_type to model_based, or autotuning.tuner_num_trials"
        )

    @property
    def given_up(self) -> tuple[str, ...]:
        """The names of the trials that could not be run."""
        return tuple(self._given_up)

    @property
    def completed(self) -> tuple[CompletedTrial, ...]:
        """All ended trials in the order of their ends, without the profiling run and without repeated runs."""
        return tuple(done for done in self._completed.values() if not done.trial.profile)

    @property
    def repeated(self) -> Mapping[str, CompletedTrial]:
        """The ended runs of paired rounds, by name."""
        return self._repeated

    @property
    def winner(self) -> CompletedTrial | None:
        """What the rounds confirm; the best trial if there were none."""
        return (self.finals.winner if self.finals is not None else None) or self.best

    @property
    def answer(self) -> Answer:
        """What is known now. There is no default: all are compared with the best."""
        winner, finals = self.winner, self.finals
        if winner is None:
            return Answer(best=None, baseline={}, text="no configuration worked")
        best = winner.trial.point
        if finals is None or finals.winner is None:
            text = f"by one run: {self.unrepeated}" if self.unrepeated else "by one run"
            return Answer(best=best, baseline=best, text=text)
        goal, ratios = "by the clock" if self.by_clock else self.section.metric, []
        for done in finals.finalists:
            ratio = finals.ratio(done, winner)
            if done != winner and ratio.count:
                high = ratio.high if isfinite(ratio.high) else None
                ratios.append(
                    Compared(
                        point=done.trial.point,
                        goal=goal,
                        ratio=ratio.mean,
                        low=ratio.low,
                        high=high,
                        rounds=ratio.count,
                    )
                )
        runs = counted(finals.count(winner), "run")
        text = f"{'confirmed ' if finals.certain else ''}by {self.compared_by} in {runs}"
        return Answer(
            best=best,
            baseline=best,
            confirmed=finals.certain,
            rounds=finals.count(winner),
            ties=tuple(done.trial.point for done in finals.ties),
            compared=tuple(ratios),
            text="which DeepSpeed's figure prefers" if finals.ties else text,
        )

    @property
    def compared_by(self) -> str:
        """What the rounds compare, in words."""
        return "the clock" if self.by_clock else self.section.metric

    def clock(self, done: CompletedTrial) -> float | None:
        """What the rounds compare, more is better: samples or steps per second by the clock, or DeepSpeed's figure."""
        samples = done.result.samples
        if self.section.metric == "throughput" or samples is None:
            return samples if self.by_clock else self._figure(done)
        return samples / self.samples(done.trial) if self.by_clock else self._figure(done)

    @property
    def by_clock(self) -> bool:
        """Whether the rounds compare by the clock: parts of a step have no other figure than DeepSpeed's."""
        return self.section.metric in ("throughput", "latency")

    def _figure(self, done: CompletedTrial) -> float | None:
        """DeepSpeed's figure, inverted if necessary so that more is better."""
        if done.value is None:
            return None
        return done.value if self.metric.direction == "maximize" else 1 / done.value

    @property
    def best(self) -> CompletedTrial | None:
        """The best trial so far, the earliest of equals; None if none has a figure."""
        return self.best_of(self._completed.values())

    def best_of(self, completed: Iterable[CompletedTrial]) -> CompletedTrial | None:
        """The best of these trials, the earliest of equals; None if none has a figure."""
        return min((done for done in completed if done.value is not None), key=self.cost, default=None)

    def cost(self, done: CompletedTrial) -> float:
        """The trial's figure, negated if necessary so that less is better."""
        value = done.value or 0.0
        return -value if self.metric.direction == "maximize" else value

    @property
    def first_step(self) -> int:
        """The step at which measuring begins, counted from 1."""
        return self.section.start_profile_step

    @property
    def left(self) -> int | None:
        """How many trials may still end at most, running ones included; None if not known yet."""
        if self.space.micro is None and self._round is None:
            return None
        if not self.section.fast and (self._round is None or self._round.phase == "search"):
            return None  # results decide what else is tried
        if self._over:
            return 0
        if self.finals is not None:
            return self.finals.left
        left = (self._round or self._first_round()).left
        if left is None:
            return None
        left += len(self._pending)
        clocked = any(self.clock(done) for done in self.completed)
        return left + (self._care.runs(len(self.completed) + left) if self._care and clocked else 0)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was not tried, and why, one line each."""
        return (*self.space.batch.dropped, *self._notes, *self._memory_limits.skipped)

    # -- an experiment -------------------------------------------------------------------------------

    def ds_config(self, trial: Trial, path: str = "") -> dict[str, object]:
        """The configuration of a trial, a new one each time.

        Args:
            path: the file that DeepSpeed is to write before it exits; "": the configuration of the real job.
        """
        if trial.profile:
            return self.space.profile_config(path)
        config = self.space.ds_config(trial.point, metric_path=path)
        section = config.get(SECTION)
        if isinstance(section, dict):
            section["end_profile_step"] = self.last_step(trial)
        return config

    def last_step(self, trial: Trial) -> int:
        """The step at whose end a trial has measured.

        A repeated run measures for longer: a few steps are soon over, and their time says little.
        """
        end = self.section.end_profile_step
        first = next((done for done in self.completed if done.trial.point == trial.point), None)
        if not trial.paired or not self.by_clock or first is None or not first.result.samples:
            return end
        steps = _LONGER * first.result.seconds * first.result.samples / self.samples(trial)
        return max(end, self.first_step + min(_MOST_STEPS, round(steps)))

    def samples(self, trial: Trial) -> int:
        """The number of samples in a step (``train_batch_size``)."""
        samples = self.space.ds_config(trial.point)[TRAIN]
        assert isinstance(samples, int)
        return samples

    def _wants_profile(self) -> bool:
        asked = (self.section.model_info or {}).get("profile") is True
        return (self.space.micro is None or asked) and not self._memory_limits.knows_model


def _given_info(space: TuningSpace) -> ModelInfo | None:
    """What the configuration itself says about the model; None if it does not give the number of parameters."""
    info = model_info(dict(space.config.autotuning.model_info or {}))
    return info if info.params else None
