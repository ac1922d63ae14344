"""The table of deaths: whatever dies, nothing is left, and the exit code is that of the first failure."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command.conftest import state_of
from tests.conftest import PROGRAMS, TIMES, Stage, as_nobody, clean_environ, guards_of, read_lines, wait_for
from tests.kit import needs

GRACE = 0.3
SCENE = PROGRAMS / "scene.py"

HOW = [
    "run",
    *(pytest.param(how, marks=pytest.mark.slow) for how in ("launch", "start", "Executor")),
]
"""How a scene is started: as a command, or in a program (`called_scene.py`)."""

# part of the last rank, exit code
BY_ITSELF = {
    "exit3": 3,
    "raise": 1,
    "segv": 139,
    "kill": 137,
    "stubborn": 3,
    "grandchild": 3,
}
# signal to the command, exit code as Popen gives it
TO_COMMAND = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131, signal.SIGKILL: -9}


def start(
    stage: Stage, part: str, go: Path | str = "", how: str = "run", ready: bool = True, **kwargs: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """The scene with both ranks ready, and the pid of the command, which is another where a program has started it."""
    if how == "run":
        words = ("--num_gpus", "2", "--grace", str(GRACE), "--save_pid", SCENE, part, go)
        process = stage.start("run", *words, **kwargs)
    else:
        words = (PROGRAMS / "called_scene.py", how, "2", str(GRACE), part, go)
        process = stage.start_argv([sys.executable, *map(str, words)], **kwargs)
    if ready:
        read_lines(process, 2, "ready")
    if how == "run":
        return process, process.pid
    (command,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, int(command)


ONE_AFTER_THE_OTHER = """
import os, sys, time
rank = int(os.environ["RANK"])
os.write(1, b"ready %d %d\\n" % (rank, os.getpid()))
while not os.path.exists(f"go{rank}"):
    time.sleep(0.001)
os._exit(3 + rank)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the order is known by pidfds only")
@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 1, 2)])
def test_who_failed_first_is_known_although_nobody_looked(stage: Stage, script, tmp_path: Path, order) -> None:
    """A guardian on a node whose cores are all busy comes late: all three have ended when it looks."""
    path = script(ONE_AFTER_THE_OTHER)
    process = stage.start("run", "--num_gpus", "3", "--output", "raw", path, cwd=tmp_path)
    lines = [line.split() for line in read_lines(process, 3, "ready")]
    ranks = {int(rank): int(pid) for _, rank, pid in lines}
    guardian = guards_of(process.pid)["guardian"]
    os.kill(guardian, signal.SIGSTOP)
    wait_for(lambda: state_of(guardian) == "T", "the guardian to halt")
    for rank in order:
        (tmp_path / f"go{rank}").touch()
        wait_for(lambda pid=ranks[rank]: state_of(pid) in ("Z", ""), f"rank {rank} to end")
    os.kill(guardian, signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3 + order[0], err
    assert b"rank %d on " % order[0] in err and b"failed first" in err


def fails_by_itself(stage: Stage, part: str, tmp_path: Path, how: str = "run") -> None:
    go = tmp_path / "go"
    go.unlink(missing_ok=True)
    process, _ = start(stage, part, go, how)
    go.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == BY_ITSELF[part], err
    assert not stage.left(), "left when the command had ended"
    if how != "Executor" or part in ("segv", "kill"):  # after an exception, such as SystemExit, its rank goes on
        assert b"rank 1 on " in err and (b"boom in rank 1" if part == "raise" else b"failed first") in err


def signalled(stage: Stage, signum: int, part: str = "wait", how: str = "run") -> None:
    process, _ = start(stage, part, how=how)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == (TO_COMMAND[signal.Signals(signum)] if how == "run" else -signum)
    # who was killed cannot wait for its ranks: the guardian ends them at once; a program handles only Ctrl+C
    waits = signum != signal.SIGKILL if how == "run" else signum == signal.SIGINT
    assert not stage.left(within=0 if waits else 30)


def guardian_killed(stage: Stage, part: str, which: str = "guardian", how: str = "run") -> None:
    process, command = start(stage, part, how=how)
    guardian = guards_of(command)[which]
    os.kill(guardian, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert f"guardian of {os.uname().nodename.partition('.')[0]} (pid {guardian}) was killed".encode() in err
    assert not stage.left()


@pytest.mark.parametrize("part", BY_ITSELF)
@pytest.mark.parametrize("how", HOW)
def test_rank_fails(stage, part, tmp_path, how):
    fails_by_itself(stage, part, tmp_path, how)


@pytest.mark.parametrize("signum", TO_COMMAND, ids=lambda s: s.name)
@pytest.mark.parametrize("how", HOW)
def test_signal_to_command(stage, signum, how):
    signalled(stage, signum, how=how)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
@pytest.mark.parametrize("how", HOW)
def test_signal_to_command_with_hidden_grandchildren(stage, signum, how):
    signalled(stage, signum, part="grandchild", how=how)


@pytest.mark.parametrize("which", ["guardian", "watcher"])
@pytest.mark.parametrize("part", ["wait", "grandchild"])
@pytest.mark.parametrize("how", HOW)
def test_guardian_killed(stage, part, which, how):
    guardian_killed(stage, part, which, how)


TWO = tuple(itertools.combinations(("command", "watcher", "guardian"), 2))


def two_killed(
    stage: Stage,
    tmp_path: Path,
    two: tuple[str, ...],
    at_once: bool = True,
    pause: float | None = None,
    how: str = "run",
) -> bool:
    """Both at once, as far as that goes: halted, neither can do anything about the other's end.

    Or at a random moment of their start, or in their order with a ``pause`` in seconds between. Then the second may
    have ended by itself before it could be killed, if this test got no processor in time.

    Returns:
        Whether the command was killed.
    """
    process, command = start(
        stage, "grandchild", "never", how, ready=bool(at_once or pause), env=clean_environ(TMPDIR=str(tmp_path))
    )
    pids = {"command": command, **wait_for(lambda: len(found := guards_of(command)) == 2 and found, "guards")}
    assert list(tmp_path.glob("bireme-*")) or not at_once
    if at_once:
        for name in two:
            os.kill(pids[name], signal.SIGSTOP)
    killed = False
    for name in two if at_once or pause else random.sample(two, 2):
        if name == "command":  # not yet waited for, so its pid is its own
            os.kill(command, signal.SIGSTOP)
            killed = wait_for(lambda: (state := state_of(command)) in ("T", "Z") and state) == "T"
        with contextlib.nullcontext() if at_once else contextlib.suppress(ProcessLookupError):
            os.kill(pids[name], signal.SIGKILL)
        time.sleep(pause or 0.0)
    process.communicate(timeout=60)
    assert killed or not at_once or "command" not in two
    assert process.returncode == (-signal.SIGKILL if killed and how == "run" else 75)
    assert not stage.left(within=30)
    files = (tmp_path, Path(f"/tmp/{command}.deepspeed"))
    assert not list(files[0].glob("bireme-*")) and not files[1].exists()
    return killed


@pytest.mark.parametrize("two", TWO, ids=" and ".join)
@pytest.mark.parametrize("how", HOW)
def test_two_of_three_killed(stage, tmp_path, two, how):
    two_killed(stage, tmp_path, two, how=how)


@pytest.mark.parametrize("how", HOW)
def test_all_three_killed(stage, tmp_path, how):
    """Only the kernel is left to end the ranks, and it does."""
    process, command = start(stage, "wait", how=how, env=clean_environ(TMPDIR=str(tmp_path)))
    pids = [command, *guards_of(command).values()]
    assert len(pids) == 3
    for signum in (signal.SIGSTOP, signal.SIGKILL):  # halted, none can do anything about another's end
        for pid in pids:
            os.kill(pid, signum)
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if how == "run" else 75)
    assert not stage.left(within=30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["launch", "start", "Executor"])
def test_a_program_and_its_command_are_killed(stage, how):
    """Neither can tell the guardian anything, or wait for it."""
    process, command = start(stage, "grandchild", how=how)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (process.pid, command):
            os.kill(pid, signum)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not stage.left(within=30)


LEAVES = """
import os, signal, sys, time
asked = f"asked{os.environ['RANK']}"
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    signal.signal(signal.SIGTERM, lambda *_: open(asked, "w").close())
    os.write(told, b"x")
    while True:
        time.sleep(0.05)
os.read(ready, 1)
"""


def test_what_ranks_leave_behind_is_ended(stage, script, tmp_path):
    """It is asked first, killed when the grace time is over, and no failure of the job's."""
    stage.run("run", "--num_gpus", "2", "--grace", str(GRACE), script(LEAVES), cwd=tmp_path, code=0)
    assert {path.name for path in tmp_path.glob("asked*")} == {"asked0", "asked1"}
    assert not stage.left()


MARKED = """
import os, time
with open("mark.tmp", "w") as file:
    file.write(os.environ["BIREME_JOB"])
os.rename("mark.tmp", "mark")
while not os.path.exists("go"):
    time.sleep(0.01)
"""


AGENT = ("--hosts", "localhost:1", "--force_multi")


@pytest.mark.parametrize(
    ("end", "words", "code"),
    [("os._exit(3)", ("--num_gpus", "1"), 3), ("os.kill(os.getppid(), 9); time.sleep(600)", AGENT, 75)],
    ids=["a rank fails", "an agent's guardian is killed"],
)
def test_what_a_daemon_has_started_for_a_rank_is_found_by_its_mark(stage, script, tmp_path, end, words, code):
    """It is below nobody of the job: no tree, no group and no parent leads to it. What has another mark stays."""
    process = stage.start("run", *words, script(MARKED + end), cwd=tmp_path)
    wait_for((tmp_path / "mark").exists, "the rank")
    mark = (tmp_path / "mark").read_text()
    sleep = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    ours, others = (stage.start_argv(sleep, env=clean_environ(BIREME_JOB=value)) for value in (mark, f"{mark}1"))
    for started in (ours, others):
        started.stdout.readline()
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert ours.wait(60) == -signal.SIGKILL
    assert others.poll() is None


LIMITED = """
import resource, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
from bireme.__main__ import command
command()
"""

HERE, FAR = ("--num_gpus", "2"), ("--hosts", "192.0.2.1:1", "--launcher", "ssh")


def alone() -> list[str]:
    """The words before a command that run it where its user has no other process."""
    if os.geteuid() == 0:
        return as_nobody(random.SystemRandom().randrange(100_000, 1_000_000_000))
    words = [needs.program("unshare"), "--user", "--map-current-user"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        needs.missing("no user namespaces here")
    return words


@pytest.mark.parametrize(
    ("most", "job", "said"),
    [
        (1, HERE, "cannot start a process"),
        (2, HERE, "cannot start any process on"),
        (3, HERE, "cannot start rank 0 on"),
        (4, HERE, "cannot start rank 1 on"),
        (3, FAR, "192.0.2.1  cannot be started: Resource temporarily unavailable"),
    ],
    ids=["watcher", "guardian", "rank 0", "rank 1", "ssh"],
)
def test_there_may_be_no_more_processes(stage, tmp_path, most, job, said):
    tmp_path.chmod(0o777)
    environ = clean_environ(TMPDIR=str(tmp_path), HOME="/")
    argv = [*alone(), sys.executable, "-c", LIMITED, str(most), "run", *job, "--no_python", "true"]
    done = subprocess.run(argv, cwd="/", env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 69 and said in done.stderr, done.stderr
    assert not stage.left() and not list(tmp_path.glob("bireme-*"))


MUCH = "import os; os.write(1, b'x' * 50_000); os.write(1, b'x' * 50_000); open('done', 'w')"


def test_command_is_killed_when_all_has_ended_but_its_output(stage, script, tmp_path):
    """Nobody reads it, so the command waits, and its guardian has gone."""
    environ = clean_environ(TMPDIR=str(tmp_path))
    process = stage.start("run", "--num_gpus", "1", "--save_pid", script(MUCH), cwd=tmp_path, env=environ)
    wait_for((tmp_path / "done").exists, "the rank")
    wait_for(lambda: "guardian" not in guards_of(process.pid), "the guardian to go")
    process.kill()
    process.wait()
    assert not stage.left(within=30)
    assert not list(tmp_path.glob("bireme-*")) and not Path(f"/tmp/{process.pid}.deepspeed").exists()


def test_second_interrupt_does_not_wait(stage):
    process = stage.start("run", "--num_gpus", "2", "--grace", "1000", SCENE, "stubborn", "never")
    pids = [int(line.split()[-1]) for line in read_lines(process, 2, "ready")]
    fds = [os.pidfd_open(pid) for pid in pids]
    process.send_signal(signal.SIGTERM)
    # Of two signals that are pending, either may be the first: wait until the rank that is not stubborn has ended.
    ended, _, _ = select.select(fds, [], [], 60)
    assert len(ended) == 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 143
    for fd in fds:
        os.close(fd)


# Each in turn, TIMES in all: every one of them has a test of its own above.


def in_turn(*of: Iterable[object]) -> Iterator[tuple[Any, ...]]:
    return itertools.islice(itertools.cycle(itertools.product(*of)), TIMES)


@pytest.mark.slow
def test_rank_fails_again_and_again(stage, tmp_path):
    for (part,) in in_turn(BY_ITSELF):
        fails_by_itself(stage, part, tmp_path)


@pytest.mark.slow
def test_signal_to_command_again_and_again(stage):
    for signum, part in in_turn(TO_COMMAND, ("wait", "grandchild")):
        signalled(stage, signum, part)


@pytest.mark.slow
def test_guardian_killed_again_and_again(stage):
    for part, which in in_turn(("wait", "grandchild"), ("guardian", "watcher")):
        guardian_killed(stage, part, which)


@pytest.mark.slow
def test_the_command_is_killed_while_it_ends_what_a_killed_watcher_left(stage, tmp_path):
    for milliseconds in (1, 3, 5, 7):
        pause = milliseconds / 1000
        tries = (two_killed(stage, tmp_path, ("watcher", "command"), at_once=False, pause=pause) for _ in range(20))
        assert any(tries)


@pytest.mark.slow
def test_two_of_three_killed_again_and_again(stage, tmp_path):
    for at_once, two in in_turn((False, True), TWO):
        two_killed(stage, tmp_path, two, at_once)
