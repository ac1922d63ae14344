"""Page, ``tune status``, JSON, summary, command and the study itself name the same best, metric, noise and certainty.

In folders of simulated studies of both kinds in every state: those that are kept, some that are made now by a seed, and
with ``BIREME_TEST_GOLDEN=all`` 400 of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from bireme.tune.look import answer_of, read_study
from bireme.tune.metrics.numbers import shown_ratio
from bireme.tune.report.page import page
from bireme.tune.report.records import study_record
from bireme.tune.report.status import status_text
from bireme.tune.report.view import StudyView
from bireme.tune.store import records
from tests import needs
from tests.golden.journals import CHOSEN, STUDIES

pytestmark = [pytest.mark.slow, needs.modules("numpy", "hjson")]

MADE = "0:400" if os.environ.get("BIREME_TEST_GOLDEN") == "all" else "50:1000:75"
NOW = 1_790_010_000.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("studies")
    command = [sys.executable, "-m", "tests.golden", "--make", str(folder), "--studies", MADE]
    subprocess.run(command, cwd=STUDIES.parent.parent.parent, check=True)
    found = sorted(folder.iterdir())
    assert {path.name.partition("-")[2] for path in found} == {"over", "interrupted", "killed", "running"}
    return found


@pytest.mark.parametrize("name", CHOSEN)
def test_of_kept_studies(name: str) -> None:
    check(STUDIES / name)


@pytest.mark.timeout(0)
def test_of_studies_made_now(made: list[Path]) -> None:
    for folder in made:
        check(folder)


def check(folder: Path) -> None:
    study, secrets = read_study(str(folder))
    known, _ = records.read(str(folder / "journal"))
    told = known.answer
    known.answer = None
    again = answer_of(known)
    if told is not None and known.kind == "program":  # what the tuner said when it ended is what a reader would find
        for name in ("best", "baseline", "confirmed", "rounds"):
            assert getattr(again, name) == told[name], name
        for name in ("ratio", "low", "high", "noise"):
            assert getattr(again, name) == pytest.approx(told[name]), name
    html = unescape(re.sub(r"<[^>]+>", "\n", page(study, secrets, NOW, "").partition('<script type="application')[0]))
    status = status_text(study, NOW)
    record = study_record(study, NOW)
    summary = (folder / "summary.txt").read_text() if (folder / "summary.txt").exists() else ""
    assert record["answer"]["best"] == study.best
    if study.best is None:
        assert record["status"]["best"] is None and "best" not in status and "\nbest: " not in summary
        assert "No trial gave a figure" in html or "Nothing has been measured yet" in html
        assert not study.best_command
        return
    _best(study, known.run, status, summary, html, record["status"]["best"])
    _commands(folder, study, again.best if told is None else told["best"])
    noise = f"{100 * study.answer.noise:.1f} %" if study.answer.noise is not None else ""
    said = re.search(r"^noise of a run: (\S+ %)", status, re.M)
    assert (said[1] if said else "") == noise and (noise in html if noise else "Noise of a run" not in html)
    if summary:
        said = re.search(r"^noise of a run: (\S+ %)", summary, re.M)
        assert (said[1] if said else "") == noise


def _best(study: StudyView, run: object, status: str, summary: str, html: str, record: dict[str, object]) -> None:
    best, known = study.configurations[study.best or 0].text, study.answer
    assert re.search(rf"^best( so far)?: {re.escape(best)}[ ,]", status, re.M), status
    assert record["configuration"] == best and record["confirmed"] == known.confirmed
    changed = [word for word in best.split() if word not in study.configurations[0].text.split()]
    headline = html[: html.index("What each parameter does")] if "What each parameter does" in html else html
    assert all(word in headline for word in changed) and (changed or "default" in headline or best in headline)
    goal = study.goals[0]
    assert f" {goal.name} " in status and record["figure"] == goal.name
    sure = f"{shown_ratio(known.ratio)} x the default ("
    if study.kind == "program" and len(study.goals) == 1:
        assert (sure in status) == known.confirmed == ("Confirmed" in html)
        assert ("No certain improvement" in html or "not confirmed" in html) != known.confirmed
    elif study.kind == "deepspeed":
        assert known.text in status and known.text in html
        assert ("Confirmed" in html) == known.confirmed == ("confirmed by" in known.text)
    if summary and known.text != "by one run":
        line = next(line for line in summary.splitlines() if line.startswith("best: "))
        hidden = re.escape(best).replace(re.escape("********"), r"\S+")
        assert re.match(f"best: {hidden}\\b", line)
        if study.kind == "program" or run:  # earlier journals of DeepSpeed do not say how sure it had to be
            assert (" paired round" in line or "confirmed" in line) == known.confirmed


def _commands(folder: Path, study: StudyView, best: object) -> None:
    """The command, or the configuration that it names, has the values of the best."""
    assert isinstance(best, dict)
    if (folder / "ds_config_optimal.json").exists():
        config = json.loads((folder / "ds_config_optimal.json").read_text())
        for name, value in best.items():
            place = config
            for key in name.split(".")[:-1]:
                place = place[key]
            assert place[name.rpartition(".")[2]] == value
    if (folder / "cmd_best.txt").exists():
        words = " ".join(shlex.split((folder / "cmd_best.txt").read_text()))
        known, _ = records.read(str(folder / "journal"))
        for parameter in known.identity["parameters"]:
            value = best.get(parameter["name"])
            texts = dict(zip(map(repr, parameter["choices"]), parameter["texts"], strict=False))
            text = texts.get(repr(value)) or (value if isinstance(value, str) else json.dumps(value))
            assert value is None or text in words or "/best/" in words, (words, parameter["name"], text)
        assert study.best_command
