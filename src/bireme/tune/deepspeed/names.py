"""Names of experiments: short, valid as file names, and different for different points."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

LONGEST = 120
"""Longer names are cut and get a hash: file systems allow 255 bytes, and suffixes are added."""


def name_of(
    stage: int,
    accumulation: int,
    micro: int,
    varying: Mapping[str, object],
    choices: Mapping[str, Sequence[object]] | None = None,
) -> str:
    """The name of an experiment: ``z1_gas1_tmbspg3``, or with other choices ``z2_gas1_tmbspg3_ocT_rbs5e+08``.

    Args:
        varying: the values of other choices, by dotted path.
        choices: all values of each, from which the name must distinguish it.
    """
    head = f"z{stage}_gas{accumulation}_tmbspg{micro}"
    short = _acronyms(tuple(varying))
    words = (f"{short[path]}{_word(value, (choices or {}).get(path, ()))}" for path, value in varying.items())
    name = "_".join((head, *words))
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{_hash(varying)}"


def _acronyms(paths: tuple[str, ...]) -> dict[str, str]:
    """The initials of each path's last part, or the whole path if two would be the same."""
    short = {path: "".join(word[:1] for word in path.split(".")[-1].split("_")) for path in paths}
    for path, acronym in list(short.items()):
        if list(short.values()).count(acronym) > 1 or not acronym.isalnum():
            short[path] = re.sub(r"[^A-Za-z0-9]+", "-", path) + "-"
    return short


def _word(value: object, choices: Sequence[object]) -> str:
    """A short form of a value, or its hash if another choice (``1`` and ``"1"``) has the same form."""
    word = _brief(value)
    alike = [choice for choice in choices if _brief(choice) == word]
    return word if len(alike) <= 1 else _hash(value)


def _brief(value: object) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, (int, float)):
        brief = f"{value:.3g}"
        return brief if float(brief) == value else repr(value)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9.+-]{1,24}", value):
        return value
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return _brief(only)  # {"device": "cpu"}
    return _hash(value)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
