"""Results that were measured before: they guide the search, take nothing of its budget, and claim nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.tune import Study
from bireme.tune.metrics.metric import parse
from bireme.tune.space.points import Parameter, Space
from bireme.tune.store.resume import read_results as read
from tests.conftest import PROGRAMS

TUNABLE = str(PROGRAMS / "tunable.py")
SPACE = Space([Parameter(name="n", choices=(1, 2, 4)), Parameter(name="mode", choices=("safe", "fast"))])
MEASURE = parse([("maximize", "rate: {}")], ["p99: {} < 9"])


def table(folder: Path, text: str) -> str:
    path = folder / "known.csv"
    path.write_text(text)
    return str(path)


def test_a_table_has_a_column_for_each_parameter_and_metric(tmp_path: Path) -> None:
    text = "n,rate,p99,seconds,note\n1,5,3,2.5,a\n2,6,10,,b\n4,,,,c\n3,7,1,,d\n4,8,1,,e\n4,8,1,,e\n"
    made, said = read(table(tmp_path, text), SPACE, MEASURE)
    assert said.endswith("known.csv: 5 results taken over, 1 left out: their points are not in the space")
    assert [each["point"] for each in made] == [{"n": n, "mode": "safe"} for n in (1, 2, 4, 4, 4)]
    assert [each["ending"]["cause"] for each in made] == ["ok", "over limit", "failed", "ok", "ok"]
    assert made[0]["ending"]["seconds"] == 2.5 and made[0]["ending"]["metrics"] == {"rate": 5.0, "p99": 3.0}
    assert len({each["end"] for each in made}) == 5, "two equal rows are two results"
    assert read(table(tmp_path, text), SPACE, MEASURE)[0] == made, "the same results have the same names"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("n,speed\n1,5\n", "known.csv: no column 'rate'"),
        ("n,speed\n1,5\n", "there are: n, speed"),
        ("", "known.csv: no column 'rate'\n  there are: none"),
        ("n,rate\n1,fast\n", "known.csv:2: not a number: 'fast'"),
        ("\0", "known.csv: "),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(BadInputError) as raised:
        read(table(tmp_path, text), SPACE, MEASURE)
    assert what in str(raised.value)
    with pytest.raises(BadInputError, match="cannot be read"):
        read(str(tmp_path / "none.csv"), SPACE, MEASURE)


def test_known_results_take_nothing_of_the_budget() -> None:
    study = Study({"n": list(range(1, 101))}, maximize="rate", trials=6)
    for n in range(1, 100):
        study.add_trial({"n": n}, rate=100.0 + n)
    asked = []
    while trial := study.ask():
        asked.append((trial.name, trial.point["n"]))
        study.tell(trial.name, rate=100.0 + float(str(trial.point["n"])))
    assert len(asked) == 6 and asked[0] == ("trial-1", 1)
    assert ("trial-2", 100) in asked[1:3], "the only point that is not known, where the model expects the most"
    assert not study.answer.confirmed or study.answer.rounds >= 3, "what was known claims nothing"
    with pytest.raises(BadInputError, match="no point of the space"):
        study.add_trial({"n": 0}, rate=1.0)


def test_an_earlier_study_and_its_table_are_told(tmp_path: Path, stage) -> None:
    words = ("--param", "batch=8,16", "--maximize", "rate: {}", "--trials", "4", TUNABLE, "--batch", "{batch}")
    run = lambda *more: stage.run("tune", *more, cwd=tmp_path, timeout=120)  # noqa: E731
    assert run("--results_dir", "first", *words).returncode == 0
    (tmp_path / "first.csv").write_text(run("report", "first", "--csv").stdout)
    more = ("--param", "batch=8,16,32", *words[2:])
    for number, known in enumerate(("first", "first.csv")):
        start = ("--results_dir", f"second{number}", "--warm_start", known)
        done = run(*start, *more)
        assert done.returncode == 0, done.stderr
        assert f"{known}: 4 results taken over\n" in done.stdout, done.stdout
        ended = [line for line in done.stdout.splitlines() if " starts on " in line]
        assert 3 <= len(ended) <= 4, "what was known takes nothing of --trials"
        journal = tmp_path / f"second{number}" / "journal"
        lines = journal.read_text().splitlines()
        assert sum('"phase":"known"' in line for line in lines) == 4
        assert run(*start, *more).returncode == 0
        assert sum('"phase":"known"' in line for line in journal.read_text().splitlines()) == 4, "told once"
        status = json.loads(run("status", f"second{number}", "--json").stdout)
        assert status["state"] == "over"
    refused = run("--results_dir", "first", "--warm_start", "first", *words)
    assert refused.returncode == 2 and "is the folder of this study" in refused.stderr
