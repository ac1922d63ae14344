"""Adds options that were not typed: from variables of torchrun, accelerate's file, and the active environment."""

from __future__ import annotations

import sys

from bireme.cli.parser import parse
from bireme.errors import BadInputError
from bireme.job import BY_LABELS, CONTAINERS
from bireme.logs.console import complain

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


def parse_run(groups: Groups, argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Parse a command line of ``bireme run``, with the options that variables and a configuration file add.

    Args:
        argv: what was typed; it takes precedence.
    """
    variables = [f"--{name[len(_PET) :].lower()}" for name in environ if name.startswith(_PET) and environ[name]]
    words = [
        word for name in variables if name[2:] in _TORCHRUN for word in _words(groups, name, environ, set(variables))
    ]
    parsed = parse(groups, argv, _checked(groups, words, "the variables PET_*"))
    path = parsed.options["config_file"]
    if path is None:
        return parsed
    from bireme.cli.accelerate import read_config

    config = read_config(path)
    config = config.replace(precision=config.precision and parsed.options["mixed_precision"] is None)
    parsed = parse(groups, argv, _checked(groups, [*words, *config.words], path))
    return parsed.replace(options={**parsed.options, "accelerate": config})


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


def in_active_environment(parsed: Parsed, environ: Mapping[str, str]) -> Parsed:
    """Add ``--python`` to a command line for ``PYTHON_EXEC``, or for an active environment without Bireme."""
    options = parsed.options
    if options.get("python") or options.get("venv_script"):
        return parsed
    if named := environ.get("PYTHON_EXEC"):
        return parsed.replace(options={**options, "python": named, "python_from": "PYTHON_EXEC"})
    if options.get("launcher") in CONTAINERS or str(options.get("hosts")).startswith(BY_LABELS):
        return parsed  # an environment of this machine is in no container
    from bireme.resources.active_environment import active_prefix, other_python

    python = other_python(environ, sys.argv[0])
    if not python:
        return parsed
    if options.get("log_level") in ("debug", "info") and not options.get("quiet"):
        complain(f"ranks run in the active environment {active_prefix(environ)}")
    return parsed.replace(options={**options, "python": python, "python_from": "the active environment"})
