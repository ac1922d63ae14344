"""Reads a command line by the table of options.

``argparse`` is not used: it is slow to import (``docs/architecture.md`` has the costs), it also reads the script's
arguments (an ambiguous prefix there would be an error here), and it knows only one spelling of each name.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError, did_you_mean
from bireme.options.option import bytes_of, missing_value, seconds_of, whole
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from bireme.options.option import Groups, Option


class Parsed(Value):
    """A parsed command line.

    Attributes:
        options: the value of each option by its key.
        ended: whether ``--`` stands between them.
    """

    options: dict[str, Any]
    command: tuple[str, ...]
    ended: bool = False


def parse(groups: Groups, argv: Sequence[str], defaults: Mapping[str, Any] | None = None) -> Parsed:
    """Read options up to the first word that is not one; that word and all after it are the command, unchanged.

    Args:
        defaults: the values of options that are not on it.
    """
    table = {name: option for group in groups.values() for option in group for name in option.names}
    values = {**{option.dest: option.absent for option in table.values()}, **(defaults or {})}
    typed: dict[str, tuple[str, Any]] = {}
    words = list(argv)
    ended = False
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if ended := word == "--":
            break
        name, equals, value = _split(word, table)
        option = table.get(name)
        if option is None:
            raise BadInputError(f"unknown option: {word.partition('=')[0]}", hint=_instead(name, table))
        if option.kind == "flag":
            if equals:
                raise BadInputError(f"{name} takes no value", where=word)
            values[option.dest] = True
            continue
        if not equals and option.bare:
            value = option.bare
        elif not equals:
            if not words:
                raise BadInputError(f"{name} needs a value: {option.placeholder}")
            value = words.pop(0)
        given = _convert(option, name, value)
        if option.kind == "list":
            values[option.dest] = (*values[option.dest], given)
            continue
        before, old = typed.setdefault(option.dest, (name, given))
        if before != name and old != given:
            what = f"{before} and {name} are the same option, with two values: {old} and {given}"
            raise BadInputError(what, hint="give it once")
        values[option.dest] = given
        typed[option.dest] = name, given
    return Parsed(values, tuple(words), ended)


def _split(word: str, table: dict[str, Option]) -> tuple[str, bool, str]:
    """Split ``--a-b=c``, ``-i`` or ``-ic`` into (name with ``_``, whether a value is attached, that value)."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return "--" + name[2:].replace("-", "_"), bool(equals), value
    if len(word) > 2 and word[:2] in table:
        return word[:2], True, word[2:].removeprefix("=")
    return word, False, ""


def _convert(option: Option, name: str, text: str) -> Any:
    """The value of an option, from its text."""
    if text in option.unset:
        return option.absent
    if not text and not option.may_be_empty:
        raise BadInputError(
            "the value is empty", hint=f"leave the option out, or give {option.placeholder}", where=name
        )
    if option.kind == "choice":
        if text.lower() not in option.choices:
            what = f"{text!r} is not one of {', '.join(option.choices)}"
            raise BadInputError(
                what, hint=missing_value(text, name, option.placeholder) or _instead_of(option, text), where=name
            )
        return text.lower()
    if option.kind == "range" and ":" in text:
        first, _, last = text.partition(":")
        return whole(first, name), whole(last, name)
    if option.kind == "seconds":
        if missing := missing_value(text, name, option.placeholder):
            raise BadInputError(f"{text!r} is not a duration", hint=missing, where=name)
        return option.bounded(name, seconds_of(text, name))
    if option.kind == "size":
        return bytes_of(text, name)
    if option.kind in ("count", "range") or (option.kind == "slots" and text not in ("cpu", "xpu")):
        return option.bounded(name, whole(text, name))
    return text


def _instead_of(option: Option, text: str) -> str:
    from bireme.options.switching import answer

    return answer(f"{option.name} {text.lower()}")


def _instead(name: str, table: dict[str, Option]) -> str:
    """What to type instead of an unknown option: by knowledge of other launchers, else by its letters."""
    from bireme.options.switching import answer
    from bireme.options.table import COMMANDS, OPTIONS

    if known := answer(name):
        return known
    for option in OPTIONS:
        others = [command for command in COMMANDS if command in option.commands and name in option.names]
        if others:
            return f"it is an option of bireme {', '.join(others)}"
    command = next((each for each in COMMANDS if all(each in option.commands for option in table.values())), "run")
    otherwise = f"bireme {command} --help shows its options"
    if command in ("run", "tune"):
        otherwise = f"options of the script go after it; bireme {command} --help_all shows those of Bireme"
    return did_you_mean(name, table, otherwise, cutoff=0.8)


def enter(parsed: Parsed) -> Parsed:
    """Change to the directory of ``--cwd``, also in ``PWD``; from then on its path is absolute."""
    if not (folder := parsed.options.get("cwd")):
        return parsed
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed
        here = ""
    typed = os.path.normpath(os.path.join(os.environ.get("PWD") or here, os.path.expanduser(folder)))
    script = next(iter(parsed.command), "")
    was_here = os.path.isfile(script)
    try:
        os.chdir(os.path.expanduser(folder))
        entered = os.getcwd()
    except OSError as error:
        raise BadInputError(f"{folder}: {error.strerror}", where="--cwd") from None
    if was_here and not os.path.exists(script):
        hint = f"type its path from there, or {os.path.join(here, script)}"
        raise BadInputError(f"{script} is here, not in {folder}", hint=hint, where="--cwd")
    os.environ["PWD"] = typed if os.path.realpath(typed) == entered else entered
    return parsed.replace(options={**parsed.options, "cwd": entered})
