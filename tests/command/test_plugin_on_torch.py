"""Tests that PyTorch has written, by the marker ``ranks``: the verdicts are those of PyTorch's own way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command.test_pytest_plugin import ALONE, command
from tests.conftest import Stage
from tests.kit import needs

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs.modules("torch", "expecttest")]

NAMES = (
    "test_all_gather",
    "test_all_reduce_sum",
    "test_all_reduce_coalesced_sum",
    "test_all_to_all_single_equal_split_group",
    "test_broadcast",
    "test_broadcast_object_list",
    "test_DistributedDataParallelCPU",
    "test_gather",
    "test_get_rank",
    "test_isend",
    "test_reduce_sum",
    "test_scatter",
    "test_send_recv",
    "test_nccl_high_priority_stream",
)

THEIRS = """
import os, unittest
import pytest
import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed import distributed_test as theirs

base = theirs.DistributedTest._DistTestBase

@pytest.mark.ranks(2)
class TestOnRanks(base, TestCase):
    rank = property(lambda self: dist.get_rank())
    world_size = property(lambda self: os.environ["WORLD_SIZE"])

    def setUp(self):
        super().setUp()
        dist.init_process_group("gloo")

    def tearDown(self):
        dist.destroy_process_group()
        super().tearDown()

    def _barrier(self, *args, **kwargs):  # theirs counts files in a folder that is one for all tests
        dist.barrier()

class TestByThemselves(theirs.TestDistBackend, base):
    def _spawn_processes(self):  # as the plug-in: PyTorch is imported once
        self._fork_processes()

del base
"""


def verdicts(stage: Stage, folder: Path, name: str) -> dict[str, str]:
    """Run the tests of a class; the verdict of each."""
    (folder / "temp/barrier").mkdir(parents=True, exist_ok=True)
    (folder / "temp/test_dir").mkdir(exist_ok=True)
    (folder / "test_theirs.py").write_text(THEIRS)
    words = [f"test_theirs.py::{name}::{each}" for each in NAMES]
    environ = {**ALONE, "BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": str(folder / "temp")}
    done = stage.run_argv(command("-v", "--tb=short", *words), cwd=folder, timeout=500, env=environ)
    return dict(re.findall(rf"::{name}::(\w+) ([A-Z]+)", done.stdout)) or {"nothing": done.stdout + done.stderr}


def test_verdicts_are_the_same(stage: Stage, tmp_path: Path) -> None:
    by_marker = verdicts(stage, tmp_path, "TestOnRanks")
    assert by_marker == verdicts(stage, tmp_path, "TestByThemselves")
    assert list(by_marker.values()).count("PASSED") >= 10
    assert "SKIPPED" in by_marker.values()
