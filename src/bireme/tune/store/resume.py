"""Resumes the study of a journal, or begins one: what still holds of a study that has changed is taken over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bireme.errors import BadInputError, few
from bireme.tune.define.declarations import fill
from bireme.tune.metrics.metric import Measure, parse
from bireme.tune.space.points import Points
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import Record, StudyRecords, result_of, trial_of
from bireme.tune.study.observations import CLOCK
from bireme.tune.study.study import Study

_FAILED = ("failed", "no metric")
"""Causes that show a mistake in the program or in the study rather than a limit of the machine."""


class Following(Protocol):
    """Decides what still holds of a study that was begun."""

    def difference(self, begun: Record) -> str:
        """Why it is another study, in words; "" if what holds of it can be taken over."""

    def changes(self, begun: Record) -> str:
        """What is different in it all the same, in words."""

    def held(self, begun: Record, end: Record) -> Record | str:
        """What is different now in the record of a trial's end, {} for nothing; or why it does not hold any more."""


def resume(
    journal: Journal, identity: Record, following: Following, folder: str
) -> tuple[StudyRecords, tuple[str, ...]]:
    """Resume the last study of a journal, or begin one: also in place of one in which all trials have failed.

    Args:
        identity: what identifies the study, as JSON reads it back.
        folder: the study's, for messages.

    Returns:
        (what is known of the study, what the user is told).
    """
    known = StudyRecords(journal.records)
    begun = known.begun
    if begun is None:
        return _begin(journal, identity), ()
    count = len(known.ends)
    ended = "1 of its trials has ended" if count == 1 else f"{count} of its trials have ended"
    if begun != identity and (different := following.difference(begun)):
        if all(end["ending"]["cause"] in _FAILED for end in known.ends.values()):
            told = f"in place of the study in {folder}, in which nothing worked"
            return _begin(journal, identity), (told,) if known.ends else ()
        raise BadInputError(
            f"{folder} holds a study with {different}: {ended}",
            hint="choose another folder with --results_dir DIR, or remove this one",
        )
    keeps: dict[str, Record] = {}
    left: dict[str, list[str]] = {}
    for name, end in known.ends.items():
        now = following.held(begun, end)
        if isinstance(now, str):
            left.setdefault(now, []).append(name)
        else:
            keeps[name] = now
    notes = [f"resuming the study: {ended}"] if count else []
    if begun != identity:
        notes = [
            f"resuming the study, now with {following.changes(begun)}: {len(keeps)} of its {count} trials still hold"
        ]
        record = {"study": dict(identity), "keeps": keeps}
        journal.append(record)
        known.take(record)
    known.keep(keeps)
    notes += [f"not taken over, because {reason}: {few(names)}" for reason, names in left.items()]
    return known, tuple(notes) if count else ()


def _begin(journal: Journal, identity: Record) -> StudyRecords:
    record = {"study": dict(identity)}
    journal.append(record)
    return StudyRecords([record])


def restore(study: Study, known: StudyRecords) -> None:
    """Tell a new study what has ended of it."""
    study.restore_finalists(known.finalists)
    for end in known.ends.values():
        study.restore(trial_of(end), result_of(end), float(end.get("elapsed", 0.0)))


# -- a study of a program ------------------------------------------------------------------------------

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

    def __init__(self, identity: Record, space: Points) -> None:
        self._identity, self._space = identity, space
        self._sources, self._limits = _sources(identity), _limits(identity)

    def difference(self, begun: Record) -> str:
        """Why an earlier study is another one; "" if what holds of it can be taken over."""
        now = self._identity
        different = [word for key, word in _MUST_AGREE.items() if begun.get(key) != now.get(key)]
        was, are = (_delivered(each) for each in (begun, now))
        if any(was[name] != are[name] for name in was.keys() & are.keys()):
            different.append("parameters")
        if _constant(begun, was.keys() - are.keys()) != _constant(now, are.keys() - was.keys()):
            different.append("arguments")
        sources = _sources(begun)
        if any(sources.get(name, source) != source for name, source in self._sources.items()):
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
        if edited:
            changed["earlier"] = True  # where there are newer runs of a point, its means are theirs
        if result.cause == "pruned" and begun["goals"] != self._identity["goals"]:
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

    def _edited(self, begun: Record) -> list[str]:
        """The files with another content."""
        now = self._identity.get("digests", {})
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


def _sources(identity: Record) -> dict[str, object]:
    """Where each metric comes from, by name; None: from who tells it."""
    goals = {goal["name"]: goal.get("source") for goal in identity.get("goals", ())}
    return {**{limit.name: limit.source.as_dict() for limit in _limits(identity).limits}, **goals}


def _limits(identity: Record) -> Measure:
    """The limits, beside any goal."""
    return parse([("minimize", CLOCK)], identity.get("limits", ()))
