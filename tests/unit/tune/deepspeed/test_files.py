"""The files of a study, in DeepSpeed's layout."""

from __future__ import annotations

import json
import os
import shlex

import pytest

from bireme.errors import BadInputError, BiremeError
from bireme.tune.deepspeed.files import StudyFiles, sweep, write_text


@pytest.fixture
def files(tmp_path):
    files = StudyFiles(f"{tmp_path}/results", f"{tmp_path}/exps")
    files.prepare()
    return files


def test_places(files, tmp_path):
    assert files.experiment("z0") == f"{tmp_path}/exps/z0.json"
    assert files.result("z0", "metrics.json") == f"{tmp_path}/results/z0/metrics.json"
    assert StudyFiles.at("/r", "e") == StudyFiles("/r", os.path.join(os.getcwd(), "e"))


def test_the_users_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StudyFiles.at("~/tune", "~/a/b") == StudyFiles(f"{tmp_path}/tune", f"{tmp_path}/a/b")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b"])
def test_names_that_lead_elsewhere(files, name):
    with pytest.raises(BadInputError, match="not a name for an experiment"):
        files.result(name)
    with pytest.raises(BadInputError, match="not a name for an experiment"):
        files.experiment(name)


def test_an_experiment(files):
    path = files.write_experiment("z0", {"a": 1}, num_nodes=1, num_gpus=2)
    with open(path) as file:
        assert json.load(file) == {"name": "z0", "ds_config": {"a": 1}, "num_nodes": 1, "num_gpus": 2}
    assert files.experiments() == ("z0",)


def test_a_start(files):
    words = ["--include", "n:0", "--master_port", "7", "it's.py", "--x"]
    files.write_start("z0", {"a": 1}, words, ["--x"], include="n:0")
    with open(files.result("z0", "cmd.txt")) as file:
        assert shlex.split(file.read()) == ["bireme", "run", *words]
    with open(files.result("z0", "ds_config.json")) as file:
        assert json.load(file) == {"a": 1}
    with open(files.result("z0", "exp.json")) as file:
        exp = json.load(file)
    assert exp.items() >= {"name": "z0", "ds_config": {"a": 1}, "include": "n:0"}.items()
    assert (exp["launcher_args"], exp["master_port"]) == (words[:4], 7)


def test_a_start_leaves_nothing_of_an_earlier_run(files):
    files.write_start("z0", {}, ["x"], [])
    for name in ("metrics.json", "stderr.log"):
        write_text(files.result("z0", name), "{}")
    files.write_start("z0", {}, ["x"], [])
    assert sorted(os.listdir(files.result("z0"))) == ["cmd.txt", "ds_config.json", "exp.json"]


def test_the_best(files):
    files.write_best({"a": 1, "autotuning": {"enabled": True}}, ["bireme", "run", "a b.py"])
    with open(files.best_config) as file:
        assert json.load(file) == {"a": 1}
    with open(os.path.join(files.results_dir, "cmd_optimal.txt")) as file:
        assert file.read() == "bireme run 'a b.py'\n"


def test_commands_may_hold_secrets_and_are_for_the_user_alone(files):
    before = os.umask(0o022)
    try:
        files.write_start("z0", {}, ["--export", "TOKEN=secret"], [])
        files.write_best({}, ["bireme", "run", "--export", "TOKEN=secret"])
    finally:
        os.umask(before)
    modes = {
        name: os.stat(os.path.join(files.results_dir, name)).st_mode & 0o777
        for name in ("z0/cmd.txt", "z0/exp.json", "cmd_optimal.txt", "ds_config_optimal.json")
    }
    assert modes == {
        "z0/cmd.txt": 0o600,
        "z0/exp.json": 0o600,
        "cmd_optimal.txt": 0o600,
        "ds_config_optimal.json": 0o644,
    }


def test_clearing_leaves_what_is_not_ours(files, tmp_path):
    files.write_experiment("z0", {})
    files.write_start("z0", {}, ["x"], [])
    files.write_experiment("mine", {})
    files.write_best({}, ["x"])
    (tmp_path / "results" / "mine").mkdir()
    for kept in ("results/mine/data", "results/notes.txt", "exps/other.json", "exps/broken.json"):
        (tmp_path / kept).write_text("{}" if "other" in kept else "{")
    files.clear()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["exps/broken.json", "exps/other.json", "results/mine/data", "results/notes.txt"]


def test_clearing_what_is_not_there(tmp_path):
    StudyFiles(f"{tmp_path}/r", f"{tmp_path}/e").clear()
    assert list(tmp_path.iterdir()) == []


def test_moving_aside_leaves_what_is_not_ours_and_the_command_names_the_moved_configuration(files, tmp_path):
    files.write_experiment("z0", {})
    files.write_start("z0", {}, ["x"], [])
    files.write_best({}, ["bireme", "run", "a b.py", "--deepspeed_config", files.best_config])
    (tmp_path / "results" / "notes.txt").touch()
    assert not files.empty and files.first_free() == 1
    files.move(files.beside(1))
    assert files.empty and files.first_free() == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        *("exps.1/z0.json", "results.1/cmd_optimal.txt", "results.1/ds_config_optimal.json", "results.1/z0/cmd.txt"),
        *("results.1/z0/ds_config.json", "results.1/z0/exp.json", "results/notes.txt"),
    ]
    command = (tmp_path / "results.1" / "cmd_optimal.txt").read_text()
    assert command == f"bireme run 'a b.py' --deepspeed_config {tmp_path}/results.1/ds_config_optimal.json\n"


@pytest.mark.parametrize("key", ["results_dir", "exps_dir"])
def test_folders_that_cannot_be_written_to(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    places = {"results_dir": "r", "exps_dir": "e", key: "file/below"}
    with pytest.raises(BadInputError, match="cannot be written to: Not a directory") as caught:
        StudyFiles.at(**places).prepare()
    assert caught.value.where == key
    assert len(str(caught.value).splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "the other was not made, or taken away again"


def test_preparing_leaves_no_probe(files, tmp_path):
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(str(path), "old")
    with pytest.raises(BiremeError, match="surrogates not allowed"):
        write_text(str(path), "\ud800")
    assert path.read_text() == "old"
    with pytest.raises(BiremeError, match="cannot be written: No such file"):
        write_text(str(tmp_path / "missing" / "a.txt"), "new")
    assert [child.name for child in tmp_path.iterdir()] == ["a.txt"]


def test_what_killed_processes_have_left_is_swept_away(files, tmp_path):
    gone, alive = 2**22 + 1, os.getppid()  # above the largest number that a process may have
    left = ["results/.bireme", "results/summary.txt", "results/z0/outcome.json", "exps/.bireme"]
    left += ["results/z0/cmd.txt", "exps/z0.json", "results/z0/.bireme"]
    mine = ["results/notes.txt", "results/z0/model.pt", "exps/notes"]
    left, mine = ([f"{name}.{{}}.0123456789ab.tmp" for name in names] for names in (left, mine))
    (tmp_path / "results" / "z0").mkdir()
    for name in (*left, *mine):
        (tmp_path / name.format(gone)).touch()
        (tmp_path / name.format(alive)).touch()
    sweep(files)
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == {name.format(gone) for name in mine} | {name.format(alive) for name in (*left, *mine)}


def test_a_repeated_run_lies_apart_and_moves_with_its_study(files, tmp_path):
    """Who reads ``*/metrics.json`` finds one result for each configuration."""
    name = "z0_gas1_tmbspg1@round1"
    files.write_start(name, {}, ["x"], [])
    draft = tmp_path / "results" / "confirmation" / name / "cmd.txt.4194305.0123456789ab.tmp"
    draft.touch()
    sweep(files)
    assert not draft.exists()
    assert [path.parent.parent.name for path in tmp_path.rglob("exp.json")] == ["confirmation"]
    assert not files.empty
    files.move(files.beside(1))
    assert files.empty and (tmp_path / "results.1" / "confirmation" / name / "cmd.txt").exists()
