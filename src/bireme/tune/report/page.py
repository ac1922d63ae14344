"""The report: one HTML file that needs no network, made of ``templates/page.html``.

What a program has written is hostile text. In the HTML it is escaped; the rest is data that the script puts into the
page as text; and the page's policy allows no script but the two of the report, by their digests, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import bireme
from bireme.errors import BadInputError, counted
from bireme.logs.console import printable
from bireme.regular_file import open_regular
from bireme.result.report import duration
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.report import charts
from bireme.tune.report.effects import Effect, effects
from bireme.tune.report.secrets import Secrets
from bireme.tune.report.text import counts, explained, left_lines
from bireme.tune.report.view import (
    COMMANDS,
    MEASURED,
    PHASES,
    Configuration,
    StudyClock,
    StudyView,
    TimeUse,
    TrialView,
    short,
    shown_value,
    time_use,
)

_LOG_BYTES, _SERIES_VALUES = 2_000_000, 60_000
"""How much of logs and series a page has at most; what it lacks is in the folders of the trials."""
_MOST_EFFECTS = 24
_TAIL = 4096
"""Bytes at the end of a log that are looked at."""
_STATES = {"running": "still running", "over": "over", "stopped": "stopped before its end"}

Column = tuple[str, str, str, Callable[[TrialView], Any]]
"""Key, title ("": it is not shown), kind, and the value of a trial."""


def vega() -> str:
    """The plotting library, as one script.

    Raises:
        BadInputError: a package of the extra ``report`` is not installed.
    """
    try:
        import jinja2  # noqa: F401  # found missing before anything is read
        from vl_convert import javascript_bundle
    except ImportError as error:
        package = {"vl_convert": "vl-convert-python"}.get(error.name or "", error.name)
        raise BadInputError(
            f"bireme tune report needs a package that is not installed: {package}",
            hint="install it: pip install 'bireme[report]' (--json and --csv do not need it)",
        ) from None
    return str(javascript_bundle())


def page(study: StudyView, secrets: Secrets, now: float, library: str) -> str:
    """The whole file; ``now``: seconds since the epoch; ``library``: what `vega` returned."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(charts.TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": counted, "duration": duration, "ratio": shown_ratio}
    library, script = _script(library), _script(_file("page.js"))
    used = time_use(study.trials, now)
    names = [_difference(study, number) for number in range(len(study.configurations))]
    found = [one for goal in study.goals for one in effects(study, goal)[:_MOST_EFFECTS]]
    return environment.get_template("page.html").render(
        study=study,
        names=names,
        used=used,
        facts=_facts(study, used),
        left=": ".join(left_lines(study, now)),
        explained=explained(study),
        effects=[{**one.as_dict(), "much": _much(one)} for one in found],
        compared=list(dict.fromkeys(each.goal for each in study.finalists)),
        measured=bool(study.goals) and any(study.figure(trial) is not None for trial in study.trials),
        failed=any(trial.cause != MEASURED for trial in study.ended),
        commands=COMMANDS,
        parameters=[(each, _words(study, each.name)) for each in study.parameters],
        policy=(
            "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src {_digest(library)} {_digest(script)}"
        ),
        version=bireme.__version__,
        title=printable(f"bireme tune: {os.path.basename(study.folder)}"),
        style=Markup(_file("page.css")),
        folder=printable(study.folder),
        state=f"{_STATES[study.state]}, {duration(used.wall)}" if used.wall else _STATES[study.state],
        date=time.strftime("%Y-%m-%d %H:%M", time.localtime(now)),
        data=Markup(_json(_data(study, secrets, now, found, names))),
        library=Markup(library),
        script=Markup(script),
    )


def _facts(study: StudyView, used: TimeUse) -> list[tuple[str, str, str]]:
    """The figures behind the answer: name, value and note of each."""
    facts: list[tuple[str, str, str]] = []
    named: list[tuple[str, int | None]] = []
    if study.kind != "deepspeed":
        named = [(study.reference.removeprefix("the ").capitalize(), 0)]
    named = [("Best", study.best), *named] if study.best or study.kind == "deepspeed" else named
    for name, config in named:
        if config is not None and (mean := study.mean(config)) is not None:
            facts.append((name, scaled(mean, study.goals[0].unit), study.goals[0].name))
    if (noise := study.answer.noise) is not None:
        facts.append(("Noise of a run", f"{100 * noise:.1f} %", "standard deviation"))
    words = counts(dict(Counter(trial.cause for trial in study.ended).most_common()))
    slots = f"on {used.slots} slots" if used.slots > 1 else "on one slot" if used.slots else ""
    facts += [("Trials", f"{len(study.ended):,}", words), ("Configurations", f"{study.tried:,}", "tried")]
    return [*facts, ("Time", duration(used.wall), slots)]


def _much(one: Effect) -> str:
    """How far apart the values of a parameter are."""
    if all(level.ratio is None for level in one.levels):
        return "nothing measured"
    return f"{one.span:.1%}" if one.span < 0.1 else f"{one.span:.0%}"


def _words(study: StudyView, name: str) -> Callable[[object], str]:
    """How a parameter's values are shown: as they were typed, where they were tried."""
    typed = {repr(each.point[name]): each.words[name] for each in study.configurations if name in each.point}
    return lambda value: typed.get(repr(value)) or short(shown_value(value))


def _difference(study: StudyView, number: int) -> str:
    """What a configuration has other than the baseline; one of DeepSpeed is called by its name."""
    base, own = study.configurations[0].point, study.configurations[number]
    if study.kind == "deepspeed":
        return own.text
    changed = [f"{name}={own.words[name]}" for name, value in own.point.items() if base.get(name, ...) != value]
    return " ".join(changed) or (study.reference if number == 0 else own.text)


# -- data --------------------------------------------------------------------------------------------


def _data(
    study: StudyView, secrets: Secrets, now: float, found: Sequence[Effect], names: Sequence[str]
) -> dict[str, Any]:
    """What the script needs: the specifications of the plots, and the table with logs and series."""
    specs: dict[str, Any] = {f"effect {place}": charts.effect(study, one) for place, one in enumerate(found)}
    for goal in dict.fromkeys(each.goal for each in study.finalists):
        specs[f"forest {goal}"] = charts.forest(study, goal, names)
    if study.goals:
        specs["progress"] = charts.progress(study, now)
    if len(study.goals) == 2:
        specs["front"] = charts.front(study, names)
    specs["series"] = charts.series()
    columns = _columns(study, now)
    maximized = not study.goals or study.goals[0].maximized
    return {
        "charts": specs,
        "columns": [{"key": key, "title": title, "kind": kind} for key, title, kind, _ in columns],
        "trials": [[value(trial) for *_, value in columns] for trial in study.trials],
        "sort": {"key": "figure", "down": maximized},
        "maximized": maximized,
        "logs": _logs(study, secrets),
        "series": _series(study),
    }


def _columns(study: StudyView, now: float) -> list[Column]:
    """The table of trials; what is hidden can be searched, or stands below a row that is opened."""
    goals, base, clock = study.goals, study.mean(0), StudyClock(study.trials, now)
    varying = [each.name for each in study.parameters] or list(
        dict.fromkeys(name for each in study.configurations for name in each.point)
    )

    def ratio(trial: TrialView) -> float | None:
        figure = study.figure(trial)
        return round(figure / base if goals[0].maximized else base / figure, 4) if figure and base else None

    def seconds(trial: TrialView) -> float | None:
        return round(trial.seconds, 2) if trial.seconds else None

    def ended(trial: TrialView) -> float | None:
        return None if trial.ended is None else round(clock.at(trial.ended), 2)

    def configuration(trial: TrialView) -> Configuration:
        return study.configurations[trial.config]

    return [
        ("name", "Trial", "text", lambda trial: trial.name),
        ("figure", goals[0].title if goals else "figure", "figure", study.figure),
        ("ratio", f"× {study.reference.removeprefix('the ')}", "ratio", ratio),
        *(
            (f"figure {goal.name}", goal.title, "figure", lambda trial, name=goal.name: trial.figures.get(name))
            for goal in goals[1:]
        ),
        ("cause", "End", "text", lambda trial: trial.cause),
        ("phase", "Phase", "text", lambda trial: PHASES.get(trial.phase, trial.phase)),
        *(
            (f"value {name}", name, "value", lambda trial, name=name: configuration(trial).words.get(name))
            for name in varying
        ),
        ("seconds", "Seconds", "seconds", seconds),
        ("place", "Slots", "text", lambda trial: trial.place),
        ("configuration", "", "text", lambda trial: configuration(trial).text),
        ("reason", "", "text", lambda trial: trial.reason),
        ("ended", "", "text", ended),
        ("kind", "", "text", lambda trial: charts.kind_of(trial.phase, trial.cause)),
        ("best", "", "text", lambda trial: trial.config == study.best),
        ("folder", "", "text", lambda trial: log_of(study, trial)),
    ]


def _logs(study: StudyView, secrets: Secrets) -> dict[str, list[str]]:
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


def _series(study: StudyView) -> dict[str, Any]:
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
            counting = min(skipped, len(values) - 1)
            found[trial.name] = {"name": name, "values": shown, "warm_up": skipped, "from": counting}
    return found


def log_of(study: StudyView, trial: TrialView) -> str:
    """The folder of a trial's log, below that of the study."""
    if study.kind == "deepspeed":
        return os.path.join("confirmation" if trial.round else "", trial.name)
    return os.path.join("trials", trial.name)


def log_end(study: StudyView, secrets: Secrets, trial: TrialView, lines: int = 12) -> list[str]:
    """The last lines of a trial's log, printable and without secrets: of stderr, and of stdout if that is empty."""
    for file in ("stderr.log", "stdout.log"):
        try:
            path = os.path.join(study.folder, log_of(study, trial), file)
            with open(open_regular(path, os.O_NOFOLLOW), "rb") as log:  # the study may be another user's
                size = os.fstat(log.fileno()).st_size
                log.seek(max(0, size - _TAIL))
                found = log.read().decode("utf-8", "surrogateescape").rstrip()
        except (OSError, ValueError):
            continue
        if found:
            return [secrets.line(line)[:400] for line in found.splitlines()[-lines:]]
    return []


# -- text --------------------------------------------------------------------------------------------


def _file(name: str) -> str:
    with open(os.path.join(charts.TEMPLATES, name), encoding="utf-8") as file:
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
