"""Conduct of a job on many nodes: signals, Ctrl+Z, stdin, folded output, time limit, check, unknown connections."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.basics import children, read, wait_until
from tests.cluster.jobs import LOOK, Jobs, backends, rows
from tests.conftest import bireme, read_lines

# -- signals ---------------------------------------------------------------------------------------

HEARS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"heard USR1\\n"))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
print("ready", flush=True)
while True:
    time.sleep(0.05)  # not longer: a signal that comes just before a sleep begins is heard after it
"""


@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_signals_for_the_ranks(jobs: Jobs) -> None:
    """They reach every rank on every node, and nobody else."""
    process = jobs.start(jobs.write("hears.py", HEARS))
    read_lines(process, 6, "ready")
    jobs.login.kill(process, signal.SIGUSR1)
    read_lines(process, 6, "heard USR1")
    jobs.login.kill(process, signal.SIGUSR2)
    jobs.end(process)


TICKS = """
import os, time
print("ready", flush=True)
while not os.path.exists("end"):
    time.sleep(0.01)
"""


def halted(pid: int) -> bool:
    return "T (stopped)" in read(f"/proc/{pid}/status")


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_suspended_and_woken(jobs: Jobs) -> None:
    """Ctrl+Z halts the ranks on all nodes; that is no silence, however long it takes; ``fg`` wakes them."""
    heartbeat = 3.0
    process = jobs.start("--heartbeat", heartbeat, jobs.write("ticks.py", TICKS))
    read_lines(process, 6, "ready")

    def states() -> str:
        ranks = [
            found for node in jobs.testbed.nodes for found in node.ps().values() if str(jobs.shared) in str(found.argv)
        ]
        return "".join(sorted({found.state for found in ranks if "-u" in found.argv}))

    wait_until("the ranks to run", lambda: states() in ("R", "RS", "S"), 30)
    (runner,) = children(process.pid)
    jobs.login.kill(process, signal.SIGTSTP)
    wait_until("the ranks to halt", lambda: states() == "T", 30)
    for pid in (runner, process.pid):  # nsenter halts with its child
        wait_until("the command to halt", partial(halted, pid), 30)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2 * heartbeat)  # this time itself is what is tested
    assert states() == "T"
    os.kill(process.pid, signal.SIGCONT)  # and wakes it
    wait_until("the ranks to go on", lambda: states() in ("R", "RS", "S"), 30)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5 * heartbeat)
    (jobs.shared / "end").touch()
    jobs.end(process)


@pytest.mark.slow
def test_stopped_while_suspended(request: pytest.FixtureRequest) -> None:
    jobs = Jobs.on(request, "mpich")
    process = jobs.start("--grace", "5", jobs.write("ticks.py", TICKS))
    read_lines(process, 6, "ready")
    (runner,) = children(process.pid)
    jobs.login.kill(process, signal.SIGTSTP)
    for pid in (runner, process.pid):  # nsenter halts with its child
        wait_until("the command to halt", partial(halted, pid), 30)
    jobs.login.kill(process, signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    jobs.end(process, 143)
    jobs.testbed.leaves_nothing()


def test_time_limit(jobs: Jobs) -> None:
    done = jobs.run("--time_limit", "1", jobs.write("ticks.py", TICKS))  # at whatever moment that is
    assert done.returncode == 124 and "the time limit of 1 s" in done.stderr, done.stderr


# -- stdin and stdout ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backends())
def test_stdin_is_left_alone(jobs: Jobs) -> None:
    """What follows in a script, or in a loop that reads, is not eaten by ssh and its kin."""
    program = jobs.write("reads.py", "import sys; print('rank read', repr(sys.stdin.read()))")
    words = ["sh", "-c", '"$@"; cat', "sh", *jobs.command(program, hosts="node[1-2]:1")]
    done = jobs.login.run(words, cwd=str(jobs.shared), input="the rest\n")
    assert done.stdout.count("rank read ''") == 2, done.stderr
    assert done.stdout.endswith("\nthe rest\n")


# All ranks write the same at the same time, again and again: what is written far apart is not folded.
ALIKE = """
import os, time
open(f"here{os.environ['RANK']}", "w").close()
while sum(name.startswith("here") for name in os.listdir(".")) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.005)
for number in range(100):
    print("the same", number, flush=True)
    time.sleep(0.01)
print("rank", os.environ["RANK"])
"""


def test_folded(jobs: Jobs) -> None:
    """Lines that ranks of several nodes write alike are shown once."""
    done = jobs.run("-q", "--fold", jobs.write("alike.py", ALIKE), code=0)
    lines = done.stdout.splitlines()
    shown = [match for line in lines if (match := re.fullmatch(r"\[([*\w]+):([\d,-]+)\] (.*)", line))]
    assert len(shown) == len(lines), lines
    alike = [numbers(match[2]) for match in shown if match[3].startswith("the same")]
    assert any({rank // 2 for rank in ranks} == {0, 1, 2} for ranks in alike), "of all three nodes"
    for number in range(100):
        ranks = [rank for match in shown if match[3] == f"the same {number}" for rank in numbers(match[2])]
        assert sorted(ranks) == list(range(6))
    assert {match[2] for match in shown if match[3].startswith("rank")} == set("012345")


def numbers(text: str) -> list[int]:
    """``0-2,5`` → 0, 1, 2, 5."""
    edges = [part.split("-") for part in text.split(",")]
    return [number for edge in edges for number in range(int(edge[0]), int(edge[-1]) + 1)]


@pytest.mark.parametrize(("mode", "ranks"), [("rank0", ["0"]), ("none", []), ("raw", ["0", "1"])])
def test_output_modes(jobs: Jobs, mode: str, ranks: list[str]) -> None:
    done = jobs.run("-q", "--output", mode, "--no_python", "sh", "-c", "echo $RANK", hosts="node[1-2]:1", code=0)
    assert sorted(done.stdout.split()) == ranks


# -- the preflight alone, and passed over ----------------------------------------------------------


def check(jobs: Jobs, *words: object) -> subprocess.CompletedProcess[str]:
    command = bireme("check", "--launcher", jobs.backend, *map(str, words))
    return jobs.login.run(command, cwd=str(jobs.shared), check=False)


@pytest.mark.parametrize("backend", backends())
def test_check(jobs: Jobs) -> None:
    done = check(jobs, "--hosts", "node[1-2]:2", jobs.write("up.py", "open('up', 'w')"))
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["node1", "node2"]
    assert not (jobs.shared / "up").exists()


@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_check_of_what_is_missing(jobs: Jobs) -> None:
    done = check(jobs, "--hosts", "node[1-2]:2", "missing.py")
    assert done.returncode == 1
    assert "2 of 2 nodes" in done.stderr and done.stderr.count("missing.py") == 2


def test_check_of_an_unreachable_host(jobs: Jobs) -> None:
    jobs.testbed["node2"].kill_sshd()
    done = check(jobs, "--hosts", "node1:2,node2:2,nowhere:2")
    assert done.returncode == 1
    assert "2 of 3 nodes" in done.stderr
    assert "Connection refused" in done.stderr and "Could not resolve" in done.stderr


def test_preflight_is_passed_over(jobs: Jobs) -> None:
    """``--no_ssh_check``: what the agents find wrong is a warning; what then fails is the job's failure."""
    private = "/tmp/private"
    for name in ("login", "node1"):
        jobs.testbed[name].run(f'mkdir {private} && echo \'open("/tmp/private/up", "w")\' > {private}/up.py')
    try:
        done = jobs.run("--no_ssh_check", "--grace", "5", f"{private}/up.py", hosts="node1:1,node2:1")
        assert done.returncode == 2, done.stderr  # Python's own, for a script that it cannot open
        assert "node2" in done.stderr and "rank 1 on node2" in done.stderr
        done = jobs.run("--no_ssh_check", f"{private}/up.py", hosts="node1:1,nowhere:1", code=69)
    finally:
        for name in ("login", "node1"):
            jobs.testbed[name].run(["rm", "-r", private])


# -- ways to the nodes -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backends("ssh", "pdsh", "openmpi", "mpich"))
def test_port_of_all_sshds(jobs: Jobs) -> None:
    for node in jobs.testbed.nodes[:2]:
        node.kill_sshd()
        node.start_sshd("-o", "Port=2222")
    looks = jobs.look("--ssh_port", "2222", hosts="node[1-2]:1")
    assert [found["host"] for found in looks] == ["node1", "node2"]


@pytest.mark.parametrize("backend", backends("ssh", "pdsh", "mpich"))  # Open MPI itself cuts names at the first dot
def test_hosts_under_other_names(jobs: Jobs) -> None:
    """Names that no host gives itself; also where all begin alike, or are another host's with something more."""
    etc = Path(jobs.testbed.state, "etc/hosts")
    before = etc.read_text()
    aliases = {"node1": "node3.ib", "node2": "node2-ib.cluster", "node3": "node"}
    etc.write_text(before + "".join(f"{jobs.testbed[host].ip} {alias}\n" for host, alias in aliases.items()))
    try:
        hosts = ",".join(f"{alias}:1" for alias in aliases.values())
        looks = jobs.look(hosts=hosts)
    finally:
        etc.write_text(before)
    assert [found["host"] for found in looks] == ["node1", "node2", "node3"]
    assert looks[0]["environ"]["MASTER_ADDR"] == jobs.testbed["node1"].ip


def test_activation_script(jobs: Jobs) -> None:
    """Sourced on every node: its python runs the ranks, in what it has set."""
    tools = jobs.shared / "tools"
    tools.mkdir()
    (tools / "python").symlink_to(getattr(sys, "_base_executable", sys.executable))
    script = jobs.write("activate", f'export PATH={tools}:$PATH\nexport SET_BY="$(hostname)"\necho noise\n')
    looks = jobs.look("--venv_script", script)
    for found in looks:
        assert found["argv"][0] == str(tools / "python")
        assert found["environ"]["SET_BY"] == found["host"]


def test_wrapped(jobs: Jobs) -> None:
    options = ("--wrap", "env WHERE={host}:{rank}:{local_rank}", "--wrap_ranks", "1,4")
    looks = jobs.look(*options)
    assert [found["environ"].get("WHERE") for found in looks] == [None, "node1:1:1", None, None, "node3:4:0", None]


@pytest.mark.parametrize("backend", backends("ssh", "slurm"))
def test_cores_for_each_rank(jobs: Jobs) -> None:
    """Bound on every node as on one."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: nothing to share out")
    looks = jobs.look("--bind_core_list", "0,1", hosts="node[1-2]:2")
    assert [found["affinity"] for found in looks] == [[0], [1], [0], [1]]
    assert {found["environ"]["OMP_NUM_THREADS"] for found in looks} == {"1"}


def test_module_in_the_working_directory(jobs: Jobs) -> None:
    (jobs.shared / "package").mkdir()
    jobs.write("package/__init__.py", "")
    jobs.write("package/look.py", LOOK)
    done = jobs.run("--module", "package.look", code=0)
    assert [row[0] for row in rows(jobs.looked(done))] == ["node1", "node1", "node2", "node2", "node3", "node3"]


# -- uninvited guests ------------------------------------------------------------------------------

GUESTS = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    b"bireme-dial 2 abc\n",
    b"bireme-dial 2 " + b"0" * 32 + b" e30=\n",
    b"bireme-dial 2 " + b"0" * 32 + b" e30=\n" + b"0" * 64 + b"\n",
    b"bireme-dial 2 " + b"0" * 32 + b" e30=\n\xff\xfe\n",
    b"bireme-dial 2 " + b"0" * 32 + b" e30= " + b"0" * 64 + b"\n",
    b"\n\x01bireme-channel 1\x01\n",
    b"x" * 100_000,
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("pdsh", "slurm"))
def test_guests_at_the_door(jobs: Jobs) -> None:
    """Who dials and cannot prove himself is sent away, or waits; the job does not notice."""
    code = f"""
import socket, sys, time
kept = []
for words in {GUESTS!r} * 3:
    sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
    kept.append(sock)
    try:
        sock.sendall(words)
    except OSError:
        pass
print("there", flush=True)
time.sleep(1000)
"""
    wait = jobs.write("wait.sh", f"while [ ! -e {jobs.shared}/go ]; do sleep 0.05; done\n")
    process = jobs.start("--venv_script", wait, jobs.write("look.py", LOOK))

    def door() -> tuple[str, str] | None:
        argvs = (" ".join(argv) for argv in jobs.login.strays().values())
        dialled = (re.search(r"--dial (\S+) (\d+) \w+", argv) for argv in argvs)
        return next(((match[1].split(",")[0], match[2]) for match in dialled if match), None)

    place = wait_until("the door", door, 30, every=0.005)
    guests = jobs.testbed["node4"].popen([sys.executable, "-c", code, *place], stdout=subprocess.PIPE)
    assert guests.stdout and guests.stdout.readline() == b"there\n"
    jobs.write("go", "")
    jobs.end(process)
    assert [found["host"] for found in jobs.looked(subprocess.CompletedProcess((), 0))][::2] == [
        "node1",
        "node2",
        "node3",
    ]


def test_the_door_is_closed_once_all_are_in(request: pytest.FixtureRequest) -> None:
    """While the ranks run nobody can dial any more."""
    jobs = Jobs.on(request, "pdsh")
    process = jobs.start(jobs.write("ticks.py", TICKS))
    read_lines(process, 6, "ready")
    (argv,) = {" ".join(argv) for argv in jobs.testbed["node1"].strays().values() if "--dial" in argv}
    match = re.search(r"--dial (\S+) (\d+) \w+", argv)
    assert match
    code = f"import socket; socket.create_connection(({match[1].split(',')[0]!r}, {match[2]}), timeout=60)"
    done = jobs.testbed["node4"].run([sys.executable, "-c", code], check=False)
    assert done.returncode and "refused" in done.stderr
    (jobs.shared / "end").touch()
    jobs.end(process)
