"""The plots of the page, as Vega-Lite specifications. A colour such as ``$accent`` is a variable of the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bireme.tune.report.effects import Effect
from bireme.tune.report.study_record import MEASURED, StudyRecord
from bireme.tune.report.time_use import StudyClock

Spec = dict[str, Any]

KINDS = {
    "search": ("searching", "circle", "$point"),
    "noise": ("noise", "square", "$second"),
    "screen": ("run again", "triangle-up", "$second"),
    "confirm": ("finalists", "diamond", "$accent"),
    "out of memory": ("out of memory", "cross", "$bad"),
    "pruned": ("pruned", "triangle-down", "$quiet"),
    "other": ("failed", "M-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0L-1,-.7Z", "$bad"),
}
"""How the kinds of trials are called and drawn; each has its own shape, so that no colour is needed."""

_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_HEIGHT, _STRIP = 300, 26
_EFFECT_HEIGHT, _EFFECT_STRIP = 190, 24


def progress(study: StudyRecord, now: float) -> Spec:
    """The figures of all trials over time, and the best so far. The page gives the data ``trials``."""
    clock, goal = StudyClock(study.trials, now), study.goals[0]
    unit, size = next(each for each in _UNITS if clock.wall > 2 * each[1] or each[1] == 1)
    size_of, opacity = (16, 0.3) if len(study.trials) > 1500 else (42, 0.8)
    base = study.mean(0)
    x = {"field": "t", "type": "quantitative", "title": f"{unit} since the study began", "scale": {"nice": False}}
    y = {
        "field": "v",
        "type": "quantitative",
        "title": goal.title,
        "scale": {"zero": False, "range": [_HEIGHT - _STRIP, 4]},
    }
    kind = {"shape": _by_kind(1), "color": _by_kind(2)}
    tip = [
        {"field": "n", "title": "trial"},
        {"field": "p", "title": "configuration"},
        {"field": "v", "title": goal.name, "type": "quantitative", "format": ",.5~g"},
        {"field": "e", "title": "end"},
    ]

    def trials(which: str, place: Spec, told: list[dict[str, str]]) -> Spec:
        return {
            "data": {"name": "trials"},
            "transform": [{"calculate": f"datum.t / {size}", "as": "t"}, {"filter": which}],
            "mark": {"type": "point", "filled": True, "size": size_of, "opacity": opacity, "cursor": "pointer"},
            "encoding": {"x": x, "y": place, **kind, "tooltip": told},
        }

    layers: list[Spec] = [
        trials("isValid(datum.v)", y, tip),
        trials("!isValid(datum.v)", {"value": _HEIGHT - 8}, [each for each in tip if each["field"] != "v"]),
        {
            "data": {"values": _best_so_far(study, clock, size)},
            "mark": {"type": "line", "interpolate": "step-after", "color": "$ink", "strokeWidth": 1.6},
            "encoding": {"x": x, "y": y},
        },
    ]
    if all(study.figure(trial) is not None for trial in study.ended):
        del layers[1]  # Vega complains about a layer without data
    if base is not None:
        layers += _marked(base, "the default", axis="y", field="v")
    return _single({"height": _HEIGHT, "layer": layers}, f"{goal.name} of all trials over time, and the best so far")


def _best_so_far(study: StudyRecord, clock: StudyClock, size: float) -> list[dict[str, float]]:
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


def _by_kind(place: int) -> Spec:
    scale = {"domain": [each[0] for each in KINDS.values()], "range": [each[place] for each in KINDS.values()]}
    return {"field": "k", "type": "nominal", "scale": scale, "legend": {"title": None, "orient": "top", "columns": 6}}


def kind_of(phase: str, cause: str) -> str:
    """The kind of a trial, as `KINDS` calls it."""
    if cause == MEASURED:
        return KINDS.get(phase, KINDS["search"])[0]
    return KINDS.get(cause if cause in ("out of memory", "pruned") else "other", KINDS["other"])[0]


def effect(one: Effect) -> Spec:
    """A parameter's values against the default's, and in a strip below how many ran out of memory."""
    plot = _EFFECT_HEIGHT - _EFFECT_STRIP
    x = {
        "field": "value",
        "type": "ordinal",
        "scale": {"domain": [each.label for each in one.levels]},
        "title": None,
        "axis": {"labelAngle": 0 if max(len(each.label) for each in one.levels) * len(one.levels) < 44 else -35},
    }
    y: Spec = {
        "field": "ratio",
        "type": "quantitative",
        "title": "× the default's",
        "scale": {"zero": False, "range": [plot - 6, 6]},
    }
    tip = [
        {"field": "value", "title": one.parameter},
        {"field": "ratio", "title": "× the default's", "format": ".3f"},
        {"field": "low", "title": "at least", "format": ".3f"},
        {"field": "high", "title": "at most", "format": ".3f"},
        {"field": "measured"},
        {"field": "tried"},
        {"field": "memory", "title": "out of memory"},
    ]
    measured = {"filter": "isValid(datum.ratio)"}
    layers: list[Spec] = [
        *_out_of_memory(x, tip),
        {
            "data": {"values": [{"one": 1}]},
            "mark": {"type": "rule", "color": "$quiet", "strokeDash": [3, 3]},
            "encoding": {"y": {**y, "field": "one"}},
        },
        {
            "transform": [measured],
            "mark": {"type": "rule", "color": "$accent", "strokeWidth": 2},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": [measured],
            "mark": {"type": "point", "size": 60, "stroke": "$accent", "strokeWidth": 2, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "fill": {"condition": {"test": "datum.default", "value": "$paper"}, "value": "$accent"},
                "tooltip": tip,
            },
        },
    ]
    if all(each.ratio is None for each in one.levels):
        del layers[-2:]
    spec: Spec = {"height": _EFFECT_HEIGHT, "data": {"values": _levels(one)}, "layer": layers}
    return _single(spec, f"the effect of {one.parameter} on {one.goal}")


def _levels(one: Effect) -> list[dict[str, object]]:
    return [
        {
            "value": each.label,
            "ratio": each.ratio,
            "low": each.low,
            "high": each.high,
            "default": each.default,
            "measured": each.measured,
            "tried": each.tried,
            "memory": each.out_of_memory,
            "share": each.out_of_memory / each.tried if each.tried else 0,
            "note": _share(each.out_of_memory, each.tried),
        }
        for each in one.levels
    ]


def _out_of_memory(x: Spec, tip: list[dict[str, str]]) -> list[Spec]:
    """Bars behind the values that ran out of memory, and words about them."""
    opacity = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": [0, 0.22]},
        "legend": None,
    }
    words = {"type": "text", "fontSize": 11, "color": "$bad-ink", "baseline": "middle"}
    middle, bottom = (_EFFECT_HEIGHT - _EFFECT_STRIP) / 2, _EFFECT_HEIGHT
    return [
        {
            "transform": [{"filter": "datum.memory > 0"}],
            "mark": {"type": "bar", "color": "$bad", "width": {"band": 0.94}},
            "encoding": {"x": x, "y": {"value": 0}, "y2": {"value": bottom}, "opacity": opacity, "tooltip": tip},
        },
        {
            "transform": [{"filter": "datum.memory > 0"}],
            "mark": words,
            "encoding": {"x": x, "y": {"value": bottom - 9}, "text": {"field": "note"}},
        },
        {
            "transform": [{"filter": "datum.share == 1"}],
            "mark": {**words, "angle": 270},
            "encoding": {"x": x, "y": {"value": middle}, "text": {"value": "out of memory"}},
        },
    ]


def _share(part: int, whole: int) -> str:
    if not part:
        return ""
    return f"{part}/{whole}" if whole < 100 else f"{part / whole:.0%}"


def forest(study: StudyRecord, goal: str, names: Sequence[str]) -> Spec:
    """The finalists' intervals, with the ratio of each round; ``names``: what the configurations are called."""
    finalists = [each for each in study.finalists if each.goal == goal]
    rows = [
        {
            "row": f"{place}",
            "name": names[each.config],
            "ratio": each.ratio,
            "low": each.low,
            "high": each.high,
            "verdict": each.verdict,
        }
        for place, each in enumerate(finalists)
    ]
    rounds = [{"row": f"{place}", "ratio": ratio} for place, each in enumerate(finalists) for ratio in each.rounds]
    ends = [each for row in rows for each in (row["low"], row["high"], row["ratio"]) if isinstance(each, float)]
    ends += [1.0, *(each["ratio"] for each in rounds if isinstance(each["ratio"], float))]
    margin = 0.06 * (max(ends) - min(ends)) or 0.02
    domain = [min(ends) - margin, max(ends) + margin]
    order = [f"{place}" for place in range(len(rows))]
    y: Spec = {"field": "row", "type": "nominal", "sort": order, "axis": None, "scale": {"domain": order}}
    x: Spec = {
        "field": "ratio",
        "type": "quantitative",
        "title": "× the default" + ("" if len(study.goals) < 2 else f", {goal}"),
        "scale": {"domain": domain, "nice": False},
        "axis": {"tickCount": 7},
    }
    tip = [
        {"field": "name", "title": "configuration"},
        {"field": "ratio", "title": "× the default", "format": ".3f"},
        {"field": "low", "title": "at least", "format": ".3f"},
        {"field": "high", "title": "at most", "format": ".3f"},
        {"field": "verdict"},
    ]
    known = {"filter": "isValid(datum.low) && isValid(datum.high)"}
    shifted = {"yOffset": 9}
    layers: list[Spec] = [
        {
            "data": {"values": [{"low": 1 - study.effect, "high": 1 + study.effect}]},
            "mark": {"type": "rect", "color": "$quiet", "opacity": 0.14, "clip": True},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
        },
        *_marked(1.0, "", axis="x", field="ratio", of=x),
        {
            "data": {"values": rounds},
            "mark": {"type": "tick", "color": "$point", "opacity": 0.55, "thickness": 1.5, "height": 12, **shifted},
            "encoding": {"x": x, "y": y},
        },
        {
            "transform": [known],
            "mark": {"type": "rule", "color": "$accent", "strokeWidth": 2.5, **shifted},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y},
        },
        {
            "mark": {
                "type": "point",
                "shape": "diamond",
                "filled": True,
                "size": 90,
                "color": "$accent",
                "opacity": 1,
                **shifted,
            },
            "encoding": {"x": x, "y": y, "tooltip": tip},
        },
        {
            "mark": {"type": "text", "align": "left", "color": "$ink", "fontSize": 12.5, "dy": -11, "limit": 900},
            "encoding": {"x": {"value": 2}, "y": y, "text": {"field": "name"}},
        },
    ]
    spec: Spec = {"height": 50 * len(rows), "data": {"values": rows}, "layer": layers}
    return _single(spec, f"{goal} of the finalists against the default, with intervals")


def front(study: StudyRecord, names: Sequence[str]) -> Spec:
    """The means of all configurations on two goals; those of the front are diamonds on a line."""
    first, second = study.goals[:2]
    sums: dict[int, list[tuple[float, float]]] = {}
    for trial in study.trials:
        if trial.cause == MEASURED and first.name in trial.figures and second.name in trial.figures:
            sums.setdefault(trial.config, []).append((trial.figures[first.name], trial.figures[second.name]))
    chosen = set(study.answer.front) if study.answer is not None else set()
    rows = [
        {
            "a": sum(pair[0] for pair in pairs) / len(pairs),
            "b": sum(pair[1] for pair in pairs) / len(pairs),
            "p": names[config],
            "f": "on the front" if config in chosen else "other",
        }
        for config, pairs in sums.items()
    ]
    x = {"field": "a", "type": "quantitative", "title": first.title, "scale": {"zero": False}}
    y = {"field": "b", "type": "quantitative", "title": second.title, "scale": {"zero": False}}
    groups = ["on the front", "other"]
    line: Spec = {
        "transform": [{"filter": "datum.f == 'on the front'"}],
        "mark": {"type": "line", "color": "$accent", "strokeWidth": 1.4},
        "encoding": {"x": x, "y": y, "order": {"field": "a"}},
    }
    layers: list[Spec] = [
        *([line] if chosen else []),  # Vega complains about a layer without data
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.9},
            "encoding": {
                "x": x,
                "y": y,
                "shape": {
                    "field": "f",
                    "scale": {"domain": groups, "range": ["diamond", "circle"]},
                    "legend": {"title": None, "orient": "top"},
                },
                "color": {"field": "f", "scale": {"domain": groups, "range": ["$accent", "$point"]}},
                "tooltip": [
                    {"field": "p", "title": "configuration"},
                    {"field": "a", "title": first.name},
                    {"field": "b", "title": second.name},
                ],
            },
        },
    ]
    return _single({"height": _HEIGHT, "data": {"values": rows}, "layer": layers}, "the two goals against each other")


def series() -> Spec:
    """The values of one trial. The page gives the data ``series``: place i, value v, whether it counts c."""
    encoding = {
        "x": {
            "field": "i",
            "type": "quantitative",
            "title": None,
            "axis": {"tickMinStep": 1},
            "scale": {"nice": False},
        },
        "y": {"field": "v", "type": "quantitative", "title": None, "scale": {"zero": False}},
    }
    layers = [
        {"mark": {"type": "line", "color": "$quiet", "strokeWidth": 1.2}, "encoding": encoding},
        {
            "transform": [{"filter": "datum.c"}],
            "mark": {"type": "line", "color": "$accent", "strokeWidth": 2},
            "encoding": encoding,
        },
    ]
    return _single({"height": 120, "data": {"name": "series"}, "layer": layers}, "the values of this trial")


def _marked(value: float, text: str, *, axis: str, field: str, of: Spec | None = None) -> list[Spec]:
    """A dashed line at a value, with a text."""
    encoding = {axis: {**(of or {"type": "quantitative"}), "field": field}}
    data = {"values": [{field: value}]}
    line: list[Spec] = [
        {
            "data": data,
            "mark": {"type": "rule", "color": "$ink", "strokeDash": [4, 3], "opacity": 0.6},
            "encoding": encoding,
        }
    ]
    if text:
        mark = {"type": "text", "align": "right", "dx": -3, "dy": 13, "color": "$quiet-ink", "fontSize": 11.5}
        text_at = {**encoding, "x": {"value": "width"}, "text": {"value": text}}
        line.append({"data": data, "mark": mark, "encoding": text_at})
    return line


def _single(spec: Spec, description: str) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": description,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        **spec,
    }
