"""Resumes the study of a journal, or begins one: a study that has changed keeps the results that are still valid.

Also reads results that were measured before: of earlier studies, and of tables (CSV).
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from bireme.errors import BadInputError, counted
from bireme.regular_file import read_regular
from bireme.resources.pool import listed
from bireme.tune.define.declarations import choice, fill
from bireme.tune.metrics.metric import Measure, parse
from bireme.tune.space.points import Points
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import Record, StudyRecords, find, read, result_of, trial_of
from bireme.tune.study.observations import CLOCK
from bireme.tune.study.study import Study
from bireme.tune.study.trial import NOT_THE_CONFIGURATION, Cause, TrialResult

_FAILED = ("failed", "no metric")
"""Causes that show a mistake in the program or in the study rather than a limit of the machine."""

_AGAIN = (*_FAILED, "timed out", "out of memory")
"""Causes that may be others in a program that has changed."""


class Successor:
    """A study that goes on in the folder of an earlier one, also after something about it has changed.

    If the program has changed, what failed is run again, and so are the rounds of the confirmation: what is claimed was
    measured of the program as it is. What the search has measured counts until the same point has run again. What timed
    out is run again if the limit is longer.

    Args:
        identity: what identifies the study now, as JSON reads it back.
        folder: where it is kept, for messages.
        limit: seconds after which a trial is stopped now; None: never.
    """

    must_agree: Mapping[str, str]
    """What makes it another study, by the keys of its identity, in words."""

    elsewhere = "choose another folder with --results_dir DIR"

    def __init__(self, identity: Record, folder: str, *, limit: float | None = None) -> None:
        self.identity, self.folder, self._limit = identity, folder, limit

    def replaces(self, known: StudyRecords) -> bool:
        """Whether it begins in place of an earlier study: of another one, in which nothing has worked."""
        return bool(self.difference(known)) and all(end["ending"]["cause"] in _FAILED for end in known.ends.values())

    def make_room(self, journal: Journal, known: StudyRecords) -> str:
        """Called before it begins, in place of what is known if that is a study; returns what the user is told."""
        return f"replacing the study in {self.folder}, in which nothing worked" if known.ends else ""

    def difference(self, known: StudyRecords) -> str:
        """Why an earlier study is another one; "" if what holds of it can be taken over."""
        begun = known.begun or {}
        different = [word for key, word in self.must_agree.items() if begun.get(key) != self.identity.get(key)]
        return _other(different)

    def changes(self, begun: Record, ends: Iterable[Record]) -> Sequence[str]:
        """What is different in an earlier study, in words; ``ends``: of its trials."""
        edited = dict.fromkeys(path for end in (*ends, {}) for path in self.edited(begun, end))
        return [f"a changed {path}" for path in edited]

    def edited(self, begun: Record, end: Record) -> Sequence[str]:
        """The files that have another content than when a trial was run."""
        now = self.identity.get("digests", {})
        return [path for path, was in begun.get("digests", {}).items() if now.get(path, was) != was]

    def held(self, begun: Record, end: Record) -> Record | str:
        """What is different in the record of a trial now; or why it does not hold any more."""
        trial, cause, edited = trial_of(end), end["ending"]["cause"], self.edited(begun, end)
        if edited and (trial.paired or cause in _AGAIN):
            return f"{' and '.join(edited)} changed"
        if cause == "timed out" and "limit" in end and (self._limit or math.inf) > (end["limit"] or 0.0):
            return "--experiment_limit is longer"
        return {"earlier": True} if edited and not end.get("earlier") else {}


def resume(journal: Journal, successor: Successor) -> tuple[StudyRecords, tuple[str, ...]]:
    """Resume the last study of a journal, or begin one: also in place of one in which all trials have failed.

    Returns what is known of the study, and what the user is told.
    """
    known, identity = StudyRecords(journal.records), dict(successor.identity)
    begun = known.begun
    if begun is None or successor.replaces(known):
        note = successor.make_room(journal, known)
        journal.append({"study": identity})
        return StudyRecords([{"study": identity}]), (note,) if note else ()
    count = len(known.ends)
    if different := successor.difference(known):
        raise BadInputError(
            f"{successor.folder} holds a study with {different}: {_ended(count)}",
            hint=f"{successor.elsewhere}, or remove this one",
        )
    keeps: dict[str, Record] = {}
    left: dict[str, list[str]] = {}
    for name, end in known.ends.items():
        now = successor.held(begun, end)
        if isinstance(now, str):
            left.setdefault(now, []).append(name)
        else:
            keeps[name] = now
    notes = [f"resuming the study: {_ended(count)}"]
    if begun != identity or any(keeps.values()):
        changes = " and ".join(successor.changes(begun, known.ends.values()))
        notes = [f"resuming the study, now with {changes}: {len(keeps)} of its {count} trials are still valid"]
        record = {"study": identity, "keeps": keeps}
        journal.append(record)
        known.take(record)
    known.keep(keeps)
    notes += [f"not taken over, because {reason}: {listed(names, 3)}" for reason, names in left.items()]
    if failed := sum(end["ending"]["cause"] == "failed" for end in known.ends.values()):
        notes.append(f"{failed} of them failed and are not run again; remove {successor.folder} to start afresh")
    return known, tuple(notes) if count else ()


def _ended(count: int) -> str:
    return "1 of its trials has ended" if count == 1 else f"{count} of its trials have ended"


def _other(words: Sequence[str]) -> str:
    return f"other {' and '.join(dict.fromkeys(words))}" if words else ""


def restore(study: Study, known: StudyRecords) -> None:
    """Tell a new study what has ended of it."""
    study.restore_finalists(known.finalists)
    for end in known.ends.values():
        earlier, passed = known.is_earlier(end), end.get("passed")
        study.restore(trial_of(end), result_of(end), float(end.get("elapsed", 0.0)), earlier=earlier, passed=passed)


def digest(data: bytes, size: int = 8) -> str:
    """The digest of a file's content, as the journal keeps it."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def digest_of(path: str, size: int = 8) -> str:
    """The same of a file; "" for a module or a program on PATH, or a file that only others can read."""
    try:
        return digest(read_regular(path), size)
    except OSError:
        return ""


# -- a study of a program ------------------------------------------------------------------------------

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


class ProgramSuccessor(Successor):
    """A study of a program that goes on after its description or the program itself has changed.

    What the search has measured at points that are still in the space is taken over, and completed by the defaults of
    new parameters, which are what the program did before.
    """

    must_agree = MappingProxyType({"program": "program", "shape": "width"})

    def __init__(self, identity: Record, folder: str, space: Points, *, limit: float | None = None) -> None:
        super().__init__(identity, folder, limit=limit)
        self._space, self._sources, self._limits = space, _sources(identity), _limits(identity)

    def difference(self, known: StudyRecords) -> str:
        """Why an earlier study is another one; "" if what holds of it can be taken over."""
        begun, now = known.begun or {}, self.identity
        different = [word for key, word in self.must_agree.items() if begun.get(key) != now.get(key)]
        was, are = (_delivered(each) for each in (begun, now))
        if any(was[name] != are[name] for name in was.keys() & are.keys()):
            different.append("parameters")
        if _constant(begun, was.keys() - are.keys()) != _constant(now, are.keys() - was.keys()):
            different.append("arguments")
        sources = _sources(begun)
        if any(sources.get(name, source) != source for name, source in self._sources.items()):
            different.append("goals")
        known_keys = {*self.must_agree, *_MAY_CHANGE, "digests"}
        unknown = (begun.keys() ^ now.keys()) - known_keys
        return _other(different) or ("another version of Bireme" if unknown else "")

    def changes(self, begun: Record, ends: Iterable[Record]) -> Sequence[str]:
        """What is different in an earlier study, in words; ``ends``: of its trials."""
        different = [word for key, word in _MAY_CHANGE.items() if begun.get(key) != self.identity.get(key)]
        return [*filter(None, [_other(different)]), *super().changes(begun, ends)]

    def held(self, begun: Record, end: Record) -> Record | str:
        """What is different in the record of a trial now; or why it does not hold any more."""
        now, result = super().held(begun, end), result_of(end)
        if isinstance(now, str) or begun == self.identity:
            return now
        point = self._completed(begun, end["point"])
        if point is None:
            return "their points are no longer in the space"
        changed = {**now, "point": point, "phase": "search" if end.get("phase") == "screen" else end.get("phase")}
        if result.cause == "pruned" and begun["goals"] != self.identity["goals"]:
            return "they were pruned for other goals"
        if result.cause not in ("ok", "over limit", "pruned"):
            return changed
        missing = [name for name in self._sources if name not in result.metrics and name != CLOCK]
        if missing:
            return f"{' and '.join(missing)} was not measured"
        if result.cause != "pruned":
            broken = self._limits.over(result.metrics)
            judged = result.replace(cause="over limit" if broken else "ok", reason=broken)
            changed["ending"] = judged.as_dict()
        return changed

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


def _sources(identity: Record) -> dict[str, object]:
    """Where each metric comes from, by name; None: from who tells it."""
    goals = {goal["name"]: goal.get("source") for goal in identity.get("goals", ())}
    return {**{limit.name: limit.source.as_dict() for limit in _limits(identity).limits}, **goals}


def _limits(identity: Record) -> Measure:
    """The limits, beside any goal."""
    return parse([("minimize", CLOCK)], identity.get("limits", ()))


# -- results that were measured before a study began ---------------------------------------------------
# They guide the search, and take nothing of its budget. What the study claims, it has measured itself.

_SECONDS, _END = "seconds", "end"
"""Columns beside parameters and metrics: how long a trial took, and its cause (empty: it worked)."""

Told = tuple[dict[str, object], TrialResult]
"""The values of some parameters, and the result."""


def read_results(path: str, space: Points, measure: Measure) -> tuple[list[Record], str]:
    """The results in a table, or in the folder of a study, as records for a journal; and what is said of them.

    A parameter that is not named has its default. The same results have the same names, so a study is told them once.
    """
    found = list(_of_folder(path, measure) if os.path.isdir(path) else _of_table(path, space, measure))
    made: list[Record] = []
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
    return made, told + (f", {others} left out: their points are not in the space" if others else "")


def _of_folder(path: str, measure: Measure) -> Iterator[Told]:
    """The results of an earlier study."""
    known, _ = read(find(path))
    for end in known.ends.values():
        result = result_of(end)
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
