"""Resuming: what happens to the results of an earlier study in the folder."""

from __future__ import annotations

import os
from typing import get_args

import pytest

from bireme.errors import BadInputError, BiremeError
from bireme.tune.deepspeed.adapter import Circumstances, circumstances, resume
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.store.folder import write_text
from bireme.tune.store.journal import Journal
from bireme.tune.study.trial_result import NOT_THE_CONFIGURATION, Cause, TrialResult

STUDY = {"config": {"a": 1}, "script": "train.py", "args": ["--x"], "nodes": 1, "slots": 2}
THEN = Circumstances(10.0, "abc")
OVER = {"over": "every configuration was measured"}


def end(name: str, cause="ok", then=THEN) -> dict:
    record = {"end": name, "ending": TrialResult(cause).as_dict(), "point": {}, "kind": "search"}
    return record if then is None else {**record, **then.as_dict()}


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

        def resume(self, now=THEN, overwrite=True, **other):
            journal = Journal.open(f"{files.results_dir}/journal")
            try:
                known, notes = resume(journal, files, {**STUDY, **other}, now, overwrite=overwrite)
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
        (Circumstances(5.0, "abc"), set()),
        (Circumstances(20.0, "abc"), {"timed out"}),
        (Circumstances(None, "abc"), {"timed out"}),
        (Circumstances(10.0, ""), set()),
        (Circumstances(10.0, "def"), {"timed out", "failed", "no metric"}),
    ],
)
def test_what_the_circumstances_may_have_changed_is_run_again(folder, now, again):
    causes = [cause for cause in get_args(Cause) if cause not in NOT_THE_CONFIGURATION]
    folder.leave({"study": STUDY}, *(end(cause, cause) for cause in causes))
    past, notes = folder.resume(now)
    assert past == [cause for cause in causes if cause not in again]
    assert notes[0] == f"resuming the study: {len(past)} of its experiments have ended"
    assert any(note.startswith("running again, because ") for note in notes) == bool(again)
    assert any("1 of them failed and are not run again; remove " in note for note in notes) == ("failed" in past)


def test_what_was_run_again_counts_as_it_ended_last(folder):
    later = Circumstances(20.0, "def")
    folder.leave({"study": STUDY}, end("a", "failed"), end("b"), end("a", "ok", later), end("c", "failed", later))
    assert folder.resume(later)[0] == ["b", "a", "c"]
    assert folder.resume(THEN)[0] == ["b", "a"]


def test_journals_that_do_not_tell_of_circumstances(folder):
    folder.leave({"study": STUDY}, end("a", "failed", None), end("b", "timed out", None))
    assert folder.resume()[0] == ["a"]


def test_a_finished_study_gives_its_results_where_it_may_not_be_overwritten(folder):
    folder.leave({"study": STUDY}, end("a"), OVER)
    assert folder.resume(overwrite=False)[0] == ["a"]


def test_a_script_is_known_by_what_is_in_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("1")
    first = circumstances(None, str(script))
    os.utime(script, (1, 1))
    assert first == circumstances(None, str(script)) != circumstances(None, "package.module")
    script.write_text("2")
    assert circumstances(None, str(script)).script not in ("", first.script)


# -- another -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"config": {"a": 2}}, "another configuration: 2 of its"),
        ({"args": []}, "another list of arguments: 2 of its"),
        ({"script": "x.py", "nodes": 2, "slots": 1}, "another script and width: 2 of its"),
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
def test_of_one_in_which_nothing_has_ended_nothing_is_lost(folder, overwrite):
    folder.leave({"study": STUDY}, {"start": "a", "on": "localhost:0"})
    past, notes = folder.resume(args=[], overwrite=overwrite)
    assert past == [] and "in which no experiment had ended" in notes[0]


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
    with pytest.raises(BadInputError, match="the results of another study"):
        folder.resume(overwrite=False, args=[])
