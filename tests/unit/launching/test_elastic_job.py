"""The elastic job by itself, before its first epoch. Its epochs are in the simulation and in ``tests/cluster``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.job import JobSpec, Program
from bireme.launching.elastic import ElasticJob
from bireme.one_node.machine import MACHINE
from bireme.result.outcome import Outcome


@pytest.mark.parametrize(
    ("asked", "hosts", "output"),
    [("auto", "a:1,b:1", "prefix"), ("auto", "a:1", "auto"), ("raw", "a:1,b:1", "raw"), ("raw", "a:1", "raw")],
)
def test_lines_are_labelled_from_the_first_epoch_on(asked: str, hosts: str, output: str) -> None:
    """Also while there is only one rank, unless the user wants it otherwise."""
    spec = JobSpec(program=Program("train.py"), hosts=hosts, elastic=True, output=asked)  # type: ignore[arg-type]
    job = ElasticJob(spec, {}, lambda *_: None, MACHINE)
    assert job._spec.output == output
    job.close()


@pytest.mark.parametrize(
    ("cause", "limit", "note"),
    [
        ("time limit", 60.0, "stopped after the time limit of 60 s"),
        ("rank failed", 60.0, "as it was"),
        ("unfit", 60.0, "as it was"),
    ],
)
def test_only_a_job_that_met_its_limit_says_so(cause: str, limit: float, note: str) -> None:
    """And it names the limit of the whole job, not what the last epoch had left of it."""
    spec = JobSpec(program=Program("train.py"), hosts="a:1", elastic=True, time_limit=limit)
    job = ElasticJob(spec, {}, lambda *_: None, MACHINE)
    assert job._at_the_end(Outcome(exit_code=1, cause=cause, seconds=1.0, note="as it was")).note == note  # type: ignore[arg-type]
    job.close()


def test_the_file_that_declares_the_nodes_is_watched(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("a slots=1\nb slots=1\n")
    for hosts, watched in (("", True), ("a:1,b:1", False)):
        spec = JobSpec(program=Program("train.py"), hosts=hosts, hostfile=str(hostfile), elastic=True)
        job = ElasticJob(spec, {}, lambda *_: None, MACHINE)
        assert (job._monitor._file.next_look is not None) == watched
        job.close()
