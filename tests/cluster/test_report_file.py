"""``--report`` names the nodes at fault, for a scheduler that wants to avoid them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.jobs import Jobs
from tests.conftest import PROGRAMS, read_lines

SCENE = PROGRAMS / "scene.py"


def report_of(jobs: Jobs) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((jobs.shared / "report.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "off"), [("ssh", ("node2", "node3")), ("openmpi", ("node2",))])
def test_nodes_that_are_lost(jobs: Jobs, off: tuple[str, ...]) -> None:
    process = jobs.start("--heartbeat", 5, "--grace", 0.5, "--report", "report.json", SCENE, "wait")
    read_lines(process, 6, "ready")
    for name in off:
        jobs.testbed[name].blackhole()
    process.communicate(timeout=40)
    report = report_of(jobs)
    assert (process.returncode, report["exit_code"], report["cause"]) == (75, 75, "agent lost")
    assert report["hosts"] == list(off)
    assert any(name in report["note"] for name in off)
    # what a node that does not answer has had to say of its ranks is not known
    assert {end["host"] for end in report["ends"]} == {"node1", "node3"} - set(off)
    assert all(end["stopped"] for end in report["ends"])


def test_nodes_that_are_not_fit(jobs: Jobs) -> None:
    jobs.testbed["node2"].kill_sshd()
    done = jobs.run("--report", "report.json", SCENE, "wait", hosts="node1:1,node2:1,nowhere:1")
    report = report_of(jobs)
    assert (done.returncode, report["exit_code"], report["cause"]) == (69, 69, "unfit")
    assert (report["hosts"], report["ends"]) == (["node2", "nowhere"], [])
    assert "Connection refused" in report["note"] and "Could not resolve hostname" in report["note"]


def test_a_rank_that_raises_on_another_node(jobs: Jobs) -> None:
    """Its words have come along with its output, and nobody else is at fault."""
    (jobs.shared / "go").touch()
    done = jobs.run("--report", "report.json", SCENE, "raise", jobs.shared / "go")
    report = report_of(jobs)
    assert (done.returncode, report["cause"], report["hosts"]) == (1, "rank failed", [])
    assert (report["first"]["rank"], report["first"]["host"]) == (5, "node3")
    assert report["first"]["detail"].endswith("RuntimeError: boom in rank 5")
    assert len(report["ends"]) == 6
