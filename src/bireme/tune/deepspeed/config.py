"""Reads a DeepSpeed configuration as JSON or HJSON, and checks its ``autotuning`` section.

JSON is tried first: it is stricter, and its errors point at the mistake, with line and column. Text that is not JSON
may be HJSON (comments, no commas), which DeepSpeed reads too. Keys and defaults of the section are those of
``deepspeed.autotuning.config``. DeepSpeed ignores unknown keys; here they are errors that name the nearest known key.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping

from bireme import jsontext
from bireme.errors import BadInputError, similar
from bireme.resources.hostfile import read_text
from bireme.tune import requirements
from bireme.tune.deepspeed.results import METRICS
from bireme.tune.samplers import KINDS
from bireme.value import Value

SECTION = "autotuning"


class Autotuning(Value):
    """The ``autotuning`` section; batch sizes in samples, steps counted from 1. ``tuner_type``: None: the model."""

    enabled: bool = False
    fast: bool = True
    results_dir: str = "autotuning_results"
    exps_dir: str = "autotuning_exps"
    overwrite: bool = True
    start_profile_step: int = 3
    end_profile_step: int = 5
    metric: str = "throughput"
    metric_path: str | None = None
    tuner_type: str | None = None
    tuner_early_stopping: int | None = 5
    tuner_num_trials: int | None = 50
    arg_mappings: Mapping[str, str] | None = None
    max_train_batch_size: int | None = None
    min_train_batch_size: int = 1
    max_train_micro_batch_size_per_gpu: int = 1024
    min_train_micro_batch_size_per_gpu: int = 1
    num_tuning_micro_batch_sizes: int = 3
    mp_size: int = 1
    model_info: Mapping[str, object] | None = None
    model_info_path: str | None = None


class Config(Value):
    """A configuration: the whole file, and its checked ``autotuning`` section."""

    document: Document
    autotuning: Autotuning

    @property
    def data(self) -> dict[str, object]:
        """The content of the file. Must not be changed."""
        return self.document.data


def read_config(path: str) -> Config:
    """Read and check a DeepSpeed configuration."""
    return check_config(read_document(path))


def check_config(document: Document) -> Config:
    """Check a configuration that was already read; raises as `read_config`."""
    section = document.data.get(SECTION, {})
    if not isinstance(section, dict):
        raise BadInputError(f"{SECTION!r} must be an object: {{...}}", where=document.where(SECTION))
    for key in section:
        if key not in Autotuning._fields:
            raise _unknown(key, Autotuning._fields, document.where(SECTION, key))
    for key, value in section.items():
        wrong = CHECKS[key](value)
        if wrong:
            raise BadInputError(f"{SECTION}.{key} must be {wrong}, not {value!r}", where=document.where(SECTION, key))
    autotuning = Autotuning(**{key: value for key, value in section.items() if value is not None or key in NULLABLE})
    _check_together(autotuning, document)
    return Config(document, autotuning)


def _unknown(key: str, known: tuple[str, ...], where: str) -> BadInputError:
    # DeepSpeed's documentation mentions start_step and end_step, which it does not read.
    near = {"start_step": "start_profile_step", "end_step": "end_profile_step"}.get(key) or similar(key, known, 0.5)
    hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(known)}"
    return BadInputError(f"unknown key in {SECTION}: {key!r}", hint=hint, where=where)


def _check_together(section: Autotuning, document: Document) -> None:
    if section.start_profile_step > section.end_profile_step:
        raise BadInputError(
            f"start_profile_step {section.start_profile_step} is after end_profile_step {section.end_profile_step}",
            where=document.where(SECTION, "end_profile_step"),
        )
    for what in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        least, most = getattr(section, f"min_{what}"), getattr(section, f"max_{what}")
        if most is not None and least > most:
            raise BadInputError(
                f"min_{what} {least} is above max_{what} {most}", where=document.where(SECTION, f"min_{what}")
            )


# -- checks of values: each returns "" or what the value should be instead ----------------------------

Check = Callable[[object], str]


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _count(value: object) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "a positive integer"


def _count_or_none(value: object) -> str:
    return "" if value is None else _count(value)


def _text(value: object) -> str:
    return "" if isinstance(value, str) and value.strip() else "a non-empty string"


def _one_of(*words: str) -> Check:
    return lambda value: "" if value in words else "one of " + ", ".join(words)


def _mappings(value: object) -> str:
    if value is None or (
        isinstance(value, dict) and all(isinstance(flag, str) and flag.strip() for flag in value.values())
    ):
        return ""
    return 'an object that maps configuration keys to flags, such as {"train_micro_batch_size_per_gpu": "--batch-size"}'


def _model_info(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, dict):
        return "an object"
    known = {
        "profile": _flag,
        "num_params": _count_or_none,
        "trainable_num_params": _count_or_none,
        "activation_mem_per_gpu": _count_or_none,
        "hidden_size": _count_or_none,
        "num_layers": _count_or_none,
    }
    for key, inner in value.items():
        if key not in known:
            near = similar(key, known, 0.5)
            return f"an object of known keys; {key!r} is not one" + (f" (did you mean {near!r}?)" if near else "")
        if wrong := known[key](inner):
            return f"an object whose {key} is {wrong}"
    return ""


_BY_TYPE: dict[str, Check] = {
    "bool": _flag,
    "int": _count,
    "int | None": _count_or_none,
    "str": _text,
    "str | None": lambda value: "" if value is None else _text(value),
}
CHECKS = {name: _BY_TYPE[hint] for name, hint in Autotuning.__annotations__.items() if hint in _BY_TYPE} | {
    "metric": _one_of(*METRICS),
    "tuner_type": _one_of(*KINDS),
    "arg_mappings": _mappings,
    "model_info": _model_info,
}

NULLABLE = {"tuner_early_stopping", "tuner_num_trials"}
"""Keys for which null means "no limit", not the default."""


# -- the file --------------------------------------------------------------------------------------------

Path = tuple[str, ...]

ENCODED = "the configuration in base64"

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]')

BEGINNING = re.compile(r"(?:\s|#.*\n|//.*\n|/\*(?:[^*]|\*(?!/))*\*/)*\{")
"""The first brace, preceded only by comments."""

_HEAD = 65536
"""Characters of a file that are searched for it."""


class Document(Value):
    """A parsed file. ``lines``: the line of each key; empty for HJSON."""

    path: str
    data: dict[str, object]
    lines: dict[Path, int]

    def where(self, *path: str) -> str:
        """``file:line`` of this key, or of the nearest enclosing key whose line is known."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines[path]}" if path else self.path


def read_document(path: str) -> Document:
    """Read a configuration.

    Args:
        path: its file, or the whole configuration in base64, which ``deepspeed.initialize`` accepts too.
    """
    text = decoded(path)
    if text is None:
        text = read_text(path).replace("\r\n", "\n")
    else:
        path = ENCODED
    if not text.strip():
        raise BadInputError("is empty", where=path)
    try:
        data = jsontext.loads(text, finite=True)
    except ValueError as error:
        _refuse_no_numbers(path, text, error)
        return _hjson(path, text, error)
    _must_be_object(path, data)
    return Document(path, data, _key_lines(path, text))


def decoded(word: str) -> str | None:
    """Decode a configuration in base64; None if the word is not one, or is the path of a file."""
    if os.path.exists(word):
        return None
    try:
        text = base64.b64decode(word.encode(), b"-_", validate=True).decode()
    except ValueError:
        return None
    return text if text.lstrip().startswith("{") else None


def looks_like_one(path: str) -> bool:
    """Whether the path is a file that begins like a configuration, whatever its name and even if it is malformed."""
    if not os.path.isfile(path):  # reading a pipe would take its content from the script
        return False
    try:
        with open(path, encoding="utf-8-sig") as file:
            return bool(BEGINNING.match(file.read(_HEAD)))
    except (OSError, UnicodeDecodeError):
        return False


def _must_be_object(path: str, data: object) -> None:
    if not isinstance(data, dict):
        raise BadInputError("not an object: a configuration begins with {", where=path)


# -- JSON --------------------------------------------------------------------------------------------


def _key_lines(path: str, text: str) -> dict[Path, int]:
    """The line of each key by its path; the path of a key in a list contains the element's number."""
    lines: dict[Path, int] = {}
    for keys, start in _keys(text):
        line = text.count("\n", 0, start) + 1
        if keys in lines:
            column = start - text.rfind("\n", 0, start)
            raise BadInputError(
                f"duplicate key: {'.'.join(keys)!r}",
                hint=f"it is first set on line {lines[keys]}: keep one of the two",
                where=f"{path}:{line}:{column}",
            )
        lines[keys] = line
    return lines


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    """Yield (path, offset) of each key in a text that is valid JSON."""
    stack: list[str | int] = []
    in_object: list[bool] = []
    key_follows = False
    for token in TOKEN.finditer(text):
        word = token[0]
        if word in "{[":
            in_object.append(word == "{")
            stack.append("" if word == "{" else 0)
            key_follows = word == "{"
        elif word in "}]":
            in_object.pop()
            stack.pop()
            key_follows = False
        elif word == ",":
            key_follows = in_object[-1]
            last = stack[-1]
            stack[-1] = "" if isinstance(last, str) else last + 1
        elif key_follows and word != ":":
            stack[-1] = json.loads(word)
            yield tuple(map(str, stack)), token.start()
            key_follows = False


def _refuse_no_numbers(path: str, text: str, error: ValueError) -> None:
    """Raise BadInputError if the text contains NaN or Infinity, which Python writes, and HJSON takes for a string."""
    if hasattr(error, "lineno"):
        return
    for found in re.finditer(r'"(?:\\.|[^"\\])*"|(NaN|-?Infinity)', text):
        if found[1]:
            line, column = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())
            where = f"{path}:{line}:{column}"
            raise BadInputError(f"{found[1]} is not a number in JSON", hint="write a number, or null", where=where)


# -- HJSON -------------------------------------------------------------------------------------------


def _hjson(path: str, text: str, json_error: ValueError) -> Document:
    requirements.check("not JSON, and reading HJSON", "hjson", where=path)  # a scheduler of JSON files needs no hjson
    import hjson

    try:
        data = hjson.loads(text, object_pairs_hook=_once(path, text))
        if wrong := jsontext.what_is_wrong(data, finite=True):
            raise _broken(path, text, json_error, ValueError(wrong))
    except BadInputError:
        raise
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:  # hjson's own error is a ValueError
        raise _broken(path, text, json_error, error) from None
    _must_be_object(path, data)
    return Document(path, data, {})


def _once(path: str, text: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """An ``object_pairs_hook`` that refuses duplicate keys."""

    def check(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for key, value in pairs:
            if key in seen:
                raise BadInputError(f"duplicate key: {key!r}", where=_second(path, text, key))
            seen[key] = value
        return seen

    return check


def _second(path: str, text: str, key: str) -> str:
    """``file:line`` of the second occurrence of this key, as far as the text shows it."""
    found = [match.start() for match in re.finditer(rf"^[\s{{,]*[\"']?{re.escape(key)}[\"']?\s*:", text, re.MULTILINE)]
    return f"{path}:{text.count(chr(10), 0, found[-1]) + 1}" if len(found) > 1 else path


def _broken(path: str, text: str, json_error: ValueError, hjson_error: Exception) -> BadInputError:
    # A file with comments was meant as HJSON; for any other, JSON's error is nearer to the mistake.
    as_hjson = path.endswith(".hjson") or re.search(r"^\s*(#|//|/\*)", text, re.MULTILINE)
    error = hjson_error if as_hjson or not hasattr(json_error, "lineno") else json_error
    line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
    said = getattr(error, "msg", str(error))
    return BadInputError(
        f"invalid {'HJSON' if as_hjson else 'JSON'}: {said[:1].lower()}{said[1:]}", where=f"{path}:{line}:{column}"
    )
