"""The reader of our output: slow, gone, full, closed, or sharing the flags of its terminal with other processes."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import time

import pytest

from tests.command.conftest import state_of
from tests.conftest import PROGRAMS, bireme, clean_environ, guards_of, wait_for

WRITER = PROGRAMS / "writer.py"
SPEAKS = "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\nopen(sys.argv[1], 'a').write('ran\\n')\n"


def shell(line, *words, **kwargs):
    """A line for the shell in which ``$@`` is the command."""
    argv = ["sh", "-c", line, "sh", *bireme("run", "-q", *words)]
    return subprocess.run(argv, env=clean_environ(), capture_output=True, timeout=60, **kwargs)


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_head(stage, ranks):
    """The reader takes one line and goes: exit code 141, and nothing is left."""
    program = "import sys\nwhile True: print('x' * 70)\n"
    argv = ["--num_gpus", ranks, "--no_python", "python3", "-c", program]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1; echo ${PIPESTATUS[0]} >&2', "bash", *bireme("run", *argv)],
        env=clean_environ(),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stdout.rstrip().endswith(b"x" * 70)
    assert done.stderr.endswith(b"\n141\n")
    assert b"reader of its output went away" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not stage.left()


def test_who_stops_a_job_that_fails_does_not_wait_for_its_reader(stage, script, tmp_path):
    """The failure stays the cause; what nobody reads is left."""
    program = script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(f'{sys.argv[1]}/up{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
        "if os.environ['RANK'] == '0': os.write(1, b'x' * 70 + b'\\n'), os.write(1, b'y' * (1 << 20))\n"
        "while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.001)\n"
        "sys.exit(3)\n"
    )
    process = stage.start("run", "-q", "--num_gpus", "2", "--grace", "2", program, tmp_path)
    up = [tmp_path / f"up{rank}" for rank in range(2)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in up), "the ranks")
    (tmp_path / "go").touch()
    wait_for(lambda: not state_of(int(up[1].read_text())), "rank 1 to fail")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (3, 143), "the guardian may see the rank's end after the signal"
    assert not stage.left()


def test_reader_that_goes_while_ranks_are_silent_is_noticed_when_they_speak(stage, script, tmp_path):
    program = script(
        "import os, sys, time\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.001)\n"
        "print('more', flush=True)\n"
        "time.sleep(1000)\n"
    )
    process = stage.start("run", "-q", program, tmp_path / "go")
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    (tmp_path / "go").touch()
    assert process.wait(60) == 141
    assert not stage.left()


CLOSED = ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_descriptors_closed_at_the_start(stage, script, tmp_path, closed, ranks):
    done = shell(f'"$@" {closed}', "--num_gpus", ranks, script(SPEAKS), tmp_path / "ran")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "ran\n" * int(ranks)
    assert done.stdout.count(b"out") == (0 if ">&- " in closed + " " and closed != "2>&-" else int(ranks))
    assert done.stderr.count(b"err") == (0 if "2>&-" in closed else int(ranks))
    assert not stage.left()


@pytest.mark.parametrize("closed", CLOSED)
def test_bad_input_with_descriptors_closed(closed, tmp_path):
    done = shell(f'"$@" {closed}', tmp_path / "absent.py")
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_closed_stdin_is_empty_for_the_ranks(stage, script):
    program = script("import os, sys\nprint(os.readlink('/proc/self/fd/0'), repr(sys.stdin.read()))\n")
    done = shell('"$@" <&-', program)
    assert (done.returncode, done.stdout) == (0, b"/dev/null ''\n"), done.stderr


def test_a_full_disk_under_stdout_is_said_and_the_job_goes_on(stage, script, tmp_path):
    done = shell('"$@" > /dev/full', "--num_gpus", "2", script(SPEAKS), tmp_path / "ran")
    assert (tmp_path / "ran").read_text() == "ran\n" * 2
    assert done.stderr.count(b"cannot write to stdout: No space left on device") == 1
    assert done.stderr.count(b"err\n") == 2


def memory_of(pid):
    """kB that a process held at its most."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1])


def test_a_reader_that_waits_makes_the_ranks_wait(stage):
    """What no one reads stays with the ranks, not in our memory; when it is read, all of it is there."""
    size = 20_000_000 // 65536 * 65536
    process = stage.start("run", "-q", "--num_gpus", "2", WRITER, "flood", "20000000")
    ranks = wait_for(lambda: _blocked_writers(process.pid), "both ranks to be blocked")
    assert len(ranks) == 2
    assert memory_of(process.pid) < 40_000
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    for rank in (b"0", b"1"):
        assert b"".join(re.findall(rb"\] (" + rank + rb"+)", out)) == rank * size


@pytest.mark.slow
def test_a_slow_reader_gets_whole_lines(stage):
    """What follows an unfinished line waits in the pipe because we do not read it: that is no rest of the rank's."""
    process = stage.start("run", "-q", "--num_gpus", "3", "--no_python", "seq", "60000")
    blocks = []
    while block := os.read(process.stdout.fileno(), 4096):
        blocks.append(block)
        time.sleep(0.01)
    out = b"".join(blocks)
    assert process.wait(60) == 0
    assert b"+] " not in out
    assert out.count(b"\n") == 180_000


def _blocked_writers(pid):
    """The ranks, once they all sleep in a write to their pipes."""
    found = []
    for guardian in filter(None, [guards_of(pid).get("guardian")]):
        for rank in _children(guardian):
            try:
                with open(f"/proc/{rank}/syscall") as file:
                    number, fd = file.read().split()[:2]
            except (OSError, ValueError):
                return []
            if (number, fd) != (_SYS_WRITE, "0x1"):
                return []
            found.append(rank)
    return found if len(found) == 2 else []


_SYS_WRITE = {"x86_64": "1", "aarch64": "64"}.get(os.uname().machine, "?")


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


IN_OUR_MEMORY, IN_THE_PIPES_TOO = "70000", "1000000"


@pytest.mark.parametrize(
    ("size", "signals", "streams"),
    [
        (IN_OUR_MEMORY, [signal.SIGINT], "stdout"),
        (IN_OUR_MEMORY, [signal.SIGTERM], "both"),
        (IN_THE_PIPES_TOO, [signal.SIGINT], "both"),
        (IN_THE_PIPES_TOO, [signal.SIGTERM], "stdout"),
        (IN_THE_PIPES_TOO, [signal.SIGINT, signal.SIGINT], "both"),
    ],
)
def test_a_job_can_be_stopped_although_nobody_reads(stage, size, signals, streams):
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    stderr = write if streams == "both" else subprocess.PIPE
    process = stage.start("run", "-q", "--num_gpus", "2", WRITER, "flood", size, stdout=write, stderr=stderr)
    os.close(write)
    try:
        wait_for(lambda: fcntl.ioctl(read, 0x541B, b"\0" * 4) == b"\0\x10\0\0", "a full pipe")
        for signum in signals:
            process.send_signal(signum)
        assert process.wait(60) == 128 + signals[0]
        assert not stage.left()
    finally:
        os.close(read)


def test_flags_of_a_shared_pipe_are_left_alone(stage, script, tmp_path):
    """``O_NONBLOCK`` belongs to the open file: another program that writes there would fail."""
    program = script("import os, sys, time\nprint('ready', flush=True)\nsys.stdin.read()\n")
    read, write = os.pipe()
    before = fcntl.fcntl(write, fcntl.F_GETFL)
    process = stage.start("run", "-q", program, stdout=write, stdin=subprocess.PIPE)
    with os.fdopen(os.dup(read), "rb", 0) as reader:
        assert reader.readline() == b"ready\n"
    assert fcntl.fcntl(write, fcntl.F_GETFL) == before
    process.communicate(timeout=60)
    assert fcntl.fcntl(write, fcntl.F_GETFL) == before
    assert process.returncode == 0
    os.close(read)
    os.close(write)


def test_a_pipe_that_is_nonblocking_already(stage):
    """As a parent that uses it in its own event loop hands it to us: nothing may be lost when it is full."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = stage.start("run", "-q", WRITER, "lines", "50000", stdout=write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        out = file.read()
    assert process.wait(60) == 0
    assert out.count(b"\n") == 50000


def test_a_socket_for_stdout(stage):
    import socket

    ours, theirs = socket.socketpair()
    process = stage.start("run", "-q", WRITER, "lines", "50000", stdout=theirs)
    theirs.close()
    out = b""
    while block := ours.recv(65536):
        out += block
    assert process.wait(60) == 0
    assert out.count(b"\n") == 50000
    ours.close()
