"""Decides whether a study of a program in the folder is resumed or refused, and reads its trials from the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.store.journal import Journal
from bireme.tune.study.study import Measurement, Trial
from bireme.tune.study.trial_result import TrialResult
from bireme.value import Value

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


class Resumed(Value):
    """An earlier part of the study.

    Attributes:
        trials: those that ended, in the order of their ends, each with what it measured, and the seconds that the
            study had taken then.
        results: the same, by name, with all that is known of their ends.
        units: the base units of figures, by name.
        elapsed: seconds that the study took.
        note: what the user is told; "" if the study begins.
    """

    trials: tuple[tuple[Trial, Measurement, float], ...] = ()
    results: Mapping[str, TrialResult] = {}
    units: Mapping[str, str] = {}
    elapsed: float = 0.0
    note: str = ""


def resume(journal: Journal, identity: Mapping[str, Any], results_dir: str) -> Resumed:
    """Resume the study of a journal, or begin one: also in place of another one in which all trials have failed.

    Args:
        journal: the folder's journal.
        identity: what identifies the study, as JSON reads it back.
        results_dir: the folder, for the message.

    Raises:
        BadInputError: the folder holds another study.
    """
    begun: Mapping[str, Any] | None = None
    ends: list[Mapping[str, Any]] = []
    for record in journal.records:
        if "study" in record:
            begun, ends = record["study"], []  # type: ignore[assignment]  # as it was written
        elif "end" in record:
            ends.append(record)
    results = {str(record["end"]): TrialResult.from_record(record["ending"]) for record in ends}
    nothing_worked = all(result.cause in _FAILED for result in results.values())
    if begun is None or (nothing_worked and begun != identity):
        journal.append({"study": dict(identity)})
        return Resumed(note=f"in place of the study in {results_dir}, in which nothing worked" if ends else "")
    many = "1 of its trials has" if len(ends) == 1 else f"{len(ends)} of its trials have"
    if begun != identity:
        raise BadInputError(
            f"{results_dir} holds a study with {_difference(begun, identity)}: {many} ended",
            hint="choose another folder with --results_dir DIR, or remove this one",
        )
    trials = tuple(
        (read_trial(record), measurement_of(results[str(record["end"])]), float(record.get("elapsed", 0.0)))
        for record in ends
    )
    return Resumed(
        trials=trials,
        results=results,
        units={name: unit for record in ends for name, unit in record.get("units", {}).items()},
        elapsed=float(ends[-1].get("elapsed", 0.0)) if ends else 0.0,
        note=f"resuming the study: {many} ended" if ends else "",
    )


def _difference(begun: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """What is different in the study of the folder."""
    different = [word for key, word in _IDENTITY.items() if begun.get(key) != identity.get(key)]
    words = [f"other {' and '.join(dict.fromkeys(different))}"] if different else []
    now = identity["digests"]
    changed = [path for path, was in begun.get("digests", {}).items() if now.get(path, was) != was]
    words += [f"another content of {path}" for path in changed]
    return " and ".join(words) or "another version of Bireme"


def read_trial(record: Mapping[str, Any]) -> Trial:
    """The trial of a record in the journal."""
    return Trial(
        name=record["end"],
        point=record["point"],
        phase=record["phase"],
        round=record["round"],
        block=record["block"],
    )


def measurement_of(result: TrialResult) -> Measurement:
    """What a result tells the study."""
    return Measurement(cause=result.cause, figures=dict(result.metrics), seconds=result.seconds, reason=result.reason)
