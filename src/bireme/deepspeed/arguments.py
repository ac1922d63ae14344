"""Reads command lines as DeepSpeed does: options may be abbreviated, and defaults are DeepSpeed's."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from bireme.cli.help import help_page
from bireme.cli.parser import Parsed, parse
from bireme.deepspeed.constants import (
    IMPI_LAUNCHER,
    MPICH_LAUNCHER,
    MVAPICH_LAUNCHER,
    OPENMPI_LAUNCHER,
    SLURM_LAUNCHER,
)
from bireme.errors import BadInputError
from bireme.options.table import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from bireme.options.option import Groups

# An abbreviation is resolved among DeepSpeed's own options first, as if there were no others.
_OF_RUNNER = (
    *("hostfile", "include", "exclude", "num_nodes", "num_gpus", "num_accelerators", "master_port", "master_addr"),
    *("node_rank", "launcher", "launcher_args", "module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check"),
    *("force_multi", "save_pid", "enable_each_rank_log", "autotuning", "bind_cores_to_rank", "bind_core_list"),
    *("ssh_port", "venv_script", "log_level", "quiet", "help"),
)
_OF_LAUNCH = (
    *("node_rank", "master_addr", "master_port", "world_info", "module", "no_python", "no_local_rank", "save_pid"),
    *("enable_each_rank_log", "bind_cores_to_rank", "bind_core_list", "log_level", "quiet", "help"),
)

# With these, mpirun or srun starts DeepSpeed's ranks, and no launcher of the node adds an argument.
_WITHOUT_LOCAL_RANK = (OPENMPI_LAUNCHER, MPICH_LAUNCHER, IMPI_LAUNCHER, MVAPICH_LAUNCHER, SLURM_LAUNCHER)

_RUNNER_DEFAULTS = {
    "hostfile": "/job/hostfile",
    "num_nodes": -1,
    "num_gpus": -1,
    "node_rank": -1,
    "master_addr": "",
    "master_port": 29500,
    "enable_each_rank_log": "None",
}
_LAUNCH_DEFAULTS = {
    "master_addr": "127.0.0.1",
    "master_port": 29500,
    "enable_each_rank_log": "None",
    "world_info": "None",
}


def parse_runner(words: Sequence[str]) -> Parsed:
    """Parse a command line of ``deepspeed``.

    Raises:
        BadInputError: the command line is invalid.
    """
    return _parse("run", _OF_RUNNER, words)


def runner_namespace(words: Sequence[str]) -> Namespace:
    """Parse a command line of ``deepspeed`` into a namespace, with ``user_script`` and ``user_args``.

    Without ``--launcher``, ``launcher`` is DeepSpeed's default, ``pdsh``, because callers choose a class by it. The job
    itself is then started with ``auto``.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    parsed, options = _filled(lambda: parse_runner(words), lambda: help_page("run", everything=False), _RUNNER_DEFAULTS)
    if options["launcher"] == "auto":
        options["launcher"] = "pdsh"
    return Namespace(**options, user_script=parsed.command[0], user_args=list(parsed.command[1:]))


def parsed_again(args: Namespace) -> Parsed:
    """Convert such a namespace for our own commands; options that it lacks get their defaults.

    ``launcher`` ``pdsh`` counts as DeepSpeed's default, not as the user's choice, so Bireme chooses the launcher. A
    hostfile that does not exist counts as not given.
    """
    parsed = parse(select("run"), ())
    given = {name: value for name, value in vars(args).items() if value not in (None, "", -1)}
    options = {name: given.get(name, default) for name, default in parsed.options.items()}
    if options["launcher"] == "pdsh":
        options["launcher"] = "auto"
    if options["enable_each_rank_log"] == "None":
        options["enable_each_rank_log"] = None
    if options["master_port"] == _RUNNER_DEFAULTS["master_port"]:
        options["master_port"] = None
    if options["hostfile"] is not None and not os.path.isfile(options["hostfile"]):
        options["hostfile"] = None
    if options["node_rank"] == -1:
        options["node_rank"] = None
    return _with_local_rank(Parsed(options, (args.user_script, *args.user_args)))


def parse_launch(words: Sequence[str]) -> Parsed:
    """Parse a command line of ``deepspeed.launcher.launch``.

    Raises:
        BadInputError: the command line is invalid.
    """
    return _parse("agent", _OF_LAUNCH, words)


def launch_namespace(words: Sequence[str]) -> Namespace:
    """Parse a command line of ``deepspeed.launcher.launch``; adds ``training_script`` and ``training_script_args``.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    parsed, options = _filled(lambda: parse_launch(words), lambda: help_page("agent"), _LAUNCH_DEFAULTS)
    return Namespace(**options, training_script=parsed.command[0], training_script_args=list(parsed.command[1:]))


def _parse(command: str, own: Collection[str], words: Sequence[str]) -> Parsed:
    groups = select(command)
    return _with_local_rank(parse(groups, spelled_out(groups, own, words)))


def spelled_out(groups: Groups, first: Collection[str], words: Sequence[str]) -> list[str]:
    """The command line with abbreviated options written in full.

    Args:
        first: names among which an abbreviation is resolved before the others.
    """
    table = {name: option for group in groups.values() for option in group for name in option.names}
    known = [f"--{name}" for name in first if f"--{name}" in table]
    rest = list(words)
    done: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, equals, value = rest.pop(0).partition("=")
        if name.startswith("--"):
            name = _full_name(f"--{name[2:].replace('-', '_')}", known, list(table))
        option = table.get(name)
        takes_next = option is not None and option.takes_next and not equals
        if takes_next and rest:
            done += [name, rest.pop(0)]
        else:
            done.append(f"{name}={value}" if equals else name)
    return done + rest


def _with_local_rank(parsed: Parsed) -> Parsed:
    """Pass ``--local_rank`` to every script, as DeepSpeed does, and not only to one that mentions it.

    An elastic job of DeepSpeed passes none.
    """
    options = parsed.options
    elastic = options["elastic_training"] or isinstance(options.get("num_nodes"), tuple)
    if elastic or options["no_local_rank"] or options.get("launcher") in _WITHOUT_LOCAL_RANK:
        return parsed
    return parsed.replace(options={**options, "local_rank_arg": True})


def _full_name(name: str, known: list[str], names: list[str]) -> str:
    if name in names:
        return name
    for among in (known, names):
        meant = [full for full in among if full.startswith(name)]
        if meant:
            return meant[0] if len(meant) == 1 else name
    return name


def _filled(
    read: Callable[[], Parsed], help_page: Callable[[], str], defaults: Mapping[str, object]
) -> tuple[Parsed, dict[str, Any]]:
    """The parsed command line, and its options with DeepSpeed's defaults; ends the process as argparse does."""
    try:
        parsed = read()
        if parsed.options["help"]:
            sys.stdout.write(help_page())
            raise SystemExit(0)
        if not parsed.command:
            raise BadInputError("no script given")
    except BadInputError as error:
        sys.stderr.write(f"bireme: {error}\n")
        raise SystemExit(error.code) from None
    options = {name: value for name, value in parsed.options.items() if name != "help"}
    options.update({name: value for name, value in defaults.items() if options[name] is None})
    return parsed, options
