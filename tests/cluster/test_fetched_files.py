"""``--fetch``: what ranks wrote on nodes without a shared disk comes home when the job has ended, whatever ended it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.basics import signal_all, wait_until
from tests.cluster.jobs import Jobs, backends
from tests.cluster.test_ship import seen_by
from tests.conftest import read_lines

WORK = "/tmp/work"  # of each host alone, as its whole /tmp
RESULTS = """
import os, sys, time
os.makedirs("out/deep", exist_ok=True)
rank, host = os.environ["RANK"], os.uname().nodename
def write(name, text):
    with open(name, "w") as file:
        file.write(text)
write(f"out/{rank}.txt", f"of rank {rank}")
write("out/deep/same", "the same on all")
write("out/deep/other", f"from {host}!")
write("out/ignored.log", "not asked for")
if rank == "0":
    os.mkfifo("out/pipe.txt")
    os.symlink("0.txt", "out/link.txt")
    os.symlink("/etc/passwd", "out/far.txt")
print("written", flush=True)
if len(sys.argv) > 2:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
sys.exit(int(sys.argv[1]))
"""


class Nodes:
    """A folder of login and of each node, which no two of them share; a link leads to that of node2."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.testbed, self.login = jobs.testbed, jobs.login
        for host in self.testbed.hosts.values():
            make = f"mkdir {WORK}.real && ln -s work.real {WORK}" if host.name == "node2" else f"mkdir {WORK}"
            host.run(["sh", "-c", f"rm -rf {WORK} {WORK}.real && {make}"])
        self.home = seen_by(self.login, WORK)

    def write(self, name: str, text: str) -> None:
        for host in self.testbed.hosts.values():
            (seen_by(host, WORK) / name).write_text(text)

    def start(self, *words: str, hosts: str = "node[1-2]:1") -> subprocess.Popen[bytes]:
        command = self.jobs.command("--accelerator", "cpu", *words, hosts=hosts)
        pipe = subprocess.PIPE
        return self.login.popen(command, cwd=WORK, stdout=pipe, stderr=pipe)

    def run(self, *words: str, code: int = 0, hosts: str = "node[1-2]:1") -> list[str]:
        """What the command has said about files."""
        process = self.start(*words, hosts=hosts)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code, err.decode()
        return [line.removeprefix("bireme: ") for line in err.decode().splitlines() if line.startswith("bireme: ")]

    def drafts(self) -> list[Path]:
        return list(self.home.rglob("*.tmp")) + list(self.home.glob(".bireme-*"))


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Nodes:
    return Nodes(Jobs.on(request, getattr(request, "param", "ssh")))


def tree(folder: Path) -> dict[str, str]:
    """The files below a folder, with what is in them."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            found[str(path.relative_to(folder))] = os.readlink(path) if path.is_symlink() else path.read_text("latin-1")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("nodes", backends("ssh", "slurm"), indirect=True)
def test_results_come_home(nodes: Nodes) -> None:
    """Each file once, with the node in its path where two differ, and again only if changed."""
    nodes.write("results.py", RESULTS)
    (nodes.home / "kept").mkdir()
    said = nodes.run("--fetch", "out/**/*.txt", "--fetch", "out/deep:kept", "results.py", "0")
    mine = {"0.txt": "of rank 0", "1.txt": "of rank 1", "link.txt": "0.txt"}
    assert tree(nodes.home / "out") == mine
    names = {f"node{number}/out/deep/other": f"from node{number}!" for number in (1, 2)}
    assert tree(nodes.home / "kept") == {"out/deep/same": "the same on all", **names}
    assert said[0].startswith("fetched 6 files, ") and "from node1, node2 to ./out, ./kept" in said[0], said
    assert [line.partition(":")[0] for line in said[1:]] == [
        "files that differ between nodes, or from a newer file here, have the node's name in their path",
        "left on the nodes",
        "left on the nodes",
    ], said
    assert "out/far.txt on node1" in said[2] and "out/pipe.txt on node1" in said[3]
    assert not nodes.drafts()


@pytest.mark.slow
def test_what_was_here_before(nodes: Nodes) -> None:
    """Also after a failure. Unchanged files stay, older ones are replaced, and newer ones kept."""
    program = "import os, sys; os.makedirs('out', exist_ok=True); open('out/a', 'w').write(sys.argv[1]); sys.exit(%d)"
    nodes.write("fail.py", program % 3)
    nodes.write("write.py", program % 0)
    words = ("--fetch", "out", "write.py")
    nodes.run("--fetch", "out", "fail.py", "one", code=3, hosts="node1:1")
    file = nodes.home / "out/a"
    assert file.read_text() == "one"
    assert nodes.run(*words, "two", hosts="node1:1")[0].endswith("to ./out; 1 replaced older files")
    assert file.read_text() == "two"
    file.write_text("mine")
    os.utime(file, (4e9, 4e9))
    said = nodes.run(*words, "three", hosts="node1:1")
    assert file.read_text() == "mine" and (nodes.home / "node1/out/a").read_text() == "three", said
    nodes.write("nothing.py", "")
    assert nodes.run("--fetch", "out", "nothing.py", hosts="node1:1")[0] == "fetched nothing; 1 file here already"
    said = nodes.run("--fetch", "nix/**", "nothing.py")
    assert said == ["nothing to fetch: no files match 'nix/**' on node1, node2"]


@pytest.mark.slow
def test_a_folder_that_all_share(nodes: Nodes) -> None:
    """Everything is here already, unless it is to go to another folder."""
    jobs = nodes.jobs
    jobs.write("results.py", RESULTS)
    done = jobs.run("--fetch", "out", "results.py", "0", hosts="node[1-2]:1")
    assert done.returncode == 0 and "fetched nothing; 7 files here already" in done.stderr, done.stderr
    jobs.write("nothing.py", "")
    done = jobs.run("--fetch", "out/*.txt:kept", "nothing.py", hosts="node[1-2]:1", code=0)
    assert set(tree(jobs.shared / "kept")) == {"out/0.txt", "out/1.txt", "out/link.txt"}


LARGE = """
import os, sys, time
os.makedirs("out", exist_ok=True)
name = os.uname().nodename
with open(f"out/{name}", "wb") as file:
    if name == "node2":
        file.write(os.urandom(64 << 20))  # half a minute at the rate of the test below
    else:
        file.truncate(1 << 30)
        file.write(b"sparse")
print("written", flush=True)
time.sleep(1000 * len(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lost", "interrupted", "interrupted twice"])
def test_something_happens_while_files_come(nodes: Nodes, fault: str) -> None:
    """What has come stays; the rest is named, and a job that was well says that by its exit code."""
    nodes.write("large.py", LARGE)
    node = nodes.testbed["node2"]
    node.rate(16)
    twice = ("stay",) if fault == "interrupted twice" else ()
    process = nodes.start("--heartbeat", "2", "--fetch", "out/**", "large.py", *twice)
    if twice:  # the first one ends the ranks
        read_lines(process, 2, "written")
        nodes.login.kill(process, signal.SIGINT)
    draft = wait_until("a draft", lambda: [path for path in nodes.drafts() if "out" in path.parts], 30)
    assert draft
    wait_until("the sparse file", (nodes.home / "out/node1").exists, 30)
    if fault == "lost":
        node.cut()
    else:
        nodes.login.kill(process, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    node.heal()
    assert process.returncode == (74 if fault == "lost" else 130), err
    why = b"not fetched: node2: no sign of life for 2 s; 1 file missing"
    assert (why if fault == "lost" else b"not fetched: stopped; 1 file missing") in err
    assert b"fetched 1 file, 1 GiB from node1 to ./out" in err
    assert os.listdir(nodes.home / "out") == ["node1"] and not nodes.drafts()
    there = os.stat(nodes.home / "out/node1")
    assert there.st_size == 1 << 30 and there.st_blocks * 512 < 1 << 20, "its holes stay holes"


@pytest.mark.slow
def test_a_full_disk(nodes: Nodes) -> None:
    """One message, and no part of a file."""
    nodes.write("large.py", LARGE)
    nodes.login.run(["mkdir", f"{WORK}/out"])
    nodes.login.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "tmpfs", f"{WORK}/out"], root=True)
    try:
        said = nodes.run("--fetch", "out/**", "large.py", code=74)
        assert not nodes.drafts() and not (nodes.home / "out/node2").exists()
    finally:
        nodes.login.run(["umount", f"{WORK}/out"], root=True)
    assert len([line for line in said if "cannot write ./out/node2: No space left on device" in line]) == 2, said


AGAIN = """
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.makedirs("out", exist_ok=True)
open(f"out/{os.uname().nodename}.{attempt}", "w").write(attempt)
print("here", os.environ["WORLD_SIZE"], flush=True)
if "wait" in sys.argv:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
sys.exit(attempt == "0" and "wait" not in sys.argv)
"""


@pytest.mark.slow
def test_only_the_last_attempt_brings_files(nodes: Nodes) -> None:
    nodes.write("again.py", AGAIN)
    said = nodes.run("--restarts", "1", "--fetch", "out", "again.py", "x", hosts="node1:1")
    assert [line for line in said if line.startswith("fetched")] == ["fetched 2 files, 2 bytes from node1 to ./out"], (
        said
    )


@pytest.mark.slow
def test_an_elastic_job(nodes: Nodes) -> None:
    """From the nodes of the last epoch; one that was lost before is named."""
    nodes.write("again.py", AGAIN)
    go = nodes.jobs.shared / "go"
    words = ("--elastic_training", "--elastic_interval", "60", "--heartbeat", "2", "--fetch", "out")
    process = nodes.start(*words, "again.py", str(go), "wait")
    read_lines(process, 2, "here 2")
    signal_all(nodes.testbed["node2"].agents(), signal.SIGKILL)
    read_lines(process, 1, "here 1")
    go.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"fetched 1 file, 1 bytes from node1 to ./out" in err
    assert b"nodes that left the job may have files that were not fetched: node2\n" in err
