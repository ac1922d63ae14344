"""The command line of an experiment, from the user's own.

Every function gives a new tuple and leaves what it was given alone: experiments run side by side, and a
list that they share would hand one the other's configuration.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.deepspeed.reading import decoded, looks_like_one
from bireme.value import Value

CONFIG_FLAG = "--deepspeed_config"
HUGGING_FACE_FLAG = "--deepspeed"
NUMBER = re.compile(r"-\d*\.?\d+([eE][-+]?\d+)?")


class ConfigWord(Value):
    """Where in the script's arguments the configuration is named."""

    flag: str
    path: str


def find_config(args: Sequence[str]) -> ConfigWord:
    """The configuration that the script is given: ``--deepspeed_config FILE``, or ``--deepspeed FILE``.

    ``--flag=FILE`` too; of several the last counts, as for ``argparse``. What stands there may also be the
    configuration itself, in base64 (`reading.read_document` takes both).

    Raises:
        BadInputError: there is none.
    """
    for flag in (CONFIG_FLAG, HUGGING_FACE_FLAG):
        found = [value for value in _values(args, flag) if flag == CONFIG_FLAG or _is_config(value)]
        if found and found[-1]:
            return ConfigWord(flag, found[-1])
    if CONFIG_FLAG in args[: _end(args)]:
        raise BadInputError(f"no file follows {CONFIG_FLAG}", where=CONFIG_FLAG)
    raise BadInputError(
        "the script is given no DeepSpeed configuration, so there is nothing to tune",
        hint=f"add {CONFIG_FLAG} FILE after the script (or {HUGGING_FACE_FLAG} FILE for a Hugging Face trainer)",
    )


def with_config(args: Sequence[str], value: str) -> tuple[str, ...]:
    """The arguments with another configuration: a path, or what `encoded` gives."""
    flag = find_config(args).flag
    return replaced(args, flag, value, when=_is_config if flag == HUGGING_FACE_FLAG else None)


def encoded(ds_config: Mapping[str, object]) -> str:
    """A configuration as one word, which ``deepspeed.initialize`` takes in the place of a path."""
    return base64.urlsafe_b64encode(json.dumps(ds_config).encode()).decode()


def experiment_args(
    args: Sequence[str], ds_config: Mapping[str, object], mappings: Mapping[str, str] | None = None, *, path: str = ""
) -> tuple[str, ...]:
    """The script's arguments for an experiment.

    Args:
        args: as the user gave them.
        ds_config: the experiment's configuration.
        mappings: ``arg_mappings``, from keys of the configuration to flags of the script.
        path: a file that holds ``ds_config``, for scripts that open it themselves; else it is encoded.

    Raises:
        BadInputError: ``args`` name no configuration.
    """
    return with_mappings(with_config(args, path or encoded(ds_config)), mappings or {}, ds_config)


def with_mappings(args: Sequence[str], mappings: Mapping[str, str], ds_config: Mapping[str, object]) -> tuple[str, ...]:
    """The arguments with the configuration's values after the flags that stand for them.

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
    """The value of a key: a dotted path, or a name, of which the outermost counts. None: there is none."""
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
    """The value that the user gave with this flag; None: not given."""
    values = [value for value in _values(args, flag.strip()) if value]
    return values[-1] if values else None


def real_job(
    launch: Sequence[str], args: Sequence[str], path: str, ds_config: Mapping[str, object], mappings: Mapping[str, str]
) -> tuple[str, ...]:
    """The command of the real job.

    Args:
        launch: the launch as the user typed it, up to and with the script; its ``--autotuning`` is left out.
        args: the script's arguments, as the user gave them.
        path: the file of the best configuration.
        ds_config: that configuration.
        mappings: ``arg_mappings``.
    """
    return (*without_autotuning(launch), *experiment_args(args, ds_config, mappings, path=path))


def without_autotuning(launch: Sequence[str]) -> tuple[str, ...]:
    """A launch's words without ``--autotuning MODE``."""
    kept: list[str] = []
    skip = False
    for word in launch:
        if skip:
            skip = False
        elif word == "--autotuning":
            skip = True
        elif not word.startswith("--autotuning="):
            kept.append(word)
    return tuple(kept)


# -- flags and their values --------------------------------------------------------------------------


def replaced(
    args: Sequence[str], flag: str, value: str, *, append: bool = False, when: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """The arguments with this value after every occurrence of the flag, or at the end where it is not given.

    Args:
        args: the words.
        flag: the flag, as ``--batch-size``.
        value: its new value.
        append: add flag and value where the flag does not occur.
        when: replace only where this is true of the old value.
    """
    words: list[str] = []
    found = skip = False
    until = _end(args)
    for index, word in enumerate(args[:until]):
        if skip:
            skip = False
            continue
        name, joined, old = word.partition("=")
        if name != flag:
            words.append(word)
            continue
        if not joined:
            skip = index + 1 < until and is_value(args[index + 1])
            old = args[index + 1] if skip else ""
        if when and not when(old):
            words += [word, old] if skip else [word]
            continue
        found = True
        words += [f"{flag}={value}"] if joined else [flag, value]
    if append and not found:
        words += [flag, value]
    return (*words, *args[until:])


def is_value(word: str) -> bool:
    """Whether a word is the value of the flag before it, and not the next flag; ``-1`` is a value."""
    return not word.startswith("-") or word == "-" or bool(NUMBER.fullmatch(word))


def _values(args: Sequence[str], flag: str) -> list[str]:
    """What stands after each occurrence of the flag; "" where nothing does."""
    until = _end(args)
    values = []
    for index, word in enumerate(args[:until]):
        name, joined, value = word.partition("=")
        if name == flag and joined:
            values.append(value)
        elif name == flag:
            values.append(args[index + 1] if index + 1 < until and is_value(args[index + 1]) else "")
    return values


def _end(args: Sequence[str]) -> int:
    """Where the flags end: what follows ``--`` is no flag."""
    return args.index("--") if "--" in args else len(args)


def _is_config(word: str) -> bool:
    # `--deepspeed` alone is DeepSpeed's own switch; what follows it then is something else.
    return word.lower().endswith((".json", ".hjson")) or decoded(word) is not None or looks_like_one(word)
