"""The simulation of many nodes: its invariants hold, a seed gives the same run again, and it finds faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent.parent


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "runs"),
    [((), "150"), (("--elastic",), "100"), (("--warm",), "100"), (("--asked",), "150")],
    ids=["cluster", "elastic", "warm", "asked"],
)
def test_the_invariants_hold(kind: tuple[str, ...], runs: str) -> None:
    """Every rank ends, no two epochs live at once, the first failure is blamed, nobody is lost who answers."""
    done = simulate(*kind, "--seed", "1", "--runs", runs)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ((), (1046, 1084, 201624, 203638, 204155, 406130, 423479, 822053)),
        (("--elastic",), (302255, 302258, 304038, 304132, 304323)),
        (("--warm",), (12021, 12497, 13402)),
    ],
    ids=["cluster", "elastic", "warm"],
)
def test_runs_that_broke_an_invariant(kind: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    """A fault of the program, or of the simulation itself, was found with these seeds."""
    done = simulate(*kind, "--seed", *map(str, seeds))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", [(), ("--elastic",)], ids=["cluster", "elastic"])
def test_a_seed_gives_the_same_run_again(kind: tuple[str, ...]) -> None:
    one, two = (simulate(*kind, "--seed", "5", "--log", hash_seed=seed).stdout for seed in ("1", "2"))
    without_seconds = [re.sub(r"in [0-9.]+ s;", "", text) for text in (one, two)]
    assert without_seconds[0] == without_seconds[1]
    assert "the runner starts the ranks" in one


@pytest.mark.slow
def test_every_fault_in_the_program_is_found() -> None:
    done = simulate("--mutation", "all")
    killed = set(re.findall(r"^killed: (\S+): ", done.stdout, flags=re.MULTILINE))
    assert killed == {mutation.name for mutation in MUTATIONS} and done.returncode == 0, done.stdout + done.stderr
