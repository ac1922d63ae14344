"""``--ship``: code that only the login host has runs on the nodes, in a copy that is complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.basics import signal_all, wait_until
from tests.cluster.host import Host
from tests.cluster.jobs import Jobs, backends
from tests.conftest import PROGRAMS, bireme, read_lines

MOMENTS = int(os.environ.get("BIREME_TEST_MOMENTS", "3"))  # of the three faults together
CACHE = "/tmp/cache"  # of each host alone, as its whole /tmp
PROJECT = "/tmp/project"
LOOK = """
import json, os, sys
sys.path.insert(0, ".")
import settings.here
found = {"cwd": os.getcwd(), "argv": sys.argv, "value": settings.here.VALUE, "data": open("../data.txt").read(),
         "files": sorted(os.path.join(at, name) for at, _, names in os.walk("..") for name in names if name[-1] != "c")}
if {"spoil", "keep"} & {*sys.argv}:
    open("../more.txt", "w").write("kept")
if "spoil" in sys.argv:
    open("../data.txt", "a").write("spoilt")
print("found", json.dumps(found), flush=True)
"""


def seen_by(host: Host, path: str) -> Path:
    """A path of a host as a path of ours."""
    return Path(f"/proc/{host.pid}/root{path}")


class Project:
    """A project on login, in a folder that no other host has."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.login = jobs.login
        self.login.run(["git", "init", "-q", PROJECT])
        self.write("sub/look.py", LOOK)
        self.write("sub/settings/here.py", "VALUE = 1")
        self.write("data.txt", "some data")
        self.write(".gitignore", "*.tmp\n")
        self.write("sub/ignored.tmp", "not sent")
        self.write("tool", "#!/bin/sh\nreadlink link\n")
        self.login.run(["sh", "-c", "chmod 755 tool && ln -s data.txt link && git add data.txt"], cwd=PROJECT)

    def write(self, name: str, text: str | bytes) -> None:
        path = seen_by(self.login, f"{PROJECT}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def command(self, *words: str, hosts: str = "node[1-2]:1") -> list[str]:
        where = ("--export", f"XDG_CACHE_HOME={CACHE}", "--log_level", "debug", "--accelerator", "cpu")
        return self.jobs.command("--ship", *where, *words, hosts=hosts)

    def start(self, *words: str, hosts: str = "node[1-2]:1", cwd: str = f"{PROJECT}/sub") -> subprocess.Popen[bytes]:
        pipe, env = subprocess.PIPE, {"XDG_CACHE_HOME": CACHE}
        return self.login.popen(self.command(*words, hosts=hosts), cwd=cwd, env=env, stdout=pipe, stderr=pipe)

    def run(self, *words: str, **kwargs: str) -> tuple[list[dict[str, object]], str]:
        """What the ranks found, and what the command said."""
        process = self.start(*words, **kwargs)
        out, err = (data.decode() for data in process.communicate(timeout=60))
        assert process.returncode == 0, err
        return [json.loads(line.partition("found ")[2]) for line in out.splitlines() if "found " in line], err


def copies(host: Host) -> list[Path]:
    """The trees of jobs, and those in the making."""
    return sorted(seen_by(host, f"{CACHE}/bireme/ship").glob("[!.]*"))


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Project:
    jobs = Jobs.on(request, getattr(request, "param", "ssh"))
    for host in jobs.testbed.hosts.values():
        host.run(["rm", "-rf", CACHE, PROJECT])
    return Project(jobs)


def sent(err: str) -> list[str]:
    return [line.partition("sending ")[2] for line in err.splitlines() if "sending " in line]


@pytest.mark.slow
def test_a_check_of_nodes_without_the_code(project: Project) -> None:
    """As the job does, it sends the tree, and looks for the script in the copy."""
    for script, code, word in ("look.py", 0, "Python"), ("ignored.tmp", 1, "is not in the tree that --ship sends"):
        command = project.command(script)
        place = command.index("--log_level")
        command[place : place + 2], command[command.index("run")] = [], "check"
        done = project.login.run(command, cwd=f"{PROJECT}/sub", env={"XDG_CACHE_HOME": CACHE}, check=False)
        assert done.returncode == code and (done.stdout + done.stderr).count(word) == 2, done
    assert len(copies(project.jobs.testbed["node2"])) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "check", "shared"])
def test_another_directory(project: Project, command: str) -> None:
    """``--cwd``: as if the command was typed there, on all nodes; in the copy, and without one."""
    words, home = project.command("--cwd", "sub", "look.py"), PROJECT
    if command == "check":
        place = words.index("--log_level")
        words[place : place + 2], words[words.index("run")] = [], "check"
    elif command == "shared":
        words, home = project.jobs.command("--cwd", "sub", "look.py", hosts="node[1-2]:1"), str(project.jobs.shared)
        project.login.run(["cp", "-r", *(f"{PROJECT}/{name}" for name in ("sub", "data.txt")), home])
    done = project.login.run(words, cwd=home, env={"XDG_CACHE_HOME": CACHE}, check=False)
    assert done.returncode == 0 and done.stdout.count(" Python ") == 2 * (command == "check"), done
    found = [json.loads(line.partition("found ")[2])["cwd"] for line in done.stdout.splitlines() if "found " in line]
    where = {"run": f"{CACHE}/bireme/ship/", "shared": f"{home}/"}.get(command, "")
    assert len(found) == 2 * bool(where) and all(cwd.startswith(where) and cwd.endswith("/sub") for cwd in found), found


@pytest.mark.parametrize("project", backends("ssh", "openmpi"), indirect=True)
def test_ranks_run_in_a_copy(project: Project) -> None:
    """With its files, links, permissions and places; sent once, and again only what has changed."""
    node = project.jobs.testbed["node1"]
    data = f"{PROJECT}/data.txt"
    found, err = project.run("look.py", data, f"--in={data}", "--out=../../runs", "/tmp/project-2", f"{PROJECT}/new")
    (copy,) = copies(node)
    place = f"{CACHE}/bireme/ship/{copy.name}/project"
    assert len(found) == 2 and len(sent(err)) == 1
    mine = next(each for each in found if each["cwd"] == f"{place}/sub")
    assert mine["argv"] == [
        "look.py",
        f"{place}/data.txt",
        f"--in={place}/data.txt",
        "--out=/tmp/runs",
        "/tmp/project-2",
        f"{PROJECT}/new",
    ]
    assert mine["value"] == 1 and mine["data"] == "some data"
    there = {"../.gitignore", "../data.txt", "../link", "../tool", "../sub/look.py", "../sub/settings/here.py"}
    assert set(mine["files"]) == there
    assert os.readlink(copy / "project/link") == "data.txt" and os.access(copy / "project/tool", os.X_OK)

    _, err = project.run("look.py", "spoil")
    (spoilt,) = {*copies(node)} - {copy}
    assert not sent(err)

    found, err = project.run("look.py")  # in a fresh copy: nothing that a rank has done is there
    assert {each["data"] for each in found} == {"some data"} and len(copies(node)) == 3 and not sent(err)
    assert all(set(each["files"]) == there for each in found)
    assert (spoilt / "project/more.txt").read_text() == "kept"

    project.write("sub/settings/here.py", "VALUE = 22")
    found, err = project.run("look.py")
    assert {each["value"] for each in found} == {22}
    assert [line.split()[:2] for line in sent(err)] == [["10", "bytes"]]
    assert node.agents() == set() and not [copy for copy in copies(node) if copy.name.endswith(".tmp")]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["well", "killed"])
def test_nodes_share_a_cache(project: Project, end: str) -> None:
    """As over NFS: one gets the tree, which takes longer than a silence may, and the others use it; or another one."""
    nodes, shared = [project.jobs.testbed[name] for name in ("node1", "node2", "node3")], project.jobs.shared / "cache"
    project.write("large", random.randbytes(8 << 20))
    for node in nodes:
        node.rate(20)
    words = ("--export", f"XDG_CACHE_HOME={shared}", "--heartbeat", "2", "--elastic_training", "look.py")
    process = project.start(*words, hosts="node[1-3]:1")
    if end == "killed":
        half = wait_until("a copy in the making", lambda: list(shared.glob("bireme/ship/*.tmp/project/large")), 30)[0]
        (pid,) = wait_until("who makes it", lambda: holders(nodes, half), 30)
        os.kill(pid, signal.SIGKILL)
    out, err = (data.decode() for data in process.communicate(timeout=60))
    assert process.returncode == 0, err
    assert out.count("found ") == (3 if end == "well" else 2), err
    assert (
        all(whole(copy) for copy in shared.glob("bireme/ship/[!.]*"))
        and len(list(shared.glob("bireme/ship/[!.]*"))) == 1
    )


def holders(hosts: Sequence[Host], path: Path) -> list[int]:
    """The processes that have a file open."""
    pids = [pid for host in hosts for pid in host.agents()]
    return [pid for pid in pids if any(fd.resolve() == path for fd in Path(f"/proc/{pid}/fd").iterdir())]


@pytest.mark.slow
def test_a_slow_line(project: Project) -> None:
    """Which takes longer for what is on the way than a silence may last."""
    project.jobs.testbed["node1"].rate(8)
    project.write("large", random.randbytes(3 << 20))
    found, _ = project.run("--heartbeat", "0.8", "look.py", hosts="node1:1")
    assert len(found) == 1


@pytest.mark.slow
def test_a_file_that_is_changed_meanwhile(project: Project) -> None:
    """It is sent again, and the job goes on."""
    node = project.jobs.testbed["node1"]
    node.rate(20)
    project.write("large", random.randbytes(4 << 20))
    process = project.start("look.py", hosts="node1:1")
    wait_until("a copy in the making", lambda: temporary(node), 30)
    project.write("large", data := random.randbytes(2 << 20))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err.count(b"large has changed since the job began") == 1, err
    (copy,) = copies(node)
    assert (copy / "project/large").read_bytes() == data


@pytest.mark.slow
def test_no_room_for_a_copy(project: Project) -> None:
    """Each node says so, in the table of the preflight."""
    for name in ("node1", "node2"):
        project.jobs.testbed[name].run(["mkdir", CACHE])
        words = ("mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "tmpfs", CACHE)
        project.jobs.testbed[name].run(words, root=True)
    project.write("large", random.randbytes(4 << 20))
    process = project.start("look.py")
    _, err = process.communicate(timeout=60)
    for name in ("node1", "node2"):
        project.jobs.testbed[name].run(["umount", CACHE], root=True)
    said = f"cannot make a copy of the tree in {CACHE}/bireme: No space left on device"
    assert process.returncode == 69 and err.decode().count(said) == 2, err


WAIT = """
import os, sys, time
sys.path.insert(0, ".")
import settings.here
print("here", os.environ["WORLD_SIZE"], settings.here.VALUE, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_node_that_returns(project: Project) -> None:
    """It has lost its copy, and gets the tree as it is now before it takes part."""
    node, go = project.jobs.testbed["node2"], project.jobs.shared / "go"
    project.write("sub/wait.py", WAIT)
    project.write("large", random.randbytes(1 << 20))
    process = project.start("--elastic_training", "--elastic_interval", "1", "--heartbeat", "2", "wait.py", str(go))
    read_lines(process, 2, "here 2 1")
    node.panic()
    read_lines(process, 1, "here 1 1")
    project.write("sub/settings/here.py", "VALUE = 2")
    node.boot()
    read_lines(process, 2, "here 2 2")
    go.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err.count(b"files in /tmp/project have changed: ") == 1, err
    assert all(whole(copy) for copy in copies(node))


AGAIN = """
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, os.path.exists("checkpoint"), open("../data.txt").read(), flush=True)
open("checkpoint", "w").close()
open("../data.txt", "a").write(" and more")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(attempt == "0")
"""


@pytest.mark.slow
def test_an_attempt_runs_where_the_last_one_did(project: Project) -> None:
    """With what that has written, whatever has become of the files here."""
    go = project.jobs.shared / "go"
    project.write("sub/again.py", AGAIN)
    process = project.start("--restarts", "1", "again.py", str(go), hosts="node1:1")
    read_lines(process, 1, "attempt 0 False some data")
    project.write("sub/again.py", "the next version")
    project.write("new.log", "one more file")
    go.touch()
    read_lines(process, 1, "attempt 1 True some data and more")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and len(sent(err.decode())) == 1, err


def whole(copy: Path) -> bool:
    """Whether a copy holds all that its manifest says."""
    manifest = json.loads((copy / ".manifest").read_bytes())
    files = [(copy / manifest["name"] / path, digest) for kind, path, _, _, digest in manifest["entries"] if digest]
    return all(
        hashlib.sha256(path.read_bytes()).hexdigest() == digest for path, digest in files if not path.is_symlink()
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "cut", "agent"])
def test_anything_dies_while_the_tree_is_sent(project: Project, fault: str) -> None:
    """The command, a cable or an agent, at random moments of sending, and of the job: half a tree is never used, no
    result is lost, and the next job runs in its tree."""
    node = project.jobs.testbed["node1"]
    node.rate(60)
    half, lasts = 0, 0.0
    results = set[Path]()
    for moment in range(-(-MOMENTS // 3)):
        project.write("large", b"%d" % moment + random.randbytes(8 << 20))
        process = project.start("--heartbeat", "2", "look.py", "keep")
        if moment % 2:
            time.sleep(random.random() * lasts)
        else:
            wait_until("a copy in the making", lambda: temporary(node), 30)
            time.sleep(random.random() * 0.8)
        half += bool(temporary(node))
        if fault == "kill":
            project.login.kill(process, signal.SIGKILL)
        elif fault == "cut":
            node.cut()
        else:
            signal_all(node.agents(), signal.SIGKILL)  # and its guardian, if it has come so far
        process.communicate(timeout=60)
        if fault == "cut":
            wait_until("the agent to end", lambda: not node.agents() and not temporary(node), 30)
            node.heal()
        project.jobs.testbed.leaves_nothing()
        made = [copy for copy in copies(node) if not copy.name.endswith(".tmp")]
        assert all(whole(copy) for copy in made)
        begin = time.monotonic()
        found, _ = project.run("look.py", "keep")  # whose agent finds what a killed one has left
        lasts = time.monotonic() - begin
        assert [each["data"] for each in found] == ["some data"] * 2
        assert not any("more.txt" in str(each["files"]) for each in found)
        wait_until("what is half to go", lambda: not temporary(node), 30)
        assert all(result.read_text() == "kept" for result in results)
        results |= {result for copy in copies(node) if (result := copy / "project/more.txt").exists()}
    assert half, "no moment was in the middle of sending"


def temporary(host: Host) -> list[Path]:
    return [copy for copy in copies(host) if copy.name.endswith(".tmp") and (copy / ".lock").exists()]


def test_results_come_home(project: Project) -> None:
    """From the copy to the same place here; what is as it was sent stays there."""
    project.write(
        "sub/out.py", "import os\nopen(f'{os.uname().nodename}.py', 'w').close()\nopen('new.py', 'w').close()"
    )
    process = project.start("--fetch", "*.py", "out.py")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and b"fetched 3 files, 0 bytes from node1, node2 to ." in err, err
    here = {path.name for path in seen_by(project.login, f"{PROJECT}/sub").glob("*.py")}
    assert here == {"out.py", "look.py", "node1.py", "node2.py", "new.py"}


@pytest.mark.slow
def test_results_of_an_elastic_job_come_home(project: Project) -> None:
    """From the copy, which the epochs share, also what a rank wrote that an earlier epoch had."""
    project.write(
        "sub/out.py",
        "import os, sys\nepoch = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "open(f'{os.uname().nodename}.{epoch}', 'w').close()\nsys.exit(epoch == '0')",
    )
    words = ("--elastic_training", "--restarts", "1", "--fetch", "node*:home", "out.py")
    process = project.start(*words, hosts="node1:1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and b"fetched 2 files, 0 bytes from node1 to ./home" in err, err
    assert {path.name for path in seen_by(project.login, f"{PROJECT}/sub/home").iterdir()} == {"node1.0", "node1.1"}


MEASURED = """
import json, os, sys
value = json.load(open(sys.argv[1]))["a"]["size"]
sys.path.insert(0, ".")
import settings.here
os.makedirs("made", exist_ok=True)
with open(f"made/{os.environ.get('BIREME_TRIAL', 'real')}.json", "w") as file:
    json.dump({"rate": value * settings.here.VALUE}, file)
print("ran with", value, "on", os.uname().nodename, flush=True)
"""


def tuned(project: Project, *words: str) -> str:
    """What a study said that was typed on login, whose trials run on nodes."""
    where = (
        "--hosts",
        "node[1-2]:1",
        "--num_nodes",
        "1",
        "--accelerator",
        "cpu",
        "--export",
        f"XDG_CACHE_HOME={CACHE}",
    )
    command = bireme("tune", "--ship", *where, *words)
    done = project.login.run(command, cwd=f"{PROJECT}/sub", env={"XDG_CACHE_HOME": CACHE}, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_study(project: Project) -> None:
    """A trial gets its own copy of a file in the copy of the tree, and its figures come home; so does the real job."""
    project.write("sub/measured.py", MEASURED)
    project.write("sub/conf.json", '{"a": {"size": 1}}')
    project.login.run(["mkfifo", f"{PROJECT}/fifo"])
    goal = ("--in", "conf.json:a.size=1,2", "--maximize", "made/{trial}.json:rate", "--trials", "3")
    said = tuned(project, *goal, "measured.py", "conf.json")
    assert said.count("fifo is not sent: only files, folders and links are") == 1
    study = seen_by(project.login, f"{PROJECT}/sub/tuning")
    figures = [json.loads(path.read_text())["rate"] for path in study.glob("trials/*/fetched/made/*.json")]
    assert set(figures) == {1, 2}, figures
    assert not [path for copy in copies(project.jobs.testbed["node1"]) for path in copy.rglob("*.log")]
    best = shlex.split((study / "cmd_best.txt").read_text())
    done = project.login.run(bireme(*best[1:]), cwd=f"{PROJECT}/sub", env={"XDG_CACHE_HOME": CACHE})
    value = json.loads((study / "best/conf.json").read_text())["a"]["size"]
    assert f"ran with {value} on node1" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", ["word", "file"])
def test_a_study_of_deepspeed(project: Project, way: str) -> None:
    """Each trial's configuration goes to its node, and the figures that DeepSpeed writes come home."""
    project.write("sub/contract.py", (PROGRAMS / "contract.py").read_text())
    config = {"train_micro_batch_size_per_gpu": [4, 8], "autotuning": {"enabled": True}}
    project.write("sub/ds.json", json.dumps(config))
    tuned(project, "--confidence", "0", "--config_as", way, "contract.py", "--deepspeed_config", "ds.json")
    results = seen_by(project.login, f"{PROJECT}/sub/autotuning_results")
    assert len(list(results.glob("z*/metrics.json"))) == 2
    best = shlex.split((results / "cmd_optimal.txt").read_text())
    done = project.login.run(bireme(*best[1:]), cwd=f"{PROJECT}/sub", env={"XDG_CACHE_HOME": CACHE})
    assert "real job 0 " in done.stdout
