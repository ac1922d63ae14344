"""Resumes the study of a journal, or begins one: what still holds of a study that has changed is taken over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bireme.errors import BadInputError
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import Record, StudyRecords

_FAILED = ("failed", "no metric")
"""Causes that show a mistake in the program or in the study rather than a limit of the machine."""

_NAMED = 3
"""Of several trials with one remark this many are named; the others are counted."""


def resume(
    journal: Journal,
    identity: Mapping[str, Any],
    *,
    folder: str,
    difference: Callable[[Record], str],
    changes: Callable[[Record], str],
    held: Callable[[Record, Record], Record | str],
) -> tuple[StudyRecords, tuple[str, ...]]:
    """Resume the last study of a journal, or begin one: also in place of one in which all trials have failed.

    Args:
        identity: what identifies the study, as JSON reads it back.
        folder: the study's, for messages.
        difference: why the study that was begun is another one, in words; "" if what holds of it can be taken over.
        changes: what is different in it all the same, in words.
        held: of what was begun and the end of a trial: what is different in this record now, {} for nothing; or why it
            does not hold any more.

    Returns:
        (what is known of the study, what the user is told).

    Raises:
        BadInputError: the folder holds another study.
    """
    known = StudyRecords(journal.records)
    begun = known.begun
    if begun is None:
        return _begin(journal, identity), ()
    count = len(known.ends)
    ended = "1 of its trials has ended" if count == 1 else f"{count} of its trials have ended"
    if begun != identity and (different := difference(begun)):
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
        now = held(begun, end)
        if isinstance(now, str):
            left.setdefault(now, []).append(name)
        else:
            keeps[name] = now
    notes = [f"resuming the study: {ended}"] if count else []
    if begun != identity:
        notes = [f"resuming the study, now with {changes(begun)}: {len(keeps)} of its {count} trials still hold"]
        record = {"study": dict(identity), "keeps": keeps}
        journal.append(record)
        known.take(record)
    known.keep(keeps)
    notes += [f"not taken over, because {reason}: {few(names)}" for reason, names in left.items()]
    return known, tuple(notes) if count else ()


def _begin(journal: Journal, identity: Mapping[str, Any]) -> StudyRecords:
    record = {"study": dict(identity)}
    journal.append(record)
    return StudyRecords([record])


def few(names: list[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
