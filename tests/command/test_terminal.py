"""On a terminal: prompts, progress bars, keys, Ctrl+C and Ctrl+Z, and the terminal's modes afterwards."""

from __future__ import annotations

import os
import pty
import re
import signal
import termios

import pytest

from tests.command.conftest import state_of
from tests.conftest import bireme, clean_environ, wait_for

HOST = os.uname().nodename.partition(".")[0].encode()

# A line is written at once: half of one is shown as it is when nothing follows for a while.
ASKS = """
import os, sys
if os.environ["RANK"] == "0":
    name = input("your name? ")
    os.write(1, f"hello {name}\\n".encode())
else:
    os.write(1, f"rest: {sys.stdin.read()!r}\\n".encode())
"""

WAITS = """
import os, signal, sys, time
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    time.sleep(0.05)  # not longer: a signal that comes just before a sleep begins is heard after it
"""


def ranks_of(terminal, count):
    """The pids that ``WAITS`` has shown."""
    return [int(pid) for pid in terminal.expect_all(rb"ready (\d+)\r", count)]


def test_a_prompt_is_seen_before_its_newline_and_the_answer_goes_to_rank_0(terminal, script):
    screen = terminal("run", "-q", "--num_gpus", "2", script(ASKS))
    screen.expect(b"] your name? ")
    screen.type(b"Ada\n")
    screen.expect(b"hello Ada")
    assert screen.wait() == 0
    assert b"[" + HOST + b":1] rest: ''" in screen.seen


def test_a_prompt_of_one_rank_is_shown_as_it_is(terminal, script):
    screen = terminal("run", "-q", script(ASKS))
    screen.expect(b"your name? ")
    assert screen.seen == b"your name? "
    screen.type(b"Ada\n")
    assert screen.wait() == 0
    assert b"hello Ada\r\n" in screen.seen


def test_a_debugger(terminal, script):
    program = script("x = 41\nbreakpoint()\nprint('end', x)\n")
    screen = terminal("run", "-q", program)
    screen.expect(b"(Pdb) ")
    screen.type(b"p x + 1\n")
    screen.expect(b"42")
    screen.type(b"x = 7\n")
    screen.expect(b"(Pdb) ", times=3)
    screen.type(b"c\n")
    screen.expect(b"end 7")
    assert screen.wait() == 0


def test_a_bar_keeps_its_label(terminal, script):
    program = script(
        "import os, sys\n"
        "if os.environ['RANK'] == '0':\n"
        "    for i in range(5): sys.stderr.write(f'\\r{i}0%|')\n"
        "    sys.stderr.write('\\n')\n"
    )
    screen = terminal("run", "-q", "--num_gpus", "2", program)
    assert screen.wait() == 0
    assert b"[" + HOST + b":0] 40%|\r\n" in screen.seen, screen.seen


def test_the_report_begins_on_a_line_of_its_own(terminal, script):
    screen = terminal("run", "-q", script("import sys\nsys.stdout.write('no newline')\nsys.exit(3)\n"))
    assert screen.wait() == 3
    assert b"no newline\r\nbireme: rank 0" in screen.seen
    assert screen.seen.endswith(b"\r\n")


def test_ctrl_c(terminal, script):
    screen = terminal("run", "-q", "--num_gpus", "2", script(WAITS))
    ranks = ranks_of(screen, 2)
    screen.type(b"\x03")
    assert screen.wait() == 130
    assert not [pid for pid in ranks if state_of(pid)]
    assert b"bireme: stopped by SIGINT" in screen.seen


def test_a_second_ctrl_c_does_not_wait(terminal, script):
    program = script("import signal\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n" + WAITS)
    screen = terminal("run", "-q", "--num_gpus", "2", "--grace", "1000", program)
    ranks = ranks_of(screen, 2)
    screen.type(b"\x03")
    screen.expect(b"] no\r\n", times=2)
    screen.type(b"\x03")
    assert screen.wait() == 130
    assert not [pid for pid in ranks if state_of(pid)]


def test_each_ctrl_c_is_answered_at_once(terminal, script):
    """Before a rank has ended, over the ``^C`` that the terminal has shown."""
    program = script("import signal\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n" + WAITS)
    screen = terminal("run", "--num_gpus", "2", "--grace", "1000", program)
    ranks_of(screen, 2)
    screen.type(b"\x03")
    screen.expect(b"\rbireme: stopping 2 ranks; up to 1000 s; Ctrl+C again kills\r\n")
    screen.expect(b"] no\r\n", times=2)
    screen.type(b"\x03")
    screen.expect(b"\rbireme: killing 2 ranks\r\n")
    assert screen.wait() == 130


def test_ctrl_backslash(terminal, script):
    screen = terminal("run", "-q", "--num_gpus", "2", script(WAITS))
    ranks_of(screen, 2)
    screen.type(b"\x1c")
    assert screen.wait() == 131


def test_hang_up(terminal, script, stage):
    """The window is closed: nobody is there to read, the job ends."""
    screen = terminal("run", "-q", "--num_gpus", "2", script(WAITS))
    ranks = ranks_of(screen, 2)
    screen.hang_up()
    assert screen.wait() in (129, 141, -signal.SIGHUP)  # the last: it is over when SIGHUP comes
    assert not [pid for pid in ranks if state_of(pid)]


def test_modes_are_given_back_after_a_killed_rank(terminal, script):
    program = script("import os, tty\ninput()\ntty.setraw(0)\nprint('raw', flush=True)\nos.kill(os.getpid(), 9)\n")
    screen = terminal("run", "-q", program)
    before = screen.modes()
    screen.type(b"\n")
    assert before[3] & termios.ECHO
    assert screen.wait() == 137
    assert b"raw" in screen.seen
    assert screen.modes() == before


def test_flags_of_the_terminal_are_left_alone(terminal, script):
    """The shell shares them: it would find its own input non-blocking."""
    screen = terminal("run", "-q", script(WAITS))
    ranks_of(screen, 1)
    for fd in (0, 1, 2):
        with open(f"/proc/{screen.pid}/fdinfo/{fd}") as file:
            flags = int(re.search(r"flags:\s+(\d+)", file.read())[1], 8)
        assert not flags & os.O_NONBLOCK
    screen.type(b"\x03")
    assert screen.wait() == 130


# -- job control ---------------------------------------------------------------------------------


def test_ctrl_z_suspends_the_ranks_and_fg_wakes_them(terminal, script):
    screen = terminal("run", "-q", "--num_gpus", "2", script(WAITS))
    ranks = ranks_of(screen, 2)
    for _ in range(3):
        screen.type(b"\x1a")
        for pid in (screen.pid, *ranks):
            wait_for(lambda pid=pid: state_of(pid) == "T", f"{pid} to be stopped")
        os.kill(screen.pid, signal.SIGCONT)
        for pid in (screen.pid, *ranks):
            wait_for(lambda pid=pid: state_of(pid) in "SR", f"{pid} to go on")
    screen.type(b"\x03")
    assert screen.wait() == 130


def test_a_suspended_job_can_be_killed(terminal, script):
    screen = terminal("run", "-q", "--num_gpus", "2", script(WAITS))
    ranks = ranks_of(screen, 2)
    screen.type(b"\x1a")
    for pid in (screen.pid, *ranks):
        wait_for(lambda pid=pid: state_of(pid) == "T", f"{pid} to be stopped")
    os.kill(screen.pid, signal.SIGTERM)
    os.kill(screen.pid, signal.SIGCONT)  # as the shells do
    assert screen.wait() == 143
    assert not [pid for pid in ranks if state_of(pid)]


@pytest.mark.parametrize("foreground", ["the shell", "a later job"])
def test_in_the_background_stdin_is_empty(script, tmp_path, stage, foreground):
    """A rank is in a session of its own: job control would not keep it from the shell's keys."""
    program = script(
        "import os, sys\nopen(sys.argv[1], 'w').write(os.readlink('/proc/self/fd/0') + sys.stdin.read())\n"
    )
    argv = bireme("run", "-q", program, tmp_path / "stdin")
    pid, fd = pty.fork()
    if pid == 0:
        go, begin = os.pipe()
        worker = os.fork()
        if worker == 0:
            os.setpgid(0, 0)
            os.read(go, 1)
            os.execve(argv[0], argv, clean_environ())
        if foreground == "a later job":
            later = os.fork()
            if later == 0:
                signal.pause()  # it gets the terminal's SIGHUP
            os.setpgid(later, later)
            os.tcsetpgrp(0, later)
        os.write(begin, b"x")
        os._exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) & 255)
    os.write(fd, b"keys of the shell\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "stdin").read_text() == "/dev/null"
    os.close(fd)


@pytest.mark.parametrize("signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)], ids=["twice", "once"])
def test_modes_are_given_back_although_output_is_stopped(terminal, script, signals):
    """Waiting for the output to drain would be waiting for a Ctrl+Q that nobody types."""
    program = script(
        "import os, termios\n"
        "os.read(0, 1)\n"
        "modes = termios.tcgetattr(0)\n"
        "modes[3] &= ~termios.ECHO\n"
        "termios.tcsetattr(0, termios.TCSANOW, modes)\n"
        "os.write(1, b'ready %d\\n' % os.getpid())\n"
        "os.read(0, 1)\n"
        "termios.tcflow(0, termios.TCOOFF)\n"
        "os.write(1, b'x' * 100_000)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    screen = terminal("run", "-q", program)
    before = screen.modes()
    screen.type(b"\n")
    (rank,) = ranks_of(screen, 1)
    assert screen.modes() != before
    screen.type(b"\n")
    wait_for(lambda: not state_of(rank), "the rank to end")
    wait_for(lambda: _stopped_output(screen), "stopped output")
    for signum in signals:
        os.kill(screen.pid, signum)
    assert screen.wait() == 137
    assert screen.modes() == before


def _stopped_output(screen):
    """Whether the rank has written what it had to although nothing comes any more."""
    while screen._read(0.0):
        pass
    return len(screen.seen) < 100_000 and screen.seen.count(b"ready") == 1 and not screen._read(0.3)
