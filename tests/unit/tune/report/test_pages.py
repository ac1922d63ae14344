"""What is read from a study's folder: while it runs, after it, and of a journal that ends in the middle of a record."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bireme.cli import tune_report
from bireme.errors import BadInputError, BiremeError
from bireme.tune.look import read_study
from bireme.tune.report import charts, page
from bireme.tune.report.effects import effects
from bireme.tune.report.secrets import Secrets
from bireme.tune.report.text import status_text
from bireme.tune.report.view import MEASURED, GoalView, StudyClock, TrialView, time_use
from bireme.tune.store import records
from bireme.tune.store.journal import Journal
from tests.conftest import run_python
from tests.unit.tune.report.studies import BASELINE, BEGIN, StudyMaker, finished

SECRETS = ("hunter2-of-the-study", "s3cretpassword")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("study") / "tuning")


def record_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert tune_report.main([*words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_finished_study(folder: Path) -> None:
    study, _ = read_study(str(folder))
    assert (study.state, study.goals, len(study.ended)) == ("over", (GoalView("samples/s"),), 80)
    assert study.answer is not None and study.answer.confirmed and study.best == study.answer.best
    assert study.configurations[study.best or 0].text == "batch=128 compile=on OMP_NUM_THREADS=2 loader=plain"
    assert study.answer.noise == 0.008 and [each.verdict for each in study.finalists] == ["better"] * 3
    assert all(len(each.rounds) == 7 for each in study.finalists)


def test_the_screen_of_a_running_study_whose_lock_stays(tmp_path: Path) -> None:
    """The reader leaves the lock, the torn record and the file as they are."""
    writer = textwrap.dedent(
        """\
        import os, sys
        from pathlib import Path
        from tests.unit.tune.report.studies import BASELINE, StudyMaker
        made = StudyMaker(Path(sys.argv[1]))
        made.begin(trials=40)
        for _ in range(4):
            made.trial(BASELINE, "noise")
        for _ in range(10):
            made.trial(made.point())
        made.start({**BASELINE, "batch": 64}, "search", 1)
        os.write(made.journal._fd, b'0123456789abcdef {"end":"t0')
        print("ready", flush=True)
        sys.stdin.read()
        """
    )
    path = tmp_path / "journal"
    with subprocess.Popen(
        [sys.executable, "-c", writer, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        before = path.read_bytes()
        study, _ = read_study(str(tmp_path))
        screen = status_text(study, BEGIN + 300)
        with pytest.raises(BadInputError, match="another tuner is using this folder"):
            Journal.open(str(path))
        assert path.read_bytes() == before
        child.kill()
    assert study.state == "running" and [trial.name for trial in study.running] == ["t00015"]
    assert "14 trials done of at most 40" in screen and "searching, for" in screen and " to go\n" in screen
    assert "on localhost:1  since " in screen and "batch=64 compile=off" in screen
    assert re.search(
        r"best so far: batch=(.*), ([\d.]+) x the default\nabout \2 x the default from .*; not confirmed", screen
    )
    study, _ = read_study(str(tmp_path))
    assert study.state == "stopped" and study.trials[-1].cause == "interrupted"
    assert "the same command continues it" in status_text(study, BEGIN + 300)


def test_the_process_that_writes_a_journal_may_not_read_it(tmp_path: Path) -> None:
    """Closing the reader's descriptor would release the writer's lock."""
    made = StudyMaker(tmp_path)
    with pytest.raises(BiremeError, match="is open in this process"):
        read_study(str(tmp_path))
    made.journal.close()


def test_a_study_without_trials_and_one_that_goes_on(tmp_path: Path) -> None:
    made = StudyMaker(tmp_path)
    made.begin()
    made.journal.close()
    study, _ = read_study(str(tmp_path))
    text = status_text(study, BEGIN)
    assert "nothing was measured" in text and "stopped before its first trial ended" in text and study.best is None
    made = StudyMaker(tmp_path)
    made.trial(BASELINE, "noise")
    made.journal.append({"over": "the budget ended", "answer": None})
    made.trial(BASELINE, "noise")
    made.journal.close()
    assert read_study(str(tmp_path))[0].state == "stopped"


def test_an_answer_that_is_not_certain_names_what_is_promising_and_the_baseline(tmp_path: Path) -> None:
    made = StudyMaker(tmp_path, logs=False)
    made.begin()
    made.trial(BASELINE, "noise")
    base, promising = {**BASELINE, "batch": 64}, {**BASELINE, "batch": 128}
    made.finish(base, confirmed=False, baseline=base, promising=promising, default_failed="exit code 1", ties=[])
    made.journal.close()
    study, _ = read_study(str(tmp_path))
    texts = [each.text for each in study.configurations]
    text = page.page(study, Secrets(frozenset(), ()), BEGIN, library="")
    assert 'Promising, but not confirmed: <span class="mono">batch=128</span>' in text
    assert f"The baseline is {next(each for each in texts if 'batch=64' in each)}." in text


def test_an_interval_without_an_upper_end_is_told_and_drawn_as_one(tmp_path: Path) -> None:
    """On the page as on the screen. What did not happen in the study is not explained: no trial failed."""
    made = StudyMaker(tmp_path, logs=False)
    made.begin()
    made.trial(BASELINE, "noise")
    best = {**BASELINE, "batch": 128}
    one = {"point": best, "goal": "samples/s", "ratio": 1.6, "low": 1.4, "high": None, "rounds": 7}
    made.finish(best, confirmed=True, ratio=1.6, low=1.4, high=None, ties=[], compared=[one])
    made.journal.close()
    study, secrets = read_study(str(tmp_path))
    html = page.page(study, secrets, BEGIN, library="")
    assert "(95%: at least 1.4, 7 paired rounds)" in status_text(study, BEGIN)
    assert "With 95% confidence at least 1.4, from 7 paired rounds." in html and "unknown" not in html
    (row,) = (spec := charts.forest(study, "samples/s", ["", "it"]))["data"]["values"]
    assert row["line"] == [1.4, spec["encoding"]["x"]["scale"]["domain"][1]]
    assert not any(word in html for word in ("Shaded", "without a figure", '"domain":["search"'))


@pytest.mark.parametrize(
    ("low", "high", "rounds"), [(0.0, None, 4), (0.96, 1.31, 7)], ids=["in fewer rounds", "with an interval"]
)
def test_a_finalist_that_is_the_best_so_far_is_undecided(tmp_path: Path, low: float, high: float, rounds: int) -> None:
    made = StudyMaker(tmp_path, logs=False)
    made.begin()
    made.trial(BASELINE, "noise")
    best, other = {**BASELINE, "batch": 128}, {**BASELINE, "batch": 64}
    known = {"goal": "samples/s", "ratio": 1.12, "low": low, "high": high}
    compared = [{**known, "point": best, "rounds": rounds}, {**known, "point": other, "rounds": rounds + 2}]
    made.finish(best, confirmed=False, baseline=BASELINE, promising=best, ties=[], compared=compared)
    made.journal.close()
    study, _ = read_study(str(tmp_path))
    verdicts = {each.config: each.verdict for each in study.finalists}
    assert study.best is not None and verdicts[study.best] == "undecided"


def test_effects_are_those_of_the_landscape(folder: Path) -> None:
    study, _ = read_study(str(folder))
    found = {each.parameter: each for each in effects(study, study.goals[0])}
    assert next(iter(found)) == "batch" and found["batch"].memory
    compiled = {level.label: level for level in found["compile"].levels}["on"]
    assert compiled.low is not None and compiled.high is not None and compiled.low < 1.12 < compiled.high
    loader = found["loader"].levels[1]
    assert loader.low is not None and loader.high is not None and loader.low < 1 < loader.high
    wall = {level.label: level for level in found["batch"].levels}["512"]
    assert wall.out_of_memory == wall.tried > 0 and wall.ratio is None


def test_effects_of_a_minimized_goal_and_of_many_numbers(tmp_path: Path) -> None:
    made = StudyMaker(tmp_path, logs=False)
    made.journal.append(
        {"study": {"goals": [{"name": "time", "direction": "minimize"}], "parameters": [{"name": "x"}]}}
    )
    for place in range(60):
        ending = {"cause": "ok", "seconds": 1.0, "metrics": {"time": 1 + place / 60}}
        made.journal.append({"end": f"t{place}", "time": BEGIN + place, "ending": ending, "point": {"x": place / 3}})
    made.journal.close()
    study, _ = read_study(str(tmp_path))
    (effect,) = effects(study, study.goals[0])
    ratios = [level.ratio for level in effect.levels if level.ratio]
    assert len(ratios) == 8 and ratios == sorted(ratios, reverse=True)
    assert (
        study.best == 0 and study.mean(0) == 1.0 and study.command == "" and effect.levels[0].label.startswith("0 to ")
    )


def test_the_time_adds_up_and_a_pause_does_not_count(tmp_path: Path) -> None:
    made = StudyMaker(tmp_path, logs=False)
    made.begin()
    made.trial(BASELINE, slot=0)
    made.free = [each + 86_400 for each in made.free]  # the tuner was stopped for a day
    made.trial(BASELINE, slot=1)
    made.journal.close()
    study, _ = read_study(str(tmp_path))
    used = time_use(study.trials, BEGIN)
    assert used.slots == 2 and used.wall < 100
    assert sum(used.parts.values()) == pytest.approx(used.slots * used.wall, rel=1e-6)
    assert used.parts["launch"] == 8 and used.parts["warm-up"] == 13
    assert StudyClock(study.trials, BEGIN).at(BEGIN + 90_000) < 4000


def test_a_short_pause_of_the_tuner_does_not_count() -> None:
    def ended(name: str, end: float, elapsed: float | None) -> TrialView:
        return TrialView(name=name, config=0, point={}, began=end - 2, ended=end, cause=MEASURED, elapsed=elapsed)

    trials = [ended("a", 2, 2), ended("b", 4, 4), ended("c", 34, 6.5), ended("d", 36.5, 9)]  # stopped for 27.5 s
    clock = StudyClock(trials, 0.0)
    assert clock.wall == pytest.approx(9) and clock.at(4) == pytest.approx(4) and clock.at(34) == pytest.approx(6.5)
    without = [each.replace(elapsed=None) for each in trials]
    assert StudyClock(without, 0.0).wall == pytest.approx(36.5), "an older journal does not say"


def test_json_and_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = record_of(capsys, "report", str(folder))
    trials = record["trials"]
    assert isinstance(trials, list) and len(trials) == 80 and {"effects", "time", "status", "answer"} <= record.keys()
    assert record_of(capsys, "status", str(folder))["done"] == 80
    assert tune_report.main(["report", "--csv", str(folder)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 80 and rows[0]["parameter batch"] == "32" and float(rows[0]["figure samples/s"]) > 450


def test_secrets_stay_hidden(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, secrets = read_study(str(folder))
    html = page.page(study, secrets, BEGIN, library="")
    assert "hunter2" in (folder / "journal").read_text() and "********" in html
    assert "the whole command is in" in html and b"s3cret" in (folder / "trials/t00024/stderr.log").read_bytes()
    texts = [html]
    for words in (["status"], ["status", "--json"], ["report", "--json"], ["report", "--csv"]):
        tune_report.main([words[0], str(folder), *words[1:]])
        texts.append(capsys.readouterr().out)
    for text in texts:
        assert len(text) > 100 and not any(secret in text for secret in SECRETS)


def test_the_page_is_safe_before_any_script(folder: Path) -> None:
    """No text of a program ends an element: there are as many scripts as the page has itself."""
    study, secrets = read_study(str(folder))
    html = page.page(study, secrets, BEGIN, library="")
    assert html.count("<script") == html.count("</script>") == 3
    assert "<b>pinned" not in html and "<img" not in html and "\x1b" not in html and "\u202e" not in html


def test_without_a_folder_the_study_here_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"^no study here: neither in tuning nor in autotuning_results"):
        records.find()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal").touch()
        if name == "one":
            assert records.find() == "one/journal"
    with pytest.raises(BadInputError, match=r"^there are several studies here: one, two"):
        records.find()
    (tmp_path / "autotuning_results").mkdir()
    (tmp_path / "autotuning_results" / "journal").touch()
    assert records.find() == "autotuning_results/journal" and records.find("two") == "two/journal"


def test_bad_input(tmp_path: Path, stage) -> None:  # type: ignore[no-untyped-def]
    for words, said in [
        (["status", str(tmp_path)], "no study in"),
        (["report", "--jsn"], "unknown option: --jsn"),
        (["status", "a", "b"], "expected one folder"),
    ]:
        with pytest.raises(BadInputError, match=said):
            tune_report.main(words)
    finished(tmp_path, 4, logs=False)
    with pytest.raises(BadInputError, match="cannot be written"):
        tune_report.write(*read_study(str(tmp_path)), str(tmp_path / "no" / "r.html"), BEGIN, library="")
    journal = tmp_path / "journal"
    written = journal.read_bytes()
    journal.write_bytes(written[: written.index(b"\n") + 1])
    done = stage.run("tune", "status", str(tmp_path))
    assert done.returncode == 2 and "no study has begun yet" in done.stderr
    journal.write_bytes(written.replace(b"noise", b"voice", 1))
    done = stage.run("tune", "status", str(tmp_path))
    assert done.returncode == 2 and "the journal is damaged" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("package", ["vl_convert", "jinja2"])
def test_without_the_packages_of_the_page(folder: Path, package: str) -> None:
    """As where only `bireme[tune]` is installed."""
    hide = (
        f"import sys; sys.modules['{package}'] = None; from bireme.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = run_python(hide, "tune", "report", folder)
    assert done.returncode == 2 and "pip install 'bireme[report]'" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_of_what_is_minimized_half_is_twice_as_good_everywhere(tmp_path: Path) -> None:
    """In the rounds of a finalist, in the table of trials, in the numbers beside the answer, and in the effects."""
    made = StudyMaker(tmp_path, logs=False)
    made.begin(goals=[{"name": "time", "direction": "minimize"}], parameters=[{"name": "x", "choices": [1, 2]}])
    for number in range(1, 5):
        for x, seconds in ((1, 4.0), (2, 2.0)):
            record = {"end": f"t{number}{x}", "time": BEGIN + number, "point": {"x": x}, "phase": "confirm"}
            ending = {"cause": "ok", "reason": "", "seconds": seconds, "metrics": {"time": seconds}}
            made.journal.append({**record, "round": number, "ending": ending, "figures": {"time": seconds}})
    compared = [{"point": {"x": 2}, "goal": "time", "ratio": 2.0, "low": 1.9, "high": 2.1, "rounds": 4}]
    answer = {"best": {"x": 2}, "baseline": {"x": 1}, "confirmed": True, "ratio": 2.0, "low": 1.9, "high": 2.1}
    made.journal.append({"over": "all is decided", "answer": {**answer, "rounds": 4, "compared": compared}})
    made.journal.close()
    study, secrets = read_study(str(tmp_path))
    assert study.finalists[0].rounds == (2.0,) * 4 and study.ratio(1) == 2.0 and study.leader == ""
    data = json.loads(page.page(study, secrets, BEGIN, library="").partition('id="data">')[2].partition("</script>")[0])
    place = [column["key"] for column in data["columns"]].index("ratio")
    assert sorted({row[place] for row in data["trials"]}) == [1.0, 2.0] and not data["maximized"]
    assert {row[place] for row in data["trials"] if row[0].endswith("2")} == {2.0}
    assert [level.ratio for level in effects(study, study.goals[0])[0].levels] == pytest.approx([1.0, 2.0], rel=0.05)
