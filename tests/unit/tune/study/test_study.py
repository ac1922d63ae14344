"""A study as a whole: what it runs, what it says in the end, and that it goes on where it was interrupted."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter

import pytest

import bireme.tune
from bireme.errors import BadInputError
from bireme.tune.space.points import Parameter, Space, key_of
from bireme.tune.study.study import Objective, Study, Trial, TrialResult

GOALS = [Objective("speed")]
CHOICES = {"batch": [8, 16, 32], "threads": [1, 2, 4], "compile": ["off", "on"]}


def speed(point, noise: float, trial: str) -> float:
    best = 1.2 if point["compile"] == "on" else 1.0
    return best * point["batch"] ** 0.3 * (1 + random.Random(f"{point} {trial}").gauss(0, noise))


def run(study: Study, noise: float = 0.01, count: int = 10**6) -> list[tuple[Trial, TrialResult]]:
    """Runs trials, at most ``count``, and returns them in order."""
    trials = []
    while len(trials) < count and (trial := study.ask()):
        measurement = TrialResult(metrics={"speed": speed(trial.point, noise, trial.name)}, seconds=1.0)
        study.tell(trial.name, measurement)
        trials.append((trial, measurement))
    return trials


def make(**options) -> Study:
    return Study(CHOICES, maximize="speed", clock=lambda: 0.0, **options)


def test_finds_the_best_and_is_sure_of_it():
    study = make()
    trials = run(study)
    assert study.over
    answer = study.answer
    assert answer.confirmed and answer.best["compile"] == "on" and answer.best["batch"] == 32
    assert answer.low <= 1.2 * 4**0.3 and (answer.high is None or answer.high >= 1.2 * 4**0.3)
    assert [trial.phase for trial, _ in trials[:2]] == ["noise", "noise"]
    assert 0.001 < answer.noise < 0.1


@pytest.mark.parametrize(("points", "seconds"), [(8, 3.0), (12, 2.0), (24, 1.5)])
def test_what_is_twice_as_good_is_confirmed_within_a_minute(points, seconds):
    """Though nothing resembles it, so that a model takes it for noise."""
    for seed in range(4):
        now, draw = [0.0], random.Random(f"{points} {seed}")
        levels = [1.0, *(draw.uniform(0.75, 1.3) for _ in range(1, points))]
        levels[best := draw.randrange(1, points)] = 2.0
        study = Study({"x": list(range(points))}, maximize="rate", seconds=60, clock=lambda now=now: now[0], seed=seed)
        while trial := study.ask():
            now[0] += seconds
            study.tell(trial.name, rate=levels[trial.point["x"]] * draw.gauss(1, 0.03))
        assert study.answer.confirmed and study.answer.best == {"x": best}, (seed, study.answer.text)


def restored(done: list[tuple[Trial, TrialResult]], finalists: dict[str, object] | None = None, **options) -> Study:
    study = make(**options)
    study.restore_finalists(finalists or {})
    for trial, measurement in done:
        study.restore(trial, measurement)
    return study


def begin_of_round(trials: list[tuple[Trial, TrialResult]], number: int) -> int:
    return next(index for index, (trial, _) in enumerate(trials) if trial.block == f"round-{number}")


@pytest.mark.parametrize("budget", [None, 24])
def test_goes_on_where_it_was_interrupted(budget):
    """Also with the same finalists, of which a budget has room for a few."""
    whole = run(make(seed=4, trials=budget))
    for cut in (1, 5, 12, begin_of_round(whole, 1), begin_of_round(whole, 2)):
        assert run(restored(whole[:cut], seed=4, trials=budget)) == whole[cut:]


@pytest.mark.parametrize(
    ("goals", "sides", "noise", "seed"),
    [(1, (10, 8), 0.003, 0), (1, (10, 8), 0.03, 7), (2, (5, 4), 0.01, 0), (2, (5, 4), 0.01, 1)],
)
def test_a_study_that_is_over_stays_over(goals, sides, noise, seed):
    """What its rounds have shown of the noise, or of the ends of a front, does not make it search on."""
    draw = random.Random(seed)
    space = {"a": list(range(sides[0])), "b": list(range(sides[1]))}
    speeds = {key: [draw.uniform(1, 1.4) for _ in values] for key, values in space.items()}

    def study() -> Study:
        return Study(space, maximize="speed", minimize=["bytes"][: goals - 1], seed=seed, clock=lambda: 0.0)

    done, first = [], study()
    while trial := first.ask():
        level = speeds["a"][trial.point["a"]] * speeds["b"][trial.point["b"]]
        figures = {"speed": level * draw.gauss(1, noise), "bytes": (1 + level) * draw.gauss(1, noise)}
        done.append((trial, TrialResult(metrics=figures, seconds=1.0)))
        first.tell(trial.name, done[-1][1])
    again = study()
    for trial, measurement in done:
        again.restore(trial, measurement)
    assert first.over and again.ask() is None and again.over == first.over


def test_a_larger_budget_has_room_for_more_finalists():
    """Though nothing is left to search: a front is not that of the few that a small budget had room for."""
    space = {"stage": [0, 1, 2, 3], "batch": [1, 2, 4]}

    def go_on(done: list[tuple[Trial, TrialResult]], trials: int | None) -> Study:
        study = Study(space, maximize="rate", minimize="mem", trials=trials, confirm="sure", clock=lambda: 0.0)
        for trial, measurement in done:
            study.restore(trial, measurement)
        while trial := study.ask():
            point = trial.point
            figures = {"rate": (1.0 + point["stage"]) * point["batch"], "mem": point["batch"] + 0.1 * point["stage"]}
            done.append((trial, TrialResult(metrics=figures, seconds=1.0)))
            study.tell(trial.name, done[-1][1])
        return study

    done: list[tuple[Trial, TrialResult]] = []
    few = len(go_on(done, 20).answer.front)
    known = {key_of(point) for point in go_on(done, 200).answer.front}
    assert few < len(known)
    assert known == {key_of(point) for point in go_on([], None).answer.front}


def test_a_few_finalists_of_a_front_are_from_all_of_it():
    study = Study({"x": list(range(12))}, maximize="rate", minimize="mem", trials=18, clock=lambda: 0.0)
    while trial := study.ask():
        study.tell(trial.name, TrialResult(metrics={"rate": 1.0 + trial.point["x"], "mem": 1.0 + trial.point["x"]}))
    finalists = sorted({each.point["x"] for each in study.answer.compared})
    assert len(finalists) < 8 and finalists[0] <= 2 and finalists[-1] == 11, finalists


@pytest.mark.parametrize("cut", ["before its first run ends", "in its first round", "in its second round"])
def test_a_study_that_goes_on_compares_the_same_finalists(cut):
    """Whatever it would choose now: the error was divided among those, of which some have not run yet."""
    study = make(seed=4, trials=60)
    whole = run(study)
    record = json.loads(json.dumps(study.finalists))
    assert len(record["finalists"]) > 2
    fewer = {**record, "finalists": record["finalists"][:-1], "shares": record["shares"][:-1]}
    end = {"before its first run ends": 0, "in its first round": 1, "in its second round": len(record["finalists"]) + 1}
    done = whole[: begin_of_round(whole, 1) + end[cut]]
    for known in (record, fewer):
        again = restored(done, known, seed=4, trials=60)
        again.ask()
        assert again.finalists == known
    more = restored(done, fewer, seed=4, trials=200)
    while (trial := more.ask()) and not trial.paired:
        more.tell(trial.name, TrialResult(metrics={"speed": speed(trial.point, 0.01, trial.name)}, seconds=1.0))
    assert len(more.finalists["finalists"]) >= len(record["finalists"]), "with a larger budget others may join"


def test_a_round_that_was_cut_is_not_completed():
    """Its other runs would be hours later, and on other slots."""
    whole = run(make(seed=4))
    cut = begin_of_round(whole, 2) + 1
    rest = run(restored(whole[:cut], seed=4))
    assert {trial.round for trial, _ in rest} == set(range(3, rest[-1][0].round + 1))
    finalists = {key_of(each.point) for each in restored(whole, seed=4).answer.compared}
    assert {key_of(trial.point) for trial, _ in rest} <= {*finalists, key_of(whole[0][0].point)}


def test_a_round_is_planned_when_it_begins():
    """Not as soon as somebody asks: the round before it decides who takes part."""
    study, begun, running = make(seed=4), [], []
    while True:
        while trial := study.ask():
            running.append(trial)
        if not running:
            break
        begun.append(running.pop(0))
        study.tell(begun[-1].name, TrialResult(metrics={"speed": speed(begun[-1].point, 0.01, begun[-1].name)}))
    assert begun == [trial for trial, _ in run(make(seed=4))]


def test_a_larger_budget_goes_on_with_the_search():
    first = make(trials=20)
    done = run(first)
    assert first.over and {trial.phase for trial, _ in done} == {"noise", "search", "confirm"}
    second = restored(done, trials=60)
    rest = run(second)
    assert rest[0][0].phase == "search" and second.answer.confirmed
    known = {key_of(trial.point) for trial, _ in done if trial.phase == "search"}
    assert len({key_of(trial.point) for trial, _ in rest if trial.phase == "search"} - known) >= 5


def test_a_python_loop():
    study = bireme.tune.Study({"batch": [8, 16, 32]}, maximize="speed")
    while trial := study.ask():
        if trial.point["batch"] == 32:
            study.tell(trial.name, failed="out of memory")
        else:
            study.tell(trial.name, speed=float(trial.point["batch"]))
    assert study.answer.best == {"batch": 16} and study.answer.ratio == pytest.approx(2)


def test_where_nothing_varies_it_ends():
    study = Study({"batch": [8]}, maximize="speed", clock=lambda: 0.0)
    done = run_all(study)
    assert (done, study.over) == (2, "nothing varies: there is only one point")


def test_a_budget_too_short_for_another_point_is_the_reason():
    now = [0.0]
    study = Study({"n": [1, 2, 3]}, minimize="time", seconds=3.0, clock=lambda: now[0])
    done = run_all(study, now)
    assert done == 2 and study.over == "the rest of the budget is not enough to try another point"


def run_all(study: Study, now: list[float] | None = None) -> int:
    """Runs all trials, of a second each, and returns their number."""
    count = 0
    while trial := study.ask():
        count += 1
        assert count < 100
        if now is not None:
            now[0] += 1.1
        study.tell(trial.name, TrialResult(metrics={"speed": 1 + count % 2 / 100}, seconds=1.1))
    return count


def test_values_may_be_written_as_on_the_command_line():
    study = Study({"lr": "1e-3..1e-1:log10", "kind": ["a", "b"], "batch": "8..32:log2"}, maximize="rate")
    study.propose({"lr": 0.01, "kind": "b", "batch": 16})
    assert study.answer.baseline == {"lr": 0.001, "kind": "a", "batch": 8}
    with pytest.raises(BadInputError, match=r"not a range of numbers: '8\.\.x'"):
        Study({"batch": "8..x"}, maximize="rate")


@pytest.mark.parametrize(("choices", "words"), [({}, "no parameters"), ({"batch": []}, "'batch' has no choices")])
def test_a_space_without_a_choice_is_refused(choices, words):
    with pytest.raises(BadInputError, match=words):
        Study(choices, maximize="speed")


def test_what_is_told_must_be_pending_and_complete():
    study = make()
    study.ask()
    with pytest.raises(BadInputError, match="no trial 'x' is pending"):
        study.tell("x", speed=1.0)
    with pytest.raises(BadInputError, match="has no figure 'speed'"):
        study.tell("trial-1", sped=1.0)
    with pytest.raises(BadInputError, match=r"has no figure 'speed' \(told: speed='fast'\)"):
        study.tell("trial-1", speed="fast")


# -- honesty -----------------------------------------------------------------------------------------


def test_no_winner_where_all_points_are_the_same():
    claims = 0
    for seed in range(12):
        draw, study = random.Random(seed), Study({"a": [1, 2, 3], "b": ["x", "y"]}, maximize="speed", seed=seed)
        while trial := study.ask():
            study.tell(trial.name, speed=draw.gauss(100, 3))
        claims += study.answer.confirmed
        default = study.answer.best == {"a": 1, "b": "x"}
        assert default != (study.answer.confirmed or "not confirmed" in study.answer.text)
    assert claims <= 1


def test_no_winner_where_every_second_run_is_slower():
    """A t-interval claims one in a sixth of such studies: the random order of a round is what protects."""
    claims = 0
    for seed in range(40):
        draw, study, count = random.Random(seed), Study({"x": [0, 1]}, maximize="speed", seed=seed), seed
        while trial := study.ask():
            count += 1
            study.tell(trial.name, speed=100 * (1 - 0.08 * (count % 2)) * draw.gauss(1, 0.01))
        claims += study.answer.confirmed
    assert claims <= 4


def test_equal_points_are_told_as_ties_and_not_decided():
    """To tell each of 24 points from the best at 10 % of noise took 5,000 runs."""
    draw, runs = random.Random(1), 0
    study = Study({"x": list(range(24))}, maximize="speed", search="gridsearch", confirm="sure", clock=lambda: 0.0)
    while trial := study.ask():
        study.tell(trial.name, speed=100 * draw.gauss(1, 0.1))
        runs += 1
    assert runs < 2500 and not study.answer.confirmed and len(study.answer.ties) >= 3


def test_a_default_that_fails_is_replaced_and_that_is_said():
    study = make()
    while trial := study.ask():
        if trial.point["batch"] == 8:
            study.tell(trial.name, TrialResult(cause="failed", reason="segmentation fault"))
        else:
            study.tell(trial.name, speed=speed(trial.point, 0.01, trial.name))
    answer = study.answer
    assert answer.default_failed == "segmentation fault"
    assert answer.baseline["batch"] != 8 and "the first point that works" in answer.text


def test_nothing_works():
    study = make()
    while trial := study.ask():
        study.tell(trial.name, failed="no such file")
    assert study.over == "nothing works" and study.answer.best is None


# -- budget ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 5, 20])
def test_a_budget_of_trials(trials):
    study = make(trials=trials)
    done = run(study)
    assert len(done) <= trials and study.left == trials - len(done)
    if len(done) == trials:
        assert study.over == f"the budget of {trials} {'trial' if trials == 1 else 'trials'} is spent"
    assert study.answer.promising is not None
    assert study.answer.confirmed == (trials == 20)


def test_a_budget_of_seconds_keeps_some_for_rounds():
    now = [0.0]
    study = Study(CHOICES, maximize="speed", seconds=40.0, clock=lambda: now[0])
    phases = []
    while trial := study.ask():
        now[0] += 1.0
        phases.append(trial.phase)
        study.tell(trial.name, speed=speed(trial.point, 0.01, trial.name))
    assert len(phases) <= 40 and phases.count("confirm") >= 10


@pytest.mark.parametrize("seconds", range(110, 190, 16))
def test_time_for_rounds_is_kept_also_where_better_points_take_longer(seconds):
    now = [0.0]
    study = Study(CHOICES, maximize="speed", seconds=seconds, clock=lambda: now[0])
    while trial := study.ask():
        now[0] += trial.point["batch"] / 8
        study.tell(trial.name, speed=speed(trial.point, 0.01, trial.name))
    assert study.answer.confirmed and now[0] <= seconds


def test_a_short_budget_of_seconds_is_for_the_search():
    now = [0.0]
    study = Study({"n": list(range(12))}, maximize="speed", seconds=9.0, search="gridsearch", clock=lambda: now[0])
    phases = []
    while trial := study.ask():
        now[0] += 1.2
        phases.append(trial.phase)
        study.tell(trial.name, speed=100.0 + trial.point["n"] + len(phases) % 2)
    assert phases.count("search") >= 5


@pytest.mark.parametrize(("confirm", "most"), [("50%", 1.0), ("20%", 0.25), ("off", 0.0)])
def test_the_confirmation_takes_its_part_of_the_time(confirm, most):
    """But as many rounds as a claim takes; with noise like this, it would go on for hundreds."""
    study, draw = make(confirm=confirm, search="gridsearch"), random.Random(4)
    phases = []
    while trial := study.ask():
        phases.append(trial.phase)
        metrics = {"speed": 100 * draw.gauss(1, 0.2)}
        study.tell(trial.name, TrialResult(cause="ok", metrics=metrics, seconds=1.0))
    rounds = phases.count("confirm")
    assert rounds <= max(most * (len(phases) - rounds), 16 if most else 0)
    assert confirm == "off" or confirm in study.over or "every difference that matters" in study.over


@pytest.mark.parametrize("confirm", ["50", "0%", "100%", "some"])
def test_a_part_of_the_time_is_written_as_one(confirm):
    with pytest.raises(BadInputError, match="confirm: not a part of the time"):
        make(confirm=confirm)


def test_with_few_trials_the_best_so_far_is_named_with_what_is_missing():
    study = make(trials=12, search="gridsearch")
    run(study, noise=0.005)
    answer = study.answer
    assert not answer.confirmed and answer.best == answer.promising != answer.baseline
    assert answer.ratio > 1.2 and answer.runs == 1
    known, missing = answer.text.split("; not confirmed: ")
    assert re.fullmatch(r"about [\d.]+ x the default from 1 run and 2 of the default", known)
    assert re.fullmatch(r"this needs about \d+ more rounds \([\d.]+ s\)", missing)


@pytest.mark.parametrize("seed", range(4))
def test_the_time_of_the_confirmation_is_foretold(seed):
    """Within a factor of two, where a point is clearly better."""
    study, told, took = make(seed=seed), None, 0
    while trial := study.ask():
        if trial.paired:
            told, took = told or study.forecast, took + 1
        study.tell(
            trial.name,
            TrialResult(cause="ok", metrics={"speed": speed(trial.point, 0.01, trial.name)}, seconds=1.0),
        )
    assert told is not None and took / 2 <= told.seconds <= 2 * took and told.low <= told.seconds <= told.high


@pytest.mark.slow
def test_most_forecasts_are_right_within_a_factor_of_two():
    """Of 24 points at 3 % of noise: all are equal, one or a quarter are better, or they differ much."""
    right = []
    for better, by, confirm in itertools.product((0, 1, 6, 23), (0.04, 0.1), (None, "sure")):
        draw, told, took = random.Random(f"{better} {by} 0"), None, 0
        speeds = [1.0] * (24 - better) + [1 + by * (draw.uniform(-2, 2) if better > 6 else 1) for _ in range(better)]
        study = Study({"x": [str(x) for x in range(24)]}, maximize="speed", confirm=confirm)
        while trial := study.ask():
            if trial.paired:
                told, took = told or study.forecast, took + 1
            metrics = {"speed": speeds[int(trial.point["x"])] * draw.gauss(1, 0.03)}
            study.tell(trial.name, TrialResult(metrics=metrics, seconds=1.0))
        right.append(told is None or took / 2 <= told.seconds <= 2 * took)
    assert sum(right) >= 12, right


def test_what_is_left_is_for_the_best_one_where_a_round_of_all_does_not_fit():
    study = make(trials=62, seed=1)
    rounds = Counter(trial.round for trial, _ in run(study, noise=0.1) if trial.phase == "confirm")
    assert max(rounds.values()) > 2 and rounds[max(rounds)] == 2, rounds


@pytest.mark.parametrize(("trials", "side_by_side"), [(4, 4), (10, 1), (13, 3), (20, 4), (30, 8)])
def test_a_budget_holds_whatever_runs_side_by_side(trials, side_by_side):
    """Of a round, all runs fit into it, or none is started."""
    study, draw, running, begun = make(trials=trials, side_by_side=side_by_side), random.Random(1), [], []
    while True:
        while len(running) < 5 * side_by_side and (trial := study.ask()):
            running.append(trial)
            begun.append(trial)
        if not running:
            break
        trial = running.pop(draw.randrange(len(running)))
        study.tell(trial.name, speed=speed(trial.point, 0.01, trial.name))
    assert len(begun) <= trials and study.over
    rounds = Counter(trial.round for trial in begun if trial.phase == "confirm")
    assert min(rounds.values(), default=2) >= 2  # the baseline alone says nothing


def test_a_program_that_always_fails_does_not_run_the_whole_space():
    study = Study({"x": list(range(1000))}, maximize="speed")
    count = 0
    while trial := study.ask():
        study.tell(trial.name, failed="ImportError")
        count += 1
    assert count == 20 and study.over == "nothing works: each of the first 20 points failed"


# -- what is not run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [None, 60])
def test_only_a_budget_bounds_the_rounds(trials):
    """Where a run has 20 % of noise, 28 rounds do not tell 5 %; without a budget it takes as many as it needs."""
    study = Study({"x": [0, 1]}, maximize="speed", trials=trials, confirm="sure", seed=1)
    draw = random.Random(3)
    while trial := study.ask():
        study.tell(trial.name, speed=math.exp(0.05 * trial.point["x"] + draw.gauss(0, 0.2)))
    assert (study.answer.rounds > 28) == (trials is None)
    assert study.over == (
        "the budget of 60 trials is spent" if trials else "the rounds have settled every difference that matters"
    )


def test_out_of_memory_rules_out_what_needs_more():
    sizes = Parameter(name="size", choices=(1, 2, 4, 8, 16, 32, 64, 128), memory=True)
    kinds = Parameter(name="kind", choices=("a", "b"))
    study = Study(Space((sizes, kinds)), [Objective("speed")], clock=lambda: 0.0)
    failed = []
    while trial := study.ask():
        size = trial.point["size"]
        assert not any(size >= small and trial.point["kind"] == kind for small, kind in failed)
        if size > 8:
            failed.append((size, trial.point["kind"]))
            study.tell(trial.name, failed="out of memory")
        else:
            study.tell(trial.name, speed=float(size))
    assert study.answer.best["size"] == 8 and 1 <= len(failed) <= 6


def test_a_running_trial_that_cannot_win_is_stopped():
    study = Study({"x": [1, 2, 3, 4]}, minimize="time", clock=lambda: 0.0)
    draw = random.Random(1)
    while (trial := study.ask()) and trial.phase == "noise":
        study.tell(trial.name, TrialResult(seconds=10 * draw.gauss(1, 0.01)))
    assert not study.reason_to_prune(trial.name, 9.0)
    assert study.reason_to_prune(trial.name, 20.0) == "already slower than the best"


def test_a_series_that_stays_below_the_best_is_stopped():
    study, draw = make(), random.Random(2)
    while (trial := study.ask()) and trial.phase == "noise":
        study.tell(trial.name, speed=100 * draw.gauss(1, 0.01))
    assert not study.reason_to_prune(trial.name, 1.0, [50.0] * 4)  # too few to say so
    slow = [50 * draw.gauss(1, 0.02) for _ in range(20)]
    assert study.reason_to_prune(trial.name, 1.0, slow)
    assert study.reason_to_prune(trial.name, 1.0, [*[500.0] * 20, *slow], 20) and not study.reason_to_prune(
        trial.name, 1.0, slow, 20
    ), "the warm-up does not count"
    assert not study.reason_to_prune(trial.name, 1.0, [98 * draw.gauss(1, 0.02) for _ in range(20)])


def halved(study: Study, levels: dict[int, float], steps: int = 16) -> dict[int, tuple[str, int]]:
    """For each point of the search, why it was stopped and after how many losses, which come down to its level."""
    found = {}
    while trial := study.ask():
        losses: list[float] = []
        reason = ""
        while not reason and len(losses) < steps:
            losses.append(levels[trial.point["x"]] + 1 / (len(losses) + 1))
            reason = study.reason_to_prune(trial.name, series=losses)
        study.tell(trial.name, failed="pruned" if reason else "", loss=losses[-1])
        if trial.phase == "search":
            found[trial.point["x"]] = reason, len(losses)
    return found


def test_halving_lets_the_best_part_go_on_at_each_step():
    """The default ran twice, so from the third point on four have reached the first step."""
    levels = {0: 5.0, 1: 6.0, 2: 7.0, 3: 4.0, 4: 4.5, 5: 3.0, 6: 9.0, 7: 1.0}
    options = {"minimize": "loss", "search": "gridsearch", "confirm": "off", "clock": lambda: 0.0}
    found = halved(Study({"x": list(levels)}, pruner="halving", **options), levels)
    assert found[1] == ("", 16), "only three have reached the step"
    assert found[2] == ("not among the best 1 of 4 after 1 reading", 1)
    assert found[3] == found[5] == found[7] == ("", 16), "each is the best until then"
    assert found[4] == ("not among the best 1 of 6 after 1 reading", 1)
    thirds = halved(Study({"x": list(levels)}, pruner="halving:3", **options), levels)
    assert thirds[1][0] == "not among the best 1 of 3 after 1 reading"
    assert all(not reason for reason, _ in halved(Study({"x": list(levels)}, pruner="off", **options), levels).values())


def test_halving_where_more_is_better():
    levels = {0: 5.0, 1: 6.0, 2: 1.0, 3: 7.0}
    study = Study({"x": list(levels)}, maximize="loss", pruner="halving", search="gridsearch", confirm="off")
    assert [reason != "" for reason, _ in halved(study, levels).values()] == [False, True, False]


@pytest.mark.parametrize(
    ("goals", "pruner", "said"),
    [("a", "median", "no pruner 'median'"), ("a", "halving:1", "no pruner"), (["a", "b"], "halving", "one goal")],
)
def test_a_pruner_that_there_is_not(goals, pruner, said):
    with pytest.raises(BadInputError, match=said):
        Study({"x": [1, 2]}, maximize=goals, pruner=pruner)


def test_what_was_stopped_early_is_never_the_best():
    """Its figure is a bound: for a time, the seconds until it was stopped."""
    study = Study({"x": list(range(30))}, minimize="time", clock=lambda: 0.0)
    for _ in range(3):
        trial = study.ask()
        study.tell(trial.name, TrialResult(seconds=10.0))
    study.tell(study.ask().name, TrialResult(cause="pruned", seconds=5.0))
    trial = study.ask()
    assert not study.reason_to_prune(trial.name, 9.0)


def test_a_point_that_worked_once_and_then_fails_is_left_alone():
    study, tried = Study({"x": list(range(8))}, maximize="speed", search="gridsearch", clock=lambda: 0.0), Counter()
    draw = random.Random(2)
    while trial := study.ask():
        tried[trial.point["x"]] += 1
        if trial.point["x"] == 3 and tried[3] > 1:
            study.tell(trial.name, failed="out of memory")
        else:
            study.tell(trial.name, speed=draw.gauss(100, 5))
    assert tried[3] <= 2 and max(tried.values()) > 2


def test_a_baseline_that_fails_in_the_rounds_ends_them():
    study = make()
    while trial := study.ask():
        if trial.round and trial.point["batch"] == 8 and trial.point["threads"] == 1:
            study.tell(trial.name, failed="out of memory")
        else:
            study.tell(trial.name, speed=speed(trial.point, 0.01, trial.name))
        assert trial.round <= 2
    assert not study.answer.confirmed


def test_a_single_better_point_among_many_is_found():
    """A model takes one good figure for noise; screening runs it again."""
    found = 0
    for seed in range(10):
        draw = random.Random(seed)
        study = Study({"x": list(range(40))}, maximize="speed", search="gridsearch", seed=seed, clock=lambda: 0.0)
        while trial := study.ask():
            study.tell(trial.name, speed=(104 if trial.point["x"] == 29 else 100) * draw.gauss(1, 0.015))
        found += study.answer.best == {"x": 29}
    assert found >= 9


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_it_is_found_also_where_the_model_is_sure_that_it_is_noise(seed):
    draw = random.Random(seed)
    space = {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3, 4, 5]}
    study = Study(space, maximize="speed", seed=seed, clock=lambda: 0.0)
    while trial := study.ask():
        study.tell(trial.name, speed=(104 if trial.point == {"a": 2, "b": 3} else 100) * draw.gauss(1, 0.01))
    assert study.answer.best == {"a": 2, "b": 3}


@pytest.mark.parametrize("seed", [20, 22, 23])
def test_it_is_found_also_where_a_run_has_ten_percent_of_noise(seed):
    """Of four finalists, chosen by ten runs of each point, or left behind at 95 %, it was none, or left too early."""
    draw = random.Random(seed)
    study = Study({"a": [0, 1, 2, 3], "b": [0, 1]}, maximize="speed", seed=seed, clock=lambda: 0.0)
    while trial := study.ask():
        study.tell(trial.name, speed=(104 if trial.point == {"a": 2, "b": 1} else 100) * draw.gauss(1, 0.1))
    assert study.answer.best == {"a": 2, "b": 1}


def test_most_points_are_finalists_where_noise_hides_which_is_the_best():
    study, draw = Study({"x": list(range(24))}, maximize="speed", clock=lambda: 0.0), random.Random(2)
    while (trial := study.ask()) and trial.block != "round-2":
        study.tell(trial.name, speed=100 * draw.gauss(1, 0.1))
    assert len(study.answer.compared) >= 12


# -- other kinds of studies --------------------------------------------------------------------------


def test_side_by_side_without_barriers():
    """Each end makes room for another trial, whichever of the running ones it is."""
    study, draw, running, ended = make(side_by_side=3), random.Random(3), [], 0
    while ended < 200:
        while len(running) < 3 and (trial := study.ask()):
            running.append(trial)
        if not running:
            break
        searching = [trial for trial in running if trial.phase == "search"]
        assert len({str(trial.point) for trial in searching}) == len(searching)
        trial = running.pop(draw.randrange(len(running)))
        study.tell(trial.name, speed=speed(trial.point, 0.01, trial.name))
        ended += 1
    assert study.over and study.answer.confirmed and study.answer.best["batch"] == 32


def test_two_goals_give_a_front():
    study = Study({"size": list(range(1, 9)), "waste": [0, 1]}, maximize="quality", minimize="time", clock=lambda: 0.0)
    draw = random.Random(5)
    while trial := study.ask():
        size, waste = trial.point["size"], trial.point["waste"]
        figures = {"quality": 10 * size**0.5 * draw.gauss(1, 0.005), "time": size * (1 + waste) * draw.gauss(1, 0.005)}
        study.tell(trial.name, **figures)
    front = study.answer.front
    assert len(front) >= 3 and not any(point["waste"] for point in front)


@pytest.mark.parametrize("seed", range(2))
def test_a_front_of_many_is_found_and_takes_all_trials_of_the_budget(seed):
    """All points of the front run in rounds, though a budget has room for one round only."""
    space = {"size": list(range(12)), "waste": [0, 1, 2, 3]}
    study, draw, count = Study(space, maximize="rate", minimize="mem", trials=60, seed=seed), random.Random(seed), 0
    while trial := study.ask():
        size, waste, count = trial.point["size"], trial.point["waste"], count + 1
        figures = {
            "rate": (1 + 0.1 * size - 0.04 * waste) * draw.gauss(1, 0.005),
            "mem": (1 + size) * (1 + waste) * draw.gauss(1, 0.005),
        }
        study.tell(trial.name, TrialResult(metrics=figures, seconds=1.0))
    answer = study.answer
    found = {point["size"] for point in answer.front if not point["waste"]}
    assert len(found) >= 10 and len(answer.front) <= len(found) + 1 and count >= 59
    assert answer.text.endswith("; the front lists only points that ran in paired rounds, so it may be incomplete")


def test_the_search_of_a_front_takes_its_part_of_the_trials():
    """Also where one point is the best in both, so that a model soon expects nothing better."""
    study, tried = Study({"x": list(range(40))}, maximize="rate", minimize="mem", trials=40), set()
    while trial := study.ask():
        tried.add(x := trial.point["x"])
        study.tell(trial.name, rate=100.0 + x + len(trial.name) / 1000, mem=100.0 - x - len(trial.name) / 1000)
    assert len(tried) >= 20


def test_the_units_of_two_goals_do_not_matter():
    """If they did, the goal with the larger numbers would decide alone."""

    def front(unit: float) -> list[object]:
        varies = {"size": list(range(1, 9)), "waste": [0, 1]}
        study = Study(varies, maximize="rate", minimize="bytes", clock=lambda: 0.0)
        draw = random.Random(4)
        while trial := study.ask():
            rate, used = trial.point["size"] ** 0.5, unit * trial.point["size"] * (1 + trial.point["waste"])
            study.tell(trial.name, rate=rate * draw.gauss(1, 0.003), bytes=used * draw.gauss(1, 0.003))
        return sorted(point["size"] for point in study.answer.front)

    assert min(len(front(1.0)), len(front(1e9))) >= 5


def test_a_figure_of_zero_may_be_the_best():
    """There is no logarithm of it, so all scores change; the search is told all runs again."""
    study, draw = Study({"x": [3, 2, 1, 0]}, minimize="errors", clock=lambda: 0.0), random.Random(1)
    while trial := study.ask():
        study.tell(trial.name, errors=max(0.0, trial.point["x"] + (trial.point["x"] > 0) * draw.gauss(0, 0.01)))
    assert study.answer.best == {"x": 0}


def test_a_search_of_ones_own():
    study = make()
    trial = study.propose({"batch": 32, "threads": 1, "compile": "on"})
    study.tell(trial.name, speed=200.0)
    with pytest.raises(BadInputError, match="no point of the space"):
        study.propose({"batch": 33, "threads": 1, "compile": "on"})
    assert study.answer.promising == trial.point


def test_a_study_by_another_search():
    study = make(search="random", trials=30)
    run(study)
    assert study.answer.confirmed


def test_a_trial_that_was_dropped_is_asked_for_again():
    study = make()
    first = study.ask()
    study.drop(first.name)
    assert study.ask() == first
    study.give_up(first.name)
    assert study.ask() != first


def test_a_million_points_cost_nothing():
    study = Study(Space((Parameter(name="n", choices=range(1000)), Parameter(name="m", choices=range(1000)))), GOALS)
    for _ in range(8):
        trial = study.ask()
        study.tell(trial.name, speed=100.0 + trial.point["n"])
    assert study.ask()


def test_reading_changes_nothing():
    """A screen may be drawn at any time: it does not choose the finalists, nor plan a round."""
    study, first = make(seed=4), make(seed=4)
    while trial := study.ask():
        assert trial == first.ask()
        for each in (study, first):
            each.tell(trial.name, TrialResult(metrics={"speed": speed(trial.point, 0.01, trial.name)}, seconds=1.0))
        assert [study.over, study.answer, study.left, study.forecast] and study.answer == study.answer
    assert first.ask() is None and study.answer == first.answer


def test_a_point_may_be_proposed_until_the_rounds_begin():
    """However often it was asked whether the study is over."""
    searched = [trial for trial, _ in run(make(seed=4)) if not trial.round]
    study = make(seed=4)
    run(study, count=len(searched))
    assert not study.over
    assert study.propose(searched[-1].point).phase == "search"
