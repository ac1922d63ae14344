"""Decides what of an earlier study of a program still holds, and makes a study of its journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

from bireme.tune.define.declarations import fill
from bireme.tune.metrics.metric import Measure, parse
from bireme.tune.space import expressions
from bireme.tune.space.points import Condition, Parameter, Points, Space
from bireme.tune.store.records import Record, StudyRecords, result_of, trial_of
from bireme.tune.study.study import Answer, Study
from bireme.tune.study.trial import Goal, Objective

_AGAIN = ("failed", "no metric", "timed out", "out of memory")
"""Causes that may be others in a program that has changed."""

_MUST_AGREE = {"program": "program", "shape": "width"}
_MAY_CHANGE = {
    "args": "arguments",
    "parameters": "parameters",
    "conditions": "conditions",
    "constraints": "constraints",
    "deliveries": "parameters",
    "goals": "goals",
    "limits": "limits",
    "seed": "seed",
    "search": "search",
}


class Successor:
    """A study of a program that goes on after its description or the program itself has changed.

    What the search has measured at points that are still in the space is taken over, and completed by the defaults of
    new parameters, which are what the program did before. If the program has changed, what failed is run again, and so
    are the rounds of the confirmation: what is claimed was measured of the program as it is.

    Args:
        identity: what identifies the study now, as JSON reads it back.
    """

    def __init__(self, identity: Mapping[str, Any], space: Points, measure: Measure) -> None:
        self._identity, self._space, self._measure = identity, space, measure

    def difference(self, begun: Record) -> str:
        """Why an earlier study is another one; "" if what holds of it can be taken over."""
        now = self._identity
        different = [word for key, word in _MUST_AGREE.items() if begun.get(key) != now.get(key)]
        was, are = (_delivered(each) for each in (begun, now))
        if any(was[name] != are[name] for name in was.keys() & are.keys()):
            different.append("parameters")
        if _constant(begun, was.keys() - are.keys()) != _constant(now, are.keys() - was.keys()):
            different.append("arguments")
        sources = _measure(begun).sources
        if any(sources.get(name, source) != source for name, source in self._measure.sources.items()):
            different.append("goals")
        if different:
            return f"other {' and '.join(dict.fromkeys(different))}"
        known = {*_MUST_AGREE, *_MAY_CHANGE, "digests"}
        return "another version of Bireme" if (begun.keys() ^ now.keys()) - known else ""

    def changes(self, begun: Record) -> str:
        """What is different in an earlier study, in words."""
        different = [word for key, word in _MAY_CHANGE.items() if begun.get(key) != self._identity.get(key)]
        words = [f"other {' and '.join(dict.fromkeys(different))}"] if different else []
        return " and ".join([*words, *(f"another content of {path}" for path in self._edited(begun))])

    def held(self, begun: Record, end: Record) -> Record | str:
        """What is different in the record of a trial now; or why it does not hold any more."""
        if begun == self._identity:
            return {}
        result, edited = result_of(end), self._edited(begun)
        if edited and (end.get("phase") == "confirm" or result.cause in _AGAIN):
            return f"{' and '.join(edited)} has another content"
        point = self._completed(begun, end["point"])
        if point is None:
            return "the space does not have their points any more"
        changed = {"point": point, "phase": "search" if end.get("phase") == "screen" else end.get("phase")}
        if result.cause == "pruned" and begun["goals"] != self._identity["goals"]:
            return "they were pruned for other goals"
        if result.cause not in ("ok", "over limit", "pruned"):
            return changed
        missing = [name for name in self._measure.sources if name not in result.metrics]
        if missing:
            return f"{' and '.join(missing)} was not measured"
        if result.cause != "pruned":
            broken = self._measure.over(result.metrics)
            judged = result.replace(cause="over limit" if broken else "ok", reason=broken)
            changed["ending"] = judged.as_dict()
        return changed

    def _edited(self, begun: Record) -> list[str]:
        """The files with another content."""
        now = self._identity["digests"]
        return [path for path, was in begun.get("digests", {}).items() if now.get(path, was) != was]

    def _completed(self, begun: Record, point: Mapping[str, object]) -> Mapping[str, object] | None:
        """The point with the defaults of new parameters; None if the space does not have it."""
        known = {each["name"] for each in begun.get("parameters", ())}
        added = {name: value for name, value in self._space.default.items() if name not in known}
        return next((each for each in ({**point, **added}, point) if each in self._space), None)


def _delivered(identity: Record) -> dict[str, Record]:
    """How each parameter reaches the program, by name."""
    return {each["parameter"]: each for each in identity.get("deliveries", ())}


def _constant(identity: Record, without: Collection[str]) -> tuple[str, ...]:
    """The program's arguments without those of some parameters."""
    return fill(identity.get("args", ()), {}, without)


def _measure(identity: Record) -> Measure:
    """What an earlier study measured."""
    goals = [(each["direction"], each["source"]["text"]) for each in identity.get("goals", ())]
    return parse(goals or [("minimize", "time")], identity.get("limits", ()))


def restore(study: Study, known: StudyRecords) -> None:
    """Tell a new study what has ended of it."""
    for end in known.ends.values():
        study.restore(trial_of(end), result_of(end), float(end.get("elapsed", 0.0)))


def answer_of(known: StudyRecords) -> Answer:
    """What the study itself would answer, made again of its journal."""
    identity = known.identity
    goals: list[Goal] = [Objective(each["name"], each.get("direction", "maximize")) for each in identity["goals"]]
    study = Study(
        _space(known),
        goals,
        search=identity.get("search", "model_based") if find_spec("numpy") else "random",
        seed=identity.get("seed", 0),
        confidence=identity.get("confidence", 0.95),
        effect=identity.get("effect", 0.02),
        trials=identity.get("trials"),
        seconds=identity.get("seconds"),
        side_by_side=max(1, len({start.get("on") for start in known.starts.values()})),
    )
    restore(study, known)
    return study.answer


def _space(known: StudyRecords) -> Points:
    """The space of the record; of a parameter with too many choices to be listed, the values that were tried."""
    tried: dict[str, dict[object, None]] = {}
    for end in known.ends.values():
        for name, value in end["point"].items():
            tried.setdefault(name, {})[value] = None
    record, parameters = known.identity, []
    for each in record.get("parameters") or ({"name": name} for name in tried):
        choices = Parameter.choices_of(each.get("choices"))
        if choices is None:
            choices = list(tried.get(each["name"], {}))
        default = each.get("default", choices[0] if choices else None)
        if default not in choices:
            choices = [default, *choices]
        given = {key: each[key] for key in ("ordered", "memory") if key in each}
        parameters.append(Parameter(name=each["name"], choices=choices, default=default, **given))
    choices_of = {each.name: each.choices for each in parameters}
    conditions = [Condition(name, expressions.parse(text, choices_of)) for name, text in record.get("conditions", ())]
    constraints = [expressions.parse(text, choices_of) for text in record.get("constraints", ())]
    return Space(parameters, conditions, constraints)
