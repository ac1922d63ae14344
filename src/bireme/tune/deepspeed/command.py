"""Derives the command line of an experiment, and of the final job, from the user's command line.

Every function returns a new tuple and does not change its arguments: experiments run concurrently, and in a shared list
one would get the configuration of another.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.deepspeed.config import decoded, looks_like_one
from bireme.value import Value

CONFIG_FLAG = "--deepspeed_config"
HUGGING_FACE_FLAG = "--deepspeed"
_LONGEST_ARGUMENT = 120_000
"""Bytes. Linux allows 128 KiB in one argument, and the flag may be part of it."""

NUMBER = re.compile(r"-\d*\.?\d+([eE][-+]?\d+)?")


class ConfigWord(Value):
    """The flag of the script that names the configuration, and its value."""

    flag: str
    path: str


def find_config(args: Sequence[str]) -> ConfigWord:
    """Find the configuration in the script's arguments: ``--deepspeed_config FILE``, or ``--deepspeed FILE``.

    ``--flag=FILE`` works too; the last of several counts, as in ``argparse``. The value may also be the configuration
    itself in base64 (`config.read_document` reads both).
    """
    for flag in (CONFIG_FLAG, HUGGING_FACE_FLAG):
        found = [value for value in _values(args, flag) if flag == CONFIG_FLAG or _is_config(value)]
        if found and found[-1]:
            return ConfigWord(flag, found[-1])
    if CONFIG_FLAG in args[: _end(args)]:
        raise BadInputError("no file given", where=CONFIG_FLAG)
    raise BadInputError(
        "nothing varies: no --param, and no DeepSpeed configuration in the script's arguments",
        hint=f"say what varies by --param, or add {CONFIG_FLAG} FILE ({HUGGING_FACE_FLAG} FILE) after the script",
    )


def with_config(args: Sequence[str], value: str) -> tuple[str, ...]:
    """The arguments with another configuration: a path, or the result of `encoded`."""
    flag = find_config(args).flag
    return replaced(args, flag, value, when=_is_config if flag == HUGGING_FACE_FLAG else None)


def encoded(ds_config: Mapping[str, object]) -> str:
    """A configuration in base64, which ``deepspeed.initialize`` accepts in place of a path."""
    return base64.urlsafe_b64encode(json.dumps(ds_config).encode()).decode()


def fits_argument(ds_config: Mapping[str, object]) -> bool:
    """Whether a configuration can be passed in an argument; otherwise the script gets it as a file."""
    return len(encoded(ds_config)) <= _LONGEST_ARGUMENT


def experiment_args(
    args: Sequence[str], ds_config: Mapping[str, object], mappings: Mapping[str, str] | None = None, *, path: str = ""
) -> tuple[str, ...]:
    """The script's arguments for an experiment.

    Args:
        mappings: ``arg_mappings``, from keys of the configuration to flags of the script.
        path: a file with ``ds_config``, for scripts that open it themselves; "": pass it in base64.
    """
    return with_mappings(with_config(args, path or encoded(ds_config)), mappings or {}, ds_config)


def with_mappings(args: Sequence[str], mappings: Mapping[str, str], ds_config: Mapping[str, object]) -> tuple[str, ...]:
    """The arguments with values of the configuration after the flags that ``arg_mappings`` names.

    A value that is missing or ``"auto"`` changes nothing.
    """
    words = tuple(args)
    for key, flag in mappings.items():
        value = look_up(ds_config, key.strip())
        if value is None or value == "auto":
            continue
        word = value if isinstance(value, str) else json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        words = replaced(words, flag.strip(), word, append=True)
    return words


def look_up(config: Mapping[str, object], key: str) -> object | None:
    """The value of a key: a dotted path, or a name of which the outermost occurrence counts; None if absent."""
    if key in config:
        return config[key]
    head, _, rest = key.partition(".")
    inner = config.get(head)
    if rest and isinstance(inner, Mapping):
        return look_up(inner, rest)
    level: list[Mapping[str, object]] = [config]
    while level and not rest:
        level = [value for mapping in level for value in mapping.values() if isinstance(value, Mapping)]
        for mapping in level:
            if key in mapping:
                return mapping[key]
    return None


def argument(args: Sequence[str], flag: str) -> str | None:
    """The value that the user gave with this flag; None if it was not given."""
    values = [value for value in _values(args, flag.strip()) if value]
    return values[-1] if values else None


def real_job(
    launch: Sequence[str], args: Sequence[str], path: str, ds_config: Mapping[str, object], mappings: Mapping[str, str]
) -> tuple[str, ...]:
    """The command of the real job.

    Args:
        launch: the user's command line, up to and including the script; its ``--autotuning`` is removed.
        path: the file of the best configuration.
    """
    return (*without_autotuning(launch), *experiment_args(args, ds_config, mappings, path=path))


def without_autotuning(launch: Sequence[str]) -> tuple[str, ...]:
    """A command line without ``--autotuning MODE``."""
    words = list(launch)
    for index in reversed(range(len(words))):
        if words[index] == "--autotuning":
            del words[index : index + 2]
        elif words[index].startswith("--autotuning="):
            del words[index]
    return tuple(words)


# -- flags and their values --------------------------------------------------------------------------


def replaced(
    args: Sequence[str], flag: str, value: str, *, append: bool = False, when: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """The arguments with this value after every occurrence of the flag.

    Args:
        append: add flag and value at the end if the flag does not occur.
        when: replace only old values for which this is true.
    """
    until, found = _end(args), False
    words = list(args[:until])
    for index, old, width in reversed(list(_occurrences(args, flag))):
        if when is None or when(old):
            words[index : index + width] = [f"{flag}={value}"] if "=" in words[index] else [flag, value]
            found = True
    if append and not found:
        words += [flag, value]
    return (*words, *args[until:])


def is_value(word: str) -> bool:
    """Whether an argument is the value of the flag before it and not the next flag; ``-1`` is a value."""
    return not word.startswith("-") or word == "-" or bool(NUMBER.fullmatch(word))


def _values(args: Sequence[str], flag: str) -> list[str]:
    """The value after each occurrence of the flag; "" if it has none."""
    return [value for _, value, _ in _occurrences(args, flag)]


def _occurrences(args: Sequence[str], flag: str) -> Iterator[tuple[int, str, int]]:
    """(index, value or "", how many words both are) of each occurrence of the flag."""
    until = _end(args)
    for index, word in enumerate(args[:until]):
        name, joined, value = word.partition("=")
        if name == flag:
            follows = not joined and index + 1 < until and is_value(args[index + 1])
            yield index, args[index + 1] if follows else value, 2 if follows else 1


def _end(args: Sequence[str]) -> int:
    """The index at which the flags end: at ``--``, or at the end."""
    return args.index("--") if "--" in args else len(args)


def _is_config(word: str) -> bool:
    # `--deepspeed` without a value is DeepSpeed's own switch; what follows it then is another argument.
    return word.lower().endswith((".json", ".hjson")) or decoded(word) is not None or looks_like_one(word)
