"""Hosts that cannot run their part, and wrong hostfiles: all problems are reported at once, before any rank starts."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bireme
from tests.cluster.host import Host
from tests.cluster.jobs import Jobs, backends, rows, table, without_ssh
from tests.cluster.testbed import Testbed
from tests.kit import needs
from tests.unit.agent.test_sent_agent import PYTHONS

STARTED = "import os\nopen(f'started-{os.environ[\"RANK\"]}', 'w').close()\n"
CONNECT = 10.0  # seconds that ssh may take to connect
SLACK = 30.0  # of a busy machine; without that bound TCP tries for two minutes


def refused(jobs: Jobs, *options: object, within: float = 90.0, **kwargs: object) -> dict[str, list[str]]:
    """Run a job that must be refused; what its one table says, by host."""
    begin = time.monotonic()
    done = jobs.run(*options, jobs.write("started.py", STARTED), **kwargs)  # type: ignore[arg-type]
    seconds = time.monotonic() - begin
    assert done.returncode == 69, done.stderr
    assert not list(jobs.shared.glob("started-*")), "a rank was started"
    assert seconds < within, f"{seconds:.1f} s"
    return table_of(done.stderr)


def table_of(err: str) -> dict[str, list[str]]:
    """What stands in the table of bad nodes, by host."""
    lines = [line.removeprefix("bireme: ") for line in err.splitlines() if line.startswith("bireme: ")]
    (head,) = [place for place, line in enumerate(lines) if "cannot run the job" in line]
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines[head + 1 :]:
        assert line.startswith("  "), f"not of the table: {line!r}"
        if line[2] != " ":
            name = line.split()[0]
            assert name not in found, f"{name} stands there twice"
        found.setdefault(name, []).append(line.strip().removeprefix(name).strip())
    number = int(lines[head].split()[0])
    assert number == len(found), lines
    return found


# -- the hostfile ----------------------------------------------------------------------------------


def test_bad_hostfile(jobs: Jobs) -> None:
    """Nothing is reached. What else may be wrong in one: `tests/unit/resources/test_hostfile.py`."""
    path = jobs.write("nodes", "# a comment\n\n-oProxyCommand=id slots=2\n")
    done = jobs.run("--hostfile", path, jobs.write("started.py", STARTED), hosts="", env=without_ssh(jobs), code=2)
    assert done.stderr.startswith(f"bireme: {path}:3: ") and len(done.stderr.splitlines()) <= 2, done.stderr
    assert not (jobs.shared / "ssh-was-run").exists() and not list(jobs.shared.glob("started-*"))


def test_default_hostfile_may_be_missing(ssh_cluster: Testbed, shared_dir: Path) -> None:
    looks = Jobs(ssh_cluster, "auto", shared_dir).look("--num_gpus", "2", hosts="")
    assert [found["host"] for found in looks] == ["login", "login"]


def test_hostfile_with_all_that_is_allowed(jobs: Jobs) -> None:
    text = f"\ufeff# nodes\r\n\r\n  node3   slots=1  # last\r\n{jobs.testbed.user}@node[1-2] slots=2\r\n"
    (jobs.shared / "nodes").write_bytes(text.encode())
    looks = jobs.look("--hostfile", jobs.shared / "nodes", hosts="")
    assert [row[:4] for row in rows(looks)] == table(
        """
        node3 0 0 0
        node1 1 0 1
        node1 2 1 1
        node2 3 0 2
        node2 4 1 2
        """
    )


# -- reaching the hosts ----------------------------------------------------------------------------


def ssh_config(home: Path, text: str) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/config").write_text(text)
    (home / ".ssh/config").chmod(0o600)


def test_every_bad_host_with_the_words_of_ssh(jobs: Jobs, home: Path) -> None:
    """Refused, unknown, not let in, of unknown key: all in one table, without the host that is well."""
    jobs.testbed["node2"].kill_sshd()
    ssh_config(home, "Host node4\n  GlobalKnownHostsFile /dev/null\n")
    hosts = "node1 slots=1\nnode2 slots=1\nnowhere slots=1\nnobody@node3 slots=1\nnode4 slots=1\n"
    found = refused(jobs, hosts=hosts)
    assert list(found) == ["node2", "nowhere", "node3", "node4"]
    words = {name: " ".join(lines) for name, lines in found.items()}
    assert "Connection refused" in words["node2"]
    assert "Could not resolve hostname nowhere" in words["nowhere"]
    assert "Permission denied (publickey)" in words["node3"]
    assert "Host key verification failed" in words["node4"]


def test_the_cause_comes_before_the_long_text_of_orte(ssh_cluster: Testbed, shared_dir: Path, home: Path) -> None:
    ssh_config(home, "Host node2\n  GlobalKnownHostsFile /dev/null\n")
    found = refused(Jobs(ssh_cluster, "openmpi", shared_dir))
    assert all("Host key verification failed" in lines[0] for lines in found.values()), found


def test_a_wrapper_that_the_nodes_lack(jobs: Jobs) -> None:
    """It is found by the preflight, also if it is one of this machine only."""
    found = refused(jobs, "--wrap", "no-such-program -x")
    assert {tuple(lines) for lines in found.values()} == {("--wrap: no such program: no-such-program",)}


def test_host_key_has_changed(jobs: Jobs, home: Path) -> None:
    key = Path(jobs.testbed.state, "keys/user.pub").read_text()
    (home / "known").write_text(f"node2 {key}")
    ssh_config(home, f"Host node2\n  GlobalKnownHostsFile {home}/known\n")
    found = refused(jobs)
    assert list(found) == ["node2"]
    assert "Host key verification failed" in " ".join(found["node2"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["blackhole", "cut", "freeze"])
def test_host_that_does_not_answer(jobs: Jobs, fault: str) -> None:
    """The others are reported all the same, and at the bound of one."""
    getattr(jobs.testbed["node2"], fault)()
    getattr(jobs.testbed["node3"], fault)()
    # those that wait meanwhile must not miss our heartbeat
    found = refused(jobs, "--heartbeat", 5, hosts="node[1-4]:1,nowhere:1", within=CONNECT + SLACK)
    assert list(found) == ["node2", "node3", "nowhere"]
    for name in ("node2", "node3"):
        assert re.search("timed out|No route to host|Host is unreachable", " ".join(found[name])), found[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        ("pdsh", "refused"),
        ("pdsh", "black hole"),
        ("openmpi", "refused"),
        ("openmpi", "unknown"),
        ("mpich", "black hole"),
    ],
)
def test_bad_host_under_an_engine(jobs: Jobs, fault: str) -> None:
    """An engine may say it in its own way, but ssh's words are among its own, and the good hosts are let go."""
    if fault == "refused":
        jobs.testbed["node2"].kill_sshd()
    elif fault == "black hole":
        jobs.testbed["node2"].blackhole()
    bad = "nowhere" if fault == "unknown" else "node2"
    found = refused(jobs, hosts=f"node1:1,{bad}:1,node3:1", within=CONNECT + SLACK)
    assert bad in found
    expected = {"refused": "Connection refused", "unknown": "resolve", "black hole": "timed out|No route"}[fault]
    assert re.search(expected, " ".join(found[bad]))


# -- start-up files --------------------------------------------------------------------------------

NOISE = {
    "a line": "echo welcome to $(hostname)",
    "no newline": "printf welcome",
    "much": "seq 30000",
    "stderr": "echo warning >&2",
    "bytes": r"printf '\377\000\001O\000\000\000\001'",
    "almost a greeting": r"printf '\n\001bireme-channe'; printf '\n\001bireme'",
}


def rc_file(home: Path, text: str) -> None:
    (home / ".bashrc").write_text(f"{text}\n")


@pytest.mark.parametrize("noise", NOISE)
def test_start_up_files_that_print(jobs: Jobs, home: Path, noise: str) -> None:
    rc_file(home, NOISE[noise])
    out = jobs.testbed["login"].run(["ssh", "node1", "true"], errors="replace")
    assert out.stdout or out.stderr, "else this test does nothing"
    looks = jobs.look(hosts="node[1-2]:1")
    assert [found["host"] for found in looks] == ["node1", "node2"]
    assert "welcome" not in looks.done.stdout


@pytest.mark.parametrize("backend", ["pdsh", "openmpi", "mpich"])
def test_start_up_files_that_print_under_an_engine(jobs: Jobs, home: Path) -> None:
    rc_file(home, "echo a line; printf 'no newline'")
    looks = jobs.look(hosts="node[1-2]:1")
    assert [found["host"] for found in looks] == ["node1", "node2"]


def test_start_up_file_that_ends_the_session(jobs: Jobs, home: Path) -> None:
    rc_file(home, '[ "$(hostname)" = node2 ] && { echo not for you; exit 5; } ; true')
    found = refused(jobs)
    assert list(found) == ["node2"]
    assert "not for you" in " ".join(found["node2"])


# -- what is missing over there --------------------------------------------------------------------

OWN = "/tmp/own"


class OwnPython:
    """A Python at a path that each host has for itself."""

    def __init__(self, hosts: dict[str, Host]) -> None:
        self.hosts = hosts
        self.path = f"{OWN}/bin/python"

    def make(self, host: str) -> None:
        """On one host; it finds Bireme where that is."""
        base = Path(getattr(sys, "_base_executable", sys.executable))
        library = f"{OWN}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        source = shlex.quote(str(Path(bireme.__file__).parents[1]))
        script = (
            f"mkdir -p {OWN}/bin {library} && ln -s {base} {self.path} && "
            f"echo home = {base.parent} > {OWN}/pyvenv.cfg && echo {source} > {library}/its.pth"
        )
        self.hosts[host].run(script)

    def clear(self) -> None:
        for host in self.hosts.values():
            host.run(["rm", "-rf", OWN])


@pytest.fixture
def own_python(request: pytest.FixtureRequest) -> Iterator[Callable[[Testbed], OwnPython]]:
    made: list[OwnPython] = []

    def make(testbed: Testbed) -> OwnPython:
        made.append(OwnPython(testbed.hosts))
        return made[-1]

    yield make
    for own in made:
        own.clear()


def with_python(jobs: Jobs, python: str, hosts: str = "node1:2,node2:2,node3:2") -> subprocess.CompletedProcess[str]:
    command = [python, *jobs.command(jobs.write("started.py", STARTED), hosts=hosts)[1:]]
    process = jobs.login.popen(command, cwd=str(jobs.shared), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends())
def test_python_is_missing_on_one_node(jobs: Jobs, backend: str, own_python: Callable[[Testbed], OwnPython]) -> None:
    own = own_python(jobs.testbed)
    for host in ("login", "node1", "node3"):
        own.make(host)
    begin = time.monotonic()
    done = with_python(jobs, own.path)
    assert done.returncode == 69, done.stderr
    assert not list(jobs.shared.glob("started-*"))
    assert time.monotonic() - begin < CONNECT + SLACK
    found = table_of(done.stderr)
    assert "node2" in found
    assert re.search("[Nn]o such file|not found|could not access", " ".join(found["node2"])), found
    if backend == "ssh":
        assert list(found) == ["node2"]
        assert found["node2"][0] == f"the Python of the command: not found: {own.path}"
    if backend == "ssh":  # with it there, the same job runs
        own.make("node2")
        done = with_python(jobs, own.path)
        assert done.returncode == 0, done.stderr
        assert len(list(jobs.shared.glob("started-*"))) == 6


TOO_OLD = """\
#!/bin/sh
# A stand-in for an old Python, as far as an agent's command line shows it: -I -S -B -c CODE STUB WORDS...
exec {python} -c "import sys
sys.version_info, sys.version, sys.executable = (3, 6, 8), '3.6.8 (default)', '$0'
code, sys.argv[1:] = sys.argv[5], sys.argv[6:]
exec(code)" "$@"
"""


PYTHON_2 = """\
#!/bin/sh
echo "Unknown option: $1
usage: $0 [option] ... [-c cmd | -m mod | file | -] [arg] ...
Try \\`python -h' for more information." >&2
exit 2
"""


def other_python(jobs: Jobs, host: str, program: str) -> str:
    """Put a program at a path that each host has for itself."""
    jobs.testbed[host].run(f"mkdir -p {OWN}; cat >{OWN}/python; chmod +x {OWN}/python", input=program)
    return f"{OWN}/python"


@pytest.mark.parametrize("backend", backends("ssh", "mpich"))
def test_a_python_that_cannot_run_an_agent(
    jobs: Jobs, backend: str, own_python: Callable[[Testbed], OwnPython]
) -> None:
    """The ranks' Python is the same everywhere."""
    own_python(jobs.testbed)  # takes the directories away
    other_python(jobs, "node1", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    path = other_python(jobs, "node2", TOO_OLD.format(python=shlex.quote(sys.executable)))
    other_python(jobs, "node4", PYTHON_2)
    hosts = "node[1-4]:2" if backend == "ssh" else "node[1-3]:2"  # of mpirun, all that was printed is shown for all
    done = jobs.run("--node_python", path, jobs.write("started.py", STARTED), hosts=hosts, code=69)
    assert not list(jobs.shared.glob("started-*"))
    found = table_of(done.stderr)
    assert {"node2", "node3"} <= set(found)
    if backend == "ssh":
        assert list(found) == ["node2", "node3", "node4"]
        assert found["node4"][0] == "Unknown option: -I" and found["node4"][1].startswith(f"usage: {path} ")
        assert found["node4"][-1].startswith("that is Python 2, or older than 3.4")
        assert re.search("No such file|not found", found["node3"][0])  # as the node's sh has it
        assert found["node3"][1].endswith("with --node_python")
        assert found["node2"] == [
            f"Python 3.10 or later is needed; {path} is 3.6.8",
            "name another with --node_python",
        ]


@pytest.mark.parametrize("backend", backends("ssh", "mpich"))
def test_another_python_on_each_node(jobs: Jobs, own_python: Callable[[Testbed], OwnPython]) -> None:
    """One job with agents of all versions that are here."""
    own_python(jobs.testbed)
    if not PYTHONS:
        needs.missing("no other Python from 3.10 on is installed")
    names = ("node1", "node2", "node3", "node4", "login")[: 1 + len(PYTHONS)]
    assert len(names) == 1 + len(PYTHONS), "more versions than hosts"
    for name, python in zip(names, (sys.executable, *PYTHONS.values()), strict=True):
        path = other_python(jobs, name, f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
    hosts = ",".join(f"{name}:1" for name in names)
    jobs.run("--node_python", path, jobs.write("started.py", STARTED), hosts=hosts, code=0)
    assert len(list(jobs.shared.glob("started-*"))) == len(names)


def only_on(jobs: Jobs, *hosts: str, script: bool) -> str:
    """A working directory that each of these hosts has for itself, with the script in it or not."""
    for name in hosts:
        words = f"mkdir -p {OWN} && cd {OWN}" + (f" && cp {jobs.shared}/started.py ." if script else "")
        jobs.testbed[name].run(words)
    return OWN


@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))  # which have ways of their own to get there
def test_working_directory_is_missing(jobs: Jobs, own_python: Callable[[Testbed], OwnPython]) -> None:
    own_python(jobs.testbed)  # takes the directories away
    jobs.write("started.py", STARTED)
    cwd = only_on(jobs, "login", "node2", script=True)
    done = jobs.run(jobs.shared / "started.py", cwd=cwd, code=69)
    found = table_of(done.stderr)
    assert list(found) == ["node1", "node3"], found
    for lines in found.values():
        assert all(word in " ".join(lines) for word in (cwd, "No such file", "bireme run --ship"))
    assert not any(jobs.testbed[name].run(f"ls {cwd}/started-* 2>/dev/null; :").stdout for name in ("login", "node2"))


@pytest.mark.parametrize("backend", backends("ssh", "mpich"))
def test_script_is_missing_on_one_node(jobs: Jobs, own_python: Callable[[Testbed], OwnPython]) -> None:
    own_python(jobs.testbed)
    jobs.write("started.py", STARTED)
    only_on(jobs, "login", "node1", "node3", script=True)
    cwd = only_on(jobs, "node2", script=False)
    done = jobs.run("started.py", cwd=cwd, code=69)
    found = table_of(done.stderr)
    assert list(found) == ["node2"]
    assert "started.py" in found["node2"][0] and "--ship" in found["node2"][1]
    for name in ("login", "node1", "node3"):
        assert not jobs.testbed[name].run(f"ls {cwd}/started-* 2>/dev/null; :").stdout


@pytest.mark.parametrize("backend", backends())
def test_launcher_that_is_not_installed(jobs: Jobs, backend: str) -> None:
    tools = jobs.shared / "bin"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")  # which starts the command here
    done = jobs.run(jobs.write("started.py", STARTED), env={"PATH": str(tools)}, code=2)
    assert f"{backend!r} is not installed" in done.stderr
