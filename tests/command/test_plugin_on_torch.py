"""Tests that PyTorch has written, by the marker ``ranks``: the verdicts are those of PyTorch's own way."""

from __future__ import annotations

import re
from collections.abc import Callable

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
import os, sys, unittest
sys.modules["hypothesis"] = None  # which PyTorch's tests import if it is there
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
        os.environ["TEMP_DIR"] = os.path.abspath("temp")  # the tests before have one of their own, which has gone
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


GROUP = """
import pytest, torch, torch.distributed as dist

@pytest.fixture
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

@pytest.mark.ranks(2)
@pytest.mark.parametrize("k", range(5))
def test_it(group, k):
    total = torch.ones(1) * k
    dist.all_reduce(total)
    assert total.item() == 2 * k
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """The verdict of each test of a class, or of a file: all run in one session, which imports PyTorch once."""
    stage, folder = Stage(), tmp_path_factory.mktemp("torch")
    (folder / "temp/barrier").mkdir(parents=True)
    (folder / "temp/test_dir").mkdir()
    (folder / "test_theirs.py").write_text(THEIRS)
    (folder / "test_group.py").write_text(GROUP)
    # Those first that fork this session: it has no ranks yet, and no threads.
    words = [f"test_theirs.py::{name}::{each}" for name in ("TestByThemselves", "TestOnRanks") for each in NAMES]
    environ = {**ALONE, "BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": str(folder / "temp")}
    words = command("-v", "--tb=short", *words, "test_group.py")
    done = stage.run_argv(words, cwd=folder, timeout=500, env=environ)
    stage.end()

    def of(name: str) -> dict[str, str]:
        found = re.findall(rf"^\S*{re.escape(name)}::(\S+) ([A-Z]+)", done.stdout, re.MULTILINE)
        return dict(found) or {"nothing": done.stdout + done.stderr}

    return of


def test_verdicts_are_the_same(verdicts: Callable[[str], dict[str, str]]) -> None:
    by_marker = verdicts("TestOnRanks")
    assert by_marker == verdicts("TestByThemselves")
    assert list(by_marker.values()).count("PASSED") >= 10
    assert "SKIPPED" in by_marker.values()


def test_a_fixture_has_the_group_of_all_ranks(verdicts: Callable[[str], dict[str, str]]) -> None:
    assert verdicts("test_group.py") == {f"test_it[{k}]": "PASSED" for k in range(5)}
