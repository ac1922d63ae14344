"""Whether the study in a folder is the one that is asked for, and what of it still holds."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme.errors import BadInputError
from bireme.tune.metrics.metric import Measure, parse
from bireme.tune.report.view import view
from bireme.tune.space.points import Parameter, Space
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import StudyRecords
from bireme.tune.store.resume import ProgramSuccessor, digest_of, restore, resume
from bireme.tune.study import finalists
from bireme.tune.study.study import Objective, Study
from bireme.tune.study.trial import Answer, Trial, TrialResult

SPACE = Space([Parameter(name="n", choices=(1, 2))])
MEASURE = parse([("maximize", "rate: {}")])


def identity(measure: Measure = MEASURE, **other: Any) -> dict[str, Any]:
    return {
        "program": "train.py",
        "args": ["{n}"],
        "parameters": [{"name": "n", "choices": [1, 2]}],
        "deliveries": [{"parameter": "n", "how": "argument"}],
        "goals": [goal.as_dict() for goal in measure.goals],
        "limits": [limit.text for limit in measure.limits],
        "shape": [1, 1],
        "digests": {"train.py": "1", "c.yaml": "2"},
        **other,
    }


def ended(name: str, cause: str = "ok", phase: str = "search", **more: Any) -> dict[str, Any]:
    result = TrialResult(cause=cause, metrics={"rate": 5.0} if cause in ("ok", "pruned") else {})  # type: ignore[arg-type]
    return {"end": name, "ending": result.as_dict(), "point": {"n": 1}, "phase": phase, **more}


def resumed(
    folder: Path,
    now: Mapping[str, Any],
    *ends: Mapping[str, Any],
    begun: Mapping[str, Any] | None = None,
    space: Space = SPACE,
    limit: float | None = None,
) -> tuple[StudyRecords, tuple[str, ...]]:
    """Resume the study that was begun, when these trials of it have ended; also as the next start reads it."""
    journal = Journal.open(str(folder / "journal"))
    for record in ({"study": begun or identity()}, *ends):
        journal.append(record)
    journal.close()
    found: list[tuple[StudyRecords, tuple[str, ...]]] = []
    for _ in range(2):
        journal = Journal.open(str(folder / "journal"))
        try:
            found.append(resume(journal, ProgramSuccessor(now, "tuning", space, limit=limit)))
        finally:
            journal.close()
    assert found[0][0].ends == found[1][0].ends, "the journal says the same"
    return found[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"deliveries": [{"parameter": "n", "how": "environment"}]}, "other parameters"),
        ({"program": "other.py", "digests": {"other.py": "1", "c.yaml": "2"}}, "other program"),
        ({"args": ["{n}", "more"], "shape": [2, 1]}, "other width and arguments"),
        ({"goals": [parse([("maximize", "rate={}")]).goals[0].as_dict()]}, "other goals"),
        ({"later": 1}, "another version of Bireme"),
    ],
)
def test_the_difference_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    refusal = f"^tuning holds a study with {said}: 1 of its trials has ended"
    with pytest.raises(BadInputError, match=refusal):
        resumed(tmp_path, identity(**change), ended("a"))
    again = tmp_path / "nothing worked"
    again.mkdir()
    known, notes = resumed(again, identity(**change), ended("a", "failed"))
    assert notes == ("replacing the study in tuning, in which nothing worked",) and not known.ends


def test_what_has_ended_is_taken_over(tmp_path: Path) -> None:
    known, notes = resumed(tmp_path, identity(), ended("a"), ended("b", "failed"))
    assert list(known.ends) == ["a", "b"]
    nothing_worked = tmp_path / "nothing worked"
    nothing_worked.mkdir()
    assert list(resumed(nothing_worked, identity(), ended("a", "failed"))[0].ends) == ["a"]
    assert notes == (
        "resuming the study: 2 of its trials have ended",
        "1 of them failed and are not run again; remove tuning to start afresh",
    )


@pytest.mark.parametrize(("limit", "held"), [(5.0, "ab"), (10.0, "ab"), (20.0, "a"), (None, "a")])
def test_what_timed_out_is_run_again_if_the_limit_is_longer(tmp_path: Path, limit: float | None, held: str) -> None:
    known, notes = resumed(tmp_path, identity(), ended("a"), ended("b", "timed out", limit=10.0), limit=limit)
    assert "".join(known.ends) == held
    assert notes[1:] == (() if held == "ab" else ("not taken over, because --experiment_limit is longer: b",))


def test_an_edited_program_runs_again_what_failed_and_what_is_claimed(tmp_path: Path) -> None:
    now = identity(digests={"train.py": "3", "c.yaml": "2"})
    ends = (
        ended("a"),
        ended("b", "failed"),
        ended("c", phase="confirm"),
        ended("d", "pruned"),
        ended("e", "timed out"),
    )
    known, notes = resumed(tmp_path, now, *ends)
    assert list(known.ends) == ["a", "d"] and all(known.is_earlier(end) for end in known.ends.values())
    assert notes == (
        "resuming the study, now with a changed train.py: 2 of its 5 trials are still valid",
        "not taken over, because train.py changed: b, c, e",
    )


def test_an_edit_is_one_whichever_digest_is_greater() -> None:
    now = ProgramSuccessor(identity(digests={"less": "1", "more": "3", "same": "2"}), "", SPACE)
    begun = {"digests": dict.fromkeys(("less", "more", "same", "gone"), "2")}
    assert now.edited(begun, {}) == ["less", "more"]


def test_means_are_those_of_the_program_as_it_is(tmp_path: Path) -> None:
    """What was measured before an edit counts only where there is nothing newer."""
    now = identity(digests={"train.py": "3", "c.yaml": "2"})
    known, _ = resumed(tmp_path, now, ended("a"), ended("b"), ended("d", point={"n": 2}))
    for name, rate in (("e", 50.0), ("f", 60.0)):
        known.take({**ended(name, phase="confirm", round=1), "ending": {"cause": "ok", "metrics": {"rate": rate}}})
    study, _ = view("", known, Answer(best=None, baseline={"n": 1}), running=False)
    assert study.means() == {0: 55.0, 1: 5.0}


def test_estimates_are_those_of_the_program_as_it_is(tmp_path: Path) -> None:
    """The mean of two programs is that of none, and their difference is no noise."""
    now = identity(digests={"train.py": "3", "c.yaml": "2"})
    good = {"cause": "ok", "metrics": {"rate": 70.0}}
    known, _ = resumed(tmp_path, now, ended("a"), ended("b"), {**ended("d", point={"n": 2}), "ending": good})
    study = Study(SPACE, [Objective("rate")])
    restore(study, known)
    assert study.finished.scores({"n": 1}) == pytest.approx([math.log(5.0)] * 2)
    assert study._sampler.best(study.finished).value == pytest.approx(70.0)
    for name, rate in (("e", 150.0), ("f", 60.0)):
        study.restore(Trial(name, {"n": 1}, "screen"), TrialResult(metrics={"rate": rate}))
    assert study.finished.scores({"n": 1}) == pytest.approx([math.log(150.0), math.log(60.0)])
    assert study.finished.noise() == (pytest.approx(math.log(2.5) / math.sqrt(2)), 1)
    assert study._sampler.best(study.finished).value == pytest.approx(math.sqrt(9000.0))
    estimates = {point["n"]: mean for mean, _, point in finalists.estimates(study._sampler, study.finished)}
    assert estimates[1] > math.log(40.0)
    study.restore(Trial("round", {"n": 2}, "confirm", 1), TrialResult(metrics={"rate": 80.0}))
    assert study.finished.scores({"n": 2}) == pytest.approx([math.log(70.0)]), "rounds are no estimates"
    # What is claimed was measured of the program as it is.
    rounds = study._first_rounds()
    assert rounds is not None and rounds.confirmation.finalists == [{"n": 2}]
    assert [len(rounds.confirmation._searched({"n": n})) for n in (1, 2)] == [2, 0]


def test_another_space_keeps_the_points_that_it_has(tmp_path: Path) -> None:
    space = Space([Parameter(name="n", choices=(1, 4)), Parameter(name="mode", choices=("safe", "fast"))])
    now = identity(parameters=[{"name": "n"}, {"name": "mode"}], args=["{n}", "--mode", "{mode}"])
    now["deliveries"] = [*now["deliveries"], {"parameter": "mode", "how": "argument"}]
    ends = (ended("a"), ended("b", phase="confirm", round=1), ended("c", point={"n": 2}), ended("d", phase="screen"))
    known, notes = resumed(tmp_path, now, *ends, space=space)
    assert {name: end["point"] for name, end in known.ends.items()} == {key: {"n": 1, "mode": "safe"} for key in "abd"}
    assert [end["phase"] for end in known.ends.values()] == ["search", "confirm", "search"]
    assert notes[1:] == ("not taken over, because their points are no longer in the space: c",)


def test_other_goals_and_limits_are_judged_by_what_was_measured(tmp_path: Path) -> None:
    measure = parse([("minimize", "rate: {}")], ["rate: {} < 4"])
    known, notes = resumed(tmp_path, identity(measure), ended("a"), ended("b", "pruned"))
    assert [end["ending"]["cause"] for end in known.ends.values()] == ["over limit"]
    assert notes[1] == "not taken over, because they were pruned for other goals: b"
    another = parse([("maximize", "speed: {}")])
    folder = tmp_path / "another"
    folder.mkdir()
    known, notes = resumed(folder, identity(another), ended("a"), ended("b", "out of memory"))
    assert list(known.ends) == ["b"] and "speed was not measured: a" in notes[1]


def test_the_digests_of_files(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("1")
    before = digest_of(str(file))
    os.utime(file, (1, 1))
    assert before == digest_of(str(file)) != "" and digest_of("a.module") == digest_of(str(tmp_path)) == ""
    file.write_text("2")
    assert digest_of(str(file)) not in ("", before)
