"""In a delegated control group, the job has a group of its own, which is removed at the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.command.conftest import state_of
from tests.conftest import guards_of, read_lines, wait_for

# A grandchild that has left everything by which it could be found but the control group.
HIDES = """
import os, subprocess, sys, time
hidden = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); open(f'{sys.argv[1]}.{os.getpid()}', 'w')"
hidden += "; time.sleep(1000)"
subprocess.Popen([sys.executable, "-S", "-c", hidden, sys.argv[1]], env={}, start_new_session=True).wait()
print("ready", os.getpid(), flush=True)
while not os.path.exists(sys.argv[1] + "-go"): time.sleep(0.001)
sys.exit(int(sys.argv[2]))
"""


def roots():
    return [root for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")) if _is_v2(root)]


def _is_v2(root):
    return (root / "cgroup.controllers").exists()


@pytest.fixture(params=["user.delegate", "trusted.delegate"])
def group(request):
    """A v2 group that is marked as delegated, as systemd does."""
    if not roots():
        pytest.skip("there is no control group v2")
    place = roots()[0] / f"bireme-test-{os.urandom(4).hex()}"
    try:
        place.mkdir()
        os.setxattr(place, request.param, b"1")
    except OSError as error:
        if place.exists():
            place.rmdir()
        pytest.skip(f"cannot make a delegated control group: {error}")
    if not (place / "cgroup.kill").exists():
        place.rmdir()
        pytest.skip("this kernel has no cgroup.kill")
    yield place
    remove(place)


def remove(place):
    """Take a group away, with whatever a failed test has left in it."""
    (place / "cgroup.kill").write_text("1")
    for group in (*below(place), place):
        wait_for(lambda group=group: not (group / "cgroup.procs").read_text(), "the group to be empty")
        group.rmdir()


def entered(place):
    return lambda: (place / "cgroup.procs").write_text(str(os.getpid()))


def start(stage, script, group, tmp_path, code=0):
    """The command with its ranks ready, the ranks' pids, and those of what they hide; they exit when told to."""
    process = stage.start(
        "run", "-q", "--num_gpus", "2", "--grace", "0.5", script(HIDES), tmp_path / "hidden", code,
        preexec_fn=entered(group),
    )  # fmt: skip
    ranks = [int(line.split()[-1]) for line in read_lines(process, 2, "ready")]
    hidden = wait_for(
        lambda: (found := [int(path.suffix[1:]) for path in tmp_path.glob("hidden.*")]) and len(found) == 2 and found,
        "two hidden processes",
    )
    return process, ranks, hidden


def below(group):
    return [path for path in group.iterdir() if path.is_dir()]


def test_the_job_has_a_group_of_its_own(stage, script, group, tmp_path):
    process, ranks, hidden = start(stage, script, group, tmp_path)
    (own,) = below(group)
    inside = {int(pid) for pid in (own / "cgroup.procs").read_text().split()}
    assert {*ranks, *hidden} <= inside
    assert process.pid not in inside
    process.terminate()
    assert process.wait(60) == 143
    assert below(group) == []


@pytest.mark.parametrize("code", [0, 3])
def test_nothing_is_left_when_the_ranks_end(stage, script, group, tmp_path, code):
    process, _, hidden = start(stage, script, group, tmp_path, code)
    (tmp_path / "hidden-go").touch()
    process.communicate(timeout=60)
    assert process.returncode == code
    assert not [pid for pid in hidden if state_of(pid) not in ("", "Z")]
    assert below(group) == []


@pytest.mark.parametrize("who", [("command",), ("guardian",), ("guardian", "command")], ids=" and ".join)
def test_nothing_is_left_when_they_are_killed(stage, script, group, tmp_path, who):
    """Halted before, neither of two can do anything about the other's end."""
    process, ranks, hidden = start(stage, script, group, tmp_path)
    pids = {"command": process.pid, **guards_of(process.pid)}
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for name in who:
            os.kill(pids[name], signum)
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if "command" in who else 75)
    assert not stage.left(within=30)
    assert not [pid for pid in (*ranks, *hidden) if state_of(pid) not in ("", "Z")]
    wait_for(lambda: below(group) == [], "the job's group to be removed")


def test_a_group_that_was_not_handed_over_is_left_alone(stage, script, tmp_path):
    if not roots():
        pytest.skip("there is no control group v2")
    place = roots()[0] / f"bireme-test-{os.urandom(4).hex()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    try:
        if os.geteuid() != 0:
            pytest.skip("a group of this user's is his to use")
        process, *_ = start(stage, script, place, tmp_path)
        assert below(place) == []
        process.terminate()
        assert process.wait(60) == 143
    finally:
        remove(place)
