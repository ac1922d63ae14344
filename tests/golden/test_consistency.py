"""Page, ``tune status``, JSON, CSV, summary, command and the study itself name the same best, metric, noise, certainty.

In folders of simulated studies of both kinds in every state: those that are kept, some that are made now by a seed, and
with ``BIREME_TEST_GOLDEN=all`` 400 of them. What each view must say is taken from the answer of the study that its
journal makes, and from the records themselves, not from the view. That the check sees a lie is tested too: each view is
made to lie about each thing in its turn.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bireme.planning.masking import MASK, masked_words
from bireme.tune.deepspeed import deepspeed_study as of_deepspeed
from bireme.tune.look import read_study, said_of
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.report.export import study_record, trials_csv
from bireme.tune.report.page import page
from bireme.tune.report.text import CLOCK, status, status_text, summary
from bireme.tune.report.view import view
from bireme.tune.store import records
from bireme.tune.study.trial import Answer
from tests.golden.driver import plain_sum
from tests.golden.journals import CHOSEN, STUDIES
from tests.kit import needs

pytestmark = [pytest.mark.slow, needs.modules("numpy", "hjson", "jinja2")]

UNRUN = (52, 252)  # with 725: studies of both kinds and with two goals, in which some finalists have never run
SOME = ",".join(map(str, (*range(50, 1000, 75), *UNRUN)))
MADE = "0:400" if os.environ.get("BIREME_TEST_GOLDEN") == "all" else SOME
NOW = 1_790_010_000.0

Views = dict[str, str]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("studies")
    command = [sys.executable, "-m", "tests.golden", "--make", str(folder), "--studies", MADE]
    subprocess.run(command, cwd=STUDIES.parent.parent.parent, check=True)
    found = sorted(folder.iterdir())
    assert {path.name.partition("-")[2] for path in found} == {"over", "interrupted", "killed", "running"}
    return found


@pytest.mark.parametrize("name", CHOSEN)
def test_of_kept_studies(name: str) -> None:
    check(views_of(STUDIES / name), truth(STUDIES / name))


@pytest.mark.timeout(0)
def test_of_studies_made_now(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tuner said of the living study is what a reader makes of its journal: bounds, ties and all."""
    monkeypatch.setattr("builtins.sum", plain_sum)  # as they were made
    for folder in made:
        views = views_of(folder)
        check(views, truth(folder))
        if (folder / "summary.txt").exists():
            assert (folder / "summary.txt").read_text().endswith(shown(folder)), folder
        told, again = both_answers(folder)
        if told is not None:
            assert again.as_dict() == told.as_dict(), folder


def shown(folder: Path) -> str:
    """The summary as the tuner shows it, without DeepSpeed's table: there nothing is hidden."""
    known, running = records.read(str(folder / "journal"))
    answer = said_of(known)[0]
    known = of_deepspeed.in_common_words(known) if known.kind == "deepspeed" else known
    return summary(view(str(folder), known, answer, running=running, hide=False)[0])


# -- what is true --------------------------------------------------------------------------------------


class Truth(NamedTuple):
    """What every view must say; ``figures``: the values of a configuration's runs by its text."""

    kind: str
    state: str
    answer: Answer
    best: str
    baseline: str
    promising: str
    ties: tuple[str, ...]
    front: tuple[str, ...]
    goal: str
    direction: str
    unit: str
    value: float | None
    confidence: str
    changed: tuple[str, ...]
    point: Mapping[str, Any]
    words: tuple[str, ...]

    @property
    def reference(self) -> str:
        return "the baseline" if self.answer.default_failed else "the default"

    @property
    def sure(self) -> str:
        """How the best compares, where that is confirmed."""
        known = self.answer
        high = "unknown" if known.high is None else shown_ratio(known.high)
        return f"{self.confidence}: {shown_ratio(known.low)} to {high}"


def both_answers(folder: Path) -> tuple[Answer | None, Answer]:
    """What the tuner has written when it ended, and what the study of the same journal says."""
    known, _ = records.read(str(folder / "journal"))
    told = None if known.answer is None else Answer.from_record(known.answer)
    known.conclusion = {}
    return told, said_of(known)[0]


def truth(folder: Path) -> Truth:
    known, running = records.read(str(folder / "journal"))
    told, again = both_answers(folder)
    answer = told or again
    if known.kind == "deepspeed":
        known = of_deepspeed.in_common_words(known)
    identity, secrets = known.identity, read_study(str(folder))[1]
    texts = {
        each["name"]: dict(zip(map(repr, each["choices"]), each.get("texts") or (), strict=False))
        for each in identity.get("parameters") or ()
        if isinstance(each.get("choices"), list)
    }

    def words(point: Mapping[str, Any]) -> tuple[str, ...]:
        found = []
        for name, value in point.items():
            word = texts.get(name, {}).get(repr(value)) or (value if isinstance(value, str) else json.dumps(value))
            found.append(f"{name}={MASK if secrets.value(name, value) == MASK else word}")
        return tuple(found)

    def text(point: Mapping[str, Any] | None) -> str:
        if point is None:
            return ""
        if known.kind == "program":
            return " ".join(words(point))
        return next(name.partition("@")[0] for name, end in known.ends.items() if end["point"] == point)

    goal = identity["goals"][0]
    name, up = goal["name"], goal.get("direction", "maximize") == "maximize"

    def mean(point: Mapping[str, Any] | None) -> float | None:
        found = [
            end["figures"][name]
            for end in known.ends.values()
            if end["point"] == point and end["ending"]["cause"] == "ok" and end["figures"].get(name) is not None
        ]
        return sum(found) / len(found) if found else None

    open_ = not answer.confirmed and not answer.front and answer.promising not in (None, answer.best)
    if open_ and (ratios := [each.ratio for each in answer.compared if each.point == answer.promising]):
        open_ = ratios[0] > 1 + identity.get("effect", 0.02)
    elif open_ and (own := mean(answer.promising)) and (base := mean(answer.baseline)):
        open_ = (own / base if up else base / own) > 1 + identity.get("effect", 0.02)
    promising = text(answer.promising) if open_ else ""
    little = [  # of a program, what was compared too little is no tie
        one.point
        for one in answer.compared
        if known.kind == "program" and (not one.rounds or (one.low < 0.5 and (one.high is None or one.high > 2)))
    ]
    base_words = words(answer.baseline)
    best_words = () if answer.best is None else words(answer.best)
    return Truth(
        kind=known.kind,
        state="running" if running else "over" if known.over else "stopped",
        answer=answer,
        best=text(answer.best),
        baseline=text(answer.baseline) if answer.best is not None else "",
        promising=promising,
        ties=tuple(each for each in (text(one) for one in answer.ties if one not in little) if each != promising),
        front=tuple(map(text, answer.front)),
        goal=name,
        direction=goal.get("direction", "maximize"),
        unit=known.units.get(name, ""),
        value=mean(answer.best),
        confidence=f"{100 * (identity.get('confidence') or 0.95):g}%",
        changed=tuple(each for each in best_words if each not in base_words),
        words=best_words,
        point={name: secrets.value(name, value) for name, value in (answer.best or {}).items()},
    )


# -- what is said --------------------------------------------------------------------------------------


def views_of(folder: Path) -> Views:
    study, secrets = read_study(str(folder))
    html = page(study, secrets, NOW, "")
    views = {
        "status": status_text(study, NOW),
        "status --json": json.dumps(status(study, NOW)),
        "report --json": json.dumps(study_record(study, NOW)),
        "report --csv": trials_csv(study),
        "summary": summary(study),
        "page": unescape(re.sub(r"<[^>]+>", "\n", html.partition('<script type="application')[0])),
        "data": html.partition('id="data">')[2].partition("</script>")[0],
    }
    for name in ("cmd_best.txt", "cmd_optimal.txt", "ds_config_optimal.json"):
        if (folder / name).exists():
            views[name] = (folder / name).read_text()
    return views


def check(views: Views, true: Truth) -> None:
    for name in ("status", "summary"):
        lines(views[name], true)
    in_status(json.loads(views["status --json"]), true)
    in_report(json.loads(views["report --json"]), views, true)
    in_csv(views["report --csv"], json.loads(views["report --json"]), true)
    on_page(views["page"], true)
    in_data(json.loads(views["data"]), true)
    in_commands(views, true)


def lines(said: str, true: Truth) -> None:
    """The lines about the answer, in the screen and in the summary."""
    answer = true.answer
    assert re.findall(r"^noise of a run: (\S+) %", said, re.M) == (
        [] if answer.noise is None else [f"{100 * answer.noise:.1f}"]
    )
    best = re.findall(r"^(best(?: so far)?): (.*)$", said, re.M)
    if answer.best is None:
        assert not best
        assert re.search(r"^(nothing was measured( yet)?|no configuration worked)$", said, re.M)
        return
    ((word, line),) = best
    final = true.state == "over" and (answer.confirmed or not answer.runs)
    assert word == ("best" if final else "best so far")
    value = f"{true.goal} {scaled(true.value or 0.0, true.unit)}"
    if true.goal.endswith(f" {CLOCK}"):
        value = f"{scaled(true.value or 0.0, true.unit)} {CLOCK}"
    assert line.startswith(f"{true.best}  {value}"), (line, value)
    rest = line.removeprefix(f"{true.best}  {value}")
    if true.kind == "deepspeed":
        assert rest == f", {answer.text}" and ("confirmed" in rest) == answer.confirmed
    elif answer.confirmed:
        assert f", {shown_ratio(answer.ratio)} x {true.reference} ({true.sure}, {answer.rounds} paired round" in rest
    else:
        assert "%" not in rest and "paired" not in rest and ("(the " in rest) == (true.best == true.baseline)
        assert f"\n{answer.text}\n" in said
    promising = re.findall(r"^promising, but not confirmed: (.*?)  ", said, re.M)
    assert promising == ([true.promising] if true.promising else [])
    ties = re.findall(r"^not distinguishable from .*?: (.*?)(?:  .*)?$", said, re.M)
    assert ties == list(true.ties[:12])
    front = re.findall(r"^on the front: (.*?)  .*$", said, re.M)
    assert front == list(true.front)


def in_status(said: dict[str, Any], true: Truth) -> None:
    assert said["noise"] == pytest.approx(true.answer.noise) and said["state"] == true.state
    if true.answer.best is None:
        assert said["best"] is None
        return
    best = said["best"]
    assert best["configuration"] == true.best and best["confirmed"] == true.answer.confirmed
    assert best["figure"] == true.goal and best["value"] == pytest.approx(true.value)
    if true.answer.confirmed and true.kind == "program":
        known = true.answer
        assert (best["ratio"], best["low"], best["high"]) == pytest.approx((known.ratio, known.low, known.high))
    assert (said["promising"] or {}).get("configuration", "") == true.promising


def in_report(said: dict[str, Any], views: Views, true: Truth) -> None:
    answer, known = said["answer"], true.answer
    texts = [each["text"] for each in said["configurations"]]
    named = [None if answer[each] is None else texts[answer[each]] for each in ("best", "baseline")]
    assert named[0] == (true.best or None) and (named[1] == true.baseline or not true.best)
    assert {texts[each] for each in answer["ties"]} >= set(true.ties) and len(answer["ties"]) <= len(known.ties)
    assert answer["confirmed"] == known.confirmed and answer["rounds"] == known.rounds
    assert answer["noise"] == pytest.approx(known.noise) and said["noise"] == pytest.approx(known.noise)
    assert answer["ratio"] == pytest.approx(known.ratio)
    assert said["goals"][0]["name"] == true.goal and said["goals"][0]["direction"] == true.direction
    in_status(said["status"], true)
    command = views.get("cmd_best.txt") or views.get("cmd_optimal.txt") or ""
    assert said["best_command"] == (shlex.join(masked_words(shlex.split(command))) if command else "")


def in_csv(said: str, report: dict[str, Any], true: Truth) -> None:
    rows = list(csv.DictReader(io.StringIO(said)))
    if true.answer.best is None:
        assert not any(
            row["end"] == "ok" and row.get(f"figure {true.goal}") for row in rows if row["phase"] != "profile"
        )
        return
    own = [row for row in rows if row["configuration"] == str(report["answer"]["best"]) and row["end"] == "ok"]
    found = [float(row[f"figure {true.goal}"]) for row in own if row[f"figure {true.goal}"]]
    assert found and sum(found) / len(found) == pytest.approx(true.value)
    for name, value in true.point.items():
        word = value if isinstance(value, str) else json.dumps(value)
        assert {row[f"parameter {name}"].removeprefix("'") for row in own} == {word}


def on_page(said: str, true: Truth) -> None:
    answer = true.answer
    said = re.sub(r"\s*\n\s*", "\n", said)
    top = said.partition("\nFinalists against ")[0].partition("\nWhat each parameter does\n")[0]
    if answer.best is None:
        assert (
            "\nNo configuration worked\n" in top
            or "\nNothing was measured\n" in top
            or "\nNothing has been measured yet\n" in top
        )
        assert "\nConfirmed\n" not in top
        return
    several = len(true.front) > 1
    noise = re.findall(r"\nNoise of a run\n(\S+) %\n", top)
    assert noise == ([] if answer.noise is None else [f"{100 * answer.noise:.1f}"])
    name = "Best" if true.kind == "deepspeed" or true.best != true.baseline else true.reference[4:].capitalize()
    assert f"\n{name}\n{scaled(true.value or 0.0, true.unit)}\n{true.goal}\n" in top
    assert f"\nGoal\n{true.direction} {true.goal}\n" in said
    headline = " ".join(true.changed) if true.kind == "program" else true.best
    if several:
        assert f"\n{len(true.front)} configurations cannot be beaten" in top
        chosen = [_other(each, true.baseline) or true.reference for each in true.front]
        assert "\nThey are:\n" + "\n".join(chosen[:12]) + "\n" in top
    elif headline:
        assert f"\n{headline}\n" in top or f"\n{true.best}\n" in top
    else:
        assert f"\n{true.reference.capitalize()}" in top or f"\n{true.reference}\n" in top
    if true.kind == "program" and headline:
        assert "\nAll values of the best:\n" + " ".join(true.words) + "\n" in top or headline == true.best
    if true.kind == "deepspeed":
        assert f"\n{true.best}, {answer.text}.\n" in top
        assert ("\nConfirmed\n" in top) == answer.confirmed == ("\nnot confirmed\n" not in top)
    elif not true.front:
        assert ("\nConfirmed\n" in top) == answer.confirmed
        assert ("\nNo certain improvement\n" in top or "\nnot confirmed\n" in top) != answer.confirmed
        if answer.confirmed:
            assert f"\n{shown_ratio(answer.ratio)} ×\n" in top
            assert f"With {true.sure.replace(':', ' confidence')}, from {answer.rounds} paired round" in top
    promising = re.findall(r"\nPromising, but not confirmed:\n(.*)\n", top)
    assert promising == ([_other(true.promising, true.baseline) or true.promising] if true.promising else [])
    if not several:
        ties = [_other(each, true.baseline) or true.reference for each in true.ties]
        assert ("\nNot distinguishable from it:\n" + "\n".join(ties[:12]) + "\n" in top) == bool(ties)
    in_numbers(said, true)


def in_numbers(said: str, true: Truth) -> None:
    """The table of the finalists."""
    for each in true.answer.compared:
        assert (f"\n{each.ratio:.3f}\n" in said) or not each.rounds


def _other(text: str, baseline: str) -> str:
    """What a configuration has other than the baseline."""
    return text if "=" not in text else " ".join(word for word in text.split() if word not in baseline.split())


def in_data(said: dict[str, Any], true: Truth) -> None:
    """The table of trials and the charts."""
    at = {column["key"]: place for place, column in enumerate(said["columns"])}
    best = [row for row in said["trials"] if row[at["best"]]]
    assert {row[at["configuration"]] for row in best} == ({true.best} if true.best else set())
    assert said["maximized"] == (true.direction == "maximize")
    figures = [row[at["figure"]] for row in best if row[at["cause"]] == "ok" and row[at["figure"]] is not None]
    if true.kind == "program" and true.answer.best is not None:
        assert sum(figures) / len(figures) == pytest.approx(true.value)
        ratio = next(row for row in best if row[at["ratio"]])
        other = next(row for row in said["trials"] if row[at["configuration"]] == true.baseline and row[at["ratio"]])
        up = 1 if true.direction == "maximize" else -1
        assert (ratio[at["figure"]] / other[at["figure"]]) ** up == pytest.approx(
            ratio[at["ratio"]] / other[at["ratio"]], rel=0.01
        )
    compared = {each.goal: [] for each in true.answer.compared if each.rounds}  # type: dict[str, list[float]]
    for each in (one for one in true.answer.compared if one.rounds):
        compared[each.goal].append(each.ratio)
    for goal, ratios in compared.items():
        rows = said["charts"][f"forest {goal}"]["data"]["values"]
        assert sorted(row["ratio"] for row in rows) == pytest.approx(sorted(ratios))


def in_commands(views: Views, true: Truth) -> None:
    """The command, or the configuration that it names, has the values of the best."""
    if true.answer.best is None:
        assert not {"cmd_best.txt", "cmd_optimal.txt", "ds_config_optimal.json"} & views.keys()
    if "ds_config_optimal.json" in views:
        for name, value in true.point.items():
            place = json.loads(views["ds_config_optimal.json"])
            for key in name.split(".")[:-1]:
                place = place[key]
            assert place[name.rpartition(".")[2]] == value
    if "cmd_best.txt" in views:
        command = shlex.split(views["cmd_best.txt"])
        for word in true.words:
            text = word.partition("=")[2]
            assert (
                text == MASK
                or any(each == text or each.endswith(f"={text}") for each in command)
                or "/best/" in " ".join(command)
            )


# -- lies ------------------------------------------------------------------------------------------------


def _swap(one: str, other: str) -> Callable[[str], str]:
    return lambda text: text.replace(one, "\0").replace(other, one).replace("\0", other)


def _json(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def lie(text: str) -> str:
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return lie


def _rows(change: Callable[[list[dict[str, str]]], object]) -> Callable[[str], str]:
    def lie(text: str) -> str:
        rows = list(csv.DictReader(io.StringIO(text)))
        change(rows)
        out = io.StringIO()
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    return lie


def _mark_others(data: dict[str, Any]) -> None:
    place = [column["key"] for column in data["columns"]].index("best")
    for row in data["trials"]:
        row[place] = not row[place]


def _turn_ratios(data: dict[str, Any]) -> None:
    place = [column["key"] for column in data["columns"]].index("ratio")
    for row in data["trials"]:
        row[place] = row[place] and 1 / row[place]


BEST, OTHER = "batch=4 depth=mixed", "batch=8 depth=mixed"
LIES: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "screen: best": ("confirmed", "status", _swap(f"best: {BEST}", f"best: {OTHER}")),
    "screen: metric": ("confirmed", "status", _swap("  rate 2", "  loss 2")),
    "screen: value": ("confirmed", "status", _swap("rate 202", "rate 203")),
    "screen: noise": ("confirmed", "status", _swap("noise of a run: 0.3 %", "noise of a run: 3 %")),
    "screen: certainty": ("confirmed", "status", lambda text: re.sub(r" \(95%.*\)", "", text)),
    "screen: ratio": ("confirmed", "status", _swap("1.72 x", "0.58 x")),
    "screen: promising": ("short-of-time", "status", lambda text: re.sub(r"promising.*\n", "", text)),
    "summary: best": ("confirmed", "summary", _swap(f"best: {BEST}", f"best: {OTHER}")),
    "summary: noise": ("confirmed", "summary", _swap("noise of a run: 0.3 %", "noise of a run: 3 %")),
    "summary: certainty": ("confirmed", "summary", _swap("95%", "99%")),
    "summary of DeepSpeed: best": ("deepspeed-latency", "summary", _swap("best: z", "best: y")),
    "screen of DeepSpeed: certainty": (
        *("deepspeed-tie", "status"),
        _swap("leading in 3 paired rounds", "confirmed in 3 paired rounds"),
    ),
    "status in JSON: best": ("confirmed", "status --json", _swap(BEST, OTHER)),
    "status in JSON: noise": ("confirmed", "status --json", _json(lambda all_of: all_of.update(noise=0.1))),
    "status in JSON: certainty": (
        *("confirmed", "status --json"),
        _json(lambda all_of: all_of["best"].update(confirmed=False)),
    ),
    "report in JSON: best": ("confirmed", "report --json", _json(lambda all_of: all_of["answer"].update(best=0))),
    "report in JSON: noise": ("confirmed", "report --json", _json(lambda all_of: all_of["answer"].update(noise=0.1))),
    "report in JSON: metric": ("confirmed", "report --json", _json(lambda all_of: all_of["goals"][0].update(name="x"))),
    "report in JSON: command": ("confirmed", "report --json", _json(lambda all_of: all_of.update(best_command=""))),
    "CSV: configuration": (
        *("confirmed", "report --csv"),
        _rows(lambda rows: [row.update(configuration="0") for row in rows]),
    ),
    "CSV: figures": (
        *("confirmed", "report --csv"),
        _rows(lambda rows: [row.update({"figure rate": "1"}) for row in rows]),
    ),
    "page: best": ("confirmed", "page", _swap(f"\n{BEST}\n", f"\n{OTHER}\n")),
    "page: certainty": ("confirmed", "page", _swap("Confirmed", "No certain improvement")),
    "page: ratio": ("confirmed", "page", _swap("1.72 ×", "0.58 ×")),
    "page: noise": ("confirmed", "page", _swap("\n0.3 %\n", "\n3.0 %\n")),
    "page: metric": ("confirmed", "page", _swap("maximize rate", "minimize rate")),
    "page: value": ("confirmed", "page", _swap("\n202\n", "\n117.5\n")),
    "page of DeepSpeed: certainty": ("deepspeed-tie", "page", _swap("not confirmed", "Confirmed")),
    "page of DeepSpeed: best": ("deepspeed-latency", "page", lambda text: re.sub(r"\bz(\d)_", r"y\1_", text)),
    "page: two goals": ("two-goals", "page", _swap("2 configurations cannot", "3 configurations cannot")),
    "page: promising": ("short-of-time", "page", _swap("Promising", "Perhaps")),
    "table: best": ("confirmed", "data", _json(_mark_others)),
    "table: ratios": ("confirmed", "data", _json(_turn_ratios)),
    "chart: ratios": (
        *("confirmed", "data"),
        _json(lambda all_of: all_of["charts"]["forest rate"]["data"]["values"][0].update(ratio=0.58)),
    ),
    "command": ("confirmed", "cmd_best.txt", _swap("--batch 4", "--batch 8")),
    "configuration of DeepSpeed": (
        *("deepspeed-tie", "ds_config_optimal.json"),
        _json(lambda config: config["zero_optimization"].update(stage=3)),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_noticed(lie: str) -> None:
    name, view, change = LIES[lie]
    views, true = views_of(STUDIES / name), truth(STUDIES / name)
    check(views, true)
    lying = change(views[view])
    assert lying != views[view], "this lie says nothing else"
    with pytest.raises(AssertionError):
        check({**views, view: lying}, true)
