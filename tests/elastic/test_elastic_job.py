"""The elastic job by itself, before its first epoch. Its epochs are in the simulation and in ``tests/cluster``."""

from __future__ import annotations

import pytest

from bireme.agent.machine import MACHINE
from bireme.elastic.elastic_job import ElasticJob
from bireme.job import JobSpec, Program


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
