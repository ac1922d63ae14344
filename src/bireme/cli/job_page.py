"""The page of ``bireme report``: a timeline of a job, made from the lines that ``--events`` wrote."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from bireme.errors import BadInputError, counted
from bireme.logs.console import printable
from bireme.regular_file import open_regular
from bireme.result.outcome import describe
from bireme.result.report import duration

_WIDTH = 1000
"""Units of the timeline, from the first event to the last."""
_MOST_BYTES = 1 << 28
_TICKS, _MOST_FAILURES = 8, 16
_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


def read(path: str) -> list[dict[str, Any]]:
    """The events of a file, in order; a last line that is not complete yet does not count."""
    try:
        with open(open_regular(path), "rb") as file:
            lines = file.read(_MOST_BYTES).split(b"\n")
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror}", hint="bireme report FILE, of --events") from None
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            event = json.loads(line)
            time.localtime(event["time"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            event = None
        if not isinstance(event, dict) or event.get("v") != 1:
            hint = "the file of bireme run --events"
            raise BadInputError("not an event of version 1", hint=hint, where=f"{path}:{number}")
        events.append(event)
    if not events:
        raise BadInputError(f"no event in {path}", hint="the file of bireme run --events")
    return events


def page(events: list[dict[str, Any]], path: str) -> str:
    """The whole page, as HTML that runs no script and asks for nothing."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        hint = "install it: pip install 'bireme[report]'"
        raise BadInputError("bireme report needs a package that is not installed: jinja2", hint=hint) from None
    folder = os.path.join(os.path.dirname(__file__), "templates")
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        view = _view(events)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInputError(f"an event lacks what it must have: {error}", where=path) from None
    return environment.get_template("job.html").render(title=printable(os.path.basename(path)), **view)


def _view(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the template shows."""
    begin, end = events[0]["time"], max(event["time"] for event in events)
    long = max(end - begin, 0.001)

    def place(when: float) -> float:
        return round(float(_WIDTH * (when - begin) / long), 2)

    rows: dict[int, list[dict[str, Any]]] = {}
    nodes: dict[int, str] = {}
    marks: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    ranks, attempts, last = 0, 0, events[-1]
    for event in events:
        name, when = event["event"], event["time"]
        if name == "planned":
            attempts += 1
            ranks = event["ranks"]
            if attempts > 1:
                marks.append({"x": place(when), "kind": "again", "text": f"attempt {attempts}"})
        elif name == "up":
            nodes[event["rank"]] = event.get("host", "")
            rows.setdefault(event["rank"], []).append(
                {"from": when, "to": None, "first": None, "kind": "runs", "end": ""}
            )
        elif name == "first output" and rows.get(event["rank"]):
            rows[event["rank"]][-1]["first"] = when
        elif name == "down" and rows.get(event["rank"]):
            nodes[event["rank"]] = event["host"]
            kind = "stopped" if event["stopped"] else "failed" if event["code"] else "ended"
            how = describe(event["code"], by_signal=event["by_signal"])
            rows[event["rank"]][-1] |= {"to": when, "kind": kind, "end": how}
            if kind == "failed" and len(words) < _MOST_FAILURES:
                text = f"rank {event['rank']} on {event['host']}: {how}"
                words.append({"when": duration(when - begin), "title": "failure", "text": text, "more": ""})
        elif name in ("hang", "stopping"):
            text = f"nothing was written for {duration(event['seconds'])}" if name == "hang" else event["note"]
            title = "hang" if name == "hang" else event["cause"]
            marks.append({"x": place(when), "kind": name, "text": title})
            more = event.get("stacks", "")
            words.append({"when": duration(when - begin), "title": title, "text": text, "more": more})
        elif name in ("quiet", "lost"):
            silence = (
                f"nothing was written for {duration(event['seconds'])}, but a rank moves" if name == "quiet" else ""
            )
            text = silence or f"{event['host']}: {event['reason']}"
            words.append({"when": duration(when - begin), "title": name, "text": text, "more": ""})
    for bars in rows.values():
        for bar in bars:
            until = end if bar["to"] is None else bar["to"]
            starts = min(until, end if bar["first"] is None else bar["first"])
            bar |= {"x": place(bar["from"]), "y": place(starts), "z": place(until)}
            told = "no output" if bar["first"] is None else f"first output after {duration(bar['first'] - bar['from'])}"
            bar["text"] = f"{duration(until - bar['from'])}, {told}; {bar['end'] or 'runs'}"
    step = next((each for each in _STEPS if long / each <= _TICKS), _STEPS[-1])
    over = last["event"] == "finished"
    names = list(dict.fromkeys(nodes[rank] for rank in sorted(nodes)))
    facts = [
        ("", "ended" if over else "runs" if time.time() - end < 60 else "no end was written"),
        ("began", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin))),
        ("took", duration(end - begin)),
        ("ranks", f"{counted(ranks, 'rank')} on {counted(len(names), 'node')}"),
        *((("cause", last["cause"]), ("exit code", str(last["code"]))) if over else ()),
        *((("attempts", str(attempts)),) if attempts > 1 else ()),
    ]
    return {
        "facts": facts,
        "rows": [(rank, nodes[rank], rows[rank]) for rank in sorted(rows)],
        "marks": marks,
        "words": words,
        "ticks": [(place(begin + number * step), duration(number * step)) for number in range(int(long / step) + 1)],
        "width": _WIDTH,
        "height": 14 if len(rows) <= 64 else 6,
    }
