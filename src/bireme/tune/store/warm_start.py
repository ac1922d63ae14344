"""Results that were measured before a study began: of earlier studies, and of tables (CSV).

They guide the search, and take nothing of its budget. What the study claims, it has measured itself.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from bireme.errors import BadInputError, counted
from bireme.tune.define.declarations import choice
from bireme.tune.metrics.metric import Measure
from bireme.tune.space.points import Points
from bireme.tune.store import records
from bireme.tune.study.trial_result import NOT_THE_CONFIGURATION, Cause, TrialResult

_SECONDS, _END = "seconds", "end"
"""Columns beside parameters and metrics: how long a trial took, and its cause (empty: it worked)."""

Told = tuple[dict[str, object], TrialResult]
"""The values of some parameters, and the result."""


def read(path: str, space: Points, measure: Measure) -> tuple[list[records.Record], str]:
    """The results in a table, or in the folder of a study, as records for a journal; and what is said of them.

    A parameter that is not named has its default. The same results have the same names, so a study is told them once.
    """
    found = list(_of_folder(path, measure) if os.path.isdir(path) else _of_table(path, space, measure))
    made: list[records.Record] = []
    seen: Counter[str] = Counter()
    for values, result in found:
        named = {**space.default, **values}
        point = next((each for each in (named, values) if each in space), None)
        if point is None:
            continue
        if result.cause in ("ok", "over limit"):
            broken = measure.over(result.metrics)
            result = result.replace(cause="over limit" if broken else "ok", reason=broken)
        text = json.dumps([point, result.as_dict()], sort_keys=True)
        name = f"known-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        seen[name] += 1
        name += f"-{seen[name]}" * (seen[name] > 1)
        made.append({"end": name, "ending": result.as_dict(), "point": point, "phase": "known"})
    others = len(found) - len(made)
    told = f"{path}: {counted(len(made), 'result')} taken over"
    return made, told + (f", {others} not: the space does not have their points" if others else "")


def _of_folder(path: str, measure: Measure) -> Iterator[Told]:
    """The results of an earlier study."""
    known, _ = records.read(records.find(path))
    for end in known.ends.values():
        result = records.result_of(end)
        if result.cause == "ok" and any(goal.name not in result.metrics for goal in measure.goals):
            names = " and ".join(goal.name for goal in measure.goals)
            raise BadInputError(f"the study did not measure {names}", hint="name a study with these goals", where=path)
        if result.cause != "pruned":  # its figure is a bound for the goals of that study
            yield (
                dict(end["point"]),
                TrialResult(cause=result.cause, metrics=result.metrics, seconds=result.seconds, reason=result.reason),
            )


def _of_table(path: str, space: Points, measure: Measure) -> Iterator[Told]:
    """The rows of a table whose columns are parameters and metrics; ``bireme tune report --csv`` writes such a one."""
    parameters = {each.name: each for each in space.parameters}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = {name.removeprefix("parameter ").removeprefix("figure "): name for name in rows.fieldnames or ()}
            for goal in measure.goals:
                if goal.name not in columns:
                    there = ", ".join(columns) or "none"
                    raise BadInputError(f"no column {goal.name!r}", hint=f"there are: {there}", where=path)
            for row in rows:
                cells = {name: (row[column] or "").strip() for name, column in columns.items()}
                where = f"{path}:{rows.line_num}"
                yield (
                    _values(cells, parameters, where),
                    _result(cells, measure, where),
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=path) from None


def _values(cells: Mapping[str, str], parameters: Mapping[str, Any], where: str) -> dict[str, object]:
    """The values of a row; a text that is not a choice is kept, so that its point is not in the space."""
    found: dict[str, object] = {}
    for name in parameters.keys() & cells.keys():
        if cells[name]:
            try:
                found[name] = choice(parameters[name], cells[name], where)
            except BadInputError:
                found[name] = cells[name]
    return found


def _result(cells: Mapping[str, str], measure: Measure, where: str) -> TrialResult:
    end = cells.get(_END) or "ok"
    cause: Any = end if end in get_args(Cause) and end not in NOT_THE_CONFIGURATION else "failed"
    metrics = {name: _number(cells[name], where) for name in measure.sources if cells.get(name)}
    if cause == "ok" and any(goal.name not in metrics for goal in measure.goals):
        cause, end = "failed", "no value"
    seconds = _number(cells[_SECONDS], where) if cells.get(_SECONDS) else 0.0
    metrics = metrics if cause in ("ok", "over limit") else {}
    return TrialResult(cause=cause, metrics=metrics, seconds=seconds, reason="" if cause == "ok" else end)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInputError(f"not a number: {text!r}", where=where) from None
