"""Elastic training on real nodes that come and go. See also ``tests/command/test_elastic_here.py``."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.basics import outermost, wait_until
from tests.cluster.host import Host
from tests.cluster.jobs import Jobs, gpus
from tests.cluster.test_losses import command_of, found, guards
from tests.cluster.testbed import Testbed
from tests.conftest import PROGRAMS, bireme, guards_of
from tests.kit import needs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # Slurm's nodes alone may need some minutes until they are idle again
    needs.modules("torch", "sklearn"),
]

DIGITS = Path(__file__).parents[2] / "examples/elastic_digits.py"
WATCHED = PROGRAMS / "ends_without_gloo.py"
NODES = ("node1", "node2", "node3")
HEARTBEAT = 5.0
INTERVAL = 2.0

# Says where it is, and waits for a file of that name; trains nothing.
RANK = """
import os, sys, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
words = ("here", os.uname().nodename, *(os.environ[name] for name in names))
os.write(1, " ".join(words).encode() + b"\\n")  # at once: under PyTorch's own agent the ranks of a node share a pipe
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
    if os.path.exists("fail"):
        if os.environ["RANK"] == "1":
            raise ValueError("it always fails")
"""


class Elastic:
    """A job on the cluster's nodes, whose output goes into a file that is read while it runs."""

    def __init__(self, testbed: Testbed, folder: Path, backend: str) -> None:
        self.testbed, self.folder, self.backend, self.login = testbed, folder, backend, testbed["login"]
        self.said = folder / "said"
        self.hostfile(NODES)
        (folder / "rank.py").write_text(RANK)

    def hostfile(self, names: Sequence[str], *slots: int) -> None:
        """Written at once: it is read while the job runs."""
        each = zip(names, slots or (1,) * len(names), strict=True)
        (self.folder / "hosts.new").write_text("".join(f"{name} slots={number}\n" for name, number in each))
        (self.folder / "hosts.new").rename(self.folder / "hosts")

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        options = ["--elastic_training", "--heartbeat", HEARTBEAT, "--grace", 1, "--elastic_interval", INTERVAL]
        if self.backend == "ssh":
            command = bireme("run", "--hostfile", "hosts", *map(str, (*options, *words)))
        else:
            run = bireme("run", *map(str, (*options, *words)))
            command = ["salloc", "--quiet", "--no-kill", "-N3", "--exclusive", "--mem=0", *run]
        with self.said.open("wb") as file:
            return self.login.popen(command, cwd=str(self.folder), stdout=file, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.said.read_text(errors="replace")

    def wait(self, process: subprocess.Popen[bytes], pattern: str, count: int = 1, seconds: float = 120) -> list[str]:
        """Until so many lines of the output match."""

        def there() -> list[str]:
            lines = re.findall(pattern, self.text(), re.MULTILINE)
            if len(lines) < count and process.poll() is not None:
                raise AssertionError(f"no {pattern} in:\n{self.text()}")
            return lines if len(lines) >= count else []

        try:
            return wait_until(pattern, there, seconds, 0.05)
        except TimeoutError:
            raise AssertionError(f"no {pattern} in:\n{self.text()}") from None

    def ranks(self, process: subprocess.Popen[bytes], epoch: int, count: int) -> list[list[str]]:
        """What the ranks of an epoch have found, by rank."""
        mark = rf"^bireme: elastic job \d+{f', epoch {epoch}' if epoch > 1 else ''}: {count} ranks? .*\n"
        (begin,) = self.wait(process, mark)[:1]

        def all_there() -> list[list[str]]:
            after = self.text().partition(begin)[2]
            return sorted(line.split()[1:] for line in re.findall(r"^\[\S+\] (here .*)$", after, re.MULTILINE))

        wait_until(f"{count} ranks", lambda: len(all_there()) >= count, 60, 0.05)
        return sorted(all_there()[:count], key=lambda words: int(words[1]))

    def runner(self) -> int:
        """The command's pid, as we see it; ``salloc`` above it has the same words."""
        there = self.login.ps()
        pids = [pid for pid in found(self.login, "-m bireme run") if "python" in there[pid].argv[0]]
        (runner,) = outermost(pids)  # the others are guardians
        return runner

    def end(self, process: subprocess.Popen[bytes], code: int = 0, seconds: float = 120) -> str:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text()}") from None
        assert process.returncode == code, self.text()
        self.testbed.leaves_nothing()
        return self.text()

    def go_and_end(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        """Let the ranks end."""
        (self.folder / "go").touch()
        return self.end(process, code)


@pytest.fixture
def elastic(ssh_cluster: Testbed, shared_dir: Path) -> Elastic:
    return Elastic(ssh_cluster, shared_dir, "ssh")


@pytest.fixture
def under_slurm(slurm_cluster: Testbed, shared_dir: Path) -> Elastic:
    return Elastic(slurm_cluster, shared_dir, "slurm")


def hosts_of(ranks: list[list[str]]) -> list[str]:
    return [words[0] for words in ranks]


def test_real_training_goes_on(elastic: Elastic) -> None:
    """Rank 0's node is lost, and a spare with more slots takes its place: the loss goes on where it was.

    With as few ranks as can be, for each costs some seconds of CPU time before its first step.
    """
    elastic.hostfile(NODES[:2], 1, 2)
    process = elastic.start(
        *("--min_elastic_nodes", 1, "--max_elastic_nodes", 1),
        *(WATCHED, DIGITS, "--steps", 120, "--delay", 0.1, "--checkpoint", elastic.folder / "digits.pt"),
    )
    elastic.wait(process, r"step   20 .* 1 ranks")
    elastic.testbed["node1"].poweroff()
    elastic.wait(process, r"resumed at step \d+: 1 -> 2 ranks")
    text = elastic.end(process)
    assert float(re.findall(r"test accuracy (\S+)", text)[0]) >= 0.9
    (resumed,) = (int(step) for step in re.findall(r"resumed at step (\d+)", text))
    made = [int(step) for step in re.findall(r"step +(\d+)  loss", text)]
    # a rank that is stopped between saving a step and saying so has made it all the same
    assert {*made, resumed} == set(range(10, 121, 10)) and len(made) <= 12, "what was saved is not made again"
    assert "agent lost on node1" in text


def test_nodes_go_and_come(elastic: Elastic) -> None:
    """Rank 0's node is lost, with fewer than the least the job waits, and takes the node in again."""
    process = elastic.start("--num_nodes", "2:3", "rank.py", "go")
    ranks = elastic.ranks(process, 1, 3)
    assert hosts_of(ranks) == list(NODES)
    assert [words[1:6] for words in ranks] == [[str(rank), "3", "0", "1", str(rank)] for rank in range(3)]
    elastic.testbed["node1"].poweroff()
    ranks = elastic.ranks(process, 2, 2)
    assert hosts_of(ranks) == ["node2", "node3"]
    assert {words[7] for words in ranks} == {elastic.testbed["node2"].ip}, "MASTER_ADDR is chosen anew"
    elastic.testbed["node3"].poweroff()
    (waiting,) = elastic.wait(process, r"waiting up to 600 s for nodes: (.*)")
    assert waiting.startswith("1 of 2 required nodes are available") and "node1" in waiting and "node3" in waiting
    elastic.testbed["node1"].boot()
    ranks = elastic.ranks(process, 3, 2)
    assert hosts_of(ranks) == ["node1", "node2"]
    assert {words[-1] for words in ranks} == {ranks[0][-1]} and ranks[0][-3:-1] == ["0", "3"]
    text = elastic.go_and_end(process)
    assert "3 changes during the job:" in text or "4 changes during the job:" in text


def test_too_few_for_too_long(elastic: Elastic) -> None:
    elastic.hostfile(NODES[:2])
    process = elastic.start("--num_nodes", "2:2", "--elastic_timeout", 3, "rank.py", "go")
    elastic.ranks(process, 1, 2)
    elastic.testbed["node2"].poweroff()
    text = elastic.end(process, 76)
    assert (
        "too few nodes for 3 s: 1 of 2 required nodes are available; missing: node2 (no sign of life for 5 s)" in text
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--max_elastic_nodes", 3), id="hostfile"),
        pytest.param(("--hosts", "node[1-4]", "--exclude", "node4@node2:1"), id="hosts"),
    ],
)
def test_a_node_that_is_away_from_the_beginning(elastic: Elastic, options: tuple[object, ...]) -> None:
    """It is looked for as the pool was read, whatever becomes of the file; filters that speak of it do no harm."""
    elastic.testbed["node2"].poweroff()
    if "--hosts" in options:  # nobody has declared slots: they are counted on each node
        with gpus([elastic.testbed["node1"], elastic.testbed["node3"]], 2):
            process = elastic.start(*options, "rank.py", "go")
            assert set(hosts_of(elastic.ranks(process, 1, 4))) == {"node1", "node3"}
            elastic.testbed["node2"].boot()
            with gpus([elastic.testbed["node2"]], 2):
                assert hosts_of(elastic.ranks(process, 2, 5)).count("node2") == 1
                elastic.go_and_end(process)
        return
    process = elastic.start(*options, "--accelerator", "cpu", "rank.py", "go")
    assert hosts_of(elastic.ranks(process, 1, 2)) == ["node1", "node3"]
    assert "node2 is left out: " in elastic.text()
    (elastic.folder / "hosts").unlink()
    elastic.testbed["node2"].boot()
    assert hosts_of(elastic.ranks(process, 2, 3)) == list(NODES)
    elastic.go_and_end(process)


def test_a_node_that_comes_back_without_its_devices(elastic: Elastic) -> None:
    """Its driver may not be loaded yet: it is no node of such a job, and that is said."""
    elastic.hostfile(NODES[:2])
    nodes = [elastic.testbed[name] for name in NODES[:2]]
    with gpus(nodes, 1):
        process = elastic.start("rank.py", "go")
        elastic.ranks(process, 1, 2)
        nodes[1].poweroff()
        elastic.ranks(process, 2, 1)
        nodes[1].boot()
        elastic.wait(process, r"node2 is not admitted: the job runs on cuda, but the node now has cpu")
        with gpus(nodes[1:], 1):
            assert hosts_of(elastic.ranks(process, 3, 2)) == list(NODES[:2])
            elastic.go_and_end(process)


def test_the_hostfile_grows(elastic: Elastic) -> None:
    """At most the most: the fourth is not taken in."""
    elastic.hostfile(NODES[:2])
    process = elastic.start("--max_elastic_nodes", 3, "--elastic_interval", 10, "rank.py", "go")
    elastic.ranks(process, 1, 2)
    elastic.hostfile([*NODES, "node4"], 1, 1, 2, 1)
    ranks = elastic.ranks(process, 2, 4)
    assert hosts_of(ranks) == ["node1", "node2", "node3", "node3"]
    assert [words[3] for words in ranks] == ["0", "0", "0", "1"] and [words[4] for words in ranks] == list("1122")
    assert "new in the hostfile: node3, node4" in elastic.text()
    elastic.go_and_end(process)


def test_drained_and_called_back(elastic: Elastic) -> None:
    elastic.hostfile([*NODES, "node4"])
    process = elastic.start("--max_elastic_nodes", 2, "rank.py", "go")
    elastic.ranks(process, 1, 2)
    (job,) = elastic.wait(process, r"elastic job (\d+)")[:1]

    def drain(*words: str) -> tuple[int, str]:
        done = elastic.login.run([*bireme("drain", *words)], check=False)
        return done.returncode, done.stdout + done.stderr

    assert drain("node1", job) == (0, "node1 is drained: its ranks are being stopped\n")
    assert hosts_of(elastic.ranks(process, 2, 2)) == ["node2", "node3"], "a spare takes its place"
    assert drain("node1", job)[0] == 2 and drain("node9", job)[0] == 2 and drain("node1", "1")[0] == 2
    assert drain("node4", job) == (0, "node4 is drained\n"), "a spare"
    assert drain("--back", "node1", job) == (0, "node1 may be used again once it answers\n")
    elastic.go_and_end(process)


# What a host outside the job can do to a rendezvous store that it reaches: learn the job's id by its keys, and plant a
# pickle where PyTorch's agents read their state, which runs the planter's code in them.
ATTACK = """
import base64, os, pickle, socket, sys
from datetime import timedelta

class Evil:
    def __reduce__(self):
        return os.system, (f"echo $(uname -n) >> {sys.argv[1]}",)

for place in sys.argv[2:]:
    host, port = place.split(",")
    from torch.distributed import TCPStore  # which takes its time, and is not needed where nobody listens
    try:
        socket.create_connection((host, int(port)), 2).close()
        store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=3))
        ids = {key.split("/")[-1].rpartition(".")[0] for key in store.list_keys() if "torch.rendezvous." in key}
        for name in ids:
            for epoch in range(4):
                store.set(f"{name}.{epoch}", base64.b64encode(pickle.dumps(Evil())))
        print("planted", len(ids), "at", place, flush=True)
    except Exception as error:
        print(place, type(error).__name__, str(error).partition(chr(10))[0], flush=True)
print("tried", len(sys.argv) - 2, flush=True)
"""


def listening(host: Host) -> set[int]:
    """The TCP ports at which a host listens."""
    lines = host.run(["ss", "-H", "-ltn"]).stdout.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}


def test_nobody_runs_code_by_what_the_nodes_meet_in(elastic: Elastic) -> None:
    """A host outside the job reaches nothing that the runner or an agent reads; neither of them listens at all."""
    elastic.hostfile(NODES[:2])
    inside = [elastic.testbed[name] for name in ("login", *NODES[:2])]
    before = {host.name: listening(host) for host in inside}
    process = elastic.start("rank.py", "go")
    elastic.ranks(process, 1, 2)
    places = [f"{host.ip},{port}" for host in inside for port in listening(host) - before[host.name]]
    marker = elastic.folder / "evil"
    (elastic.folder / "attack.py").write_text(ATTACK)
    attack = [sys.executable, str(elastic.folder / "attack.py"), str(marker), *places]
    said = elastic.testbed["node4"].run(attack).stdout
    assert f"tried {len(places)}" in said
    os.kill(max(found(elastic.testbed["node2"], "rank.py")), signal.SIGKILL)
    elastic.wait(process, r"elastic job \d+, epoch \d+: 2 ranks")
    elastic.go_and_end(process)
    assert not marker.exists(), f"{marker.read_text().split()} have executed foreign code: {said}"
    assert places == [], "ranks that do not listen are all that runs"


def agents(elastic: Elastic) -> dict[str, int]:
    """The agents' pids, by node."""
    each = ((name, elastic.testbed[name].agents()) for name in NODES)
    return {name: min(pids) for name, pids in each if pids}


def held_up(elastic: Elastic) -> subprocess.Popen[bytes]:
    """A job of two nodes, one of which does not answer yet: its agent waits in the environment script."""
    hold = f"""
    if [ "$(uname -n)" = node2 ]; then
        touch {elastic.folder}/held
        while [ ! -e {elastic.folder}/free ]; do sleep 0.5; done
    fi
    PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH
    """
    (elastic.folder / "activate").write_text(hold)
    process = elastic.start("--max_elastic_nodes", 2, "--venv_script", elastic.folder / "activate", "rank.py", "go")
    wait_until("the agent that waits", (elastic.folder / "held").exists, 30)
    return process


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ended_before_the_ranks_start(elastic: Elastic, signum: signal.Signals, code: int) -> None:
    process = held_up(elastic)
    wait_until("the other", lambda: "node1" in agents(elastic), 30, 0.005)
    assert "ranks on" not in elastic.text()
    os.kill(elastic.runner(), signum)
    process.wait(60)
    (elastic.folder / "free").touch()
    elastic.end(process, code)


def test_one_that_does_not_answer_before_the_ranks_start(elastic: Elastic) -> None:
    """A spare takes its place."""
    process = held_up(elastic)
    elastic.wait(process, r"node2 is left out: no answer within 30 s")
    (elastic.folder / "free").touch()
    assert hosts_of(elastic.ranks(process, 2, 2)) == ["node1", "node3"]
    elastic.go_and_end(process)


def always_fails(elastic: Elastic) -> None:
    process = elastic.start("--max_restarts", 1, "--max_elastic_nodes", 2, "rank.py", "go")
    elastic.ranks(process, 1, 2)
    (elastic.folder / "fail").touch()
    text = elastic.end(process, 1)
    assert text.count("ValueError: it always fails") >= 2
    assert "bireme: rank 1 on node2" in text and "1 change during the job:" in text
    assert len(re.findall(r"restart 1 of 1$", text, re.MULTILINE)) == 2, "when it happens, and at the end"


def test_always_fails(elastic: Elastic) -> None:
    always_fails(elastic)


def test_always_fails_under_slurm(under_slurm: Elastic) -> None:
    always_fails(under_slurm)


def test_nodes_go_under_slurm(under_slurm: Elastic) -> None:
    """Slurm takes a failed node out of the job for good: too few are left, at last."""
    process = under_slurm.start("--num_nodes", "1:3", "--elastic_timeout", 1, "rank.py", "go")
    assert hosts_of(under_slurm.ranks(process, 1, 3)) == list(NODES)
    rank = max(found(under_slurm.testbed["node2"], "rank.py"))
    os.kill(rank, signal.SIGKILL)
    under_slurm.wait(process, r"rank 1 on node2 .*SIGKILL[^\n]*\n(?:.*\n)*?bireme: restart 1 of 3")
    under_slurm.ranks(process, 2, 3)
    under_slurm.testbed["node3"].poweroff()
    assert hosts_of(under_slurm.ranks(process, 3, 2)) == ["node1", "node2"]
    under_slurm.testbed["node1"].poweroff()
    assert hosts_of(under_slurm.ranks(process, 4, 1)) == ["node2"]
    under_slurm.testbed["node2"].poweroff()
    text = under_slurm.end(process, 76)
    assert "too few nodes for 1 s: 0 of 1 required nodes are available" in text


def test_slurm_ends_the_allocation(under_slurm: Elastic) -> None:
    """Nothing is waited for that will never be; the queue says that no job is left."""
    process = under_slurm.start("--min_elastic_nodes", 2, "rank.py", "go")
    under_slurm.ranks(process, 1, 3)
    (job,) = under_slurm.login.run(["squeue", "-h", "-o", "%i"]).stdout.split()
    under_slurm.login.run(["scancel", job])
    process.wait(60)
    assert process.returncode in (69, 75), under_slurm.text()
    assert re.search(r"bireme:.* (has expired|[Ii]nvalid job|already completing)", under_slurm.text())


def test_where_the_ranks_meet(elastic: Elastic) -> None:
    """At the address and port that are named; when that node is gone, at an address of the node that is first then."""
    elastic.hostfile(NODES[:2])
    address = elastic.testbed["node1"].ip
    process = elastic.start("--master_addr", "node1", "--master_port", 29777, "rank.py", "go")
    assert {tuple(words[7:9]) for words in elastic.ranks(process, 1, 2)} == {("node1", "29777")}
    elastic.testbed["node1"].poweroff()
    ranks = elastic.ranks(process, 2, 1)
    assert ranks[0][0] == "node2" and ranks[0][7] not in ("node1", address) and ranks[0][8] == "29777"
    elastic.go_and_end(process)


@pytest.mark.parametrize("named", ["node1", "node2"])
def test_the_command_line_of_deepspeed(elastic: Elastic, named: str) -> None:
    """Typed on the login host, with the address of a node, which is used if that node is the first."""
    elastic.hostfile(NODES[:2])
    (elastic.folder / "go").touch()
    words = ["--hostfile", "hosts", "--elastic_training", "--min_elastic_nodes", "1", "--max_elastic_nodes", "2"]
    command = [sys.executable, "-m", "bireme.deepspeed.runner", *words, "--master_addr", named, "rank.py", "go"]
    done = elastic.login.run(command, cwd=str(elastic.folder), check=False)
    assert done.returncode == 0, done.stderr
    met = {line.split("here ")[1].split()[7] for line in done.stdout.splitlines() if "here " in line}
    assert len(met) == 1 and met <= {"node1", elastic.testbed["node1"].ip}, done.stdout
    assert (met == {"node1"}) == (named == "node1")


def test_no_allocation(slurm_cluster: Testbed, shared_dir: Path) -> None:
    jobs = Jobs(slurm_cluster, "slurm", shared_dir)
    done = jobs.run("--elastic_training", jobs.write("rank.py", RANK))
    assert done.returncode == 2 and "salloc --no-kill" in done.stderr


@pytest.mark.installed
def test_by_hand(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """``--no_ssh`` on each node: PyTorch's own elastic agent, which has neither runner nor heartbeat."""
    (shared_dir / "hosts").write_text("node1 slots=2\nnode2 slots=1\n")
    (shared_dir / "rank.py").write_text(RANK)
    (shared_dir / "go").touch()
    processes = []
    for number in range(2):
        words = ("run", "--hostfile", "hosts", "--no_ssh", "--node_rank", str(number), "--elastic_training")
        command = bireme(*words, "--min_elastic_nodes", "2", "--master_port", "29511", "rank.py", "go")
        processes.append(
            ssh_cluster[f"node{number + 1}"].popen(
                command, cwd=str(shared_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    said = []
    for process in processes:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err.decode()
        said += [line.partition("here ")[2].split() for line in out.decode().splitlines() if "here " in line]
    assert sorted(words[1] for words in said) == ["0", "1", "2"] and {words[2] for words in said} == {"3"}
    assert {words[-1] for words in said} == {"bireme"}


def test_the_guardian_of_the_engine_is_killed(elastic: Elastic) -> None:
    """No node has done anything: all of them take part in the next epoch."""
    process = elastic.start("rank.py", "go")
    assert len(elastic.ranks(process, 1, 3)) == 3
    os.kill(guards(command_of(process))["guardian"], signal.SIGKILL)
    elastic.wait(process, r"^bireme: elastic job \d+, epoch \d+: 3 ranks on 3 nodes", 1)
    text = elastic.go_and_end(process)
    assert "the guardian of the launcher ssh (pid " in text and "agent lost" not in text


@pytest.mark.parametrize("epochs", [9, 10])
def test_epochs_that_come_to_nothing(elastic: Elastic, epochs: int) -> None:
    """Before a rank is started the guardian of the launcher is killed, in one epoch after the other: ten are enough."""
    elastic.testbed["node3"].drop(22)  # the others wait for it
    process = elastic.start("rank.py", "go")
    command = command_of(process)
    watchers: list[int] = []

    def another() -> dict[str, int]:
        """The guards of the next epoch: below an old watcher, what is no guardian yet has its name for a moment."""
        pids = guards_of(command)
        return pids if len(pids) == 2 and pids["watcher"] not in watchers else {}

    for _ in range(epochs):
        pids = wait_until("another guardian", another, 30, 0.005)
        os.kill(pids["guardian"], signal.SIGKILL)
        watchers.append(pids["watcher"])
    if epochs < 10:
        elastic.testbed["node3"].clear()
        assert len(elastic.ranks(process, epochs + 1, 3)) == 3
        (elastic.folder / "go").touch()
    text = elastic.end(process, 69 if epochs == 10 else 0)
    in_vain = "no rank could be started 10 times in a row; the last time: the guardian of the launcher ssh (pid "
    assert (in_vain in text) == (epochs == 10)
