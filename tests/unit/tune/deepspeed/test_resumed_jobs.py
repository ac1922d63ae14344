"""Resuming: what happens to the results of an earlier study in the folder."""

from __future__ import annotations

import os
from typing import get_args

import pytest

from bireme.errors import BadInputError, BiremeError
from bireme.tune.deepspeed.deepspeed_study import DeepSpeedSuccessor
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.store.folder import write_text
from bireme.tune.store.journal import Journal
from bireme.tune.store.resume import resume
from bireme.tune.study.trial import NOT_THE_CONFIGURATION, Cause, TrialResult

STUDY = {"config": {"a": 1}, "script": "train.py", "args": ["--x"], "nodes": 1, "slots": 2}
THEN = {"limit": 10.0, "script": "abc"}
OVER = {"over": "every configuration was measured"}


def end(name: str, cause="ok", phase="search", **then) -> dict:
    return {"end": name, "ending": TrialResult(cause).as_dict(), "point": {}, "phase": phase, **THEN, **then}


@pytest.fixture
def folder(tmp_path):
    """Takes up a study in a folder in which another run has left these records."""
    files = StudyFiles(f"{tmp_path}/results", f"{tmp_path}/exps")
    files.prepare()

    class Folder:
        def __init__(self) -> None:
            self.files = files

        def leave_summary(self) -> None:
            write_text(f"{files.results_dir}/summary.txt", "table")

        def leave(self, *records) -> None:
            journal = Journal.open(f"{files.results_dir}/journal")
            for record in records:
                journal.append(record)
            journal.close()

        def studies(self) -> int:
            journal = Journal.open(f"{files.results_dir}/journal")
            try:
                return sum("study" in record for record in journal.records)
            finally:
                journal.close()

        def resume(self, overwrite=True, now=THEN, **other):
            journal = Journal.open(f"{files.results_dir}/journal")
            try:
                identity = {**STUDY, **other}
                known, notes = resume(journal, DeepSpeedSuccessor(identity, files, overwrite=overwrite, **now))
            finally:
                journal.close()
            return list(known.ends), notes

    return Folder()


# -- the same study ----------------------------------------------------------------------------------


def test_a_study_begins(folder):
    assert folder.resume() == ([], ())
    assert folder.resume() == ([], ())


@pytest.mark.parametrize(
    ("now", "again"),
    [
        (THEN, set()),
        ({"limit": 20.0, "script": ""}, {"timed out"}),
        ({"limit": 10.0, "script": "def"}, {"timed out", "failed", "no metric", "out of memory"}),
    ],
)
def test_what_may_be_another_now_is_run_again(folder, now, again):
    causes = [cause for cause in get_args(Cause) if cause not in NOT_THE_CONFIGURATION]
    folder.leave({"study": STUDY}, *(end(cause, cause) for cause in causes))
    past, notes = folder.resume(now=now)
    assert past == [cause for cause in causes if cause not in again]
    assert any(note.startswith("not taken over, because ") for note in notes) == bool(again)
    assert any("1 of them failed and are not run again; remove " in note for note in notes) == ("failed" in past)
    edited = now["script"] == "def"
    assert notes[0].startswith(
        "resuming the study, now with a changed train.py: " if edited else "resuming the study: "
    )
    assert folder.studies() == 1 + edited, "finalists and what is claimed begin anew"
    assert folder.resume(now=now)[0] == past
    assert folder.studies() == 1 + edited, "which is written once"


def test_what_is_claimed_was_measured_of_the_script_as_it_is(folder):
    later = {"limit": 10.0, "script": "def"}
    folder.leave({"study": STUDY}, end("a"), end("a@round1", phase="confirm"))
    assert folder.resume(now=later)[0] == ["a"]
    folder.leave(end("a@round1", phase="confirm", **later), end("b", "failed", **later))
    assert folder.resume(now=later)[0] == ["a", "a@round1", "b"]
    folder.leave(end("b", "ok", **later), end("c", "failed", **later))
    assert folder.resume(now=later)[0] == ["a", "a@round1", "b", "c"]


def test_a_finished_study_gives_its_results_where_it_may_not_be_overwritten(folder):
    folder.leave({"study": STUDY}, end("a"), OVER)
    assert folder.resume(overwrite=False)[0] == ["a"]


# -- another -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"config": {"a": 2}}, "other configuration: 2 of its"),
        ({"args": []}, "other list of arguments: 2 of its"),
        ({"script": "x.py", "nodes": 2, "slots": 1}, "other script and width: 2 of its"),
    ],
)
@pytest.mark.parametrize("overwrite", [True, False])
def test_an_unfinished_study_is_never_cleared_away(folder, other, said, overwrite):
    folder.leave({"study": STUDY}, end("a"), end("b", "failed"))
    with pytest.raises(BadInputError, match=said) as caught:
        folder.resume(overwrite=overwrite, **other)
    assert len(str(caught.value).splitlines()) == 2
    assert folder.resume()[0] == ["a", "b"]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("ends", [[], [end("a", "failed")]])
def test_of_one_in_which_nothing_has_worked_nothing_is_lost(folder, overwrite, ends):
    folder.leave({"study": STUDY}, {"start": "a", "on": "localhost:0"}, *ends)
    folder.files.write_experiment("a", {})
    past, notes = folder.resume(args=[], overwrite=overwrite)
    said = f"replacing the study in {folder.files.results_dir}, in which nothing worked"
    assert past == [] and notes == ((said,) if ends else ()) and folder.files.empty


def test_a_finished_study_is_moved_aside_and_that_is_said(folder):
    folder.leave({"study": STUDY}, end("a"), OVER)
    folder.leave_summary()
    folder.files.write_best({}, ["bireme"])
    os.utime(f"{folder.files.results_dir}/summary.txt", (0, 0))
    past, (note,) = folder.resume(args=[])
    assert past == []
    kept = f"{folder.files.results_dir}.1"
    assert note.startswith("the results of the earlier study of 19") and note.endswith(f" are now in {kept}")
    assert folder.files.empty and os.path.exists(f"{kept}/cmd_optimal.txt")
    folder.leave(OVER)
    assert folder.resume() == ([], ()), "there is nothing to move"


def test_what_was_being_moved_when_the_tuner_was_killed_goes_to_the_same_folders(folder):
    folder.leave({"study": STUDY}, end("a"), OVER, {"moved to": 1})
    folder.leave_summary()
    os.makedirs(f"{folder.files.exps_dir}.1")
    folder.resume()
    assert os.path.exists(f"{folder.files.results_dir}.1/summary.txt")


def test_results_of_another_program_are_moved_too(folder):
    """Those of DeepSpeed's own tuner, which leaves no journal."""
    folder.files.write_experiment("z0", {})
    folder.files.write_start("z0", {}, ["x"], [])
    past, (note,) = folder.resume()
    assert past == [] and note.endswith(f"{folder.files.results_dir}.1")
    assert os.path.exists(f"{folder.files.beside(1).result('z0')}/exp.json")


def test_results_of_another_program_stay_where_they_may_not_be_overwritten(folder):
    folder.files.write_experiment("z0", {})
    assert folder.resume(overwrite=False) == ([], ()) and not folder.files.empty


def test_a_finished_study_in_which_nothing_worked_gives_way_where_it_may_not_be_overwritten(folder):
    folder.leave({"study": STUDY}, end("a", "failed"), OVER)
    folder.files.write_experiment("a", {})
    past, (note,) = folder.resume(overwrite=False, args=[])
    assert past == [] and "in which nothing worked" in note and folder.files.empty
    assert not os.path.exists(f"{folder.files.results_dir}.1")


def test_results_that_cannot_be_moved_stay(folder):
    folder.leave({"study": STUDY}, end("a"), OVER, {"moved to": 1})
    folder.leave_summary()
    with open(f"{folder.files.results_dir}.1", "w"):
        pass
    with pytest.raises(BiremeError, match=r"summary.txt cannot be moved to .*results.1: File exists\n"):
        folder.resume()
    assert os.path.exists(f"{folder.files.results_dir}/summary.txt")


def test_results_that_may_not_be_overwritten_are_in_the_way(folder):
    folder.leave({"study": STUDY}, end("a"), OVER)
    with pytest.raises(BadInputError, match="holds a study with other list of arguments: 1 of its trials has ended"):
        folder.resume(overwrite=False, args=[])
