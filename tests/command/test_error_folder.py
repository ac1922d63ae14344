"""The folder of the ranks' error files: none stays, and none of a living job or of another user is removed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bireme.one_node import error_folder
from tests.conftest import NOBODY, clean_environ, guards_of, read_lines
from tests.kit.waiting import wait_for

FILES = "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{}')\nprint('ready', flush=True)\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def left_by_a_massacre(stage, script, place: Path) -> Path:
    """The folder of a job whose command, watcher, guardian and rank were killed in the same instant."""
    before = {*place.iterdir()}
    program = script(f"{FILES}import time\ntime.sleep(1000)\n", "killed.py")
    job = stage.start("run", "-q", "--num_gpus", "1", program, env=clean_environ(TMPDIR=str(place)))
    read_lines(job, 1, "ready")
    pids = [job.pid, *guards_of(job.pid).values()]
    assert len(pids) == 3
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, signum)
    job.wait()
    stage.left(within=30)
    (folder,) = {*place.iterdir()} - before
    return folder


def test_what_a_killed_job_leaves_is_removed_by_the_next(stage, script, place):
    """Meanwhile a living one keeps its own."""
    env = clean_environ(TMPDIR=str(place))
    living = stage.start(
        "run", "-q", "--num_gpus", "1", "--stdin", "0", script(f"{FILES}input()\n", "living.py"), env=env, stdin=-1
    )
    read_lines(living, 1, "ready")
    (its_folder,) = place.iterdir()
    dead = left_by_a_massacre(stage, script, place)
    assert [path.name for path in dead.iterdir()] == ["rank0.json"]
    stage.run("run", "-q", "--num_gpus", "1", script("pass", "next.py"), env=env, code=0)
    assert not dead.exists() and [path.name for path in its_folder.iterdir()] == ["rank0.json"]
    living.communicate(b"\n", timeout=60)
    assert living.returncode == 0 and [*place.iterdir()] == []


@pytest.mark.parametrize(("make", "stays"), [("mkdir", False), ("mkfifo", False), ("makedirs", True)])
def test_what_a_rank_makes_in_place_of_its_file(stage, script, place, make, stays):
    """An empty folder goes too. What a rank has put into one is its own."""
    path = "os.environ['TORCHELASTIC_ERROR_FILE']" + "+ '/folder'" * stays
    program = script(f"import os\nos.{make}({path})\n")
    stage.run("run", "-q", "--num_gpus", "2", program, env=clean_environ(TMPDIR=str(place)), code=0)
    assert bool([*place.iterdir()]) == stays


def test_what_a_rank_has_recorded_is_kept_after_the_death_of_the_guardian(stage, script, place):
    """The command reads it later."""
    env = clean_environ(TMPDIR=str(place))
    job = stage.start("run", "-q", "--num_gpus", "1", script(f"{FILES}import time\ntime.sleep(1000)\n"), env=env)
    read_lines(job, 1, "ready")
    os.kill(job.pid, signal.SIGSTOP)
    try:
        os.kill(guards_of(job.pid)["guardian"], signal.SIGKILL)
        (folder,) = place.iterdir()
        error_folder.remove_left_behind(str(folder.with_name(f"{folder.name}0")))
        assert [path.name for path in folder.iterdir()] == ["rank0.json"]
    finally:
        os.kill(job.pid, signal.SIGCONT)
    job.communicate(timeout=60)
    assert [*place.iterdir()] == []


def test_what_is_not_ours_stays(place, tmp_path):
    """Another user's folder, one of another boot or machine, and what is no folder."""
    kept = [place / name for name in ("bireme-other-1", "bireme-boot-file", "bireme-boot-link", "bireme-crash-1")]
    for path in (place / "bireme-boot-dead", kept[0], kept[3], tmp_path / "target"):
        path.mkdir()
    kept[1].touch()
    kept[2].symlink_to(tmp_path / "target")
    (tmp_path / "target" / "file").touch()
    if os.geteuid() == 0:
        kept.append(place / "bireme-boot-theirs")
        kept[-1].mkdir()
        os.chown(kept[-1], NOBODY, NOBODY)
    error_folder.remove_left_behind(str(place / "bireme-boot-mine"))
    assert {*place.iterdir()} == {*kept} and (tmp_path / "target" / "file").exists()


@pytest.mark.parametrize("step", ["mkdir", "open"])
def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(place, monkeypatch, step):
    """Another job may find it in between, without a lock."""
    path, take_step = str(place / "bireme-boot-mine"), getattr(os, step)
    times = []

    def found_by_another(*args):
        made = take_step(*args)
        if len(times) < 2:
            times.append(args)
            monkeypatch.setattr(os, step, take_step)
            error_folder.remove_left_behind(str(place / "bireme-boot-another"))
            monkeypatch.setattr(os, step, found_by_another)
            assert not os.path.exists(path)
        return made

    monkeypatch.setattr(os, step, found_by_another)
    fd = error_folder.make(path)
    assert fd >= 0 and os.path.samestat(os.fstat(fd), os.stat(path)) and len(times) == 2
    error_folder.remove_left_behind(str(place / "bireme-boot-another"))
    assert os.path.isdir(path)
    os.close(fd)


def test_none_stays_however_often_jobs_are_killed(stage, script, place):
    """Many jobs begin, end and are killed at once."""
    env = clean_environ(TMPDIR=str(place))
    quick = script(f"{FILES}", "quick.py")
    for attempt in range(4):
        jobs = [stage.start("run", "-q", "--num_gpus", "1", quick, env=env) for _ in range(4)]
        time.sleep(0.05 * attempt)
        for pid in (jobs[0].pid, *guards_of(jobs[0].pid).values()):
            os.kill(pid, signal.SIGKILL)
        for job in jobs[1:]:
            job.communicate(timeout=60)
            assert job.returncode == 0
    wait_for(lambda: not stage.left())
    stage.run("run", "-q", "--num_gpus", "1", quick, env=env, code=0)
    assert [*place.iterdir()] == []
