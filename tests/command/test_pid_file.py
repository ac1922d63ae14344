"""The pid file: it exists while the job runs, is removed at every end, and can be used to end the job."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from bireme.planning.world import encode_world_info
from tests.conftest import NOBODY, as_nobody, bireme, clean_environ, read_lines

WAITS = "import os, time\nprint('ready', flush=True)\ntime.sleep(1000)\n"


def pid_file(pid) -> Path:
    return Path(f"/tmp/{pid}.deepspeed")


def stop(process):
    process.terminate()
    return process.communicate(timeout=60)


@pytest.fixture
def running(stage, script):
    process = stage.start("run", "--save_pid", "--num_gpus", "2", script(WAITS))
    read_lines(process, 2, "ready")
    yield process
    pid_file(process.pid).unlink(missing_ok=True)


def test_holds_the_launchers_pid(running):
    assert pid_file(running.pid).read_text() == str(running.pid)
    assert not list(Path("/tmp").glob(f"{running.pid}.deepspeed.*")), "no draft"
    _, err = stop(running)
    assert f"pid {running.pid} is in {pid_file(running.pid)}".encode() in err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], ids=lambda s: s.name)
def test_gone_at_every_end(running, stage, signum):
    running.send_signal(signum)
    running.communicate(timeout=60)
    assert not stage.left(within=30)
    assert not pid_file(running.pid).exists()


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_gone_when_the_job_ends_by_itself(stage, script, end):
    process = stage.start("run", "-q", "--save_pid", script(end))
    process.communicate(timeout=60)
    assert not pid_file(process.pid).exists()


def test_none_without_the_option(stage, script):
    process = stage.start("run", "-q", script(WAITS))
    read_lines(process, 1, "ready")
    assert not pid_file(process.pid).exists()
    stop(process)


# -- by hand the caller names the file -----------------------------------------------------------


def by_hand(stage, main_pid, program, as_user=(), **kwargs):
    world = encode_world_info({"localhost": [0]})
    argv = [*as_user, *bireme()[:2], "bireme.agent", f"--world_info={world}", "--save_pid", main_pid, "-q", program]
    return stage.start_argv(list(map(str, argv)), **kwargs)


@pytest.fixture
def dead_pid():
    """The pid of a process that has ended; files named by it are removed afterwards."""
    child = subprocess.Popen(["true"])
    child.wait()
    yield child.pid
    pid_file(child.pid).unlink(missing_ok=True)


@pytest.mark.parametrize("content", ["{dead}", "", "nonsense", "99999999999999999999999", "0", "-1"])
def test_a_stale_file_is_replaced(stage, script, dead_pid, content):
    pid_file(dead_pid).write_text(content.format(dead=dead_pid))
    process = by_hand(stage, dead_pid, script(WAITS))
    read_lines(process, 1, "ready")
    assert pid_file(dead_pid).read_text() == str(process.pid)
    stop(process)
    assert not pid_file(dead_pid).exists()


def test_the_file_of_a_launcher_that_runs_is_not_touched(stage, script, dead_pid):
    first = by_hand(stage, dead_pid, script(WAITS))
    read_lines(first, 1, "ready")
    second = by_hand(stage, dead_pid, script("open('ran', 'w')", "second.py"))
    _, err = second.communicate(timeout=60)
    assert second.returncode == 2
    assert b"--save_pid" in err
    assert pid_file(dead_pid).read_text() == str(first.pid)
    stop(first)


# -- /tmp is everybody's --------------------------------------------------------------------------


def test_another_users_file_does_not_block(stage, dead_pid, open_folder):
    """It names a process that lives and cannot be replaced: it is another's, and /tmp is sticky."""
    (open_folder / "program.py").write_text("")
    other = as_nobody()
    pid_file(dead_pid).write_text("1")
    process = by_hand(stage, dead_pid, open_folder / "program.py", other, cwd=open_folder)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    place = pid_file(dead_pid)
    assert err.decode() == (
        f"bireme: {place} belongs to another user: no pid file is written; the pid is {process.pid}\n"
    )
    assert place.read_text() == "1"


def test_a_strangers_file_says_nothing_of_launchers(stage, script, dead_pid):
    """Root may replace it."""
    as_nobody()
    pid_file(dead_pid).write_text("1")
    os.chown(pid_file(dead_pid), NOBODY, NOBODY)
    process = by_hand(stage, dead_pid, script(WAITS))
    read_lines(process, 1, "ready")
    assert pid_file(dead_pid).read_text() == str(process.pid) and pid_file(dead_pid).stat().st_uid == 0
    stop(process)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_not_read(stage, script, dead_pid, tmp_path, kind):
    """A link to a file with the number of a process that lives; a pipe, at which a reader would wait for ever."""
    if kind == "link":
        (tmp_path / "one").write_text("1")
        pid_file(dead_pid).symlink_to(tmp_path / "one")
    else:
        os.mkfifo(pid_file(dead_pid))
    process = by_hand(stage, dead_pid, script(""))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert not os.path.lexists(pid_file(dead_pid))
    assert kind == "pipe" or (tmp_path / "one").read_text() == "1"


def test_a_link_in_the_place_of_a_draft_is_not_in_the_way(stage, script, tmp_path):
    """Where a draft has a name that anyone can tell, its place can be taken."""
    (tmp_path / "precious").write_text("mine")
    words = bireme("run", "-q", "--save_pid", script(WAITS))
    shell = 'ln -s "$0" /tmp/$$.deepspeed.$$.tmp; exec "$@"'
    process = subprocess.Popen(
        ["sh", "-c", shell, str(tmp_path / "precious"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environ(),
    )
    stage.started.append(process)
    try:
        read_lines(process, 1, "ready")
        assert pid_file(process.pid).read_text() == str(process.pid)
    finally:
        os.unlink(f"/tmp/{process.pid}.deepspeed.{process.pid}.tmp")
    stop(process)
    assert not pid_file(process.pid).exists()
    assert (tmp_path / "precious").read_text() == "mine"
