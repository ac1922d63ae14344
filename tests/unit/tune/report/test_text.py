"""What a study says in words: the answer's own, and no more than is certain. The same on every screen."""

from __future__ import annotations

from typing import Any

from bireme.tune.report.text import answer_lines, best_lines, status_text, summary, to_go
from bireme.tune.report.view import AnswerView, Configuration, Finalist, GoalView, StudyView, TrialView
from bireme.tune.study.trial import Forecast

NOW = 1_790_000_000.0


def study(*batches: int, answer: AnswerView | None = None, **more: Any) -> StudyView:
    """A study that is over: one trial of each of these batches, the first of which is the default."""
    points = [{"batch": batch} for batch in batches]
    trials = [
        TrialView(
            name=f"t{place}",
            config=place,
            point=point,
            cause="ok",
            figures={"rate": 100.0 + 50 * place},
            seconds=2.0,
            began=NOW + 2 * place,
            ended=NOW + 2 * place + 2,
        )
        for place, point in enumerate(points)
    ]
    known: dict[str, Any] = {
        "folder": "/study",
        "goals": (GoalView("rate"),),
        "configurations": tuple(
            Configuration(place, {"batch": batch}, {"batch": str(batch)}, f"batch={batch}")
            for place, batch in enumerate(batches)
        ),
        "trials": tuple(trials),
        "answer": answer or AnswerView(best=0),
        "over": "everything is decided",
    }
    return StudyView(**{**known, **more})


SURE = AnswerView(best=2, confirmed=True, ratio=1.5, low=1.4, high=1.6, rounds=4, noise=0.008)
FINALIST = Finalist(
    config=2, goal="rate", ratio=1.5, low=1.4, high=1.6, rounds=(1.4, 1.5, 1.5, 1.6), count=4, verdict="better"
)


def test_a_confirmed_answer() -> None:
    assert answer_lines(study(8, 16, 32, answer=SURE, finalists=(FINALIST,))) == [
        "noise of a run: 0.8 % (standard deviation of the search's repeated runs)",
        "best: batch=32  rate 200, 1.5 x the default (95%: 1.4 to 1.6, 4 paired rounds)",
    ]


def test_a_better_mean_than_that_of_the_best_of_a_deepspeed_study_is_explained() -> None:
    """The best is by the rounds that both ran; the table below it has the means of all runs."""
    known = study(8, 16, 32, answer=AnswerView(best=1, baseline=1, noise=1.67, text="from 3 runs"), kind="deepspeed")
    why = "batch=32 has a better mean (of 1 run), but is not shown to be better: the noise of a run is 167.0 %"
    assert why in answer_lines(known)
    assert why not in answer_lines(known.replace(answer=known.answer.replace(ties=(2,))))
    assert not any("better mean" in line for line in answer_lines(known.replace(kind="program")))


def test_figures_of_two_goals_stand_in_a_list() -> None:
    two = study(8, answer=AnswerView(best=0, front=(0,)), goals=(GoalView("rate"), GoalView("loss", "minimize")))
    trial = two.trials[0].replace(figures={"rate": 100.0, "loss": 0.5})
    assert answer_lines(two.replace(trials=(trial,)))[-1] == "on the front: batch=8  rate 100, loss 0.5 (the default)"


def test_a_bound_just_above_one_is_told_from_one_and_a_confidence_from_certainty() -> None:
    close = SURE.replace(ratio=1.02, low=1.0003, high=1.04)
    text = answer_lines(study(8, 16, 32, answer=close, confidence=0.995, finalists=(FINALIST.replace(ratio=1.02),)))[1]
    assert text == "best: batch=32  rate 200, 1.02 x the default (99.5%: 1.0003 to 1.04, 4 paired rounds)"


def test_of_many_that_cannot_be_told_apart_the_first_are_named() -> None:
    answer = SURE.replace(noise=None, ties=tuple(range(3, 26)))
    lines = answer_lines(study(*range(1, 27), answer=answer))[1:]
    assert lines[0] == "not distinguishable from it: batch=4  rate 250, 2.5 x the default"
    assert lines[11].startswith("not distinguishable from it: batch=15 ")
    assert lines[12:] == ["(and 11 more: bireme tune report)"]


def test_where_the_default_fails_the_baseline_is_named() -> None:
    known = study(16, 8, 32, answer=SURE.replace(default_failed="exit code 1"), finalists=(FINALIST,))
    assert answer_lines(known)[1:] == [
        "best: batch=32  rate 200, 1.5 x the baseline (95%: 1.4 to 1.6, 4 paired rounds)",
        "the default itself failed: exit code 1; the baseline is batch=16",
    ]


def test_what_is_promising_is_shown_if_nothing_is_certain_and_only_if_it_matters() -> None:
    open_ = AnswerView(best=0, promising=1, ties=(1,), text="no point is better")
    default = "best: batch=8  rate 100 (the default)"
    promising = "promising, but not confirmed: batch=16  rate 150, 1.5 x the default"
    assert answer_lines(study(8, 16, answer=open_)) == [default, promising, "no point is better"]
    little = Finalist(config=1, goal="rate", ratio=1.01, low=None, high=None, rounds=(), count=3, verdict="")
    tie = "not distinguishable from the default: batch=16  rate 150, 1.01 x the default"
    assert answer_lines(study(8, 16, answer=open_, finalists=(little,))) == [default, "no point is better", tie]
    assert answer_lines(study(8, 16, answer=open_.replace(promising=0, ties=()))) == [default, "no point is better"]
    front = study(8, 16, answer=open_.replace(front=(0,), ties=()))
    assert answer_lines(front) == [default, "no point is better", f"on the front: {default[6:]}"], (
        "of two goals, promising is about the first alone"
    )


def test_less_is_better() -> None:
    """Half the time is twice as good."""
    answer = AnswerView(best=0, promising=1)
    known = study(8, 16, answer=answer, goals=(GoalView("rate", "minimize", "s"),))
    slow, fast = (each.replace(figures={"rate": rate}) for each, rate in zip(known.trials, (0.5, 0.25), strict=True))
    known = known.replace(trials=(slow, fast))
    assert best_lines(known)[1] == "promising, but not confirmed: batch=16  rate 250 ms, 2 x the default"
    assert known.leader == "t1"


def test_two_goals_and_a_verdict_for_each() -> None:
    goals = (GoalView("rate"), GoalView("peak", "minimize", "B"))
    known = study(8, 16, answer=AnswerView(best=0, front=(0, 1)), goals=goals)
    known = known.replace(trials=tuple(each.replace(figures={**each.figures, "peak": 2048.0}) for each in known.trials))
    known = known.replace(finalists=(FINALIST.replace(config=1), FINALIST.replace(config=1, goal="peak", low=None)))
    text = summary(known)
    assert "on the front: batch=16  rate 150, peak 2 KiB, 1.5 x the default" in text
    assert "| batch=16 | rate | 4      | 1.500         | 1.400 to 1.600 | better  |" in text
    assert "| batch=16 | peak | 4      | 1.500         | up to 1.600    | better  |" in text


def test_the_whole_summary() -> None:
    known = study(8, 16, 32, answer=SURE, finalists=(FINALIST,), skipped=("stage 3: too large",), given_up=("t9",))
    failed = known.trials[1].replace(cause="failed", reason="exit code 1", figures={})
    known = known.replace(trials=(known.trials[0], failed, known.trials[2]))
    assert summary(known) == (
        "| configuration | runs | rate | took  | end    |\n"
        "|:--------------|:-----|:-----|:------|:-------|\n"
        "| batch=32      | 1    | 200  | 2.0 s | ok     |\n"
        "| batch=8       | 1    | 100  | 2.0 s | ok     |\n"
        "| batch=16      | 1    |      | 2.0 s | failed |\n"
        "\n"
        "| finalist | rounds | x the default | 95%            | verdict |\n"
        "|:---------|:-------|:--------------|:---------------|:--------|\n"
        "| batch=32 | 4      | 1.500         | 1.400 to 1.600 | better  |\n"
        "\n"
        "What failed:\n"
        "  t1: failed: exit code 1\n"
        "\n"
        "What was not tried:\n"
        "  stage 3: too large\n"
        "\n"
        "Could not be run (run the same command again to retry): t9\n"
        "\n"
        "Tuning took 6.0 s; 3 trials of 3 configurations.\n"
        "It ended: everything is decided.\n"
        "\n"
        "noise of a run: 0.8 % (standard deviation of the search's repeated runs)\n"
        "best: batch=32  rate 200, 1.5 x the default (95%: 1.4 to 1.6, 4 paired rounds)\n"
    )


def test_the_screen_says_the_same_and_why_it_ended() -> None:
    known = study(8, 16, 32, answer=SURE, finalists=(FINALIST,), over="", why="it was interrupted", state="stopped")
    screen = status_text(known, NOW)
    assert "\ntook 6.0 s: it was interrupted\n3 trials done: 3 measured\n" in screen
    assert screen.endswith("\n".join(answer_lines(known)) + "\n")
    assert "\nbest so far: batch=32 " in screen
    assert summary(known).endswith("\n".join(answer_lines(known)) + "\n")


def test_nothing_at_all() -> None:
    assert answer_lines(study(answer=AnswerView())) == ["nothing was measured"]
    assert answer_lines(study(answer=AnswerView(), state="running")) == ["nothing was measured yet"]
    failed = study(8).trials[0].replace(cause="failed", figures={})
    none = study(8, answer=AnswerView(), trials=(failed,))
    assert answer_lines(none) == ["no configuration worked"]
    assert answer_lines(none.replace(state="running")) == ["nothing was measured yet"]


def test_how_long_it_takes_is_the_budget_in_the_search_and_the_forecast_when_the_best_run_again() -> None:
    """What a forecast says is only about the best: the search comes before."""
    forecast = Forecast(seconds=100.0, low=60.0, high=200.0, sure=100.0, advice="a larger --effect")
    known = study(8, 16, state="running", over="", forecast=forecast)
    assert to_go(known, NOW) == "then the best again, about 1 min 40 s (1 min 00 s to 3 min 20 s)"
    assert to_go(known.replace(budget=60.0), NOW) == "at most about 56.0 s to go"
    again = known.replace(budget=60.0, trials=tuple(each.replace(phase="confirm") for each in known.trials))
    words = "about 1 min 40 s (1 min 00 s to 3 min 20 s) to go"
    assert to_go(again, NOW) == to_go(known, NOW, searches=False) == words
    assert f"\ncomparing the finalists, for 4.0 s: {words}\na larger --effect\n" in status_text(again, NOW)
    assert to_go(known.replace(forecast=None), NOW) == to_go(None, NOW) == ""
