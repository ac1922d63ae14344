"""The rendezvous port of a whole job: free, not shared with other jobs, and released at the end."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from bireme.errors import BadInputError
from bireme.resources.rendezvous_port import lease_named_port
from tests.conftest import TIMES, free_ports, guards_of, read_lines, wait_for

SAYS = "import os, sys, time\nprint('port', os.environ['MASTER_PORT'], flush=True)\nsys.stdin.read()\n"
WAITS = "import os, time\nprint('port', os.environ['MASTER_PORT'], flush=True)\ntime.sleep(1000)\n"


def port_of(process):
    return int(read_lines(process, 1, "port")[-1].split()[-1])


@pytest.fixture
def free_port():
    """The number of a port that nobody listens on."""
    return free_ports()


@pytest.fixture
def default_taken():
    """Somebody listens on the default port; where a job of another test is to do so, its end is waited for."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def bound():
            try:
                lease = lease_named_port(29500)
            except BadInputError:
                return False
            taken.bind(("", 29500))
            taken.listen()
            lease.close()
            return True

        wait_for(bound, "the default port", 240)
        yield


def test_default_port_taken(stage, script, default_taken):
    process = stage.start("run", "--output", "raw", script(SAYS))
    port = port_of(process)
    _, err = process.communicate(timeout=60)
    assert port != 29500
    assert f"port 29500 is taken: using {port}".encode() in err


def test_a_restart_does_not_say_it_again(stage, script, default_taken):
    done = stage.run("run", "--restarts", "2", script("import sys; sys.exit(3)"))
    assert done.returncode == 3 and "restart 2 of 2" in done.stderr
    assert done.stderr.count("port 29500 is taken") == 1, done.stderr


def test_named_port(stage, script, free_port):
    process = stage.start("run", "-q", "--master_port", free_port, script(SAYS))
    assert port_of(process) == free_port
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_named_port_of_another_job(stage, script, free_port):
    first = stage.start("run", "-q", "--master_port", free_port, script(WAITS))
    assert port_of(first) == free_port
    second = stage.run("run", "--master_port", free_port, script("open('ran', 'w')", "second.py"), code=2)
    assert f"port {free_port} is taken" in second.stderr
    first.terminate()
    assert first.wait(60) == 143


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGKILL])
def test_let_go_at_every_end(stage, script, free_port, end):
    text = WAITS if end else SAYS
    process = stage.start("run", "-q", "--master_port", free_port, script(text))
    assert port_of(process) == free_port
    if end:
        process.send_signal(end)
    process.communicate(timeout=60)
    if end == signal.SIGKILL:
        wait_for(lambda: not stage.left(), "the guardian to finish")
    lease_named_port(free_port).close()


def test_held_while_a_rank_lives_although_the_command_was_killed(stage, script, free_port, tmp_path):
    """The guardian holds the lock until nothing can listen on the port any more."""
    process = stage.start("run", "-q", "--master_port", free_port, script(WAITS))
    assert port_of(process) == free_port
    guards = guards_of(process.pid).values()
    for pid in guards:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    try:
        with pytest.raises(BadInputError):
            lease_named_port(free_port)
    finally:
        for pid in guards:
            os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not stage.left(), "the guardian to finish")
    lease_named_port(free_port).close()


@pytest.mark.slow
def test_two_jobs_started_in_the_same_instant_again_and_again(stage, script):
    program = script(SAYS)
    for _ in range(TIMES):
        both = [stage.start("run", "-q", program, stdin=-1) for _ in range(2)]
        ports = [port_of(process) for process in both]
        for process in both:
            process.communicate(timeout=60)
            assert process.returncode == 0
        assert ports[0] != ports[1]


def test_a_plan_takes_no_port_away(stage, script, free_port):
    for _ in range(2):
        stage.run("run", "--dry_run", "--master_port", free_port, script(SAYS), code=0)
    lease_named_port(free_port).close()
