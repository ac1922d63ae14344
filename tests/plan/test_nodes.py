"""Which nodes a job uses, and which of their slots."""

from __future__ import annotations

import os

import pytest

from bireme.cluster.node_selection import DeclaredPool, select
from bireme.job import JobSpec, Program
from bireme.launch import by_hand
from bireme.resources.hostfile import HostEntry

PROGRAM = Program("train.py")
FOUND = {"a": ("0", "1"), "b": ("0", "1")}


@pytest.mark.parametrize("declared", [None, 2])
def test_filters_hold_for_slots_that_only_the_nodes_know(declared: int | None) -> None:
    """What is declared is filtered before anything is started, and the nodes' own devices as soon as they are known."""
    spec = JobSpec(PROGRAM, include="a:1@b")
    nodes = select(spec, DeclaredPool((HostEntry("a", slots=2), HostEntry("b", slots=declared)), "a test"))
    known = FOUND if declared is None else {name: slots or () for name, slots in nodes.slots.items()}
    assert nodes.active(spec, known) == {"a": ("1",), "b": ("0", "1")}


@pytest.mark.parametrize(("given", "known"), [(None, "bireme"), ("ours", "ours")])
def test_all_nodes_of_an_elastic_job_by_hand_know_it_by_one_name(given: str | None, known: str) -> None:
    spec = JobSpec(PROGRAM, num_gpus=1, elastic=True, min_nodes=1, max_nodes=2, run_id=given, accelerator="cpu")
    assert by_hand.as_for_torchrun(spec, os.environ)[0].run_id == known
