"""The scenes of many nodes with ``--preload``: on each node the ranks are forks of a template."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from tests.cluster import test_scenes as scenes
from tests.cluster.jobs import Jobs

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
