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
    PDSH_LAUNCHER,
    SLURM_LAUNCHER,
)
from bireme.errors import BadInputError
from bireme.options.table import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal, TypeAlias

    Command: TypeAlias = Literal["run", "agent"]
    """The command that does the work: ``run`` of ``deepspeed.launcher.runner``, ``agent`` of its ``launch``."""

# An abbreviation is resolved among DeepSpeed's own options first, as if there were no others.
_OWN: dict[Command, tuple[str, ...]] = {
    "run": (
        *("hostfile", "include", "exclude", "num_nodes", "num_gpus", "num_accelerators", "master_port", "master_addr"),
        *("node_rank", "launcher", "launcher_args", "module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check"),
        *("force_multi", "save_pid", "enable_each_rank_log", "autotuning", "bind_cores_to_rank", "bind_core_list"),
        *("ssh_port", "venv_script", "log_level", "quiet", "help"),
    ),
    "agent": (
        *("node_rank", "master_addr", "master_port", "world_info", "module", "no_python", "no_local_rank", "save_pid"),
        *("enable_each_rank_log", "bind_cores_to_rank", "bind_core_list", "log_level", "quiet", "help"),
    ),
}
_DEFAULTS: dict[Command, dict[str, object]] = {
    "run": {
        "hostfile": "/job/hostfile",
        **dict.fromkeys(("num_nodes", "num_gpus", "node_rank"), -1),
        "master_addr": "",
        "master_port": 29500,
        "enable_each_rank_log": "None",
    },
    "agent": {
        "master_addr": "127.0.0.1",
        "master_port": 29500,
        "enable_each_rank_log": "None",
        "world_info": "None",
    },
}

# With these, mpirun or srun starts DeepSpeed's ranks, and no launcher of the node adds an argument.
_WITHOUT_LOCAL_RANK = (OPENMPI_LAUNCHER, MPICH_LAUNCHER, IMPI_LAUNCHER, MVAPICH_LAUNCHER, SLURM_LAUNCHER)


def parse_as_deepspeed(command: Command, words: Sequence[str]) -> Parsed:
    """Parse a command line of ``deepspeed.launcher.runner`` or ``deepspeed.launcher.launch``."""
    groups = select(command)
    table = {name: option for group in groups.values() for option in group for name in option.names}
    own = [f"--{name}" for name in _OWN[command] if f"--{name}" in table]
    rest, whole = list(words), list[str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, equals, value = rest.pop(0).partition("=")
        if name.startswith("--"):
            name = _full_name(f"--{name[2:].replace('-', '_')}", own, table)
        whole.append(f"{name}={value}" if equals else name)
        if name in table and table[name].takes_next and not equals and rest:
            whole.append(rest.pop(0))
    return _with_local_rank(parse(groups, whole + rest))


def namespace(command: Command, words: Sequence[str], script: str, args: str) -> Namespace:
    """Parse a command line as argparse does; the script and its arguments get these names.

    Without ``--launcher``, ``launcher`` is DeepSpeed's default, ``pdsh``, because callers choose a class by it. The job
    itself is then started with ``auto``.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    try:
        parsed = parse_as_deepspeed(command, words)
        if parsed.options["help"]:
            sys.stdout.write(help_page(command, everything=False))
            raise SystemExit(0)
        if not parsed.command:
            raise BadInputError("no script given")
    except BadInputError as error:
        sys.stderr.write(f"bireme: {error}\n")
        raise SystemExit(error.code) from None
    options = {name: value for name, value in parsed.options.items() if name != "help"}
    options.update({name: value for name, value in _DEFAULTS[command].items() if options[name] is None})
    if options.get("launcher") == "auto":
        options["launcher"] = PDSH_LAUNCHER
    return Namespace(**options, **{script: parsed.command[0], args: list(parsed.command[1:])})


def parsed_again(args: Namespace) -> Parsed:
    """Convert a namespace of the runner for our own commands; options that it lacks get their defaults.

    ``launcher`` ``pdsh`` counts as DeepSpeed's default, not as the user's choice, so Bireme chooses the launcher. A
    hostfile that does not exist counts as not given.
    """
    absent = parse(select("run"), ()).options
    options: dict[str, Any] = {name: vars(args).get(name) for name in absent}
    for name, value in options.items():
        if value in (None, "", -1) or (name != "hostfile" and value == _DEFAULTS["run"].get(name)):
            options[name] = absent[name]
    if options["launcher"] == PDSH_LAUNCHER:
        options["launcher"] = "auto"
    if options["hostfile"] is not None and not os.path.isfile(options["hostfile"]):
        options["hostfile"] = None
    return _with_local_rank(Parsed(options, (args.user_script, *args.user_args)))


def _with_local_rank(parsed: Parsed) -> Parsed:
    """Pass ``--local_rank`` to every script, as DeepSpeed does, and not only to one that mentions it.

    An elastic job of DeepSpeed passes none.
    """
    options = parsed.options
    elastic = options["elastic_training"] or isinstance(options.get("num_nodes"), tuple)
    if elastic or options["no_local_rank"] or options.get("launcher") in _WITHOUT_LOCAL_RANK:
        return parsed
    return parsed.replace(options={**options, "local_rank_arg": True})


def _full_name(name: str, own: Iterable[str], names: Iterable[str]) -> str:
    """The option that a name abbreviates; the name itself if that is none or several."""
    for among in ([name] if name in names else own, names):
        if meant := [full for full in among if full.startswith(name)]:
            return meant[0] if len(meant) == 1 else name
    return name
