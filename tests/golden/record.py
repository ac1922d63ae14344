"""Plays a study, and writes down in one line what happened.

A line has, between bars: the number and what the study is; the configurations in the order in which their runs were
started, each as two letters (``/``: the command was typed again); how many runs and configurations that were; the exit
code of each command; why the study ended; the answer; digests of what the screen showed, and of what else was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shlex
from typing import Any, NamedTuple

from tests.golden import driver
from tests.golden.draw import Drawn
from tests.golden.driver import Screen
from tests.golden.programs import Program, Tuned, speed

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d{5,}(?:e[-+]?\d+)?")


class Played(NamedTuple):
    """What happened: a line, and what it was made of."""

    line: str
    screens: tuple[Screen, ...]
    views: dict[str, str]


def letters(text: str, count: int = 2) -> str:
    """A digest of so many letters."""
    digest = hashlib.blake2b(text.encode(), digest_size=count).digest()
    return "".join(_LETTERS[byte % 64] for byte in digest)


def plain(text: str, folder: str) -> str:
    """A text without what differs from run to run: folders, the interpreter, the last digits of numbers."""
    text = text.replace(folder, "DIR")
    text = re.sub(r"\b(?:DIR|(?:/[\w.+-]+)+)/bin/python[\d.]*\b", "PYTHON", text)
    text = re.sub(r"(earlier study of) \d{4}-\d\d-\d\d \d\d:\d\d", r"\1 DATE", text)  # that of a file: the real one
    return _NUMBER.sub(_short, text)


def _short(found: re.Match[str]) -> str:
    """A number with five digits: the others, and what is nearly nothing, are not the same on all machines."""
    return str(0.0 if abs(float(found[0])) < 1e-9 else float(f"{float(found[0]):.5g}"))


def play(drawn: Drawn) -> Played:
    """Play a study in a new folder."""
    with driver.folder() as folder:
        for name, text in drawn.files.items():
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)
        driver.WORLD.reset()
        if drawn.kind == "ask and tell":
            return _ask_tell(drawn, folder)
        return _command(drawn, folder)


def _command(drawn: Drawn, folder: str) -> Played:
    with driver.gpus(drawn.capacity):
        return _typed(drawn, folder)


def _typed(drawn: Drawn, folder: str) -> Played:
    program = Program(drawn.program)
    screens: list[Screen] = []
    orders: list[str] = []

    def enter(*signals: float) -> None:
        before = len(program.started)
        screens.append(driver.type_command(*drawn.words, program=program, signals=signals))
        orders.append("".join(map(letters, program.started[before:])))

    for seconds in drawn.signals:
        enter(seconds)
    enter()
    if drawn.cut is not None and os.path.exists(os.path.join(drawn.folder, "journal")):
        cut(os.path.join(drawn.folder, "journal"), drawn.cut, torn=drawn.torn)
        driver.WORLD.now += 100.0
        enter()
    if drawn.again:
        driver.WORLD.now += 100.0
        enter()
    views = {"screen": "".join(f"{screen.out}\n{screen.err}\n" for screen in screens)}
    for name in ("summary.txt", "cmd_best.txt", "cmd_optimal.txt", "ds_config_optimal.json"):
        path = os.path.join(drawn.folder, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                views[name] = file.read()
    if os.path.exists(os.path.join(drawn.folder, "journal")):
        views["journal"] = journal_text(os.path.join(drawn.folder, "journal"))
        for word, *more in (("status",), ("status", "--json"), ("report", "--json"), ("report", "--csv")):
            views[" ".join((word, *more))] = driver.type_command("tune", word, drawn.folder, *more).out
    views = {name: plain(text, folder) for name, text in views.items()}
    words = views.get("summary.txt", "").splitlines()
    ended = next((part for part in views.get("summary.txt", "").split("\n\n") if "It ended: " in part), "")
    over = " ".join(ended.split()).partition("It ended: ")[2] or views["screen"].strip().partition("\n")[0]
    best = views.get("cmd_best.txt") or views.get("cmd_optimal.txt") or ""
    answer = " ".join(shlex.split(best)).partition("train.py ")[2]
    if "ds_config_optimal.json" in views:
        answer = next((line[6:] for line in words if line.startswith("best: ")), "") or _optimal(views)
    screens_of = [views["screen"], views.get("summary.txt", "")]
    written = [views.get(name, "") for name in ("journal", "status", "status --json", "report --json", "report --csv")]
    line = " | ".join((
        f"{drawn.number:04} {drawn.kind}: {drawn.about}",
        "/".join(orders),
        f"{len(program.started)} of {len(set(program.started))}",
        " ".join(str(screen.code) for screen in screens),
        over.strip(" ."),
        answer or "no answer",
        " ".join(letters(text, 3) for text in screens_of),
        " ".join(letters(text, 3) for text in written),
    ))  # fmt: skip
    return Played(line, tuple(screens), views)


def _optimal(views: dict[str, str]) -> str:
    config = json.loads(views["ds_config_optimal.json"])
    return f"stage {config.get('zero_optimization', {}).get('stage')} {letters(json.dumps(config, sort_keys=True), 4)}"


def journal_text(path: str) -> str:
    """The records of a journal without their digests; times of day are seconds since the first one."""
    lines = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line.partition(" ")[2])
            if "time" in record:
                record["time"] = round(record["time"] - driver.EPOCH, 2)
            lines.append(json.dumps(record, sort_keys=True))
    return "\n".join(lines)


def cut(path: str, part: float, *, torn: bool = False) -> None:
    """Leave of a journal what a kill could have left: the first records, and perhaps half of the next one."""
    with open(path, "rb") as file:
        lines = file.readlines()
    kept = 1 + int(part * (len(lines) - 1))
    rest = lines[kept][: len(lines[kept]) // 2] if torn and kept < len(lines) else b""
    with open(path, "wb") as file:
        file.write(b"".join(lines[:kept]) + rest)


# -- ask and tell ----------------------------------------------------------------------------------------


def _ask_tell(drawn: Drawn, folder: str) -> Played:
    """A study as a program that speaks JSON lines drives it, by `driver.Dialogue`."""
    assert isinstance(drawn.program, Tuned)
    tuned, order = drawn.program, []
    replies: list[dict[str, Any]] = []

    def lines() -> Any:
        for number in range(120):
            yield {"ask": True}
            trial = replies[-1].get("trial")
            if trial is None:
                break
            point = {
                name: str(value) if isinstance(value, str) else f"{value:g}" for name, value in trial["point"].items()
            }
            key = json.dumps(point, sort_keys=True)
            order.append(key)
            luck = random.Random(f"{tuned.seed} run {number}")
            fate = random.Random(f"{tuned.seed} {key}").random()
            rate = speed(tuned, point) * tuned.noise.factor(luck, number, key)
            took = 1.0 + 200.0 / rate if rate else 0.5
            driver.WORLD.now += took
            if fate < tuned.faults.failing:
                yield {"tell": trial["name"], "failed": "ValueError: no such mode"}
            elif not rate:
                yield {"tell": trial["name"], "failed": "out of memory"}
            else:
                figures = {"rate": float(f"{rate:.5g}"), "peak": 100.0, "time": float(f"{took:.5g}")}
                figures["peak"] = float(f"{100.0 / (1.0 + rate / 100.0):.5g}")
                yield {"tell": trial["name"], "figures": figures}
        yield {"answer": True}

    screen = driver.converse(*drawn.words, lines=lines(), replies=replies)
    answer = replies[-1].get("answer") if replies else None
    views = {"screen": plain(screen.err + json.dumps(replies, sort_keys=True), folder)}
    over = next((str(reply["over"]) for reply in replies if "over" in reply), "?")
    best = json.dumps((answer or {}).get("best"))
    line = " | ".join((
        f"{drawn.number:04} {drawn.kind}: {drawn.about}",
        "".join(map(letters, order)),
        f"{len(order)} of {len(set(order))}",
        str(screen.code),
        over,
        f"{best} {(answer or {}).get('ratio', 0):.3f}",
        letters(views["screen"], 3),
    ))  # fmt: skip
    return Played(line, (screen,), views)
