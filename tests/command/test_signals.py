"""Signals to the command: passed on, obeyed, or ignored as they were at the start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.command.conftest import state_of
from tests.conftest import bireme, clean_environ, read_lines, wait_for

COUNTS = """
import os, signal, sys, time

def heard(signum, frame):
    os.write(1, b"heard %d by %s\\n" % (signum, who.encode()))

who = "rank " + os.environ["RANK"]
for signum in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(signum, heard)
if os.fork() == 0:
    who = "child"
    os.write(1, b"ready child\\n")
    while True: time.sleep(0.05)
os.write(1, b"ready rank\\n")
while True: time.sleep(0.05)
"""

WAITS = "import os, time\nprint('ready', os.getpid(), flush=True)\nwhile True: time.sleep(0.05)\n"


def pids(lines):
    return [int(line.split()[-1]) for line in lines if "ready" in line]


def test_usr1_and_usr2_reach_every_rank_once_and_not_its_children(stage, script):
    process = stage.start("run", "-q", "--num_gpus", "3", script(COUNTS))
    read_lines(process, 6, "ready")
    for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
        process.send_signal(signum)
        lines = read_lines(process, 3, f"heard {int(signum)}")
        assert sorted(line.split(" by ")[1].strip() for line in lines) == ["rank 0", "rank 1", "rank 2"]
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert b"heard" not in out
    assert process.returncode == 143


EXPECTS = """
import os, signal, threading, time

rank, masked = int(os.environ["RANK"]), {signal.SIGUSR1}
if rank < 2:
    signal.pthread_sigmask(signal.SIG_BLOCK, masked)
if rank == 0:  # while it waits, the thread that does has the signal in no mask
    threading.Thread(target=lambda: (signal.sigwait(masked), os.write(1, b"got it\\n"))).start()
    places = lambda: [open(f"/proc/self/task/{each}/wchan").read() for each in os.listdir("/proc/self/task")]
    while not any("sigtimedwait" in place for place in places()): time.sleep(0.01)
if rank == 2:  # that another thread blocks it does not help: the main thread would take it
    begun = threading.Event()
    block = lambda: (signal.pthread_sigmask(signal.SIG_BLOCK, masked), begun.set(), time.sleep(1000))
    threading.Thread(target=block, daemon=True).start()
    begun.wait()
os.write(1, b"ready\\n")
if rank == 1:
    while signal.SIGUSR1 not in signal.sigpending(): time.sleep(0.01)
    os.write(1, b"got it\\n")
while True: time.sleep(0.05)
"""


def test_usr1_goes_only_to_ranks_that_expect_it(stage, script):
    """Who catches, blocks, or waits for it does; it would kill the others, and with them the job."""
    process = stage.start("run", "--num_gpus", "4", script(EXPECTS))
    read_lines(process, 4, "ready")
    process.send_signal(signal.SIGUSR1)
    read_lines(process, 2, "got it")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert re.search(rb"ranks 2-3 on \S+ do not get SIGUSR1: without a handler SIGUSR1 would kill them", err)


def test_suspend_and_resume(stage, script):
    process = stage.start("run", "-q", "--num_gpus", "2", script(WAITS))
    ranks = pids(read_lines(process, 2, "ready"))
    process.send_signal(signal.SIGTSTP)
    for pid in (process.pid, *ranks):
        wait_for(lambda pid=pid: state_of(pid) == "T", f"{pid} to be stopped")
    process.send_signal(signal.SIGCONT)
    for pid in (process.pid, *ranks):
        wait_for(lambda pid=pid: state_of(pid) in "SR", f"{pid} to go on")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_suspending_reaches_grandchildren_in_sessions_of_their_own(stage, script):
    program = script(
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "print('ready', p.pid, flush=True)\n"
        "p.wait()\n"
    )
    process = stage.start("run", "-q", program)
    (pid,) = pids(read_lines(process, 1, "ready"))
    process.send_signal(signal.SIGTSTP)
    for each in (process.pid, pid):
        wait_for(lambda pid=each: state_of(pid) == "T", f"{each} to be stopped")
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: state_of(pid) in "SR", "the grandchild to go on")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143


HALTS = """
import os, signal
from bireme.loop import Loop

def heard(signum):
    print(signum.real, flush=True)
    if signum == signal.SIGTSTP:
        loop.halt()
    else:
        loop.stop()

loop = Loop()
loop.on_signals((signal.SIGTSTP, signal.SIGCONT), heard)
for signum in (signal.SIGTSTP, signal.SIGCONT):
    os.kill(os.getpid(), signum)
loop.run()
loop.close()
"""


def test_who_is_woken_before_he_halts_does_not_halt():
    """Nobody would wake him again."""
    done = subprocess.run([sys.executable, "-c", HALTS], capture_output=True, timeout=60, check=False)
    assert done.stdout.split() == [b"%d" % signal.SIGTSTP, b"%d" % signal.SIGCONT], done.stderr


def test_a_rank_that_is_stopped_is_stopped_for_good_by_the_ladder(stage, script):
    """A suspended rank does not hear SIGTERM until it is woken."""
    process = stage.start("run", "-q", "--num_gpus", "2", "--grace", "1000", script(WAITS))
    ranks = pids(read_lines(process, 2, "ready"))
    os.kill(ranks[0], signal.SIGSTOP)
    wait_for(lambda: state_of(ranks[0]) == "T", "the rank to be stopped")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1], ids=lambda s: s.name)
def test_ignored_at_the_start_stays_ignored(stage, script, signum):
    """``nohup`` ignores SIGHUP, a shell's ``&`` without job control SIGINT: for us and for the ranks."""
    process = stage.start(
        "run", "-q", "--num_gpus", "2", script(WAITS), preexec_fn=lambda: signal.signal(signum, signal.SIG_IGN)
    )
    ranks = pids(read_lines(process, 2, "ready"))
    for pid in (process.pid, *ranks):
        with open(f"/proc/{pid}/status") as file:
            ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn"))
        assert ignored & 1 << signum - 1, pid
        os.kill(pid, signum)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_nohup(stage, script, tmp_path):
    process = subprocess.Popen(
        ["nohup", *bireme("run", "-q", script(WAITS))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environ(),
        cwd=tmp_path,
        start_new_session=True,
    )
    stage.started.append(process)
    (rank,) = pids(read_lines(process, 1, "ready"))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)  # stops the job, which shows that SIGHUP has not
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not state_of(rank)


def test_a_signal_to_the_whole_group_is_one_signal(stage, script):
    """A terminal, a shell, a batch system signal the process group: ranks are not in it."""
    program = script(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'heard\\n'))\n"
        "print('ready', os.getpid(), flush=True)\n"
        "while True: time.sleep(0.05)\n"  # not longer: a signal that comes just before a sleep begins is heard after it
    )
    process = stage.start("run", "-q", "--num_gpus", "2", "--grace", "1000", program)
    read_lines(process, 2, "ready")
    os.killpg(process.pid, signal.SIGTERM)
    assert sum("heard" in line for line in read_lines(process, 2, "heard")) == 2
    process.send_signal(signal.SIGINT)  # once more: that ends the grace time
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"heard" not in out


def test_ranks_get_the_signal_that_came(stage, script):
    program = script(
        "import os, signal, sys, time\n"
        "for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):\n"
        "    signal.signal(s, lambda n, f: (os.write(1, b'got %d\\n' % n), sys.exit(0)))\n"
        "print('ready', os.getpid(), flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        process = stage.start("run", "-q", "--num_gpus", "2", program)
        read_lines(process, 2, "ready")
        process.send_signal(signum)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + signum
        assert out.count(b"got %d" % signum) == 2


def test_time_for_a_checkpoint(stage, script, tmp_path):
    """What a rank does in its handler, and all that it writes then, is waited for."""
    program = script(
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    for i in range(1000): print('saving', i, flush=True)\n"
        "    open(sys.argv[1] + os.environ['RANK'], 'w').write('saved')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "os.write(1, b'ready\\n')\n"  # by print, the signal could come within it, where the handler cannot print
        "while True: time.sleep(0.05)\n"
    )
    process = stage.start("run", "-q", "--num_gpus", "2", "--grace", "60", program, tmp_path / "checkpoint")
    read_lines(process, 2, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out.count(b"saving") == 2000
    assert [(tmp_path / f"checkpoint{rank}").read_text() for rank in (0, 1)] == ["saved", "saved"]


def test_children_ignored_at_the_start(stage, script):
    """Some daemons ignore SIGCHLD, and the kernel then reaps for them: we must hear of our own ends all the same."""
    for text, code in (("", 0), ("raise SystemExit(3)", 3)):
        done = stage.run(
            "run",
            "-q",
            "--num_gpus",
            "2",
            script(text),
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        )
        assert (done.returncode, "itself failed" in done.stderr) == (code, False), done.stderr


def test_signals_blocked_at_the_start(stage, script):
    """As by a parent that reads its signals from a descriptor: the ranks inherit it, and we are not deaf."""
    blocked = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    program = script(
        "import signal\n"
        "print('ready', *sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), flush=True)\n"
        "import time\ntime.sleep(1000)\n"
    )
    process = stage.start(
        "run", "-q", "--num_gpus", "2", "--grace", "0.2", program,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, blocked),
    )  # fmt: skip
    for line in read_lines(process, 2, "ready"):
        assert set(map(int, line.split("ready")[1].split())) == blocked
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
