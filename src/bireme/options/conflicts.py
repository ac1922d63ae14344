"""Decides which options cannot be used together, and which need another one, for the command line and for Python.

`refuse` checks the options in use against the tables ``EXCLUDES`` and ``NEEDS``.
"""

from __future__ import annotations

from bireme import signal_numbers as signal
from bireme.errors import BadInputError, number_in
from bireme.job import OWN_NAMES, JobSpec
from bireme.options.option import missing_value, seconds_of
from bireme.options.table import OPTIONS, fields
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Use: TypeAlias = "str | OneOf"
    """An option that is in use, with any value or with one of some."""

ELASTIC_RANGE = "--num_nodes MIN:MAX"
"""It counts as an option of its own, with which ``--num_nodes`` is not in use."""
MIG = "MIG devices"
"""Not an option: it counts as one in use if the slots turn out to be MIG devices."""

_LONGEST_NAME = 64


class OneOf(Value):
    """An option of the kind ``choice`` whose value is one of these; a message names the one in use."""

    option: str
    values: tuple[str, ...]


class Excludes(Value):
    """Options that cannot be used with any of ``others``.

    Attributes:
        why: the reason, for the message; "": the message gives none.
        when: the rule applies only if this option is in use too; "": always.
        unless: the rule does not apply if this option is in use; "": always.
    """

    options: tuple[Use, ...]
    others: tuple[Use, ...]
    why: str = ""
    hint: str = "use one or the other"
    when: str = ""
    unless: str = ""


class Needs(Value):
    """An option that has an effect only with ``other``; ``hint``: what to type instead."""

    option: str
    other: str
    hint: str


# A row takes one to three lines.
# fmt: off
EXCLUDES = (
    Excludes(("--include",), ("--exclude",)),
    Excludes(("--num_gpus", "--num_nodes", "--num_processes"), ("--include", "--exclude"), unless="--autotuning"),
    Excludes(("--module",), ("--no_python",)),
    Excludes(("--no_local_rank",), ("--local_rank_arg",)),
    Excludes(("--rdzv_endpoint",), ("--master_addr", "--master_port")),
    Excludes(("--standalone",), ("--hosts", "--hostfile", "--no_ssh")),
    Excludes(("--numa_binding",), ("--bind_cores_to_rank", "--bind_core_list")),
    Excludes(("--num_processes",), ("--num_gpus",)),
    Excludes(("--gpu_ids",), ("--include", "--exclude", "--num_gpus")),
    Excludes(("--log_dir",), ("--enable_each_rank_log",)),
    Excludes(("--fold",), (OneOf("--output", ("raw", "rank0", "none")),), why="only labelled lines are folded"),
    Excludes(("--num_nodes",), ("--max_elastic_nodes",)),
    Excludes((ELASTIC_RANGE,), ("--min_elastic_nodes", "--max_elastic_nodes")),
    Excludes(("--autotuning",), ("--elastic_training",), hint="tune first, without --elastic_training"),
    Excludes(("--autotuning",), ("--no_ssh",), hint="leave out --no_ssh: the tuner starts the trials on all nodes"),
    Excludes(("--autotuning",), ("--dry_run",), hint="see a single job: bireme run --dry_run"),
    Excludes(("--detach",), ("--autotuning", "--dry_run", "--stdin", "--no_ssh"), hint="leave out --detach"),
    Excludes(("--autotuning",), ("--json",), hint="see a study: bireme tune status --json DIR"),
    Excludes(("--ssh_port",), (OneOf("--launcher", OWN_NAMES),), hint="leave it out: ssh is not used"),
    Excludes(("--elastic_training", "--restarts"), ("--native_ranks",),
        hint="leave out --native_ranks: the launcher cannot restart its ranks"),
    Excludes(("--fold", "--log_dir", "--enable_each_rank_log", "--bind_cores_to_rank", "--bind_core_list",
        "--numa_binding", "--wrap_ranks", "--save_pid", "--timestamps", OneOf("--output", ("prefix", "rank0", "none"))),
        ("--native_ranks",), why="the launcher owns the ranks and their output"),
    Excludes(("--wrap", "--bind_cores_to_rank", "--bind_core_list", "--local_rank_arg", "--enable_each_rank_log",
        "--log_dir", OneOf("--output", ("rank0",)), MIG), ("--no_ssh",), when="--elastic_training",
        why="PyTorch's elastic agent starts the ranks", hint="leave out --no_ssh, or the option"),
    Excludes(("--ship",), ("--native_ranks", "--no_ssh"), why="no agent takes the files",
        hint="copy the files to the nodes yourself"),
    Excludes(("--fetch",), ("--native_ranks", "--no_ssh"), why="no agent brings the files",
        hint="copy the files from the nodes yourself"),
    Excludes(("--fetch",), ("--autotuning",), hint="tune first, without --fetch"),
    Excludes(("--stdin",), ("--elastic_training",), why="its ranks change, and none reads stdin", hint="leave it out"),
    Excludes(("--stdin",), ("--native_ranks",), why="the launcher owns the ranks and their input",
        hint="ask the launcher: --launcher_args, with --input=RANK for srun"),
    Excludes(("--preload",), ("--no_python",), why="only Python imports modules", hint="leave it out"),
    Excludes(("--preload",), ("--native_ranks",), why="the launcher starts the ranks", hint="leave it out"),
    Excludes(("--preload",), ("--no_ssh",), when="--elastic_training", why="PyTorch's elastic agent starts the ranks",
        hint="leave out --no_ssh, or --preload"),
    Excludes(("--checkpoint_signal",), ("--native_ranks",), why="the launcher owns the ranks",
        hint="let the scheduler signal the ranks itself"),
    Excludes(("--checkpoint_signal",), ("--no_ssh",), when="--elastic_training",
        why="PyTorch's elastic agent starts the ranks", hint="leave out --no_ssh, or --checkpoint_signal"),
    Excludes(("--restarts",), ("--world_info",), unless="--elastic_training",
        why="one node cannot restart the whole job", hint="use bireme run"),
)
# fmt: on
NEEDS = (
    Needs("--json", "--dry_run", "add --dry_run"),
    Needs("--preempt_signal", "--checkpoint_signal", "add --checkpoint_signal SIG, which lets the ranks save"),
    Needs("--requeue", "--checkpoint_signal", "add --checkpoint_signal SIG, which lets the ranks save"),
    Needs("--ship_limit", "--ship", "add --ship"),
    Needs("--keep", "--preload", "add --preload torch"),
    Needs("--ship_also", "--ship", "add --ship"),
    Needs("--wrap_ranks", "--wrap", "add --wrap CMD"),
    Needs("--redirects", "--log_dir", "add --log_dir DIR"),
    Needs("--min_elastic_nodes", "--elastic_training", "add --elastic_training"),
    Needs("--max_elastic_nodes", "--elastic_training", "add --elastic_training"),
    Needs("--no_ssh", "--node_rank", "add --node_rank K, the number of this node"),
)


def refuse(used: Mapping[str, object], names: Mapping[str, str] = {}) -> None:
    """Refuse what cannot be used together.

    Args:
        used: the options in use with their values, as :func:`of_options` or :func:`of_job` returns them.
        names: what the user has typed instead of some of them.
    """
    for row in EXCLUDES:
        if (row.when and row.when not in used) or row.unless in used:
            continue
        for option in (found for use in row.options if (found := _found(use, used))):
            for other in (found for use in row.others if (found := _found(use, used))):
                why = f": {row.why}" if row.why else ""
                raise BadInputError(f"{names.get(option, option)} cannot be used with {other}{why}", hint=row.hint)
    stdin = str(used.get("--stdin", "all"))
    if stdin not in ("all", "none") and number_in(stdin) is None:
        raise BadInputError(f"must be the number of a rank, all or none, not {stdin!r}", where="--stdin")
    timeout = str(used.get("--hang_timeout", "auto"))
    if timeout not in ("auto", "off") and not seconds_of(timeout, "--hang_timeout"):
        raise BadInputError("must be above 0", hint="to turn it off, type off", where="--hang_timeout")
    if used.get("--on_hang") == "restart" and not {"--restarts", "--elastic_training"} & used.keys():
        raise BadInputError("--on_hang restart only works with --restarts", hint="add --restarts N")
    for need in NEEDS:
        if need.option in used and need.other not in used:
            raise BadInputError(f"{need.option} only works with {need.other}", hint=need.hint)


def _found(use: Use, used: Mapping[str, object]) -> str:
    """What messages call the option, if it is in use; "": it is not."""
    if isinstance(use, str):
        return use if use in used else ""
    value = used.get(use.option)
    return f"{use.option} {value}" if value in use.values else ""


def refuse_name(name: str) -> None:
    """Refuse a name for a job that cannot be one of a file or a process: it becomes a part of such names."""
    if name and (not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > _LONGEST_NAME):
        hint = f"use up to {_LONGEST_NAME} letters, digits, '.', '_' and '-'"
        raise BadInputError(f"not a name for a job: {name[:80]!r}", hint=hint, where="--job_name")


def refuse_signals(checkpoint: str, preempt: str) -> None:
    """Refuse values of ``--checkpoint_signal`` and ``--preempt_signal``."""
    for option, text in (("--checkpoint_signal", checkpoint), ("--preempt_signal", preempt)):
        name, at, seconds = text.partition("@")
        if text and signal.named(name) in (0, signal.SIGKILL, signal.SIGSTOP):
            raise BadInputError(f"not a signal that can be handled: {name!r}", hint="e.g. USR1", where=option)
        if at and (option == "--checkpoint_signal" or not seconds.isdecimal() or not int(seconds)):
            hint = "e.g. --preempt_signal USR1@120, which comes 120 s before the preemption"
            raise BadInputError(f"not a number of seconds: {seconds!r}", hint=hint, where=option)


def refuse_modules(words: tuple[str, ...]) -> None:
    """Refuse what cannot be the name of a module for ``--preload``."""
    for word in words:
        if not all(part.isidentifier() for part in word.split(".")) or word.endswith(".py"):
            hint = missing_value(word, "--preload", "MODULES") or "expected e.g. torch,deepspeed or auto"
            raise BadInputError(f"not the name of a module: {word[:80]!r}", hint=hint, where="--preload")


def refuse_without_pool(spec: JobSpec) -> None:
    """Refuse options that require a list of nodes if there is no list."""
    listed = "--hostfile or --hosts"
    if spec.num_nodes is not None and spec.num_nodes > 1:
        numbered = spec.node_rank is not None
        hint = f"type --master_addr ADDR, or name the others with {listed}" if numbered else ""
        what = f"{spec.num_nodes} nodes requested, but only this machine is known"
        raise BadInputError(what, hint=hint or f"name the others with {listed}", where="--num_nodes")
    for option, given in (("--no_ssh", spec.by_hand), ("--native_ranks", spec.native_ranks)):
        if given:
            raise BadInputError(f"{option} requires a list of nodes", hint=f"give it with {listed}")


def refuse_node_rank(spec: JobSpec, nodes: int) -> None:
    """Refuse ``--node_rank`` if one command starts all nodes: typed on each, it would start the whole job there."""
    if spec.node_rank not in (None, -1) and not spec.by_hand and (nodes > 1 or spec.node_rank != 0):
        hint = "one command starts all nodes; to run it on each node yourself, add --no_ssh"
        raise BadInputError("has an effect only with --no_ssh", hint=hint, where="--node_rank")


def of_options(options: Mapping[str, Any]) -> dict[str, object]:
    """The options in use on a command line with their values, given the parsed value of each by its key."""
    used: dict[str, object] = {}
    for row in OPTIONS:
        value = options.get(row.dest)
        if value in (None, "", (), row.default) or (not value and (row.kind == "flag" or row.least == 0)):
            continue
        used[row.name] = value
    if isinstance(options.get("num_nodes"), tuple):
        used[ELASTIC_RANGE] = used.pop("--num_nodes")
        used["--elastic_training"] = True
    return used


def of_job(spec: JobSpec) -> dict[str, object]:
    """The options that describe this job on a command line, with their values."""
    return {
        option.name: value
        for option, field in fields()
        for value in (getattr(spec, field),)
        if (value == option.sets if option.kind == "flag" else value != getattr(JobSpec, field))
    }
