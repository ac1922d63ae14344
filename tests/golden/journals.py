"""Folders of studies in every state, and what the commands that look at them say.

``studies/NAME`` has folders as the tuner wrote them when the records were made: today's code must be able to read them
for ever. ``views/NAME.txt`` is what it says of each. `make` makes such a folder of any drawn study.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

from tests.golden import driver
from tests.golden.draw import Drawn, draw
from tests.golden.programs import Program
from tests.golden.record import cut, plain

HERE = Path(__file__).parent
STUDIES, VIEWS = HERE / "studies", HERE / "views"

State = Literal["over", "interrupted", "killed", "running"]
STATES: tuple[State, ...] = ("over", "interrupted", "killed", "running")

CHOSEN: dict[str, tuple[int, State]] = {
    "confirmed": (42, "over"),
    "confirmed-80": (83, "over"),
    "not-confirmed": (105, "over"),
    "equal": (18, "over"),
    "few-trials": (71, "over"),
    "short-of-time": (90, "over"),
    "two-goals": (57, "over"),
    "default-failed": (47, "over"),
    "study-file": (132, "over"),
    "interrupted": (41, "interrupted"),
    "interrupted-with-faults": (17, "interrupted"),
    "killed": (95, "killed"),
    "killed-two-goals": (92, "killed"),
    "running": (131, "running"),
    "running-finalists": (27, "running"),
    "deepspeed-by-the-clock": (13, "over"),
    "deepspeed-tie": (124, "over"),
    "deepspeed-one-run": (82, "over"),
    "deepspeed-no-memory": (34, "over"),
    "deepspeed-nothing-works": (118, "over"),
    "deepspeed-latency": (103, "over"),
    "deepspeed-interrupted": (100, "interrupted"),
    "deepspeed-killed": (76, "killed"),
    "deepspeed-running": (73, "running"),
}
"""The folders that are kept: the number of the drawn study, and its state."""

_KEPT = ("journal", "summary.txt", "cmd_best.txt", "cmd_optimal.txt", "ds_config_optimal.json")
_WRITTEN_AT_THE_END = _KEPT[1:]


def state_of(number: int) -> State:
    """A state for the study of this number: half of them are over."""
    return STATES[max(0, number // 7 % 6 - 2)]


def make(number: int, state: State, target: str) -> bool:
    """Play a drawn study, and keep its results in a new folder; False: it was refused, or has no results yet.

    A ``running`` study is one while another process holds its journal (`driver.held`).
    """
    drawn = draw(number)
    if drawn.kind == "ask and tell":
        return False
    with driver.folder() as folder:
        for name, content in drawn.files.items():
            Path(name).write_text(content, encoding="utf-8")
        driver.WORLD.reset()
        with driver.gpus(drawn.capacity):
            _play(drawn, state)
        journal = os.path.join(drawn.folder, "journal")
        if not os.path.exists(journal) or len(Path(journal).read_text().splitlines()) < 4:
            return False
        os.makedirs(target, exist_ok=True)
        for name in _KEPT:
            if os.path.exists(path := os.path.join(drawn.folder, name)):
                text = Path(path).read_bytes()
                Path(target, name).write_bytes(text if name == "journal" else text.replace(folder.encode(), b"/study"))
    return True


def _play(drawn: Drawn, state: State) -> None:
    signals = (drawn.signals or (20.0 + drawn.number % 40,))[:1] if state == "interrupted" else ()
    driver.type_command(*drawn.words, program=Program(drawn.program), signals=signals)
    if state in ("killed", "running") and os.path.exists(os.path.join(drawn.folder, "journal")):
        cut(os.path.join(drawn.folder, "journal"), (0.3, 0.6, 0.85)[drawn.number % 3], torn=drawn.torn)
        for name in _WRITTEN_AT_THE_END:
            if os.path.exists(path := os.path.join(drawn.folder, name)):
                os.unlink(path)


def views(study: Path, *, running: bool, page: bool = True) -> dict[str, str]:
    """What the commands say of a study's folder, some seconds after its last record."""
    with driver.folder() as folder:
        shutil.copytree(study, "study")
        times = [json.loads(line.partition(" ")[2]).get("time", 0) for line in _whole_lines("study/journal")]
        driver.WORLD.reset(max([*times, driver.EPOCH]) - driver.EPOCH + 1000.0 + 5.25)
        said = {name: (Path("study") / name).read_text() for name in _WRITTEN_AT_THE_END if (study / name).exists()}
        with driver.held("study/journal") if running else nullcontext():
            for words in ("status", "status --json", "report --csv", "report --json"):
                command, *more = words.split()
                said[words] = driver.type_command("tune", command, "study", *more).out
            if page:
                driver.type_command("tune", "report", "study", "--html", "page.html")
                said["page"], said["charts"] = reduced(Path("page.html").read_text(encoding="utf-8"))
        said["report --json"] = _lines_of(json.loads(said["report --json"]))
        return {name: plain(text, folder) for name, text in said.items()}


def _lines_of(report: dict[str, Any]) -> str:
    """JSON with one trial in a line, and of the series of a trial only its length."""
    lines = []
    for name, value in report.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict) and "series" in each:
                each["series"] = {figure: len(values) for figure, values in each["series"].items()}
            lines.append(f"{name}: {json.dumps(each)}")
    return "\n".join(lines)


def _whole_lines(path: str) -> list[str]:
    text = Path(path).read_text(errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


class _Text(HTMLParser):
    """The text of a page, block by block, and the data of its script."""

    BLOCKS = ("p", "h1", "h2", "h3", "li", "tr", "dt", "dd", "section", "div", "table", "figure", "footer", "button")

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self.data, self._in = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._in = dict(attrs).get("id") or tag
        elif tag in self.BLOCKS:
            self.lines.append("")
        if tag == "td" or tag == "th":
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._in = ""
        elif tag in self.BLOCKS:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self._in == "data":
            self.data += data
        elif not self._in:
            self.lines[-1] += data


def reduced(html: str) -> tuple[str, str]:
    """The text of a page with its tables, and the specifications of its charts: what each shows, and its data."""
    from bireme import __version__

    parser = _Text()
    parser.feed(html)
    parser.close()
    lines = (re.sub(r"\s+", " ", line).strip() for line in parser.lines)
    text = "\n".join(line for line in lines if line).replace(__version__, "VERSION")
    data = json.loads(parser.data)
    table = "\n".join(json.dumps(row) for row in data["trials"])
    columns = " ".join(str(column["title"]) for column in data["columns"])
    charts = "\n".join(f"{name}: {json.dumps(_shown(spec))}" for name, spec in data["charts"].items())
    others = {name: value for name, value in data.items() if name not in ("trials", "columns", "charts", "series")}
    return f"{text}\n\n{columns}\n{table}\n{json.dumps(others)}", charts


def _shown(spec: Any) -> Any:
    """Of a chart what a reader sees: marks, what is along its axes, and data; not colours and sizes."""
    if isinstance(spec, list):
        return [_shown(each) for each in spec]
    if not isinstance(spec, dict):
        return spec
    found: dict[str, Any] = {}
    for name, value in spec.items():
        if name == "mark":
            found[name] = value["type"] if isinstance(value, dict) else value
        elif name == "encoding":
            found[name] = {axis: _axis(each) for axis, each in value.items() if isinstance(each, dict)}
        elif name == "values" or (isinstance(value, (dict, list)) and name not in ("autosize", "transform", "config")):
            found[name] = value if name == "values" else _shown(value)
    return found


def _axis(channel: dict[str, Any]) -> str:
    """The field of an axis, and its title."""
    return f"{channel.get('field', channel.get('datum', ''))}: {channel.get('title') or ''}".strip(": ")
