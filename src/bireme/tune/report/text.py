"""A study in words: the lines about its answer, the screen of ``tune status``, the summary at its end."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bireme.errors import counted
from bireme.resources import pool
from bireme.result.report import duration
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.report.view import MEASURED, OUT_OF_MEMORY, PHASES, Finalist, StudyClock, StudyView, TrialView
from bireme.tune.study.trial import Forecast

_DOING = {
    "noise": "measuring the noise",
    "search": "searching",
    "profile": "profiling the model",
    "limits": "searching for what fits in memory",
    "rest": "searching",
    "screen": "running the best again",
    "confirm": "comparing the finalists",
}
AGAIN = ("screen", "confirm")
"""The phases of which a forecast says how long they take."""
_RUNNING, _ROWS, _TIES = 40, 40, 12
"""Lines of running trials, of the summary's table, and of what cannot be told from the best."""
CLOCK = "by the clock"
"""What a run of DeepSpeed has as a second figure."""


# -- the answer --------------------------------------------------------------------------------------


def answer_lines(study: StudyView) -> list[str]:
    """What is known of the best, as every screen and the summary say it."""
    answer, lines = study.answer, []
    if answer.noise is not None:
        lines.append(f"noise of a run: {100 * answer.noise:.1f} % (standard deviation of the search's repeated runs)")
    lines += best_lines(study)
    if study.best is None:
        return lines
    if answer.text and (answer.front or not answer.confirmed) and study.kind == "program":
        lines.append(answer.text)
    if answer.default_failed:
        baseline = study.configurations[0].text
        lines.append(f"the default itself failed: {answer.default_failed}; the baseline is {baseline}")
    it = "it" if answer.confirmed or study.kind == "deepspeed" else study.reference
    lines += [f"not distinguishable from {it}: {described(study, each)}" for each in study.ties[:_TIES]]
    if len(study.ties) > _TIES:
        lines.append(f"(and {len(study.ties) - _TIES} more: bireme tune report)")
    lines += explained(study)
    return [*lines, *(f"on the front: {described(study, each)}" for each in answer.front)]


def explained(study: StudyView) -> list[str]:
    """Why the best is none of those that the figures of a study of DeepSpeed seem to prefer."""
    lines, first = [_lucky(study, each) for each in lucky(study)], preferred(study)
    if first is not None:
        lines.append(f"DeepSpeed's figure of one run preferred {study.configurations[first].text}")
    return lines


def preferred(study: StudyView) -> int | None:
    """What DeepSpeed's figure of one run is best for, where the rounds have shown that something else is."""
    own = study.goals[0].name.removesuffix(f" {CLOCK}") if study.goals else ""
    if study.kind != "deepspeed" or not study.goals or own == study.goals[0].name:
        return None
    figures = {
        trial.config: figure
        for trial in reversed(study.trials)
        if not trial.round and (figure := study.figure(trial, own)) is not None
    }
    first = (max if study.goals[0].maximized else min)(reversed(figures), key=figures.__getitem__, default=study.best)
    return None if first == study.best or first in study.ties else first


def lucky(study: StudyView) -> list[int]:
    """Of a DeepSpeed study, the configuration whose mean is the best, if it is neither the best nor a tie."""
    means = study.means() if study.kind == "deepspeed" and study.best is not None and study.goals else {}
    if study.best not in means:
        return []
    first = (max if study.goals[0].maximized else min)(means, key=lambda each: (means[each], each == study.best))
    known = first == study.best or first in study.ties or means[first] == means[study.best]
    return [] if known else [first]


def _lucky(study: StudyView, config: int) -> str:
    """Why it is not the best."""
    runs = sum(trial.config == config and study.figure(trial) is not None for trial in study.trials)
    noise = f": the noise of a run is {100 * study.answer.noise:.1f} %" if study.answer.noise is not None else ""
    text = f"{study.configurations[config].text} has a better mean (of {counted(runs, 'run')})"
    return f"{text}, but is not shown to be better{noise}"


def best_lines(study: StudyView) -> list[str]:
    """What is the best, and what looks better."""
    if study.best is None:
        none = "nothing was measured yet" if study.state == "running" else "nothing was measured"
        return ["no configuration worked" if study.ended and study.state != "running" else none]
    final = study.state == "over" and (study.answer.confirmed or not study.answer.runs)
    lines = [f"best{'' if final else ' so far'}: {described(study, study.best)}"]
    if study.promising is not None:
        lines.append(f"promising, but not confirmed: {described(study, study.promising)}")
    return lines


def title(study: StudyView, trial: TrialView) -> str:
    """What a trial is called: by its name and its configuration, and by what it is for if that is not the search."""
    if study.kind == "deepspeed":
        return trial.name
    word = PHASES.get(trial.phase, "")
    phase = f" [{word}{f' {trial.round}' if trial.phase == 'confirm' else ''}]" if word else ""
    return f"{trial.name}{phase} {study.configurations[trial.config].text}"


def described(study: StudyView, config: int) -> str:
    """A configuration with its means, and how it compares."""
    text = study.configurations[config].text
    for goal in study.goals[: 2 if study.answer.front else 1]:
        if (mean := study.mean(config, goal.name)) is not None:
            shown = scaled(mean, goal.unit)
            named = f"{shown} {CLOCK}" if goal.name.endswith(CLOCK) else f"{goal.name} {shown}"
            text += f"{',' if goal != study.goals[0] else ' '} {named}"
    answer = study.answer
    if study.kind == "deepspeed":
        return f"{text}, {answer.text}" if config == answer.best else text
    if config == 0:
        return f"{text} ({study.reference})"
    ratio = study.ratio(config)
    if ratio is None:
        return text
    text += f", {shown_ratio(ratio)} x {study.reference}"
    if config == answer.best and answer.confirmed and study.interval:
        text += f" ({study.sure}: {study.interval}, {counted(answer.rounds, 'paired round')})"
    return text


# -- the screen --------------------------------------------------------------------------------------


def status(study: StudyView, now: float) -> dict[str, Any]:
    """The state of a study by names, times in seconds; ``now``: seconds since the epoch."""
    clock = StudyClock(study.trials, now)
    known = {
        "folder": study.folder,
        "state": study.state,
        "phase": study.phase if study.state != "over" else "",
        "done": len(study.ended),
        "most": study.most,
        "causes": dict(Counter(trial.cause for trial in study.ended).most_common()),
        "running": [_running(study, trial, now) for trial in study.running],
        "best": None if study.best is None else _in_figures(study, study.best),
        "promising": None if study.promising is None else _in_figures(study, study.promising),
        "noise": study.answer.noise,
        "seconds": clock.wall,
        "left": _left(study, clock.wall),
    }
    return known | ({"forecast": study.forecast.as_dict()} if study.forecast else {})


def _running(study: StudyView, trial: TrialView, now: float) -> dict[str, Any]:
    return {
        "trial": trial.name,
        "configuration": study.configurations[trial.config].text,
        "on": trial.place,
        "phase": trial.phase,
        "since": trial.began,
        "seconds": None if trial.began is None else round(now - trial.began, 3),
    }


def _in_figures(study: StudyView, config: int) -> dict[str, Any]:
    """The best, or what is promising."""
    confirmed = study.answer.best == config and study.answer.confirmed
    sure = confirmed and study.kind == "program"
    return {
        "configuration": study.configurations[config].text,
        "default": config == 0 and study.reference == "the default",
        "figure": study.goals[0].name if study.goals else "",
        "value": study.mean(config),
        "ratio": study.ratio(config),
        "low": study.answer.low if sure else None,
        "high": study.answer.high if sure else None,
        "confirmed": confirmed,
    }


def to_go(study: StudyView | None, now: float, forecast: Forecast | None = None, *, searches: bool = True) -> str:
    """How much longer a study takes, as ``about 3 min (1 min to 8 min) to go``.

    Args:
        study: its view; None: nothing has started yet.
        now: seconds since the epoch.
        forecast: if the view is older.
        searches: whether more may be tried, in a phase in which nothing runs again.
    """
    if study is None:
        return ""
    known, most = forecast or study.forecast, _left(study, StudyClock(study.trials, now).wall)
    if known and (study.phase in AGAIN or not searches):
        return f"{known.text} to go"
    if most is not None:
        return f"at most about {duration(most)} to go"
    return f"then the best again, {known.text}" if known else ""


def left_lines(study: StudyView, now: float) -> list[str]:
    """How much longer a study that runs takes, and what to do if its bounds end it before it is sure."""
    left = to_go(study, now) if study.state == "running" else ""
    advice = study.forecast.advice if study.forecast and study.phase in AGAIN else ""
    return [each for each in (left, advice) if each]


def _left(study: StudyView, wall: float) -> float | None:
    """Seconds to go at most: of the budget, or for the trials that are left at the pace so far."""
    if study.state != "running":
        return None
    done, limits = len(study.ended), []
    if study.budget is not None:
        limits.append(max(0.0, study.budget - wall))
    if study.most is not None and done:
        limits.append(max(0.0, study.most - done) * wall / done)
    return min(limits) if limits else None


def status_text(study: StudyView, now: float) -> str:
    """The screen."""
    known = status(study, now)
    state = {"stopped": "stopped; the same command continues it"}.get(study.state, study.state)
    if study.state == "stopped" and not known["done"]:
        state = "stopped before its first trial ended"
    lines = [f"{study.folder}: {state}", f"  {study.command}" if study.command else ""]
    if known["phase"] and study.state == "running":
        doing = f"{_DOING.get(study.phase, study.phase)}, for {duration(known['seconds'])}"
        left, *advice = left_lines(study, now) or [""]
        lines += [f"{doing}{left and f': {left}'}", *advice]
    elif known["seconds"]:
        why = study.over or study.why
        lines.append(f"took {duration(known['seconds'])}{f': {why}' if why else ''}")
    of = f" of at most {study.most}" if study.most and study.state != "over" else ""
    causes = counts(known["causes"])
    lines.append(f"{counted(known['done'], 'trial')} done{of}{f': {causes}' if causes else ''}")
    lines += answer_lines(study)
    for running in known["running"][:_RUNNING]:
        since = ""
        if running["since"] is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(running["since"]))
            since = f"since {clock} ({duration(running['seconds'])})"
        lines.append(f"  on {running['on']}  {since}  {running['configuration'] or running['trial']}")
    if len(known["running"]) > _RUNNING:
        lines.append(f"  and {len(known['running']) - _RUNNING} more")
    return "\n".join(line for line in lines if line) + "\n"


def counts(causes: Mapping[str, int]) -> str:
    """How many trials ended in which way: ``17 measured, 3 out of memory``."""
    return ", ".join(f"{count} {'measured' if cause == MEASURED else cause}" for cause, count in causes.items())


# -- the summary -------------------------------------------------------------------------------------


def summary(study: StudyView, head: str = "") -> str:
    """The whole summary, as written to ``summary.txt`` and to the screen; ``head``: what stands before it."""
    parts = [head, _configurations(study), _finalists(study)]
    reasons: dict[str, list[str]] = {}
    for trial in study.ended:
        if trial.cause not in (MEASURED, "pruned", OUT_OF_MEMORY):
            reasons.setdefault(f"{trial.cause}: {trial.reason}", []).append(trial.name)
    if reasons:
        parts.append(
            listed("What failed:", (f"{pool.listed(names, 3)}: {reason}" for reason, names in reasons.items()))
        )
    if study.skipped:
        parts.append(listed("What was not tried:", study.skipped))
    if study.given_up:
        parts.append(wrapped(f"Could not be run (run the same command again to retry): {', '.join(study.given_up)}"))
    count = f"{counted(len(study.ended), 'trial')} of {counted(study.tried, 'configuration')}"
    took = duration(StudyClock(study.trials, 0.0).wall)
    parts.append(f"Tuning took {took}; {count}.\n{wrapped(f'It ended: {study.over or study.why}.')}")
    parts.append("\n".join(answer_lines(study)))
    return "\n\n".join(filter(None, parts)) + "\n"


def _configurations(study: StudyView) -> str:
    """All configurations, the best first; those without a figure last, in the order of their first trials."""
    runs: dict[int, list[TrialView]] = {}
    for trial in study.ended:
        if trial.phase != "profile":
            runs.setdefault(trial.config, []).append(trial)
    if not runs:
        return ""
    goal = study.goals[0]
    sign = -1.0 if goal.maximized else 1.0
    means = study.means()
    ranked = sorted(runs, key=lambda config: (config not in means, sign * means.get(config, 0.0)))
    measured = dict.fromkeys(name for trial in study.ended for name in trial.figures)
    goals = [each.name for each in study.goals]
    own = [name.removesuffix(f" {CLOCK}") for name in goals]
    also = [*own, CLOCK] if study.kind == "deepspeed" else list(measured)
    names = [*goals, *(name for name in also if name in measured and name not in goals)]
    columns = [(study.means(name), study.units.get(name, "")) for name in names]

    def rows() -> Iterator[tuple[str, ...]]:
        for config in ranked[:_ROWS]:
            own = runs[config]
            cells = [scaled(means[config], unit) if config in means else "" for means, unit in columns]
            took = duration(sum(trial.seconds for trial in own) / len(own))
            causes = ", ".join(dict.fromkeys(trial.cause for trial in own))
            yield study.configurations[config].text, str(len(own)), *cells, took, causes

    heads = [CLOCK if name.endswith(CLOCK) else name for name in names]
    text = table(("configuration", "runs", *heads, "took", "end"), rows())
    return text if len(ranked) <= _ROWS else f"{text}\n(and {len(ranked) - _ROWS} more: bireme tune report)"


def _finalists(study: StudyView) -> str:
    """What the paired rounds have shown of each finalist."""
    if not study.finalists:
        return ""
    by_clock = study.finalists[0].goal.endswith(CLOCK)
    goal = ("goal",) if len(study.goals) > 1 else ()
    head = ("finalist", *goal, "rounds", f"x {study.reference}{f' {CLOCK}' if by_clock else ''}", study.sure, "verdict")
    rows = (
        (
            study.configurations[each.config].text,
            *((each.goal,) if goal else ()),
            str(each.count),
            _ratio(each.ratio),
            _between(each),
            each.verdict,
        )
        for each in study.finalists
    )
    return table(head, rows)


def _between(one: Finalist) -> str:
    """An interval, or the end of it that is known."""
    if one.low is None:
        return "" if one.high is None else f"up to {_ratio(one.high)}"
    return f"from {_ratio(one.low)}" if one.high is None else f"{_ratio(one.low)} to {_ratio(one.high)}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else shown_ratio(value)


# -- tables and paragraphs ----------------------------------------------------------------------------

_WIDTH = 100


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, as DeepSpeed prints it."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    drawn = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join(":" + "-" * (width + 1) for width in widths) + "|"
    return "\n".join([drawn[0], rule, *drawn[1:]])


def listed(title: str, lines: Iterable[str]) -> str:
    """A title and indented lines."""
    return "\n".join((title, *(wrapped(line, "  ") for line in lines)))


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph; further lines are indented more."""
    # Do not break names and paths: users copy them.
    further = indent + "  "
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
