"""Applies options of accelerate and torchrun: variables, also from accelerate's file, and which ranks are shown."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.options.option import whole
from bireme.options.table import DEEPSPEED, DYNAMO, FP8, ONLY_ABOVE_1, PARALLELISM, PLUGINS
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from bireme.options.table import Plugin, Setting

_OPTIONS = (
    *("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids"),
    *("mixed_precision", "rdzv_backend", "num_cpu_threads_per_process", "dynamo_backend"),
    *("deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter", "deepspeed_multinode_launcher"),
)
"""Keys of the file that are options of the same name."""
_SWITCHES = {"use_cpu": "--cpu", "enable_cpu_affinity": "--bind_cores_to_rank", "debug": "--debug"}
"""Keys whose value ``true`` stands for an option."""
_KNOWN = ("compute_environment", "distributed_type", "main_training_function", "same_network")
"""Other keys that may have a value."""
_TYPES = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU", "DEEPSPEED", "FSDP", "MEGATRON_LM")
"""The possible values of ``distributed_type``."""
_OFF = ("", "false", "no", "[]")
"""Values of a key that ask for nothing."""
_SECTIONS = {plugin.section: plugin for plugin in PLUGINS}

_EXPECTED = "give a file of `accelerate config`"
_WORDS = {**dict.fromkeys(("yes", "true", "on"), True), **dict.fromkeys(("no", "false", "off"), False)}
"""Words that YAML reads as true or false."""
_BOOLEANS = {**_WORDS, **dict.fromkeys(("y", "t", "1"), True), **dict.fromkeys(("n", "f", "0"), False)}
"""Words that accelerate reads as true or false."""
_BOTH = 3
"""stdout (1) and stderr (2)."""
_OTHERS = -1
"""Instead of a rank's number: all ranks that are not listed."""
_MOST_RANKS = 4096
"""More than any node has."""


class ConfigFile(Value):
    """What a configuration file says.

    Attributes:
        words: the options that it stands for.
        settings: the other settings by option, as Python prints them.
        precision: whether ``mixed_precision`` comes from the file.
    """

    words: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    sections: Mapping[str, tuple[str, ...]] = {}
    distributed_type: str = "NO"
    precision: bool = False


def read_config(path: str) -> ConfigFile:
    """Read a configuration file of accelerate."""
    pairs = list(_pairs(path))
    found = {key: value for _, key, value in pairs}
    kind, place = found.get("distributed_type", "NO"), found.get("compute_environment", "LOCAL_MACHINE")
    if kind not in _TYPES or place != "LOCAL_MACHINE":
        key, value = ("distributed_type", kind) if kind not in _TYPES else ("compute_environment", place)
        raise BadInputError(f"{key}: {value} is not supported", hint=f"expected one of {', '.join(_TYPES)}", where=path)
    launcher = found.get("deepspeed_multinode_launcher", "") if kind == "DEEPSPEED" else ""
    words = ["--no_ssh"] if launcher == "nossh" else []
    # With other launchers, one command starts all nodes. As there, a filter then says which nodes and how many ranks.
    ignored = ["machine_rank"] if launcher not in ("", "standard", "nossh") else []
    if ignored and (found.get("deepspeed_inclusion_filter") or found.get("deepspeed_exclusion_filter")):
        ignored += ["num_machines", "num_processes"]
    settings: dict[str, str] = {}
    sections: dict[str, tuple[str, ...]] = {}
    for section, key, value in pairs:
        plugin = _SECTIONS.get(section)
        if plugin:
            sections[section] = (*sections.get(section, ()), key)
            key = key if key.startswith(plugin.prefix) else plugin.prefix + key
        if key in _OPTIONS:
            words += [f"--{key}={value}"] if value and key not in ignored else []
        elif plugin:
            settings |= {key: value} if value else {}
        elif key in _SWITCHES and value.lower() not in _OFF:
            words.append(_SWITCHES[key])
        elif key not in (*_KNOWN, *_SWITCHES) and value.lower() not in _OFF:
            hint = "leave it out, and set accelerate's variable for it with --export"
            raise BadInputError(f"{key}: {value} is not supported", hint=hint, where=path)
    precision = bool(found.get("mixed_precision"))
    return ConfigFile(
        words=tuple(words), settings=settings, sections=sections, distributed_type=kind, precision=precision
    )


def variables(options: Mapping[str, Any]) -> dict[str, str]:
    """The variables that accelerate's launcher sets for these options.

    Args:
        options: the parsed options; ``accelerate`` is the configuration file, if one is given.
    """
    config: ConfigFile = options.get("accelerate", ConfigFile())
    plugins = _plugins_in_use(options)
    found = {"ACCELERATE_MIXED_PRECISION": options.get("mixed_precision") or "no"}
    if DEEPSPEED in plugins:
        fields = (*config.sections.get(DEEPSPEED.section, ()), *(("mixed_precision",) if config.precision else ()))
        found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(fields).lower()
        # As there, the ranks find modules in the working directory, which is another one where a tree is sent.
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), ".")))
    else:
        found["ACCELERATE_DYNAMO_BACKEND"] = (options.get("dynamo_backend") or "no").upper()
    if FP8 in plugins:  # as there, with keys that the table lacks
        known = [row.name for row in FP8.settings()]
        new = {name: value for name, value in config.settings.items() if name.startswith("fp8_") and name not in known}
        found |= {f"ACCELERATE_{name.upper()}": value for name, value in new.items()}
    for plugin in plugins:
        if plugin.switch:
            found[f"ACCELERATE_{plugin.switch.upper()}"] = "true"
        for row in plugin.settings():
            value = options.get(row.name)
            text = config.settings.get(row.name, row.default) if value in (None, False) else _typed(row, str(value))
            if text is None:
                continue
            pieces = text.split(",") if len(row.variables) > 1 else [text]
            found |= dict(zip(row.variables, pieces, strict=False))
            if row.kind == "lower":
                found[row.variables[0]] = text.lower()
    for size, names in ONLY_ABOVE_1.items():
        if found.get(f"PARALLELISM_CONFIG_{size}") == "1":
            for name in names.split():
                del found[f"PARALLELISM_CONFIG_{name}"]
    return found


def without_effect(options: Mapping[str, Any]) -> Iterator[str]:
    """One line for each setting on the command line whose section is not in use."""
    plugins = _plugins_in_use(options)
    for plugin in PLUGINS:
        for row in plugin.settings() if plugin not in plugins else ():
            if options.get(row.name) not in (None, False):
                needed = "--mixed_precision fp8" if plugin is FP8 else f"--{plugin.switch}" if plugin.switch else ""
                yield f"--{row.name} has no effect {f'without {needed}' if needed else 'with DeepSpeed'}"


def _plugins_in_use(options: Mapping[str, Any]) -> list[Plugin]:
    """The tables that count: by options; if these name no kind of training, by the configuration file."""
    config: ConfigFile = options.get("accelerate", ConfigFile())
    chosen = [plugin for plugin in PLUGINS if options.get(plugin.switch)]
    if not options.get("multi_gpu") and chosen in ([], [PARALLELISM]):
        chosen += [plugin for plugin in PLUGINS if plugin.distributed_type == config.distributed_type]
        chosen += [PARALLELISM] if PARALLELISM.section in config.sections and PARALLELISM not in chosen else []
    if DEEPSPEED in chosen:
        chosen = [plugin for plugin in chosen if plugin in (DEEPSPEED, PARALLELISM)]
    else:
        chosen.append(DYNAMO)
    return [*chosen, FP8] if options.get("mixed_precision") == "fp8" else chosen


def _typed(row: Setting, text: str) -> str:
    """The value of an option, as Python would print it."""
    try:
        if row.kind == "flag":
            return "True"
        if row.kind == "int":
            return str(int(text))
        if row.kind == "float":
            return str(float(text))
        if row.kind in ("bool", "bit"):
            names = ("False", "True") if row.kind == "bool" else ("0", "1")
            return ",".join(names[_BOOLEANS[piece.lower()]] for piece in text.split(","))
    except (ValueError, KeyError):
        expected = {"int": "a whole number", "float": "a number"}.get(row.kind, "true or false")
        raise BadInputError(f"must be {expected}, not {text[:40]!r}", where=f"--{row.name}") from None
    return text


def _pairs(path: str) -> Iterator[tuple[str, str, str]]:
    """(section, key, value) of a JSON file, or of a YAML file with one ``key: value`` on each line.

    A section is ``""`` outside of all. In a section, values are written as Python prints them; a list is its items
    with commas between them.
    """
    from bireme.resources.hostfile import numbered_lines, read_text

    whole = read_text(path, "--config_file")
    if whole.lstrip().startswith("{"):
        yield from _of_json(whole, path)
        return
    pairs: list[tuple[str, str, str]] = []
    section = ""
    for number, line in numbered_lines(whole):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "---")):
            continue
        if text.startswith("- ") and pairs:
            within, key, value = pairs.pop()
            pairs.append((within, key, ",".join(filter(None, (value, _scalar(text[2:], within))))))
            continue
        key, colon, value = text.partition(":")
        if not colon or " " in key:
            raise BadInputError("expected key: value", hint=_EXPECTED, where=f"{path}:{number}")
        section = section if line[0] in " \t" else "" if value.strip() else key
        items = value.strip().removeprefix("[").removesuffix("]").split(",") if value.strip()[:1] == "[" else [value]
        within = "" if section == key else section
        pairs.append((within, key, ",".join(_scalar(item, within) for item in items)))
    yield from pairs


def _scalar(text: str, section: str) -> str:
    """A value of YAML; "" for null, and for a mapping that is empty."""
    text = text.strip()
    if text in ("null", "~", "{}", "None"):
        return ""
    if section and text.lower() in _WORDS:
        return str(_WORDS[text.lower()])
    return text.strip("'\"")


def _of_json(text: str, path: str) -> Iterator[tuple[str, str, str]]:
    from bireme import jsontext

    try:
        items = [("", key, value) for key, value in jsontext.loads(text).items()]
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}", hint=_EXPECTED, where=path) from None
    while items:
        section, key, value = items.pop(0)
        if isinstance(value, dict):
            items[:0] = [(key, inner, below) for inner, below in value.items()]
        elif isinstance(value, list):
            yield section, key, ",".join(map(str, value))
        else:
            yield section, key, "" if value is None else str(value)


def shown(redirects: str, tee: str, only: tuple[int, ...]) -> tuple[int, ...] | None:
    """The local ranks whose output is shown; empty: all; ``None``: none.

    Args:
        redirects: the value of ``--redirects``: streams that go only to files; "": none.
        tee: the value of ``--tee``: streams that are shown nevertheless; "": none.
        only: the local ranks that may be shown; empty: all.
    """
    to_files, also_shown = _streams(redirects, "--redirects"), _streams(tee, "--tee")

    def hidden(rank: int) -> bool:
        return to_files.get(rank, to_files[_OTHERS]) & ~also_shown.get(rank, also_shown[_OTHERS]) == _BOTH

    ranks = only or range(_MOST_RANKS)
    found = tuple(rank for rank in ranks if not hidden(rank))
    return found if found and len(found) < len(ranks) else only if found else None


def _streams(text: str, where: str) -> dict[int, int]:
    """The streams of each rank that a value names, as a sum of 1 (stdout) and 2 (stderr)."""
    streams = {_OTHERS: 0}
    for word in text.split(",") if text else ():
        rank, colon, number = word.rpartition(":")
        value = whole(number, where)
        if not 0 <= value <= _BOTH or (not colon and word != text):
            hint = "expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such a number for each rank: 0:3,1:1"
            hint = f"for a time limit: --time_limit {text}" if where == "--tee" and value > _BOTH else hint
            raise BadInputError(f"not a list of streams: {text!r}", hint=hint, where=where)
        streams[whole(rank, where) if colon else _OTHERS] = value
    return streams
