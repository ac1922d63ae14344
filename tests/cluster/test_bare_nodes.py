"""The agent's code on the way to nodes that are not as one would like them: their shells, files, limits and faults."""

from __future__ import annotations

import _ctypes
import _ssl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.cluster.basics import PATH, outermost, put, read, signal_all, wait_until
from tests.cluster.host import Host
from tests.cluster.jobs import Jobs
from tests.cluster.test_losses import command_of, engine_of
from tests.cluster.test_unfit import refused
from tests.conftest import read_lines
from tests.kit import needs

SHELLS = ("dash", "zsh", "fish", "tcsh")
START_UP = {
    ".zshenv": "echo welcome; printf 'no newline'; read line </dev/null",
    ".config/fish/config.fish": "echo welcome; echo -n 'no newline'",
    ".tcshrc": "echo welcome; echo -n 'no newline'",
    ".profile": "echo welcome",
}


@contextmanager
def shadowed(host: Host, path: str, by: str) -> Iterator[None]:
    """A host that sees another file at this path."""
    host.run(["mount", "--bind", by, path], root=True)
    try:
        yield
    finally:
        host.run(["umount", path], root=True)


@contextmanager
def login(host: Host, shell: str = "/bin/bash", folder: str = "") -> Iterator[None]:
    """A host on which the user's account has this login shell and this home."""
    user, own = host.testbed.user, []
    for line in read(f"{host.testbed.state}/etc/passwd").splitlines():
        fields = line.split(":")
        own.append(":".join([*fields[:5], folder or fields[5], shell]) if fields[0] == user else line)
    put(f"{host.dir}/passwd", "\n".join(own) + "\n")
    with shadowed(host, "/etc/passwd", f"{host.dir}/passwd"):
        yield


@pytest.mark.parametrize("backend", ["ssh", "pdsh", "mpich"])
def test_login_shells(jobs: Jobs, home: Path) -> None:
    """Another on each node, with start-up files that print."""
    shells = {f"node{number + 1}": needs.program(name, path=PATH) for number, name in enumerate(SHELLS)}
    for name, text in START_UP.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"{text}\n")
    with ExitStack() as stack:
        for name, shell in shells.items():
            stack.enter_context(login(jobs.testbed[name], shell))
        looks = jobs.look(hosts="node[1-4]:1")
    assert [look["host"] for look in looks] == list(shells)


def test_open_mpi_and_the_c_shell(request: pytest.FixtureRequest) -> None:
    """It writes for the shell of the command's machine, unless it is told to ask."""
    jobs = Jobs.on(request, "openmpi")
    shell = needs.program("tcsh", path=PATH)
    with login(jobs.testbed["node1"], shell), login(jobs.testbed["node2"], shell):
        found = refused(jobs, hosts="node[1-2]:1")
        option = found["node1"][-1].partition(": ")[2].replace("'", "")
        looks = jobs.look(option, hosts="node[1-2]:1")
    assert [look["host"] for look in looks] == ["node1", "node2"]


@pytest.mark.slow
def test_start_up_file_that_waits_for_input(jobs: Jobs, home: Path) -> None:
    """It would get what the command sends, but that sends nothing before the agent has greeted."""
    (home / ".bashrc").write_text('[ "$(hostname)" != node2 ] || { echo "go on?"; read answer; }\n')
    assert refused(jobs, hosts="node[1-2]:1")["node2"] == [
        "no answer within 30 s",
        "go on?",
        "does a start-up file of the shell there wait for input? try ssh node2 true",
    ]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to any group")
PLANTED = (
    f"others may have planted or can change the Python there: {sys.executable}\n",
    "if it is right, name it with --node_python",
)


@pytest.mark.parametrize(
    ("backend", "mode"), [("ssh", 0o777), ("pdsh", 0o777), pytest.param("ssh", 0o775, marks=needs_root)]
)
def test_a_planted_python_is_not_run(jobs: Jobs, mode: int) -> None:
    """At the path of the command's own, in a folder that others can write to; the one that is named is run."""
    there, planted = os.path.dirname(sys.executable), f"{jobs.testbed['node2'].dir}/bin"
    os.makedirs(planted, exist_ok=True)
    os.chmod(planted, mode)
    os.chown(planted, -1, 12345 if mode == 0o775 else -1)
    for name in os.listdir(there):
        if name.startswith("python"):
            put(
                f"{planted}/{name}",
                f'#!/bin/sh\necho >>{jobs.shared}/ran\nexec {os.path.realpath(sys.executable)} "$@"\n',
            )
            os.chmod(f"{planted}/{name}", 0o755)
    with shadowed(jobs.testbed["node2"], there, planted):
        checked = jobs.command(hosts="node[1-2]:1")
        checked[checked.index("run")] = "check"
        said = jobs.login.run(checked, cwd=str(jobs.shared), check=False)
        assert said.returncode and PLANTED[0] in said.stderr and PLANTED[1] in said.stderr, said.stderr
        assert not (jobs.shared / "ran").exists()
        jobs.look("--node_python", sys.executable, "--python", sys.executable, hosts="node[1-2]:1")
        assert (jobs.shared / "ran").exists()


TRAP = "import os\nopen({path!r}, 'a').write(os.environ.get('RANK', 'agent') + '\\n')\n"


@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_python_variables_of_the_node(jobs: Jobs, home: Path) -> None:
    """Ranks may obey them; an agent does not."""
    caught = jobs.shared / "caught"
    (jobs.shared / "traps").mkdir()
    for name in ("json", "struct", "socket", "marshal", "zlib", "sitecustomize"):
        (jobs.shared / f"traps/{name}.py").write_text(TRAP.format(path=str(caught)))
    variables = f"PYTHONPATH={jobs.shared}/traps PYTHONSTARTUP={jobs.shared}/traps/json.py PYTHONINSPECT=1"
    (home / ".bashrc").write_text(f"export {variables} PYTHONHOME=/nowhere PYTHONVERBOSE=1\n")
    command = jobs.command(hosts="node[1-2]:1")
    command[command.index("run")] = "check"
    checked = jobs.login.run(command, cwd=str(jobs.shared), check=False)
    assert checked.returncode == 0 and len(checked.stdout.splitlines()) == 2, checked.stderr
    assert not caught.exists()


@contextmanager
def mounted(host: Host, path: str, options: str) -> Iterator[None]:
    """A host with a file system of its own there."""
    host.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], root=True)
    try:
        yield
    finally:
        host.run(["umount", path], root=True)


@contextmanager
def remounted(host: Host, path: str, options: str, back: str) -> Iterator[None]:
    # with a source, so that mount does not add the options of now, which a user without root may not give
    host.run(["mount", "-o", f"remount,{options}", "none", path], root=True)
    try:
        yield
    finally:
        host.run(["mount", "-o", f"remount,{back}", "none", path], root=True)


@pytest.mark.parametrize("backend", ["ssh", "pdsh"])
def test_homes_and_temporary_folders(jobs: Jobs) -> None:
    hosts = jobs.testbed
    with ExitStack() as stack:
        stack.enter_context(mounted(hosts["node1"], hosts.home, "ro"))
        stack.enter_context(login(hosts["node2"], folder="/nowhere"))
        stack.enter_context(remounted(hosts["node3"], "/tmp", "noexec", "exec"))
        stack.enter_context(remounted(hosts["node4"], "/tmp", "ro", "rw"))
        looks = jobs.look(hosts="node[1-4]:1")
    assert [look["host"] for look in looks] == ["node1", "node2", "node3", "node4"]


@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_python_without_its_extensions(jobs: Jobs) -> None:
    """Without ssl the channel is not encrypted (ssh does that); without ctypes no agent can run."""
    with ExitStack() as stack:
        for name, module in (("node1", _ssl), ("node2", _ctypes)):
            assert module.__file__ is not None
            stack.enter_context(shadowed(jobs.testbed[name], module.__file__, "/dev/null"))
        found = refused(jobs, hosts="node[1-2]:1")
    assert list(found) == ["node2"]
    assert found["node2"][0].endswith("is not complete: No module named '_ctypes'")
    assert found["node2"][1:] == ["name another with --node_python"]


@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_nothing_is_left_on_the_disk(jobs: Jobs, home: Path) -> None:
    find = f"find /tmp /run /dev/shm -xdev ! -path '/run/user*' ! -name '*.log'; find {home}"
    before = jobs.testbed["node1"].run(find).stdout
    jobs.look(hosts="node[1-2]:1", env={"XDG_CACHE_HOME": str(jobs.shared)})  # of the command, in the shared home
    assert jobs.testbed["node1"].run(find).stdout == before


# -- faults while the code is being sent -----------------------------------------------------------

MOMENTS = int(os.environ.get("BIREME_TEST_MOMENTS", "4"))
HEARTBEAT = 2.0
VICTIMS = ("command", "launcher", "agent")


def strike(jobs: Jobs, victim: str, process: subprocess.Popen[bytes]) -> None:
    """Do it now; where the victim is not there yet, as soon as it is. One that has ended already is let go."""
    node = jobs.testbed["node2"]

    def agents() -> list[int]:
        there = [pid for pid, argv in node.ps().items() if "bireme.agent" in argv.argv and "-I" in argv.argv]
        return there or [0] * (process.poll() is not None)

    if victim == "cable":
        wait_until("the agent", agents, 30, 0.002)
        node.cut()
    elif victim == "command":
        os.kill(command_of(process), signal.SIGKILL)
    elif victim == "launcher":
        found = wait_until("the launcher", lambda: engine_of(jobs) or process.poll() is not None, 30, 0.002)
        signal_all([found] if found is not True else [], signal.SIGKILL)
    else:
        signal_all(outermost(wait_until("the agent", agents, 30, 0.002)), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ssh", "mpich"])
def test_anything_dies_while_the_code_is_sent(jobs: Jobs) -> None:
    """At random moments between the start of the command and the first rank."""
    jobs.shared.joinpath("wait.py").write_text("print('ready', flush=True)\nimport time\ntime.sleep(600)\n")
    options = ("--heartbeat", HEARTBEAT, "--grace", "0.5", "wait.py")
    random = Random(7)
    for _ in "cold", "warm":
        begin = time.monotonic()
        process = jobs.start(*options, hosts="node[1-2]:1")
        read_lines(process, 1, "ready")
        whole = time.monotonic() - begin
        strike(jobs, "command", process)
        process.communicate(timeout=60)
    for number in range(MOMENTS):
        victim = "cable" if number % 10 == 3 else VICTIMS[number % 3]
        moment = random.uniform(0, whole)
        process = jobs.start(*options, hosts="node[1-2]:1")
        time.sleep(moment)
        strike(jobs, victim, process)
        out, err = (text.decode(errors="replace") for text in process.communicate(timeout=90))
        case = f"{number}: {victim} after {moment:.3f} of {whole:.3f} s: {process.returncode}: {out} {err}"
        print(f"{time.monotonic() - begin:7.1f} s", case, flush=True)
        assert process.returncode == (-signal.SIGKILL) if victim == "command" else process.returncode in (69, 75), case
        assert victim == "command" or re.search(r"bireme: .*(node[12]|the launcher)", err), case
        assert "Traceback" not in err and len(err.splitlines()) < 14, case
        if victim == "cable":
            wait_until("the node to get rid of it", lambda: not jobs.testbed["node2"].agents(), 30)
            jobs.testbed["node2"].heal()
        left = jobs.testbed.strays(30)
        assert not left, f"{case}\nleft: {left}"
