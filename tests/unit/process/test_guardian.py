"""The guardian by itself, in cases that no job causes. What it does for jobs is tested in ``tests/command``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.one_node.process_tree import ProcessTree
from bireme.process import guardian, kernel
from bireme.process.worker import WorkerStart
from tests.conftest import run_python

STUBBORN = """
import os, sys, time
from bireme.process import guardian
from bireme.process.worker import WorkerStart

program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w'); time.sleep(1000)"
null = os.open(os.devnull, os.O_RDWR)
worker = WorkerStart((sys.executable, "-c", program), dict(os.environ), os.getcwd(), null, null, null)
handle = guardian.start([worker], at_loss=lambda: open("lost", "w"), farewell=0.3)
while not os.path.exists("up"):
    time.sleep(0.01)
handle.close(cleaned=sys.argv[1] == "cleaned")
print(os.waitpid(handle.pid, 0)[1])
"""


@pytest.mark.parametrize("how", ["cleaned", "lost"])
def test_a_farewell_comes_to_an_end(how: str, tmp_path: Path) -> None:
    """An engine that waits for a dead node, and whose command was killed, does not care for SIGTERM.

    Of an agent that goes on, as between two epochs of an elastic job, nothing is removed: not its pid file.
    """
    done = run_python(STUBBORN, how, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert (tmp_path / "lost").exists() == (how == "lost")


OBEDIENT = """
import os, sys, time
from bireme.process import guardian
from bireme.process.worker import WorkerStart

program = "import signal; term = [signal.SIGTERM]; signal.pthread_sigmask(signal.SIG_BLOCK, term); open('up', 'w')"
program += "; signal.sigwait(term); open('asked', 'w')"  # a handler may come too early to interrupt a sleep
null = os.open(os.devnull, os.O_RDWR)
worker = WorkerStart((sys.executable, "-c", program), dict(os.environ), os.getcwd(), null, null, null)
handle = guardian.start([worker], at_loss=lambda: None, farewell=1000.0)
while not os.path.exists("up"):
    time.sleep(0.01)
handle.close()
handle.wait()
"""


def test_a_farewell_ends_with_the_last_worker(tmp_path: Path) -> None:
    """An engine that ends when it is asked keeps nobody waiting."""
    subprocess.run([sys.executable, "-c", OBEDIENT], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "asked").exists()


LEFT = """
import os, signal, sys
from bireme.process import guardian
from bireme.process.worker import WorkerStart

asked = "import signal, time; term = [signal.SIGTERM]; signal.pthread_sigmask(signal.SIG_BLOCK, term); open('up', 'w')"
asked += "; signal.sigwait(term); time.sleep(0.1); open('asked', 'w')"
program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
null = os.open(os.devnull, os.O_RDWR)
argv = (sys.executable, "-c", program, asked)
worker = WorkerStart(argv, dict(os.environ), os.getcwd(), null, null, null)
handle = guardian.start([worker], at_loss=lambda: open("lost", "w"), farewell=1000.0)
while not os.path.exists("up"):
    pass
(pid,) = open(f"/proc/{handle.pid}/task/{handle.pid}/children").read().split()
os.kill(int(pid), signal.SIGKILL)
words = []
while (events := handle.read()) is not None:
    words += [event[0] for event in events]
handle.close()
print(words, os.waitpid(handle.pid, 0)[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a watcher needs subreapers")
def test_what_a_killed_guardian_leaves_is_asked_to_end(tmp_path: Path) -> None:
    """An engine's children have an end of their own; nobody waits for longer than they take."""
    done = run_python(LEFT, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['up', 'lost', 'swept'] 0\n", "")
    assert (tmp_path / "asked").exists()
    assert not (tmp_path / "lost").exists(), "the agent was there"


LATE = """
import os, signal, subprocess, sys, time

def end(*_):
    if sys.argv[1:] == ["late"]:
        open("late", "w")
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it may be asked before it can listen
        subprocess.Popen([sys.executable, "-c", os.environ["LATE"], "late"])
        while not os.path.exists("born"):
            time.sleep(0.01)
        open("asked", "w")
    sys.exit()

signal.signal(signal.SIGTERM, end)
open("born" if sys.argv[1:] else "up", "w")
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a watcher needs subreapers")
def test_what_appears_while_others_are_asked_is_asked_too(tmp_path: Path) -> None:
    """A process may be started, or lose its parent, while the list of processes is made."""
    program = LEFT.replace("program, asked)", "program, os.environ['LATE'])")
    environ = {**os.environ, "LATE": LATE}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, timeout=60, check=True)
    assert (tmp_path / "asked").exists() and (tmp_path / "late").exists()


EARLY = """
import os, signal, sys, time
from bireme.process import guardian, kernel
from bireme.process.worker import WorkerStart

null = os.open(os.devnull, os.O_RDWR)
program = "import os, time\\nwhile not os.path.exists('go'): time.sleep(0.001)"
worker = WorkerStart((sys.executable, "-c", program), dict(os.environ), os.getcwd(), null, null, null)
handle = guardian.start([worker], at_loss=lambda: open("lost", "w"))
(pid,) = [int(event[2]) for event in handle.read() if event[0] == "up"]
_, _, ours, *_ = kernel.stat_of(pid)
os.kill(ours, signal.SIGSTOP)
open("go", "w")
while kernel.stat_of(pid)[1] != "Z":
    time.sleep(0.001)
handle.close()
os.kill(ours, signal.SIGCONT)  # it hears in one instant that the agent goes and that the last worker has ended
os.waitpid(handle.pid, 0)
"""


def test_an_agent_that_goes_as_the_last_worker_ends_is_not_lost(tmp_path: Path) -> None:
    """It still needs its files: an elastic job keeps its pid file between two epochs."""
    subprocess.run([sys.executable, "-c", EARLY], cwd=tmp_path, timeout=60, check=True)
    assert not (tmp_path / "lost").exists()


HALTED = """
import os, signal, sys
from bireme.process import guardian, kernel
from bireme.process.worker import WorkerStart

program = "import os, sys, time\\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.001)\\nsys.exit(3)"
null = os.open(os.devnull, os.O_RDWR)
workers = [
    WorkerStart((sys.executable, "-c", program, go), dict(os.environ), os.getcwd(), null, null, null)
    for go in ("0", "1")
]
handle = guardian.start(workers, at_loss=lambda: None)
events = []
while len(events) < 2:
    events += handle.read()
pids = {event[1]: int(event[2]) for event in events}
(guard,) = map(int, open(f"/proc/{handle.pid}/task/{handle.pid}/children").read().split())

def watched():  # it watches them only after it has said that they are up
    try:
        links = [os.readlink(f"/proc/{guard}/fd/{fd}") for fd in os.listdir(f"/proc/{guard}/fd")]
    except OSError:  # it has closed one of them
        return 0
    return sum("pidfd" in link for link in links)

while sys.argv[1:] and not (watched() == 2 and kernel.stat_of(guard)[1] == "S"):
    pass
os.kill(guard, signal.SIGSTOP)
while kernel.stat_of(guard)[1] != "T":
    pass

def end(index):
    open(index, "w").close()
    while kernel.stat_of(pids[index])[1] != "Z":
        pass
"""
ALONE = """
end("0")
os.kill(handle.pid, signal.SIGKILL)
handle.wait()
os.kill(guard, signal.SIGCONT)
while len(events) < 4:
    events += handle.read()
handle.close()
print([event[0] for event in events])
"""
ORDER = """
end("1")
end("0")
os.kill(guard, signal.SIGCONT)
while len(events) < 4:
    events += handle.read()
handle.close()
print(*(event[1] for event in events if event[0] == "down"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a watcher needs subreapers")
def test_what_ended_before_the_watcher_is_reported_before_it(tmp_path: Path) -> None:
    """A busy node: the guardian runs again only after a rank has failed and its watcher was killed."""
    done = run_python(HALTED + ALONE, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['up', 'up', 'down', 'alone']\n", "")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no pidfds")
def test_the_order_in_which_ranks_ended(tmp_path: Path) -> None:
    """A busy node: the guardian runs again only after both have ended, and blames the one that was first."""
    done = run_python(HALTED + ORDER, "watched", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("1 0\n", "")


def test_it_closes_the_pipes_of_a_worker_that_it_starts_later(tmp_path: Path) -> None:
    """Their reader sees the end of what the worker says."""
    null, (ours, theirs) = os.open(os.devnull, os.O_RDWR), os.pipe()
    started = ((("sleep", "100"), null), ((sys.executable, "-c", "print('here')"), theirs))
    workers = [WorkerStart(argv, dict(os.environ), str(tmp_path), null, out, null) for argv, out in started]
    handle = guardian.start(workers, at_loss=lambda: None, at_once=1)
    os.close(theirs)
    handle.tell("fork", 1)
    with open(ours) as file:
        assert file.read() == "here\n"
    handle.close()
    handle.wait()
    os.close(null)


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no subreapers")
def test_a_program_that_adopts_orphans_goes_on_to_do_so() -> None:
    """As pytest does, for these tests."""
    assert kernel.is_subreaper()
    tree = ProcessTree()
    null = os.open(os.devnull, os.O_RDWR)
    worker = WorkerStart(("true",), dict(os.environ), "/", null, null, null)
    handle = tree.start([worker], keep=(), at_start=lambda: None, at_loss=lambda: None, files_limit=None)
    handle.close()
    handle.wait()
    tree.close()
    os.close(null)
    assert kernel.is_subreaper()


def ends(handle: guardian.Handle, count: int) -> list[list[str]]:
    """The next so many ends of workers."""
    found: list[list[str]] = []
    while len(found) < count:
        events = handle.read()
        assert events is not None
        found += [event for event in events if event[0] == "down"]
    return found


def test_a_signal_for_one_worker_or_for_all() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    workers = [WorkerStart(("sleep", "100"), dict(os.environ), "/", null, null, null) for _ in range(4)]
    handle = guardian.start(workers, at_loss=lambda: None)
    handle.tell("rank", int(signal.SIGKILL), 1)
    assert [event[1:3] for event in ends(handle, 1)] == [["1", "9"]]
    handle.tell("rank", int(signal.SIGKILL), "2,0")
    assert sorted(event[1] for event in ends(handle, 2)) == ["0", "2"]
    handle.tell("rank", int(signal.SIGTERM), "*")
    assert [event[1:3] for event in ends(handle, 1)] == [["3", "15"]]
    handle.close()
    handle.wait()
    os.close(null)


def test_a_program_is_looked_for_as_a_shell_does(tmp_path: Path) -> None:
    """One that may not be executed is passed over, and is what went wrong if there is no other."""
    for folder, mode in (("first", 0o600), ("second", 0o700)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "program").write_text("#!/bin/sh\nexit 5\n")
        (tmp_path / folder / "program").chmod(mode)
    null = os.open(os.devnull, os.O_RDWR)
    paths = (f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second", f"{tmp_path}/first:{tmp_path}/none", f"{tmp_path}")
    workers = [WorkerStart(("program",), {"PATH": path}, "/", null, null, null) for path in paths]
    handle = guardian.start(workers, at_loss=lambda: None)
    assert {event[1]: int(event[2]) >> 8 for event in ends(handle, 3)} == {"0": 5, "1": 126, "2": 127}
    handle.close()
    handle.wait()
    os.close(null)


def test_what_is_left_is_named() -> None:
    (text,) = ProcessTree().describe([os.getpid(), 1 << 30])
    name = Path("/proc/self/comm").read_text().strip()
    assert text in (f"{os.getpid()} ({name}, state {state})" for state in "RS")
