"""Decides whether a study of a program in the folder is resumed or refused, and makes it of its journal."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.space import expressions
from bireme.tune.space.points import Condition, Parameter, Points, Space
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import StudyRecords, result_of, trial_of
from bireme.tune.study.study import Answer, Measurement, Study
from bireme.tune.study.trial import Goal, Objective
from bireme.tune.study.trial_result import TrialResult

_IDENTITY = {
    "program": "program",
    "args": "arguments",
    "parameters": "parameters",
    "conditions": "conditions",
    "constraints": "constraints",
    "deliveries": "parameters",
    "goals": "goals",
    "limits": "limits",
    "shape": "width",
    "seed": "seed",
    "search": "search",
}

_FAILED = ("failed", "no metric")
"""Causes that show a mistake in the program or in the study rather than a limit of the machine."""


def resume(journal: Journal, identity: Mapping[str, Any], results_dir: str) -> tuple[StudyRecords, str]:
    """Resume the study of a journal, or begin one: also in place of another one in which all trials have failed.

    Args:
        journal: the folder's journal.
        identity: what identifies the study, as JSON reads it back.
        results_dir: the folder, for the message.

    Returns:
        (what has ended of it, what the user is told or "").

    Raises:
        BadInputError: the folder holds another study.
    """
    known = StudyRecords(journal.records)
    begun = known.begun
    nothing_worked = all(end["ending"]["cause"] in _FAILED for end in known.ends.values())
    if begun is None or (nothing_worked and begun != identity):
        journal.append({"study": dict(identity)})
        told = f"in place of the study in {results_dir}, in which nothing worked" if known.ends else ""
        return StudyRecords([{"study": dict(identity)}]), told
    many = "1 of its trials has" if len(known.ends) == 1 else f"{len(known.ends)} of its trials have"
    if begun != identity:
        raise BadInputError(
            f"{results_dir} holds a study with {_difference(begun, identity)}: {many} ended",
            hint="choose another folder with --results_dir DIR, or remove this one",
        )
    return known, f"resuming the study: {many} ended" if known.ends else ""


def restore(study: Study, known: StudyRecords) -> None:
    """Tell a new study what has ended of it."""
    for end in known.ends.values():
        study.restore(trial_of(end), measurement_of(result_of(end)), float(end.get("elapsed", 0.0)))


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
        listed = each.get("choices")
        choices = listed if isinstance(listed, list) else list(tried.get(each["name"], {}))
        default = each.get("default", choices[0] if choices else None)
        if default not in choices:
            choices = [default, *choices]
        given = {key: each[key] for key in ("ordered", "memory") if key in each}
        parameters.append(Parameter(name=each["name"], choices=choices, default=default, **given))
    choices_of = {each.name: each.choices for each in parameters}
    conditions = [Condition(name, expressions.parse(text, choices_of)) for name, text in record.get("conditions", ())]
    constraints = [expressions.parse(text, choices_of) for text in record.get("constraints", ())]
    return Space(parameters, conditions, constraints)


def _difference(begun: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """What is different in the study of the folder."""
    different = [word for key, word in _IDENTITY.items() if begun.get(key) != identity.get(key)]
    words = [f"other {' and '.join(dict.fromkeys(different))}"] if different else []
    now = identity["digests"]
    changed = [path for path, was in begun.get("digests", {}).items() if now.get(path, was) != was]
    words += [f"another content of {path}" for path in changed]
    return " and ".join(words) or "another version of Bireme"


def measurement_of(result: TrialResult) -> Measurement:
    """What a result tells the study."""
    return Measurement(cause=result.cause, figures=dict(result.metrics), seconds=result.seconds, reason=result.reason)
