"""The recorded landscapes are well-formed, and the recorder can be interrupted and continued."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environ

FOLDER = Path(__file__).parent.parent / "benchmarks" / "landscapes"
FILES = sorted(FOLDER.glob("*.json"))


def check(path: Path) -> dict:
    """Read a landscape; each of its trials is a point of the space, and each figure a number."""
    landscape = json.loads(path.read_text())
    assert (FOLDER / "programs" / landscape["program"]).exists()
    assert landscape["machine"] and landscape["recorded"] and landscape["goal"]["name"]
    assert landscape["goal"]["direction"] in ("maximize", "minimize")
    choices = {each["name"]: each["choices"] for each in landscape["parameters"]}
    assert all(each["default"] in each["choices"] for each in landscape["parameters"])
    seen = set()
    for trial in landscape["trials"]:
        assert trial["point"].keys() == choices.keys()
        assert all(value in choices[name] for name, value in trial["point"].items())
        seen.add(json.dumps(trial["point"], sort_keys=True))
        ok = trial["cause"] == "ok"
        assert ok or trial["cause"] in ("out of memory", "failed")
        assert len(trial["figures"]) == (len(trial["seconds"]) if ok else 0), trial
        assert all(number > 0 for number in [*trial["figures"], *trial["seconds"]])
    assert len(seen) == len(landscape["trials"])
    return landscape


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded(path):
    landscape = check(path)
    default = {each["name"]: each["default"] for each in landscape["parameters"]}
    trials = landscape["trials"]
    assert [each["cause"] for each in trials if each["point"] == default] == ["ok"]
    assert len(trials) >= 60
    assert len({len(each["seconds"]) for each in trials}) == 1


def test_small():
    assert sum(path.stat().st_size for path in FILES) < 200_000


@pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
def test_continued(tmp_path):
    """What was recorded stays as it is; only what is missing runs."""
    path = tmp_path / "sqlite.json"

    def record(repeats: int) -> list[dict]:
        command = [sys.executable, FOLDER / "record.py", "sqlite", "--points", "2", "--out", path]
        done = subprocess.run(
            [*command, "--repeats", str(repeats)], env=clean_environ(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "2 points: 2 ok" in done.stdout
        return check(path)["trials"]

    first = [each["figures"] for each in record(1)]
    second = [each["figures"] for each in record(2)]
    assert [len(figures) for figures in second] == [2, 2]
    assert [figures[:1] for figures in second] == first
