"""The report: one HTML file that needs no network.

What a program has written is hostile text. In the HTML it is escaped; the rest is data that the script puts into the
page as text; and the page's policy allows no script but the two of the report, by their digests, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

import bireme
from bireme.errors import BadInputError
from bireme.logs.console import printable
from bireme.result.report import duration
from bireme.tune.report import charts
from bireme.tune.report.answer import answer, numbers, state_words
from bireme.tune.report.effects import Effect, effects
from bireme.tune.report.reading import log_end, shown_value
from bireme.tune.report.secrets import Secrets
from bireme.tune.report.study_record import MEASURED, StudyRecord, TrialRecord
from bireme.tune.report.time_use import StudyClock, TimeUse, time_use
from bireme.tune.tables import short

_HERE = os.path.dirname(os.path.abspath(__file__))
_LOG_BYTES, _SERIES_VALUES = 2_000_000, 60_000
"""How much of logs and series a page has at most; what it lacks is in the folders of the trials."""
_MOST_EFFECTS = 24

Columns = list[dict[str, Any]]


def vega() -> str:
    """The plotting library, as one script.

    Raises:
        BadInputError: it is not installed.
    """
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise BadInputError(
            "bireme tune report needs a package that is not installed: vl-convert-python",
            hint="install it: pip install 'bireme[report]' (--json and --csv do not need it)",
        ) from None
    return str(javascript_bundle())


def page(study: StudyRecord, secrets: Secrets, now: float, library: str) -> str:
    """The whole file.

    Args:
        study: the study.
        secrets: what is hidden in logs.
        now: seconds since the epoch.
        library: what `vega` returned.
    """
    library, script = _script(library), _script(_file("page.js"))
    used = time_use(study.trials, now)
    names = [_difference(study, number) for number in range(len(study.configurations))]
    found = [one for goal in study.goals for one in effects(study, goal)[:_MOST_EFFECTS]]
    data = _data(study, secrets, now, found, names)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {_digest(library)} {_digest(script)}"
    )
    folder = os.path.basename(study.folder)
    return Template(_file("page.html")).substitute(
        policy=escape(policy),
        version=escape(bireme.__version__),
        title=escape(printable(f"bireme tune: {folder}")),
        style=_file("page.css"),
        folder=escape(printable(study.folder)),
        state=escape(state_words(study, used)),
        answer=answer(study, used, names),
        sections="\n".join(each for each in _sections(study, used, found, names) if each),
        study=_described(study),
        date=time.strftime("%Y-%m-%d %H:%M", time.localtime(now)),
        data=_json(data),
        library=library,
        script=script,
    )


# -- sections ----------------------------------------------------------------------------------------


def _sections(study: StudyRecord, used: TimeUse, found: Sequence[Effect], names: Sequence[str]) -> list[str]:
    plots = [""] * 5
    if study.finalists:
        goals = dict.fromkeys(each.goal for each in study.finalists)
        body = "".join(_plot(f"forest {goal}") for goal in goals) + numbers(study, names)
        about = (
            "Each finalist ran again and again beside the default, in random order on the same slots. A line is "
            f"the interval of the mean ratio ({study.confidence:.0%}, for all finalists together, valid whenever one "
            f"looks), ticks are single rounds, and the grey band is what does not matter (± {study.effect:.0%})."
        )
        plots[0] = _section("finalists", "Finalists against the default", about, body)
    if len(study.goals) == 2 and study.ended:
        plots[1] = _section("front", "The two goals", "Means of all configurations.", _plot("front"))
    if found:
        about = (
            "How many times as good as with the default's value (hollow), everything else being equal: an additive "
            f"model of all measured trials, with {study.confidence:.0%} intervals. Shaded: how many of the trials "
            "ran out of memory. The percentage is the difference between the best value and the worst."
        )
        figures = "".join(_effect(place, one, len(study.goals) > 1) for place, one in enumerate(found))
        plots[2] = _section("effects", "What each parameter does", about, f'<div class="grid">{figures}</div>')
    if study.goals and any(study.figure(trial) is not None for trial in study.trials):
        about = "Each trial at its end; below, those without a figure. The line is the best so far in the search."
        plots[3] = _section("progress", "Progress", about, _plot("progress"))
    if used.slots:
        plots[4] = _time(study, used)
    return plots


def _section(name: str, title: str, about: str, body: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(title)}</h2>'
        f'<p class="sub">{escape(about)}</p>{body}</section>'
    )


def _plot(chart: str) -> str:
    return f'<div class="plot" data-chart="{escape(chart)}"></div>'


def _effect(place: int, one: Effect, several: bool) -> str:
    known = any(level.ratio is not None for level in one.levels)
    span = f"{one.span:.1%}" if known and one.span < 0.1 else f"{one.span:.0%}" if known else "nothing measured"
    title = f"{one.parameter}{f', {one.goal}' if several else ''}"
    caption = f"<figcaption><h3>{escape(title)}</h3><span>{span}</span></figcaption>"
    return f"<figure>{caption}{_plot(f'effect {place}')}</figure>"


def _time(study: StudyRecord, used: TimeUse) -> str:
    total = sum(used.parts.values()) or 1.0
    looks = {"measuring": "main", "repeating": "main", "idle slots": "quiet", "without a figure": "bad"}
    items = "".join(
        f'<li><span>{escape(name)}</span><span class="bar"><i class="{looks.get(name, "")}" '
        f'style="width:{100 * seconds / total:.1f}%"></i></span>'
        f'<span class="much">{seconds / total:.0%}&ensp;{duration(seconds)}</span></li>'
        for name, seconds in used.parts.items()
    )
    slots = f"The time of all {used.slots} slots together" if used.slots > 1 else "The time of the slot"
    about = (
        f"{slots}; {duration(used.wall)} by the clock. Repeating is for the noise and the finalists; trials without a "
        "figure ran out of memory, failed or were stopped as hopeless."
    )
    return _section("time", "Where the time went", about, f'<ul class="bars">{items}</ul>')


def _described(study: StudyRecord) -> str:
    items = [("Command", f"<code>{escape(study.command)}</code>")] if study.command else []
    items += [("Goal", escape(f"{goal.direction} {goal.name}")) for goal in study.goals]
    items += [("Limit", escape(limit)) for limit in study.limits]
    for each in study.parameters:
        shown = [short(shown_value(value)) for value in each.choices[:40]]
        about = ", ".join(shown) + (", …" if len(each.choices) > 40 else "")
        about += f" (default {short(shown_value(each.default))})" if each.default is not None else ""
        items.append((each.name, f'<span class="mono">{escape(about)}</span>'))
    if study.over:
        items.append(("Ended", escape(study.over)))
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{text}</dd>" for name, text in items)
    return f'<dl class="plain">{rows}</dl>'


# -- data --------------------------------------------------------------------------------------------


def _data(
    study: StudyRecord, secrets: Secrets, now: float, found: Sequence[Effect], names: Sequence[str]
) -> dict[str, Any]:
    """What the script needs: the specifications of the plots, and the table with logs and series."""
    specs: dict[str, Any] = {f"effect {place}": charts.effect(one) for place, one in enumerate(found)}
    for goal in dict.fromkeys(each.goal for each in study.finalists):
        specs[f"forest {goal}"] = charts.forest(study, goal, names)
    if study.goals:
        specs["progress"] = charts.progress(study, now)
    if len(study.goals) == 2:
        specs["front"] = charts.front(study, names)
    specs["series"] = charts.series()
    columns = _columns(study)
    base, clock = study.mean(0), StudyClock(study.trials, now)
    maximized = not study.goals or study.goals[0].maximized
    return {
        "charts": specs,
        "columns": columns,
        "trials": [_row(study, trial, columns, base, clock) for trial in study.trials],
        "sort": {"key": "figure", "down": maximized},
        "maximized": maximized,
        "logs": _logs(study, secrets),
        "series": _series(study),
    }


def _columns(study: StudyRecord) -> Columns:
    goals = study.goals
    columns: Columns = [
        {"key": "name", "title": "Trial", "kind": "text"},
        {"key": "figure", "title": goals[0].title if goals else "figure", "kind": "figure"},
        {"key": "ratio", "title": "× default", "kind": "ratio"},
        *({"key": f"figure {goal.name}", "title": goal.title, "kind": "figure"} for goal in goals[1:]),
        {"key": "cause", "title": "End", "kind": "text"},
        {"key": "phase", "title": "Phase", "kind": "text"},
        *({"key": f"value {name}", "title": name, "kind": "value"} for name in _names(study)),
        {"key": "seconds", "title": "Seconds", "kind": "seconds"},
        {"key": "place", "title": "Slots", "kind": "text"},
    ]
    hidden = ("configuration", "reason", "ended", "kind", "best")
    return [*columns, *({"key": name, "title": name, "kind": "text", "hidden": True} for name in hidden)]


def _names(study: StudyRecord) -> list[str]:
    """The parameters that vary, in order."""
    names = [each.name for each in study.parameters]
    return names or list(dict.fromkeys(name for each in study.configurations for name in each.point))


def _row(study: StudyRecord, trial: TrialRecord, columns: Columns, base: float | None, clock: StudyClock) -> list[Any]:
    figure = study.figure(trial)
    up = not study.goals or study.goals[0].maximized
    ratio = (figure / base if up else base / figure) if figure and base else None
    known: dict[str, Any] = {
        "name": trial.name,
        "figure": figure,
        "ratio": None if ratio is None else round(ratio, 4),
        "cause": trial.cause,
        "phase": trial.phase + (f" {trial.round}" if trial.round and trial.phase == "" else ""),
        "seconds": round(trial.seconds, 2) if trial.seconds else None,
        "place": trial.place,
        "configuration": study.configurations[trial.config].text,
        "reason": trial.reason,
        "ended": None if trial.ended is None else round(clock.at(trial.ended), 2),
        "kind": charts.kind_of(trial.phase, trial.cause),
        "best": trial.config == study.best,
        **{f"figure {goal.name}": trial.figures.get(goal.name) for goal in study.goals[1:]},
        **{f"value {name}": _cell(value) for name, value in trial.point.items()},
    }
    return [known.get(column["key"]) for column in columns]


def _cell(value: object) -> object:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else short(shown_value(value))


def _logs(study: StudyRecord, secrets: Secrets) -> dict[str, list[str]]:
    """The ends of logs by trial: first of those that gave no figure, then of the finalists, until the page is full."""
    found, left = {}, _LOG_BYTES
    for trial in sorted(study.trials, key=lambda each: (each.cause == MEASURED, each.phase == "search")):
        lines = log_end(study, secrets, trial)
        left -= sum(map(len, lines)) + 20
        if left < 0:
            break
        if lines:
            found[trial.name] = lines
    return found


def _series(study: StudyRecord) -> dict[str, Any]:
    """The series of the first goal by trial: first those of the best configuration, until the page is full."""
    if not study.goals:
        return {}
    name, best = study.goals[0].name, study.best
    found, left = {}, _SERIES_VALUES
    for trial in sorted(study.trials, key=lambda each: (each.config != best, each.phase == "search")):
        values = trial.series.get(name) or ()
        left -= len(values)
        if left < 0:
            break
        if len(values) > 1:
            skipped = trial.warm_up.get(name, 0)
            shown = [float(f"{value:.5g}") for value in values]
            found[trial.name] = {
                "name": name,
                "values": shown,
                "warm_up": skipped,
                "from": min(skipped, len(values) - 1),
            }
    return found


def _difference(study: StudyRecord, number: int) -> str:
    """What a configuration has other than the baseline."""
    if number == 0:
        return "the default"
    base, point = study.configurations[0].point, study.configurations[number].point
    changed = [f"{name}={short(shown_value(value))}" for name, value in point.items() if base.get(name, ...) != value]
    return " ".join(changed) or study.configurations[number].text


# -- text --------------------------------------------------------------------------------------------


def _file(name: str) -> str:
    with open(os.path.join(_HERE, name), encoding="utf-8") as file:
        return file.read()


def _script(text: str) -> str:
    """A script that HTML reads as it is."""
    return text.replace("\r", "").replace("</script", "<\\/script").replace("<!--", "\\x3c!--")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: object) -> str:
    """JSON in a script element: no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
