"""Attackers on the network between agents and runner: one on the path, and many at the runner's port."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.basics import PATH, children, read, wait_until
from tests.cluster.jobs import PROGRAM_OF, Jobs, backends
from tests.conftest import PROGRAMS, read_lines

RELAY = PROGRAMS / "relay.py"


def in_the_way(jobs: Jobs, **settings: object) -> dict[str, str]:
    """An environment in which a relay stands in the launcher's place."""
    program = PROGRAM_OF[jobs.backend]
    path = jobs.write("relay.json", json.dumps(settings))
    directory = jobs.shared / "bin"
    directory.mkdir()
    found = jobs.login.run(["sh", "-c", f"command -v {program}"]).stdout.strip()
    stand_in = directory / program
    # Without the stand-in on its PATH: pdsh looks there for its own program, and trusts modules of that one's owner.
    words = shlex.join(map(str, (sys.executable, RELAY, path, found)))
    stand_in.write_text(f'#!/bin/sh\nPATH={PATH} exec {words} "$@"\n')
    stand_in.chmod(0o755)
    return {"PATH": f"{directory}:{PATH}"}


@contextmanager
def without_tls(jobs: Jobs, lacking: bool = True) -> Iterator[None]:
    """On the machine of the command nothing is there, for so long, that could make a certificate."""
    hidden = []
    if lacking:
        hidden = [("--bind /dev/null", jobs.login.run("command -v openssl").stdout.strip())]
        package = importlib.util.find_spec("cryptography")
        if package is not None and package.origin is not None:
            hidden.append(("-t tmpfs tmpfs", os.path.dirname(package.origin)))
    try:
        for how, path in hidden:
            jobs.login.run(f"mount {how} {shlex.quote(path)}", root=True)
        yield
    finally:
        for _, path in hidden:
            jobs.login.run(f"umount {shlex.quote(path)}", check=False, root=True)


SAYS = "import sys; print(sys.argv[1], flush=True)"


@pytest.mark.parametrize("backend", backends("pdsh", "openmpi"))
def test_relay_that_reads_and_writes(jobs: Jobs) -> None:
    """It sees no exported value, no argument and no output, and what it would change it does not find."""
    secret = secrets.token_hex(16)
    jobs.write(".bireme_env", f"EXPORTED_WORD={secret}\n")
    environ = in_the_way(jobs, log=str(jobs.shared / "log"), replace=('"real"', '"evil"'))
    done = jobs.run(jobs.write("says.py", SAYS), "real", env=environ)
    log = (jobs.shared / "log").read_bytes()
    assert log.count(b"bireme-dial") == 3, "it was in the way"
    assert secret.encode() not in log
    assert "evil" not in done.stdout
    assert b"real" not in log and b"says.py" not in log
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()[1::2]) == ["real"] * 6


@pytest.mark.slow
@pytest.mark.parametrize("way", ["to_agent", "to_runner"])
@pytest.mark.parametrize(
    ("encrypted", "place"),
    [(False, 20), (False, 700), (False, 3000), (True, 20), (True, 1500)],
    ids=lambda value: {True: "tls", False: "mac"}[value] if isinstance(value, bool) else None,
)
def test_relay_that_changes_a_byte(request: pytest.FixtureRequest, way: str, place: int, encrypted: bool) -> None:
    """Whichever it is, no agent takes it: the job ends, and the node is named."""
    jobs = Jobs.on(request, "pdsh")
    environ = in_the_way(jobs, log=str(jobs.shared / "log"), flip=(way, place))
    script = jobs.write("says.py", f"{SAYS}\nprint('x' * 10_000, flush=True)\nimport time\ntime.sleep(100)")
    with without_tls(jobs, not encrypted):
        done = jobs.run("--grace", "1", "--heartbeat", "1", script, "real", hosts="node1:1", env=environ)
    assert done.returncode in (69, 75), done.stderr
    assert ("not encrypted" in done.stderr) == (not encrypted) or done.returncode == 69
    assert "node1" in done.stderr and "Traceback" not in done.stderr
    assert {word for word in done.stdout.split() if len(word) < 100} <= {"real"}


SHOWS = "import os; print(sorted(name for name in os.environ if name.startswith('WANDB_')))"


def test_no_secret_travels_where_nothing_is_encrypted(request: pytest.FixtureRequest) -> None:
    """Variables whose names tell of secrets stay here, which is said once, and the job runs."""
    jobs = Jobs.on(request, "pdsh")
    secret, open_word = secrets.token_hex(16), secrets.token_hex(16)
    jobs.write(".bireme_env", f"WANDB_API_KEY={secret}\nWANDB_NOTE={open_word}\n")
    environ = in_the_way(jobs, log=str(jobs.shared / "log"))
    with without_tls(jobs):
        done = jobs.run(jobs.write("shows.py", SHOWS), env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['WANDB_NOTE']") == 6
    said = [line for line in done.stderr.splitlines() if "not encrypted" in line]
    assert len(said) == 1 and "openssl" in said[0] and "WANDB_API_KEY" in said[0] and "WANDB_NOTE" not in said[0]
    log = (jobs.shared / "log").read_bytes()
    assert secret.encode() not in log
    assert open_word.encode() in log, "what is not named like a secret does travel"


# -- strangers at the port -------------------------------------------------------------------------

# Connects so many times and stays silent; whoever is sent away comes again, if it is insistent.
STRANGERS = """
import select, socket, sys
host, port, count, insistent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "insistent"
poll, there = select.poll(), {}

def come():
    try:
        sock = socket.create_connection((host, port), timeout=5)
    except OSError:
        return
    there[sock.fileno()] = sock
    poll.register(sock, select.POLLIN)

for _ in range(count):
    come()
print("there", flush=True)
while True:
    for fd, _ in poll.poll():
        poll.unregister(fd)
        there.pop(fd).close()
        if insistent:
            come()
"""


def cpu_seconds(pid: int) -> float:
    """That a process has used."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["patient", "insistent"])
def test_strangers_at_the_port(request: pytest.FixtureRequest, manner: str) -> None:
    """2,000 who say nothing, where 1,024 files may be open: they cost next to nothing, and the agents get in."""
    jobs = Jobs.on(request, "pdsh")
    held, go = jobs.shared / "held", jobs.shared / "go"
    environ = in_the_way(jobs, held=str(held), go=str(go))
    command = jobs.command(jobs.write("says.py", SAYS), "real")
    limited = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *command]
    process = jobs.login.popen(
        limited, cwd=str(jobs.shared), env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until("the launcher", held.exists, 30)
    addresses, port = held.read_text().split()
    (runner,) = children(process.pid)
    words = [sys.executable, "-c", STRANGERS, addresses.split(",")[0], port, "500", manner]
    crowd = [jobs.testbed["node4"].popen(words, stdout=subprocess.PIPE) for _ in range(4)]
    for strangers in crowd:
        read_lines(strangers, 1, "there")
    began, spent = time.monotonic(), cpu_seconds(runner)
    time.sleep(3)  # for so long they are watched
    share = (cpu_seconds(runner) - spent) / (time.monotonic() - began)
    go.touch()
    out, err = process.communicate(timeout=60)
    print(f"{manner}: {share:.1%} of a core, exit code {process.returncode}, {time.monotonic() - began - 3:.1f} s")
    assert process.returncode == 0, err
    assert out.count(b"real") == 6
    if manner == "patient":
        assert share < 0.2
