"""Studies in which things go wrong: wrong files, full disks, programs that do not end, tuners that die."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import socket
import time
from pathlib import Path

import pytest

from bireme.cli.parser import parse
from bireme.cli.tune_words import deepspeed_study
from bireme.options.table import select
from tests.cluster.basics import children
from tests.command.tune.conftest import CONFIG, CONTRACT, NAMES, ONE, Desk
from tests.conftest import clean_environ, free_ports, read_lines
from tests.kit.waiting import wait_for

ONE_POINT = {"train_micro_batch_size_per_gpu": 4, "autotuning": {"enabled": True}}
FIGURES = {"throughput": 1e9, "latency": 1e-3, "FLOPS_per_gpu": 1e15}


def begins(path: Path, text: str = "") -> None:
    """Until the file is there and begins so."""
    wait_for(lambda: path.exists() and path.read_text().startswith(text), str(path))


# -- figures that are not there, or are not its own ----------------------------------------------------


def test_figures_of_an_earlier_run_are_never_taken(desk):
    desk.configure(ONE_POINT)
    folder = desk.results / "z0_gas1_tmbspg4"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(FIGURES))
    done = desk.run("--do", "0/4=nothing", code=1)
    assert "z0_gas1_tmbspg4: no metric: the run ended without writing metrics.json" in done.stdout
    assert "no metric: no metric" not in done.stdout


@pytest.mark.parametrize(("said", "mentioned"), [("hello", False), ("[INFO] DeepSpeed info: version=0.18", True)])
def test_a_script_that_is_no_deepspeed_training(desk, said, mentioned):
    desk.configure(ONE_POINT)
    done = desk.run("--do", "0/4=nothing", "--say", said, code=1)
    hint = "; the script's output does not mention DeepSpeed: does it call deepspeed.initialize?"
    assert (hint in done.stdout) == (not mentioned)


def test_figures_that_are_written_by_half_are_none(desk):
    desk.configure(ONE_POINT)
    assert "no metric: metrics.json is damaged or incomplete" in desk.run("--do", "0/4=half", code=1).stdout


def test_figures_of_an_interrupted_run_are_not_those_of_the_next(desk):
    """The first run measures, and is killed with its tuner; the second measures nothing."""
    desk.configure(ONE_POINT)
    first = desk.start("--do", "0/4=once")
    begins(desk.folder / "once")
    first.kill()
    first.communicate()
    assert desk.causes() == {}
    desk.run("--do", "0/4=once", code=1)
    assert desk.causes() == {"z0_gas1_tmbspg4": "no metric"}


def test_what_dies_after_it_has_measured_has_failed(desk):
    done = desk.run("--do", "0/8=late")
    assert re.search(r"z0_gas1_tmbspg8: failed: rank 0 on \S+: ValueError: after the figures", done.stdout)
    assert json.loads((desk.results / "ds_config_optimal.json").read_text())["train_micro_batch_size_per_gpu"] == 4


def test_results_of_another_study_do_not_stand_where_nothing_works(desk):
    desk.results.mkdir()
    for name in ("ds_config_optimal.json", "cmd_optimal.txt", "summary.txt"):
        (desk.results / name).write_text("of another tuner")
    desk.run("--fail", "all", code=1)
    assert not (desk.results / "ds_config_optimal.json").exists()
    assert not (desk.results / "cmd_optimal.txt").exists()
    assert "no configuration worked" in (desk.results / "summary.txt").read_text()


# -- disks ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 28, 60])
def test_a_full_disk_is_told_and_nothing_is_lost(desk, size):
    """With room again, the study goes on where it was, and holds nothing against any configuration."""
    words = desk.words(options=(*ONE, "--grace", "1"))
    done = desk.on_a_small_disk(size, *words, before=f"cp {shlex.quote(str(desk.folder))}/ds.json .")
    summary = (desk.folder / "kept/summary.txt").read_text()
    assert len(re.findall(r"^\| z\S+ .*\| ok +\|$", summary, re.M)) == 2, summary
    measured = re.findall(r"^(z\S+): \S+ samples/s", done.stdout, re.M)
    assert "failed" not in summary and len(measured) == len(set(measured))


def test_a_rank_that_finds_the_disk_full_is_not_to_blame_for_it(desk):
    desk.configure(ONE_POINT)
    script = desk.folder / "full.py"
    script.write_text("with open('/dev/full', 'w') as file: file.write('x')")
    done = desk.run(program=script, code=1)
    tried, summary = done.stdout.split("What failed:\n")
    assert tried.count("infrastructure: rank 0 on") == 4, done.stdout
    assert "infrastructure: rank 0 on" in summary and "Could not be run (run the same command again" in summary
    assert desk.causes() == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(desk):
    desk.folder.chmod(0o555)
    try:
        done = desk.run(code=2)
    finally:
        desk.folder.chmod(0o755)
    assert "cannot be written to: Permission denied" in done.stderr


@pytest.mark.parametrize("key", ["results_dir", "exps_dir"])
def test_a_file_in_the_place_of_a_folder(desk, key):
    desk.configure(CONFIG, **{key: "taken"})
    (desk.folder / "taken").write_text("mine")
    done = desk.run(code=2)
    assert f"{key}: {desk.folder}/taken cannot be written to: File exists" in done.stderr
    assert len(done.stderr.splitlines()) == 2 and done.stdout == ""
    assert sorted(os.listdir(desk.folder)) == ["ds.json", "taken"]


# -- processes that do not end, and tuners that do -----------------------------------------------------

ALONE = """
import glob, os, runpy, sys
others = "stubborn.1" if os.environ["RANK"] == "0" else "stubborn.0"  # may be of this experiment
for path in set(glob.glob("stubborn.*")) - {others}:
    for pid in open(path).read().split():
        if os.path.exists(f"/proc/{pid}"):
            sys.exit(f"{pid} of an earlier experiment is still here")
sys.argv[0] = CONTRACT
runpy.run_path(CONTRACT, run_name="__main__")
"""


@pytest.fixture
def alone(desk):
    """The script, but it fails if anything of a stubborn experiment is left when it starts."""
    path = desk.folder / "alone.py"
    path.write_text(ALONE.replace("CONTRACT", repr(str(CONTRACT))))
    return path


def test_slots_are_given_on_when_nothing_is_left_on_them(desk, alone):
    """Ranks that ignore SIGTERM, with grandchildren in sessions of their own."""
    options = (*ONE, "--grace", "0.5", "--experiment_limit", "15")
    desk.run("--do", "0/4=stubborn", options=options, program=alone)
    assert desk.causes() == {**dict.fromkeys(NAMES, "ok"), "z0_gas2_tmbspg4": "timed out"}
    assert desk.stage.left() == {}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_tuner_that_dies_takes_stubborn_experiments_with_it(desk, alone, signum):
    words = ("--do", "0/8=stubborn", "--until", "go")
    how = {"options": ("--num_gpus", "2", "--grace", "0.5"), "program": alone}
    (desk.folder / "go").touch()
    first = desk.start(*words, **how)
    for rank in (0, 1):
        begins(desk.folder / f"stubborn.{rank}")
    first.send_signal(signum)
    first.communicate()
    assert desk.causes() == {"z0_gas2_tmbspg4": "ok"}
    (desk.folder / "stubborn.0").rename(desk.folder / "stubborn.before")
    (desk.folder / "go").unlink()
    second = desk.start(*words, **how)
    lines = read_lines(second, 1, "z0_gas1_tmbspg8 starts on")
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert "resuming the study: 1 of its trials has ended\n" in lines, err
    assert b"is still here" not in out and desk.stage.left() == {}


@pytest.mark.parametrize(
    "depth", [1, 2, pytest.param(3, marks=pytest.mark.slow)], ids=["its guardian", "the run", "the run's guardian"]
)
def test_what_carries_an_experiment_is_killed(desk, depth, tmp_path, monkeypatch):
    """It is started again, and what was left of it is gone before, or at the end of the next one."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    desk.configure(ONE_POINT)
    process = desk.start("--until", "go", "--ran", "ran", options=(*ONE, "--grace", "1"))
    begins(desk.folder / "ran", "0/4\n")
    pid = process.pid
    for _ in range(depth):
        (pid,) = children(pid)
    os.kill(pid, signal.SIGKILL)
    while (desk.folder / "ran").read_text() != "0/4\n0/4\n":
        assert process.poll() is None
        time.sleep(0.01)
    (desk.folder / "go").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"infrastructure: " in out and b"retrying" in out
    assert desk.causes() == {"z0_gas1_tmbspg4": "ok"}
    assert desk.stage.left() == {} and os.listdir(tmp_path / "temporary") == []


# -- ports ---------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_in_between_is_not_held_against_the_configuration(desk):
    port = free_ports(2)
    process = desk.start("--until", "go", "--ran", "ran", options=(*ONE, "--master_port", port))
    begins(desk.folder / "ran")
    with socket.create_server(("127.0.0.1", port)):
        (desk.folder / "go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count(f"port {port} is taken by another program; retrying".encode()) == 1, out
    assert desk.causes() == dict.fromkeys(NAMES, "ok")
    assert f"--master_port {port + 1} " in (desk.results / "z0_gas1_tmbspg8" / "cmd.txt").read_text()


def test_a_port_that_is_taken_beforehand(desk):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = desk.run(options=(*ONE, "--master_port", port), code=2)
    assert f"--master_port: port {port} is taken by another program" in done.stderr and done.stdout == ""


# -- nodes that differ ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shape", "real"),
    [
        ("--hosts a:2,b:4", "2x2", "--num_nodes 2 --num_gpus 2"),
        ("--hosts a:2,b:4 --num_nodes 1 --num_gpus 4", "1x4", "--include b:0,1,2,3"),
        ("--hosts a:4,b:2,c:2 --num_nodes 2 --num_gpus 2", "2x2", "--num_nodes 2 --num_gpus 2"),
        ("--hosts a:1,b:2,c:2 --num_nodes 2 --num_gpus 2", "2x2", "--include b:0,1@c:0,1"),
        ("--hosts a:2,b:2", "2x2", ""),
        ("--hosts a:2,b:2 --include b:1", "1x1", "--include=b:1"),
        ("--hosts a:2,b:2 --exclude a --num_gpus 1", "1x1", "--include b:0"),
    ],
)
def test_the_real_job_is_as_wide_as_its_experiments(tmp_path, monkeypatch, words, shape, real):
    """Also where the first nodes are too small for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "autotuning": {"enabled": true}}')
    parsed = parse(select("run"), [*words.split(), str(CONTRACT), "--deepspeed_config", "ds.json"])
    study = deepspeed_study(parsed.replace(options={**parsed.options, "autotuning": "tune"}), clean_environ())
    assert str(study.setting.shape) == shape
    hosts = f"--hosts={words.split()[1]}"
    assert " ".join(study.real) == " ".join(["bireme run", hosts, *real.split(), str(CONTRACT)])


# -- killed while limits are sought ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_while_it_seeks_walls_it_finds_the_same(desk, tmp_path_factory):
    """Where micro-batches are found, what comes next depends on all that came before. Killed after each second end."""
    config = {"zero_optimization": {"stage": [0, 1]}, "autotuning": {"enabled": True, "tuner_type": "model_based"}}
    script = ("--do", "0/5=oom", "--do", "1/9=oom", "--do", "0/3=nothing")
    options = ("--hosts", "localhost:1", "--num_gpus", "1", "--grace", "1")  # one at a time
    other = Desk(tmp_path_factory.mktemp("undisturbed"), desk.stage)
    other.configure(config)
    other.run(*script, options=options)
    desk.configure(config)
    chance, seen, kills = random.Random(5), {}, 0
    journal = desk.results / "journal"
    while len(seen) + 2 < len(other.causes()):
        process = desk.start(*script, options=options)
        while not journal.exists() or journal.read_bytes().count(b'{"end":') < len(seen) + 2:
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.communicate()
        now = desk.causes()
        assert seen.items() <= now.items(), "the results so far are kept"
        seen, kills = now, kills + 1
        if any("over" in record for record in desk.records()):  # killed at its last words; it would begin anew
            break
    else:
        desk.run(*script, options=options)
    assert kills >= 2 and desk.causes() == other.causes()
    assert desk.summary() == other.summary()
    assert desk.stage.left() == {}


def test_a_study_is_over_when_its_results_are_written_and_not_before(desk):
    """Else the next one would clear away what has taken hours."""
    (desk.results / "summary.txt").mkdir(parents=True)
    done = desk.run(options=ONE, code=69)
    assert f"{desk.results}/summary.txt cannot be written: Is a directory" in done.stderr
    (desk.results / "summary.txt").rmdir()
    done = desk.run(options=ONE)
    assert "resuming the study: 2 of its trials have ended" in done.stdout
    assert " starts on " not in done.stdout and (desk.results / "cmd_optimal.txt").exists()
