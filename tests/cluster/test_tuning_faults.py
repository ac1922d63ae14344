"""Faults during a study on many nodes: nodes that are lost, cut off or missing, and a tuner that dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bireme.tune.store.journal import Journal
from tests.cluster.basics import wait_until
from tests.cluster.test_losses import ranks_of
from tests.cluster.testbed import Testbed
from tests.conftest import PROGRAMS, bireme, read_lines

pytestmark = pytest.mark.slow

CONTRACT = PROGRAMS / "contract.py"
NODES = ("node1", "node2", "node3", "node4")
HEARTBEAT = 5.0


class Desk:
    """A study that is started on the cluster's login host, in a folder that all hosts share."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self.testbed, self.folder, self.login = testbed, folder, testbed["login"]
        self.results = folder / "autotuning_results"
        (folder / "hostfile").write_text("".join(f"{name} slots=2\n" for name in NODES))
        self.configure([4, 8], [0, 1])  # as many as there are nodes

    def configure(self, micro: list[int], stages: list[int]) -> None:
        config = {
            "train_micro_batch_size_per_gpu": micro,
            "zero_optimization": {"stage": stages},
            "autotuning": {"enabled": True},
        }
        (self.folder / "ds.json").write_text(json.dumps(config))

    def start(self, *script: str, width: tuple[int, int] = (1, 2), options: tuple[str, ...] = ()) -> Any:
        nodes, slots = map(str, width)
        words = ["--hostfile", "hostfile", "--num_nodes", nodes, "--num_gpus", slots, *options]
        words += ["--heartbeat", str(HEARTBEAT), "--grace", "1", str(CONTRACT), "--deepspeed_config", "ds.json"]
        return self.login.popen(
            bireme("tune", *words, *script), cwd=str(self.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def running(self, count: int) -> None:
        """Wait until there are so many ranks on the nodes."""
        wait_until(f"{count} ranks", lambda: sum(len(self.ranks(name)) for name in NODES) == count, 60)

    def ranks(self, node: str) -> list[int]:
        return ranks_of(self.testbed[node], CONTRACT)

    def go(self) -> None:
        (self.folder / "go").touch()

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out.decode() + err.decode()
        return out.decode()

    def records(self) -> list[dict[str, Any]]:
        journal = Journal.open(str(self.results / "journal"))
        found = list(journal.records)
        journal.close()
        return found

    def ends(self) -> dict[str, str]:
        ends = [(str(record["end"]), record["ending"]["cause"]) for record in self.records() if "end" in record]
        assert len(ends) == len(dict(ends)), "nothing ends twice"
        return dict(ends)

    def starts(self) -> list[str]:
        return [str(record["on"]) for record in self.records() if "start" in record]


@pytest.fixture
def desk(ssh_cluster: Testbed, shared_dir: Path) -> Desk:
    return Desk(ssh_cluster, shared_dir)


def test_two_nodes_each_and_one_of_them_is_lost(desk: Desk) -> None:
    """Both nodes of the pair are free of the experiment before either gets another one."""
    desk.configure([4, 8], [0])
    process = desk.start("--until", "go", width=(2, 2))
    desk.running(8)
    desk.testbed["node2"].poweroff()
    wait_until("nothing on node1", lambda: not desk.ranks("node1"), 30)
    desk.go()
    text = desk.end(process)
    assert len(re.findall(r"infrastructure: .*node2.*retrying elsewhere", text)) == 1, text
    assert set(desk.ends().values()) == {"ok"} and len(desk.ends()) == 2
    first, second, third = desk.starts()
    assert [first, second] == ["node1:0,1@node2:0,1", "node3:0,1@node4:0,1"]
    assert "node2" not in third, "while it is away it gets none"
    assert "z0_gas1_tmbspg8" in (desk.results / "summary.txt").read_text()
    optimal = json.loads((desk.results / "ds_config_optimal.json").read_text())
    assert optimal["train_micro_batch_size_per_gpu"] == 8


def test_a_node_that_is_cut_off_ends_its_ranks_by_itself(desk: Desk) -> None:
    process = desk.start("--until", "go")
    desk.running(8)
    desk.testbed["node3"].cut()
    wait_until("nothing on node3", lambda: not desk.ranks("node3"), 30)
    desk.go()
    text = desk.end(process)
    assert len(re.findall(r"infrastructure: .*node3.*retrying elsewhere", text)) == 1, text
    assert set(desk.ends().values()) == {"ok"} and len(desk.ends()) == 4


def test_a_node_that_is_away_from_the_beginning(desk: Desk) -> None:
    desk.testbed["node1"].poweroff()
    text = desk.end(desk.start())
    assert len(re.findall(r"infrastructure: .*node1.*retrying elsewhere", text)) == 1, text
    assert set(desk.ends().values()) == {"ok"} and len(desk.ends()) == 4


def test_a_node_that_comes_back_gets_experiments_again(desk: Desk) -> None:
    """After a rest: until then the others have what there is. Another one than it had."""
    desk.configure([4, 8, 16, 32, 64], [0])
    desk.testbed["node1"].poweroff()
    process = desk.start("--until", "go")
    lines = read_lines(process, 1, "retrying elsewhere")
    assert "infrastructure" in lines[-1] and "node1" in lines[-1]
    desk.testbed["node1"].boot()
    wait_until("an experiment on node1", lambda: bool(desk.ranks("node1")), 60)
    desk.go()
    desk.end(process)
    assert set(desk.ends().values()) == {"ok"} and len(desk.ends()) == 5


def test_an_agent_that_is_killed(desk: Desk) -> None:
    desk.configure([4, 8], [0])
    process = desk.start("--until", "go", width=(2, 1))
    desk.running(4)
    os.kill(min(desk.testbed["node1"].agents()), signal.SIGKILL)
    desk.go()
    text = desk.end(process)
    assert re.search(r"infrastructure: .*node1.*retrying elsewhere", text), text
    assert set(desk.ends().values()) == {"ok"} and len(desk.ends()) == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_tuner_that_is_stopped_leaves_nothing_on_any_node(desk: Desk, signum: signal.Signals) -> None:
    desk.configure([4, 8], [0])
    process = desk.start("--until", "go")
    desk.running(4)
    desk.login.kill(process, signum, group=False)
    desk.end(process, 128 + signum)
    desk.testbed.leaves_nothing()
    desk.go()
    desk.end(desk.start("--until", "go"))
    assert set(desk.ends().values()) == {"ok"} and len(desk.ends()) == 2


def test_a_tuner_that_is_killed_leaves_nothing_on_any_node_and_goes_on(desk: Desk) -> None:
    process = desk.start("--until", "go", "--ran", "ran", "--do", "0/4=stubborn", "--do", "1/8=die")
    desk.go()
    wait_until("some ends", lambda: len(list(desk.results.glob("z*/metrics.json"))) >= 2, 60)
    desk.login.kill(process, signal.SIGKILL)
    process.communicate(timeout=60)
    desk.testbed.leaves_nothing()
    before = desk.ends()
    options = ("--experiment_limit", "25")  # for the stubborn one: the others should make it
    desk.end(desk.start("--until", "go", "--ran", "ran", "--do", "0/4=stubborn", "--do", "1/8=die", options=options))
    causes = desk.ends()
    assert before.items() <= causes.items() and len(causes) == 4
    ran = (desk.folder / "ran").read_text().split()
    for name in before:
        stage, micro = re.findall(r"^z(\d)_gas\d+_tmbspg(\d+)$", name)[0]
        assert ran.count(f"{stage}/{micro}") == 1, "what has ended is not run again"
    desk.testbed.leaves_nothing()


def test_stubborn_ranks_are_gone_before_their_slots_are_given_again(desk: Desk) -> None:
    """On another machine, in sessions of their own: when the tuner is killed, and at a time limit."""
    desk.configure([4, 8], [0])
    (desk.folder / "alone.py").write_text(ALONE.replace("CONTRACT", repr(str(CONTRACT))))
    words = ["--hosts", "node1:2", "--num_gpus", "2", "--grace", "0.5", "--experiment_limit", "25", "alone.py"]
    command = bireme("tune", *words, "--deepspeed_config", "ds.json", "--do", "0/4=stubborn")

    def start() -> subprocess.Popen[bytes]:
        return desk.login.popen(command, cwd=str(desk.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    process = start()
    wait_until("stubborn ranks", lambda: len(list(desk.folder.glob("stubborn.*"))) == 2, 30)
    desk.login.kill(process, signal.SIGKILL)
    process.communicate(timeout=60)
    desk.end(start())
    assert desk.ends() == {"z0_gas2_tmbspg4": "timed out", "z0_gas1_tmbspg8": "ok"}


ALONE = """
import os, runpy, sys
job = os.environ["BIREME_JOB"].partition("/")[0]  # what the other rank has started is of this one
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words, environ = (open(f"/proc/{pid}/{name}").read() for name in ("cmdline", "environ"))
    except OSError:
        continue
    if "time.sleep(600)" in words and job not in environ:
        sys.exit(f"{pid} of an earlier experiment is still here")
sys.argv[0] = CONTRACT
runpy.run_path(CONTRACT, run_name="__main__")
"""
