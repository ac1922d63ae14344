"""Makes a study of a program again of its journal."""

from __future__ import annotations

from importlib.util import find_spec

from bireme.tune.space import expressions
from bireme.tune.space.points import Condition, Parameter, Points, Space
from bireme.tune.store.records import StudyRecords
from bireme.tune.store.resume import restore
from bireme.tune.study.study import Answer, Study
from bireme.tune.study.trial import Goal, Objective


def answer_of(known: StudyRecords) -> Answer:
    """What the study itself would answer, made again of its journal."""
    identity = known.identity
    if not find_spec("numpy"):
        return Answer.from_record(known.answer) if known.answer else Answer(best=None, baseline={})
    goals: list[Goal] = [Objective(each["name"], each.get("direction", "maximize")) for each in identity["goals"]]
    study = Study(
        _space(known),
        goals,
        search=identity.get("search", "model_based"),
        seed=identity.get("seed", 0),
        confidence=identity.get("confidence", 0.95),
        effect=identity.get("effect", 0.02),
        trials=identity.get("trials"),
        seconds=identity.get("seconds"),
        confirm=identity.get("confirm"),
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
