"""The plots of the page: Vega-Lite specifications in ``templates/*.json``, filled with the data of a study.

In a specification ``"@name"`` stands for a value from here, ``"if"`` for whether a layer is drawn (Vega complains about
one without data), and ``"$accent"`` for a colour of the style sheet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bireme.tune.report.effects import Effect
from bireme.tune.report.view import MEASURED, PHASES, StudyClock, StudyView

Spec = dict[str, Any]

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")

KINDS = {
    "search": ("search", "circle", "$point"),
    "noise": (PHASES["noise"], "square", "$second"),
    "screen": (PHASES["screen"], "triangle-up", "$second"),
    "confirm": (PHASES["confirm"], "diamond", "$accent"),
    "out of memory": ("out of memory", "cross", "$bad"),
    "pruned": ("pruned", "triangle-down", "$quiet"),
    "other": ("failed", "M-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0L-1,-.7Z", "$bad"),
}
"""How the kinds of trials are called and drawn; each has its own shape, so that no colour is needed."""

_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_HEIGHT, _STRIP = 300, 26
_FEW = 1500
"""More trials than this are drawn smaller."""


def _drawn(chart: str, description: str, **values: object) -> Spec:
    """A specification, filled with values."""
    with open(os.path.join(TEMPLATES, f"{chart}.json"), encoding="utf-8") as file:
        spec = _filled(json.load(file), values)
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": description,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        **spec,
    }


def _filled(part: Any, values: Mapping[str, object]) -> Any:
    if isinstance(part, str) and part.startswith("@"):
        return values[part[1:]]
    if isinstance(part, list):
        return [
            _filled(each, values) for each in part if not isinstance(each, dict) or values.get(each.get("if", ""), True)
        ]
    if isinstance(part, dict):
        return {name: _filled(each, values) for name, each in part.items() if name != "if"}
    return part


def progress(study: StudyView, now: float) -> Spec:
    """The figures of all trials over time, and the best so far. The page gives the data ``trials``."""
    clock, goal = StudyClock(study.trials, now), study.goals[0]
    unit, size = next(each for each in _UNITS if clock.wall > 2 * each[1] or each[1] == 1)
    base = study.mean(0) if study.kind == "program" else None
    return _drawn(
        "progress",
        f"{goal.name} of all trials over time, and the best so far",
        height=_HEIGHT,
        time=f"{unit} since the study began",
        title=goal.title,
        name=goal.name,
        range=[_HEIGHT - _STRIP, 4],
        bottom=_HEIGHT - 8,
        seconds=f"datum.t / {size}",
        size=42 if len(study.trials) <= _FEW else 16,
        opacity=0.8 if len(study.trials) <= _FEW else 0.3,
        shape=_by_kind(study, 1),
        color=_by_kind(study, 2),
        failed=any(study.figure(trial) is None for trial in study.ended),
        best=_best_so_far(study, clock, size),
        base=None if base is None else [{"v": base}],
    )


def _best_so_far(study: StudyView, clock: StudyClock, size: float) -> list[dict[str, float]]:
    """The best figure ``v`` at the times ``t`` at which it became so, and now; ``size``: seconds of a unit of time."""
    better = max if study.goals[0].maximized else min
    best: list[dict[str, float]] = []
    for trial in sorted(study.ended, key=lambda each: each.ended or 0.0):
        figure = study.figure(trial)
        if figure is not None and trial.phase != "confirm" and trial.ended is not None:
            top = better(best[-1]["v"], figure) if best else figure
            if not best or top != best[-1]["v"]:
                best.append({"t": clock.at(trial.ended) / size, "v": top})
    if best:
        best.append({"t": clock.wall / size, "v": best[-1]["v"]})
    return best


def _by_kind(study: StudyView, place: int) -> Spec:
    there = {kind_of(trial.phase, trial.cause) for trial in study.ended}
    kinds = [each for each in KINDS.values() if each[0] in there]
    scale = {"domain": [each[0] for each in kinds], "range": [each[place] for each in kinds]}
    return {"field": "k", "type": "nominal", "scale": scale, "legend": {"title": None, "orient": "top", "columns": 7}}


def kind_of(phase: str, cause: str) -> str:
    """The kind of a trial, as `KINDS` calls it."""
    if cause == MEASURED:
        return KINDS.get(phase, KINDS["search"])[0]
    return KINDS.get(cause if cause in ("out of memory", "pruned") else "other", KINDS["other"])[0]


def effect(study: StudyView, one: Effect) -> Spec:
    """A parameter's values against the baseline's, and in a strip below how many ran out of memory."""
    levels = [
        {
            **each.as_dict(),
            "share": each.out_of_memory / each.tried if each.tried else 0,
            "note": _share(each.out_of_memory, each.tried),
        }
        for each in one.levels
    ]
    return _drawn(
        "effect",
        f"the effect of {one.parameter} on {one.goal}",
        levels=levels,
        parameter=one.parameter,
        times=f"× that of {study.reference}",
        domain=[each.label for each in one.levels],
        angle=0 if max(len(each.label) for each in one.levels) * len(one.levels) < 44 else -35,
        measured=any(each.ratio is not None for each in one.levels),
    )


def _share(part: int, whole: int) -> str:
    if not part:
        return ""
    return f"{part}/{whole}" if whole < 100 else f"{part / whole:.0%}"


def forest(study: StudyView, goal: str, names: Sequence[str]) -> Spec:
    """The finalists' intervals, with the ratio of each round; ``names``: what the configurations are called."""
    finalists = [each for each in study.finalists if each.goal == goal]
    rounds = [{"row": f"{place}", "ratio": ratio} for place, each in enumerate(finalists) for ratio in each.rounds]
    ends = [
        1.0,
        *(each for one in finalists for each in (one.low, one.high, one.ratio, *one.rounds) if each is not None),
    ]
    margin = 0.06 * (max(ends) - min(ends)) or 0.02
    least, most = min(ends) - margin, max(ends) + margin
    rows = [
        {
            **each.as_dict(),
            "row": f"{place}",
            "name": names[each.config],
            "line": None if each.low is each.high else [each.low or least, each.high or most],
        }
        for place, each in enumerate(finalists)
    ]
    times = f"× {study.reference}"
    return _drawn(
        "forest",
        f"{goal} of the finalists against {study.reference}, with intervals",
        height=50 * len(rows),
        rows=rows,
        rounds=rounds,
        title=times if len(study.goals) < 2 else f"{times}, {goal}",
        times=times,
        domain=[least, most],
        order=[each["row"] for each in rows],
        below=f"{1 - study.effect}",
        above=f"{1 + study.effect}",
    )


def front(study: StudyView, names: Sequence[str]) -> Spec:
    """The means of all configurations on two goals; those of the front are diamonds on a line."""
    first, second = study.goals[:2]
    sums: dict[int, list[tuple[float, float]]] = {}
    for trial in study.trials:
        if trial.cause == MEASURED and first.name in trial.figures and second.name in trial.figures:
            sums.setdefault(trial.config, []).append((trial.figures[first.name], trial.figures[second.name]))
    rows = [
        {
            "a": sum(pair[0] for pair in pairs) / len(pairs),
            "b": sum(pair[1] for pair in pairs) / len(pairs),
            "p": names[config],
            "f": "on the front" if config in study.answer.front else "other",
        }
        for config, pairs in sums.items()
    ]
    return _drawn(
        "front",
        "the two goals against each other",
        rows=rows,
        x=first.title,
        y=second.title,
        first=first.name,
        second=second.name,
        chosen=study.answer.front,
    )


def series() -> Spec:
    """The values of one trial. The page gives the data ``series``: place i, value v, whether it counts c."""
    return _drawn("series", "the values of this trial")
