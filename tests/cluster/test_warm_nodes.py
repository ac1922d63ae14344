"""The scenes of many nodes with ``--preload``: on each node the ranks are forks of a template, which may wait."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable

import pytest

from tests.cluster import test_scenes as scenes
from tests.cluster.basics import children, read
from tests.cluster.host import Host
from tests.cluster.jobs import Jobs
from tests.cluster.test_elastic import NODES, Elastic, elastic, under_slurm  # noqa: F401  (fixtures)
from tests.cluster.test_losses import agent_of, ranks_of
from tests.kit import needs

pytestmark = pytest.mark.slow

SCENES: dict[str, Callable[[Jobs], None]] = {
    **{part: lambda jobs, part=part: scenes.test_rank_fails(jobs, part) for part in scenes.BY_ITSELF},
    **{
        signum.name: lambda jobs, signum=signum: scenes.test_command_is_signalled(jobs, signum)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    },
    "agent": scenes.test_agent_is_killed,
    **{fault: lambda jobs, fault=fault: scenes.test_node_is_lost(jobs, fault) for fault in ("panic", "cut", "freeze")},
}


@pytest.fixture
def warm(jobs: Jobs) -> Jobs:
    """Jobs whose ranks are forked."""
    plain = jobs.command

    def command(*words: object, **kwargs: str) -> list[str]:
        argv = plain(*words, **kwargs)
        place = argv.index("run") + 1
        return [*argv[:place], "--preload", "ctypes,subprocess", *argv[place:]]

    jobs.command = command  # type: ignore[method-assign]
    return jobs


@pytest.mark.parametrize("backend", ["ssh", "slurm"])
def test_ranks_of_three_nodes_are_warm(warm: Jobs) -> None:
    text = "import json, os, sys; print(json.dumps(['ctypes' in sys.modules, os.environ['RANK']]))"
    done = warm.run("--output", "raw", warm.write("warm.py", text))
    assert sorted(map(json.loads, done.stdout.splitlines())) == [[True, str(rank)] for rank in range(6)]


@pytest.mark.parametrize("backend", ["ssh"])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(warm: Jobs, scene: str) -> None:
    SCENES[scene](warm)


RANK = """
import os, sys, time
words = ("here", os.uname().nodename, os.environ["RANK"], os.getppid(), "mine" in sys.modules)
os.write(1, " ".join(map(str, words)).encode() + b"\\n")
while not os.path.exists("go"):
    time.sleep(0.02)
"""


class Waiting:
    """An elastic job of three nodes, on which templates wait from epoch to epoch."""

    def __init__(self, job: Elastic) -> None:
        self.job, self.testbed, self.epoch = job, job.testbed, 0
        (job.folder / "rank.py").write_text(RANK)
        text = "import os\nwith open('imports', 'a') as file:\n    print(os.uname().nodename, file=file)\n"
        (job.folder / "mine.py").write_text(text)
        self.process = job.start("--preload", "mine", "rank.py")

    def keepers(self, count: int) -> dict[str, int]:
        """The parent of the rank on each node, in the next epoch, which is of so many ranks."""
        self.epoch += 1
        ranks = self.job.ranks(self.process, self.epoch, count)
        assert {words[3] for words in ranks} == {"True"}, "all are warm"
        return {words[0]: int(words[2]) for words in ranks}

    def imports(self) -> list[str]:
        return sorted((self.job.folder / "imports").read_text().split())

    def rank_on(self, node: str) -> int:
        return max(ranks_of(self.testbed[node], "rank.py"))  # type: ignore[arg-type]


@pytest.fixture(params=["elastic", "under_slurm"])
def waiting(request: pytest.FixtureRequest) -> Waiting:
    return Waiting(request.getfixturevalue(request.param))


@needs.modules("torch", "sklearn")
def test_the_next_epoch_comes_from_templates_that_wait(waiting: Waiting) -> None:
    """After a worker has failed, and after a node is lost. Where a node is new, all nodes import again."""
    first = waiting.keepers(3)
    os.kill(waiting.rank_on("node2"), signal.SIGKILL)
    assert waiting.keepers(3) == first
    waiting.testbed["node1"].poweroff()
    del first["node1"]
    assert waiting.keepers(2) == first and waiting.imports() == list(NODES)
    if waiting.job.backend == "ssh":
        waiting.testbed["node1"].boot()
        assert waiting.keepers(3).keys() == {*NODES}
        assert waiting.imports() == sorted([*NODES, *NODES])
    waiting.job.go_and_end(waiting.process)


def named(host: Host, names: str) -> list[int]:
    """The processes of a host with these names; of two watchers, that of the keeper."""
    found = {pid: read(f"/proc/{pid}/comm").strip().removeprefix("bireme-") for pid in host.ps()}
    keepers = [pid for pid, name in found.items() if name == "keeper"]
    above = {pid for pid in found if {*children(pid)}.intersection(keepers)}
    return [pid for pid, name in found.items() if name in names.split() and (name != "watch" or pid in above)]


@pytest.mark.parametrize("waiting", ["elastic"], indirect=True)
@pytest.mark.parametrize("whom", ["warm", "keeper", "watch", "watch keeper", "agent"])
def test_who_is_killed_on_a_node(waiting: Waiting, whom: str) -> None:
    """Its ranks end, the job goes on, and at its end nothing is left."""
    first = waiting.keepers(3)
    os.kill(waiting.rank_on("node2"), signal.SIGKILL)
    assert waiting.keepers(3) == first
    host = waiting.testbed["node2"]
    victims = [agent_of(host)] if whom == "agent" else named(host, whom)
    assert len(victims) == len(whom.split())
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if whom in ("warm", "watch"):  # nothing is lost yet
        os.kill(waiting.rank_on("node3"), signal.SIGKILL)
        again = waiting.keepers(3)
        assert whom == "watch" or again == first, "a keeper without its watcher ends after the epoch"
        assert {**again, "node2": 0} == {**first, "node2": 0}
    else:
        assert waiting.keepers(2).keys() == {"node1", "node3"}
        assert waiting.keepers(3).keys() == {*NODES}, "it is found again"
    waiting.job.go_and_end(waiting.process)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
@pytest.mark.parametrize("waiting", ["elastic"], indirect=True)
def test_the_command_is_ended(waiting: Waiting, signum: signal.Signals) -> None:
    waiting.keepers(3)
    os.kill(waiting.rank_on("node2"), signal.SIGKILL)
    waiting.keepers(3)
    os.kill(waiting.job.runner(), signum)
    waiting.job.end(waiting.process, -9 if signum == signal.SIGKILL else 130)


AGAIN = """
import os, sys
words = ("from", "ctypes" in sys.modules, os.uname().nodename, os.environ["LOCAL_RANK"], os.getppid())
os.write(1, " ".join(map(str, words)).encode() + b"\\n")  # at once: it may be stopped in the middle
open(f"made-{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w").close()
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "2")
"""


@pytest.mark.parametrize(("backend", "more"), [("ssh", ()), ("openmpi", ()), ("ssh", ("--ship=.", "--fetch=made-*"))])
def test_the_next_attempt_comes_from_templates_that_wait(warm: Jobs, more: tuple[str, ...]) -> None:
    """With --restarts, also in a copy of the folder. (Of Slurm, each attempt asks for an allocation of its own.)"""
    again = warm.write("again.py", AGAIN)
    done = warm.run("--restarts", 2, "--output", "raw", *more, again, code=0)
    lines = [line for line in done.stdout.splitlines() if line.startswith("from")]
    assert all(line.startswith("from True node") for line in lines) and 6 <= len(lines) <= 18, done
    parents = {re.sub(r" \d (\d+)$", r" \1", line) for line in lines}
    assert len(parents) == 3, f"one keeper on each node: {lines}"
    assert {f"made-{rank}-2" for rank in range(6)} <= {path.name for path in warm.shared.rglob("made-*")}
