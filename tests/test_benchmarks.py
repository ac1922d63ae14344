"""The benchmarks: each runs at a tiny size, and the costs that the project claims hold here too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, clean_environ
from tests.kit import needs

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]


@pytest.fixture
def benchmark(tmp_path):
    """Run a benchmark; its output and its measurements."""

    def run(name: str, *args: object, only: str = "bare,bireme", **kwargs: object) -> tuple[str, dict]:
        file = tmp_path / f"{name}.json"
        command = [sys.executable, BENCHMARKS / f"{name}.py", "--only", only, "--json", file, *map(str, args)]
        done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=600, **kwargs)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, json.loads(file.read_text())

    return run


def rows(table: str) -> list[list[str]]:
    """The rows of all tables, as words."""
    return [line.split() for line in table.splitlines() if line.startswith(("bare", "bireme", "writer alone"))]


def test_launch(benchmark):
    table, measured = benchmark("launch", "--rounds", 1, "--ranks", "2,3")
    assert [row[0] for row in rows(table)] == ["bare", "bireme"] * 2
    assert {(each["ranks"], each["name"]) for each in measured["results"]} == {
        (2, "bare"), (2, "bireme"), (3, "bare"), (3, "bireme")
    }  # fmt: skip
    assert all(each["held_mib"] > 1 and each["seconds"][0] > 0 for each in measured["results"])


def test_death(benchmark):
    table, measured = benchmark("death", "--rounds", 1, only="bireme")
    assert "SIGKILL to the process above the ranks" in table
    codes = {each["scene"]: each["endings"][0]["code"] for each in measured["results"]}
    assert codes == {
        "exit3": 3, "raise": 1, "segv": 139, "stubborn": 3, "grandchild": 3,
        "sigint": 130, "sigterm": 143, "sighup": 129, "sigkill": 137, "above": 75,
    }  # fmt: skip
    assert all(each["endings"][0]["left"] == 0 for each in measured["results"])


def test_output(benchmark, tmp_path):
    sizes = ["--lines", 5000, "--c_lines", 50_000, "--flood_ranks", 8, "--flood_mb", 2, "--print_lines", 2000]
    table, measured = benchmark("output", "--rounds", 1, "--dir", tmp_path, *sizes)
    assert len([row for row in rows(table) if row[0] == "bireme"]) == 5
    parts = measured["results"]
    of_bireme = [each for each in parts["a"] + parts["d"] if each["name"].startswith("bireme")]
    readings = [reading for each in of_bireme for reading in each["readings"]]
    readings += [each["reading"] for each in parts["b"]]
    assert len(readings) == 2 * len(of_bireme) + 4  # the warm-up was read back too
    assert all((each["torn"], each["lost"], each["late"]) == (0, 0, 0) for each in readings)
    assert parts["c"][0]["code"] == 0


def test_schedule(benchmark):
    sizes = ("--tasks", "50,100", "--nodes", 8)
    table, measured = benchmark("schedule", *sizes, only="fifo,longest+backfill")
    assert table.count("8 nodes x 8 slots") == 2
    assert [(each["tasks"], each["name"]) for each in measured["results"]] == [
        (50, "fifo"), (50, "longest+backfill"), (100, "fifo"), (100, "longest+backfill")
    ]  # fmt: skip
    assert all(each["runs"][0]["ratio"] >= 1 for each in measured["results"])


def test_parts_and_contestants_can_be_chosen(benchmark, tmp_path):
    table, measured = benchmark(
        "output", "--part", "a", "--rounds", 2, "--lines", 100, "--dir", tmp_path, only="bireme"
    )
    assert list(measured["results"]) == ["a"]
    assert [row[0] for row in rows(table)] == ["bireme"]
    assert measured["results"]["a"][0]["ratio"] is None  # nothing to compare with


def test_missing_peers_are_named(tmp_path):
    command = [sys.executable, BENCHMARKS / "launch.py", "--only", "bireme,mpich", "--rounds", "1", "--ranks", "1"]
    environ = clean_environ(PATH=str(tmp_path))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "left out, because neither on PATH nor in a --peers directory: mpich" in done.stdout


@pytest.mark.parametrize(("ranks", "rounds", "most"), [(2, 12, 2.0), (8, 5, 1.8)])
def test_launching_costs_little_more_than_a_bare_loop(benchmark, ranks, rounds, most):
    """The best of many turns: what others do on this machine can only add to it."""
    _, measured = benchmark("launch", "--rounds", rounds, "--ranks", ranks)
    of = {each["name"]: each for each in measured["results"]}
    best = {name: min(filter(None, each["seconds"])) for name, each in of.items()}
    assert best["bireme"] <= most * best["bare"]
    assert of["bireme"]["held_mib"] <= 25


@needs.modules("torch", "deepspeed", "tabulate")
def test_tune(benchmark, tmp_path):
    """Ours alone, on a script without PyTorch; the benchmark's own: ``tests/command/tune/test_contract.py``."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import runpy, sys\nsys.argv += ['--steps', '6']\nrunpy.run_path({str(PROGRAMS / 'contract.py')!r})"
    )
    before = {"round": 1, "name": "bireme", "seconds": 3.0, "launched": 2, "winner": [1, 8, 1], "ties": []}
    before["throughput"] = [[1, 8, 1, 100.0]]
    (tmp_path / "before.json").write_text(json.dumps({"results": [before]}))
    words = ("--stages", "1", "--micro", "8", "--repeats", "1", "--script", script)
    table, measured = benchmark("tune", *words, "--earlier", tmp_path / "before.json", only="bireme")
    first, second = measured["results"]
    assert first == before and (second["round"], second["name"], second["launched"]) == (2, "bireme", 1)
    assert [figure[:3] for figure in second["throughput"]] == [second["winner"]] == [[1, 8, 1]]
    assert table.count("stage 1, 8 x 1") == 4  # two winners, the figures, and the winner again by the clock
    assert [len(figures) for figures in measured["repeats"].values()] == [1]
    assert not measured["failures"]
