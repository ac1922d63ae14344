"""The socket of `bireme drain`: only the right job answers, and only its owner and root are obeyed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bireme.runner import job_client
from tests.conftest import NOBODY, as_nobody, bireme, clean_environ

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no abstract sockets")

# A runner, as far as requests are concerned: it answers, until it is told to go.
RUNNER = """
import os, sys
from bireme.loop import Loop
from bireme.runner.control_socket import ControlSocket
loop = Loop()
door = ControlSocket()
door.listen(loop, lambda request, _: {"said": f"{request.get('node')} of {os.getuid()}" + eval(sys.argv[1])})
loop.watch(0, loop.stop)
print("ready", flush=True)
loop.run()
"""

# Another user's: takes names, and answers whoever comes; with a second argument, it listens but never answers.
SQUATTER = """
import os, socket, sys
held = []
for name in sys.argv[1].split():
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    held[-1].bind(chr(0) + name)
    held[-1].listen(8)
print("ready", flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
while True:
    for one in held:
        one.setblocking(False)
        try:
            guest, _ = one.accept()
            guest.setblocking(True)
            guest.recv(4096)
            guest.send(b'{"said": "all is well"}')
        except OSError:
            pass
"""


@contextmanager
def running(source: str, *args: str, before: list[str] | None = None) -> Iterator[int]:
    """A Python program that has said that it is ready; its pid."""
    with subprocess.Popen(
        [*(before or []), sys.executable, "-c", source, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environ(),
        cwd="/",
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def drain(pid: int, before: list[str] | None = None) -> tuple[int, str]:
    words = [*(before or []), *bireme("drain", "node1", str(pid))]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=clean_environ(), cwd="/")
    return done.returncode, done.stdout + done.stderr


def names_of(pid: int) -> str:
    """All names that a job of this pid could have, were they to be guessed."""
    uid = os.getuid()
    ends = [f"{uid}-{pid}-{'0' * 16}", f"{NOBODY}-{pid}-{'0' * 16}", f"{uid}-{pid}", str(pid)]
    return " ".join(f"bireme-job-{end}" for end in ends)


def test_a_job_is_heard() -> None:
    with running(RUNNER, "''") as job:
        assert drain(job) == (0, f"node1 of {os.getuid()}\n")
        assert drain(job) == (0, f"node1 of {os.getuid()}\n")
    assert drain(job)[0] == 2


def test_a_client_that_is_answered_before_the_request_was_taken() -> None:
    start = RUNNER.index("lambda request")
    at_once = 'lambda _, client: client.answer({"said": "at once"}))\n'
    with running(RUNNER[:start] + at_once + RUNNER[RUNNER.index("\n", start) + 1 :]) as job:
        assert drain(job) == (0, "at once\n")
        assert drain(job) == (0, "at once\n")


@contextmanager
def elsewhere(pid: int) -> Iterator[None]:
    """A job in a container, of this pid there: to us it is another process than its name says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as its:
        its.bind(f"\0bireme-job-{os.getuid()}-{pid}-{os.urandom(8).hex()}")
        its.listen(8)
        yield


def test_jobs_in_containers_with_the_same_pid() -> None:
    """The one that is in none is meant. Without it, none of several is."""
    with running(RUNNER, "''") as job, elsewhere(job):
        assert drain(job) == (0, f"node1 of {os.getuid()}\n")
    with elsewhere(job), elsewhere(job):
        assert "several containers have a job with this pid" in drain(job)[1]


def test_nobody_answers_in_the_place_of_a_job() -> None:
    """A pid of no job, whose names another user has taken."""
    with running("print('ready', flush=True); input()") as pid, running(SQUATTER, names_of(pid), before=as_nobody()):
        code, text = drain(pid)
        assert code == 2 and f"no elastic job with pid {pid} runs on this machine" in text


@pytest.mark.parametrize("mute", [(), ("mute",)], ids=["answers", "mute"])
def test_names_that_another_user_has_taken_keep_nobody_from_a_job(mute: tuple[str, ...]) -> None:
    """Taken before the job, as who watches the pids can."""
    nobody = as_nobody()
    waits = f"import sys\nsys.stdin.readline()\n{RUNNER}"
    with subprocess.Popen(
        [sys.executable, "-c", waits, "''"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environ(),
        bufsize=0,
    ) as job:
        try:
            assert job.stdin is not None and job.stdout is not None
            with running(SQUATTER, names_of(job.pid), *mute, before=nobody):
                job.stdin.write(b"go\n")
                assert job.stdout.readline() == b"ready\n"
                assert drain(job.pid) == (0, "node1 of 0\n")
        finally:
            job.kill()


def test_root_may_ask_anyone_and_is_told_no_control_characters() -> None:
    nobody = as_nobody()
    with running(RUNNER, "chr(27) + chr(0x9b) + '[2J'", before=nobody) as job:
        assert drain(job, nobody)[0] == 0
        assert drain(job) == (0, f"node1 of {NOBODY}\\x1b\\x9b[2J\n")


def test_others_may_not_ask() -> None:
    nobody = as_nobody()
    with running(RUNNER, "''") as job:
        code, text = drain(job, nobody)
        assert code == 2 and f"no elastic job of yours with pid {job} runs" in text
        with job_client.connect(job) as ours:
            name = ours.getpeername().decode()
        shout = f"""
import socket
guest = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
guest.connect({name!r})
try:
    guest.send(b'{{"node": "node1"}}')
    print(guest.recv(4096))
except OSError:
    print("refused")
"""
        done = subprocess.run([*nobody, sys.executable, "-c", shout], capture_output=True, text=True, check=True)
        assert done.stdout in ("b''\n", "refused\n")
        assert drain(job) == (0, "node1 of 0\n")


def test_an_answer_that_is_none() -> None:
    pid = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(f"\0bireme-job-{os.getuid()}-{pid}-{os.urandom(8).hex()}")
        other.listen(1)
        other.settimeout(60)
        words = bireme("drain", "node1", str(pid))
        with subprocess.Popen(words, stderr=subprocess.PIPE, env=clean_environ(), text=True) as asking:
            guest, _ = other.accept()
            guest.recv(4096)
            guest.send(b"[]")
            guest.close()
            _, err = asking.communicate(timeout=60)
    assert asking.returncode == 75
    assert err == "bireme: the job does not answer: its answer cannot be understood\n"
