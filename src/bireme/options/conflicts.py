"""Decides which options cannot be used together, and which need another one, for the command line and for Python.

`refuse` checks the options in use against the tables ``EXCLUDES`` and ``NEEDS``. An option in use is written as on the
command line: ``--fold``, ``--output raw`` (if a rule is about one value of a choice), ``--num_nodes MIN:MAX``.
"""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.job import OWN_NAMES, JobSpec
from bireme.options.table import GROUPS, fields
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

ELASTIC_RANGE = "--num_nodes MIN:MAX"
MIG = "MIG devices"
"""Not an option: it counts as one in use if the slots turn out to be MIG devices."""

_EITHER = "use one or the other"
_LAUNCHER_OWNS = "the launcher owns the ranks and their output"
_TORCH_STARTS = "PyTorch's elastic agent starts the ranks"


class Excludes(Value):
    """An option that cannot be used with any of ``others``.

    Attributes:
        option: the option.
        others: the options that it excludes.
        why: the reason, for the message; "": the message gives none.
        hint: what to type instead.
        when: the rule applies only if this option is in use too; "": always.
        unless: the rule does not apply if this option is in use; "": always.
    """

    option: str
    others: tuple[str, ...]
    why: str = ""
    hint: str = _EITHER
    when: str = ""
    unless: str = ""


class Needs(Value):
    """An option that has an effect only with ``other``; ``hint``: what to type instead."""

    option: str
    other: str
    hint: str


EXCLUDES = (
    Excludes("--include", ("--exclude",)),
    Excludes("--num_gpus", ("--include", "--exclude"), unless="--autotuning"),
    Excludes("--num_nodes", ("--include", "--exclude"), unless="--autotuning"),
    Excludes("--module", ("--no_python",)),
    Excludes("--no_local_rank", ("--local_rank_arg",)),
    Excludes("--rdzv_endpoint", ("--master_addr", "--master_port")),
    Excludes("--standalone", ("--hosts", "--hostfile", "--no_ssh")),
    Excludes("--numa_binding", ("--bind_cores_to_rank", "--bind_core_list")),
    Excludes("--num_processes", ("--num_gpus",)),
    Excludes("--gpu_ids", ("--include", "--exclude", "--num_gpus")),
    Excludes("--log_dir", ("--enable_each_rank_log",)),
    Excludes("--fold", ("--output raw", "--output rank0", "--output none"), why="only labelled lines are folded"),
    Excludes("--num_nodes", ("--max_elastic_nodes",)),
    Excludes(ELASTIC_RANGE, ("--min_elastic_nodes", "--max_elastic_nodes")),
    Excludes("--autotuning", ("--elastic_training",), hint="tune first, without --elastic_training"),
    Excludes("--autotuning", ("--no_ssh",), hint="leave out --no_ssh: the tuner starts the trials on all nodes"),
    Excludes("--autotuning", ("--dry_run",), hint="see a single job: bireme run --dry_run"),
    Excludes("--autotuning", ("--json",), hint="see a study: bireme tune status --json DIR"),
    Excludes("--ssh_port", tuple(f"--launcher {name}" for name in OWN_NAMES), hint="leave it out: ssh is not used"),
    *(
        Excludes(option, ("--native_ranks",), hint="leave out --native_ranks: the launcher cannot restart its ranks")
        for option in ("--elastic_training", "--restarts")
    ),
    *(
        Excludes(option, ("--native_ranks",), why=_LAUNCHER_OWNS)
        for option in (
            *("--fold", "--log_dir", "--enable_each_rank_log", "--bind_cores_to_rank", "--bind_core_list"),
            *("--wrap_ranks", "--save_pid", "--timestamps", "--output prefix", "--output rank0", "--output none"),
        )
    ),
    *(
        Excludes(
            option=option,
            others=("--no_ssh",),
            why=_TORCH_STARTS,
            hint="leave out --no_ssh, or the option",
            when="--elastic_training",
        )
        for option in (
            *("--wrap", "--bind_cores_to_rank", "--bind_core_list", "--local_rank_arg", "--enable_each_rank_log"),
            *("--log_dir", "--output rank0", MIG),
        )
    ),
    Excludes(
        "--ship", ("--native_ranks",), why="no agent takes the files", hint="copy the files to the nodes yourself"
    ),
    Excludes("--ship", ("--no_ssh",), why="no agent takes the files", hint="copy the files to the nodes yourself"),
    Excludes("--ship", ("--autotuning",), hint="tune first, in a folder that the nodes share"),
    Excludes(
        option="--restarts",
        others=("--world_info",),
        why="one node cannot restart the whole job",
        hint="use bireme run",
        unless="--elastic_training",
    ),
)
NEEDS = (
    Needs("--json", "--dry_run", "add --dry_run"),
    Needs("--ship_limit", "--ship", "add --ship"),
    Needs("--wrap_ranks", "--wrap", "add --wrap CMD"),
    Needs("--redirects", "--log_dir", "add --log_dir DIR"),
    Needs("--min_elastic_nodes", "--elastic_training", "add --elastic_training"),
    Needs("--max_elastic_nodes", "--elastic_training", "add --elastic_training"),
    Needs("--no_ssh", "--node_rank", "add --node_rank K, the number of this node"),
)


def refuse(used: Collection[str], names: Mapping[str, str] = {}) -> None:
    """Refuse what cannot be used together.

    Args:
        used: the options in use, as :func:`of_options` or :func:`of_job` returns them.
        names: what the user has typed instead of some of them.

    Raises:
        BadInputError: two of them exclude each other, or one lacks what it needs.
    """
    for row in EXCLUDES:
        if row.option in used and (not row.when or row.when in used) and row.unless not in used:
            for other in row.others:
                if other in used:
                    why = f": {row.why}" if row.why else ""
                    name = names.get(row.option, row.option)
                    raise BadInputError(f"{name} cannot be used with {other}{why}", hint=row.hint)
    for need in NEEDS:
        if need.option in used and need.other not in used:
            raise BadInputError(f"{need.option} only works with {need.other}", hint=need.hint)


def refuse_without_pool(spec: JobSpec) -> None:
    """Refuse options that require a list of nodes if there is no list.

    Raises:
        BadInputError: the job needs other nodes than this machine.
    """
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
    """Refuse ``--node_rank`` if one command starts all nodes: typed on each node, it would start the whole job on each.

    Args:
        spec: the job.
        nodes: how many nodes the pool has.

    Raises:
        BadInputError: the option was given without ``--no_ssh``.
    """
    if spec.node_rank not in (None, -1) and not spec.by_hand and (nodes > 1 or spec.node_rank != 0):
        hint = "one command starts all nodes; to run it on each node yourself, add --no_ssh"
        raise BadInputError("has an effect only with --no_ssh", hint=hint, where="--node_rank")


def of_options(options: Mapping[str, Any]) -> set[str]:
    """The options in use on a command line, given the parsed value of each by its key."""
    used = set()
    for row in (row for rows in GROUPS.values() for row in rows):
        value = options.get(row.dest)
        if value in (None, "", (), row.default) or (not value and (row.kind == "flag" or row.least == 0)):
            continue
        used.add(row.name)
        if row.kind == "choice":
            used.add(f"{row.name} {value}")
    if isinstance(options.get("num_nodes"), tuple):
        used -= {"--num_nodes"}
        used |= {"--elastic_training", ELASTIC_RANGE}
    return used


def of_job(spec: JobSpec) -> set[str]:
    """The options that describe this job on a command line."""
    used = set()
    for option, field in fields():
        value = getattr(spec, field)
        if option.kind == "flag":
            if value == option.sets:
                used.add(option.name)
        elif value != getattr(JobSpec, field):
            used.add(option.name)
            if option.kind == "choice":
                used.add(f"{option.name} {value}")
    return used
