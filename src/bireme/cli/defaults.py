"""Adds options that were not typed, from torchrun's variables ``PET_*`` and accelerate's configuration file."""

from __future__ import annotations

from bireme.cli.parser import parse
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from bireme.cli.parser import Parsed
    from bireme.options.option import Groups

_PET = "PET_"
_TORCHRUN = frozenset(
    {
        *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone", "role"),
        *("max_restarts", "monitor_interval", "start_method", "event_log_handler", "module", "no_python", "run_path"),
        *("log_dir", "redirects", "tee", "local_ranks_filter", "duplicate_stdout_filters", "duplicate_stderr_filters"),
        *("node_rank", "master_addr", "master_port", "local_addr", "signals_to_handle", "shutdown_timeout"),
        "virtual_local_rank",
    }
)
"""The options of torchrun that have a variable."""

_ACCELERATE = (
    *("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids"),
    *("mixed_precision", "rdzv_backend", "num_cpu_threads_per_process", "dynamo_backend"),
)
"""Keys of the file that have an option of the same name."""
_SWITCHES = {
    "use_cpu": "--cpu",
    "enable_cpu_affinity": "--bind_cores_to_rank",
    "debug": "--export=ACCELERATE_DEBUG_MODE=true",
}
"""Keys whose value ``true`` stands for an option."""
_KNOWN = ("compute_environment", "distributed_type", "main_training_function", "same_network")
"""Other keys that may have a value."""
_PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU")
"""The values of ``distributed_type`` that ask for nothing but one rank for each device."""

_EXPECTED = "give a file of `accelerate config`"


def parse_run(groups: Groups, argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Parse a command line of ``bireme run``, with the options that variables and a configuration file add.

    Args:
        argv: what was typed; it takes precedence.

    Raises:
        BadInputError: something cannot be read.
    """
    variables = [f"--{name[len(_PET) :].lower()}" for name in environ if name.startswith(_PET) and environ[name]]
    words = [
        word for name in variables if name[2:] in _TORCHRUN for word in _words(groups, name, environ, set(variables))
    ]
    parsed = parse(groups, argv, _checked(groups, words, "the variables PET_*"))
    path = parsed.options["config_file"]
    if path is None:
        return parsed
    return parse(groups, argv, _checked(groups, [*words, *_of_file(path)], path))


def _words(groups: Groups, name: str, environ: Mapping[str, str], given: set[str]) -> Iterator[str]:
    """The option of one variable; none for an address where ``PET_RDZV_ENDPOINT`` has one."""
    value = environ[_PET + name[2:].upper()]
    if any(name in option.names and option.kind == "flag" for options in groups.values() for option in options):
        if value not in ("0", "False", "false"):
            yield name
    elif not (name in ("--master_addr", "--master_port") and "--rdzv_endpoint" in given):
        yield f"{name}={value}"


def _checked(groups: Groups, words: list[str], where: str) -> dict[str, Any] | None:
    """The values of the words by key; ``None``: there are none."""
    if not words:
        return None
    try:
        options = parse(groups, words).options
    except BadInputError as error:
        raise BadInputError(error.what, hint=error.hint, where=f"{where}: {error.where}") from None
    return options


def _of_file(path: str) -> Iterator[str]:
    """The options that a configuration file of accelerate stands for."""
    found = dict(_pairs(path))
    kind, place = found.get("distributed_type", "NO"), found.get("compute_environment", "LOCAL_MACHINE")
    if kind not in _PLAIN or place != "LOCAL_MACHINE":
        key, value = ("distributed_type", kind) if kind not in _PLAIN else ("compute_environment", place)
        hint = "set it in the script, or use --export with accelerate's variables (ACCELERATE_*, FSDP_*)"
        raise BadInputError(f"{key}: {value} is not supported", hint=hint, where=path)
    for key, value in found.items():
        if key in _ACCELERATE:
            yield from (f"--{key}={value}",) if value else ()
        elif value.lower() in ("", "false", "no", "[]"):
            continue
        elif key in _SWITCHES:
            yield _SWITCHES[key]
        elif key.startswith("dynamo_"):
            yield f"--export=ACCELERATE_{key.upper()}={value}"
        elif key not in _KNOWN:
            hint = "leave it out, and set accelerate's variable for it with --export"
            raise BadInputError(f"{key}: {value} is not supported", hint=hint, where=path)


def _pairs(path: str) -> Iterator[tuple[str, str]]:
    """The pairs of a JSON file, or of a YAML file with one ``key: value`` on each line; also those of its sections."""
    from bireme.resources.hostfile import numbered_lines, read_text

    whole = read_text(path, "--config_file")
    if whole.lstrip().startswith("{"):
        yield from _of_json(whole, path)
        return
    for number, line in numbered_lines(whole):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "---")):
            continue
        key, colon, value = text.partition(":")
        if not colon or " " in key:
            raise BadInputError("expected key: value", hint=_EXPECTED, where=f"{path}:{number}")
        value = value.strip().strip("'\"")
        yield key, "" if value in ("null", "~", "{}", "None") else value


def _of_json(text: str, path: str) -> Iterator[tuple[str, str]]:
    from bireme import jsontext

    try:
        items = list(jsontext.loads(text).items())
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}", hint=_EXPECTED, where=path) from None
    while items:
        key, value = items.pop(0)
        if isinstance(value, dict):
            items[:0] = value.items()
        else:
            yield key, "" if value in (None, []) else str(value)
