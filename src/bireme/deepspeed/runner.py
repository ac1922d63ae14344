"""The public names of ``deepspeed.launcher.runner``: the command, and the helpers that programs import from it.

A filter that names an unknown host or slot raises ``ValueError`` with DeepSpeed's text, since programs look for it.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bireme.isolated import exit_quietly_on_interrupt, protect_path

    exit_quietly_on_interrupt()  # before anything else is imported
    protect_path()

import os
import subprocess  # noqa: F401 - programs that wrap DeepSpeed's runner look for its Popen here
import sys
from collections import OrderedDict

from bireme.cli.main import guarded
from bireme.cli.run import carry_out
from bireme.deepspeed.accelerator import get_accelerator
from bireme.deepspeed.arguments import namespace, parse_as_deepspeed, parsed_again
from bireme.deepspeed.constants import (
    IMPI_LAUNCHER,
    MPICH_LAUNCHER,
    MVAPICH_LAUNCHER,
    OPENMPI_LAUNCHER,
    PDSH_LAUNCHER,
    PDSH_MAX_FAN_OUT,
    SLURM_LAUNCHER,
    SSH_LAUNCHER,
)
from bireme.deepspeed.launch import logger
from bireme.deepspeed.multinode_runner import (
    IMPIRunner,
    MPICHRunner,
    MultiNodeRunner,
    MVAPICHRunner,
    OpenMPIRunner,
    PDSHRunner,
    SlurmRunner,
    SSHRunner,
)
from bireme.errors import BadInputError, BiremeError
from bireme.job import DEFAULT_PORT as TORCH_DISTRIBUTED_DEFAULT_PORT
from bireme.options import conflicts
from bireme.planning import environment, exports
from bireme.planning.world import encode_world_info
from bireme.resources import filters
from bireme.resources.allocation import find_allocation
from bireme.resources.hostfile import DEFAULT_HOSTFILE, parse_hostfile, read_hostfile, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Mapping, Sequence

    from bireme.cli.parser import Parsed
    from bireme.resources.hostfile import HostEntry

__all__ = [
    "DEEPSPEED_ENVIRONMENT_NAME",
    "DEEPSPEED_ENVIRONMENT_PATHS",
    "DLTS_HOSTFILE",
    "EXCLUDE_ENVS",
    "EXPORT_ENVS",
    "LAUNCHER_CLASSES",
    "PDSH_MAX_FAN_OUT",
    "TORCH_DISTRIBUTED_DEFAULT_PORT",
    "apply_num_nodes_and_gpus",
    "encode_world_info",
    "fetch_hostfile",
    "get_accelerator",
    "logger",
    "main",
    "parse_args",
    "parse_inclusion_exclusion",
    "parse_node_config",
    "parse_node_config_list",
    "parse_num_nodes",
    "parse_resource_filter",
    "run_autotuning",
]

DLTS_HOSTFILE = DEFAULT_HOSTFILE
"""The default hostfile."""

EXPORT_ENVS = list(exports.PREFIXES)
"""Variables whose names begin with one of these are exported. Read-only: changing the list has no effect."""

EXCLUDE_ENVS = {name: list(left_out) for name, left_out in exports.SET_BY_SITE.items()}
"""Where the variable is set, these are not exported. Read-only, too."""

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get(environment.DEEPSPEED_ENV_FILE_VARIABLE, environment.DEEPSPEED_ENV_FILE)
"""The file with further variables to export."""

DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]
"""The folders in which that file is searched."""

LAUNCHER_CLASSES: dict[str, type[MultiNodeRunner]] = {
    PDSH_LAUNCHER: PDSHRunner,
    OPENMPI_LAUNCHER: OpenMPIRunner,
    MPICH_LAUNCHER: MPICHRunner,
    IMPI_LAUNCHER: IMPIRunner,
    MVAPICH_LAUNCHER: MVAPICHRunner,
    SLURM_LAUNCHER: SlurmRunner,
    SSH_LAUNCHER: SSHRunner,
}
"""The class of each ``--launcher``."""


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """Parse the command line into a namespace, with ``user_script`` and ``user_args``; options may be abbreviated.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    return namespace("run", sys.argv[1:] if args is None else args, "user_script", "user_args")


def fetch_hostfile(hostfile_path: str) -> OrderedDict[str, int] | None:
    """Read a hostfile into ``host → number of slots``; None, and a warning, if there is no file.

    Raises:
        ValueError: a line is malformed or lacks ``slots=N``, a host is listed twice, or there are no hosts.
    """
    if not os.path.isfile(hostfile_path):
        logger.warning(f"no hostfile {hostfile_path}: using only this machine")
        return None
    return _numbers(parse_hostfile(read_text(hostfile_path), hostfile_path), hostfile_path)


def _parse_hostfile(hostfile_lines: Iterable[str]) -> OrderedDict[str, int]:
    """Parse the lines of a hostfile as :func:`fetch_hostfile` does."""
    text = "\n".join(line.rstrip("\r\n") for line in hostfile_lines)
    return _numbers(parse_hostfile(text, "hostfile"), "hostfile")


def _numbers(entries: Iterable[HostEntry], path: str) -> OrderedDict[str, int]:
    pool: OrderedDict[str, int] = OrderedDict()
    for entry in entries:
        if entry.slots is None:
            raise BadInputError(f"{entry.name} has no slots=N", where=f"{path}:{entry.line}")
        pool[f"{entry.user}@{entry.name}" if entry.user else entry.name] = entry.slots
    return pool


def parse_node_config(node_config: str) -> tuple[str, list[int]]:
    """Parse ``NODE[:SLOT,…]`` into (node, slots); no slots means all.

    Raises:
        ValueError: it cannot be read.
    """
    host, colon, slots = node_config.partition(":")
    return host, [int(slot) for slot in slots.split(",")] if colon else []


def parse_node_config_list(node_config_list: str) -> dict[str, list[int]]:
    """Parse ``NODE[:SLOT,…][@NODE…]`` into node → slots, sorted and without duplicates.

    Raises:
        ValueError: it cannot be read.
    """
    nodes: dict[str, set[int]] = {}
    for node in node_config_list.split("@"):
        host, slots = parse_node_config(node)
        nodes.setdefault(host, set()).update(slots)
    return {host: sorted(slots) for host, slots in nodes.items()}


def parse_num_nodes(str_num_nodes: str, elastic_training: bool) -> tuple[int, int]:
    """Parse ``N`` or ``MIN:MAX`` into (minimum, maximum); the maximum is -1 for ``N``.

    Raises:
        RuntimeError: it is neither, or it is a range and the job is not elastic.
    """
    least, colon, most = str_num_nodes.partition(":")
    if not colon:
        return int(least), -1
    if not elastic_training:
        raise RuntimeError("MIN:MAX is only for elastic training")
    if not (least.isdecimal() and most.isdecimal()):
        raise RuntimeError(f"num_nodes {str_num_nodes} is not MIN:MAX")
    return int(least), int(most)


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> Mapping[str, Sequence[int]]:
    """Filter ``host → slots`` by ``NODE[:SLOT,…][@NODE…]``; hosts keep their order, empty ones are dropped.

    As in DeepSpeed, ``a@a:0`` names slot 0 of ``a`` alone (under ``bireme run``, all its slots).

    Args:
        host_info: the slots of each host.
        include_str: keep only these; "": all.
        exclude_str: drop these; "": none.

    Raises:
        ValueError: both filters are given, a filter is malformed, or it names an unknown host or slot.
    """
    if not include_str and not exclude_str:
        return host_info
    if include_str and exclude_str:
        conflicts.refuse({"--include": include_str, "--exclude": exclude_str})
    named: dict[str, set[str]] = {}
    for node in filters.parse_filter(include_str or exclude_str):
        if node.host not in host_info:
            raise ValueError(f"Hostname '{node.host}' not found in hostfile")
        slots = {slot.lstrip("0") or "0" for slot in node.slots}
        for slot in slots.difference(map(str, host_info[node.host])):
            raise ValueError(f"No slot '{slot}' specified on host '{node.host}'")
        named.setdefault(node.host, set()).update(slots)
    left = OrderedDict()
    for host, there in host_info.items():
        mine = named.get(host)
        chosen = set() if mine is None else mine or set(map(str, there))
        if kept := [slot for slot in there if (str(slot) in chosen) == bool(include_str)]:
            left[host] = kept
    return left


def parse_inclusion_exclusion(
    resource_pool: Mapping[str, int], inclusion: str, exclusion: str
) -> Mapping[str, Sequence[int]]:
    """Filter ``host → number of slots``; otherwise as :func:`parse_resource_filter`.

    Args:
        resource_pool: the number of slots of each host.
        inclusion: keep only these; "": all.
        exclusion: drop these; "": none.

    Raises:
        ValueError: both filters are given, a filter is malformed, or it names an unknown host or slot.
    """
    active = OrderedDict((host, list(range(slots))) for host, slots in resource_pool.items())
    return parse_resource_filter(active, inclusion, exclusion)


def apply_num_nodes_and_gpus(
    active_resources: Mapping[str, Sequence[int]], num_nodes: int, num_gpus: int
) -> Mapping[str, Sequence[int]]:
    """Keep the first ``num_nodes`` hosts and the first ``num_gpus`` slots of each.

    Args:
        active_resources: the slots of each host.
        num_nodes: number of hosts; -1: all.
        num_gpus: number of slots on each; -1: all.

    Raises:
        ValueError: a number is larger than what there is.
    """
    pool = {host: tuple(map(str, slots)) for host, slots in active_resources.items()}
    left = filters.take(pool, num_nodes if num_nodes > 0 else None, num_gpus if num_gpus > 0 else None)
    return OrderedDict((host, [int(slot) for slot in slots]) for host, slots in left.items())


def run_autotuning(args: Namespace, active_resources: Mapping[str, Sequence[int]]) -> None:
    """Tune on these slots; with ``--autotuning run``, then run the job.

    Raises:
        SystemExit: with the exit code of ``bireme run --autotuning``, if it is not 0.
    """
    from bireme.cli import tune

    parsed = parsed_again(args)
    include = "@".join(
        str(filters.NodeFilter(host, tuple(map(str, slots)))) for host, slots in active_resources.items()
    )
    code, best = tune.study(parsed.replace(options={**parsed.options, "include": include, "exclude": ""}))
    if not code and parsed.options["autotuning"] == "run":
        code = carry_out(
            parse_as_deepspeed("run", best[2:])
        )  # in this process, because our caller continues afterwards
    if code:
        raise SystemExit(code)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line; return if the job succeeds. Its script gets ``--local_rank``.

    If the hostfile that ``--hostfile`` names does not exist, the job runs on this machine, as under DeepSpeed.

    Raises:
        ValueError: bad input; nothing was started. As in DeepSpeed that includes, with ``--launcher slurm``,
            filters that ``srun`` itself does not support, although ``bireme run`` does.
        SystemExit: with the job's exit code, if it is not 0.
    """
    code = carry_out(_as_reference(parse_as_deepspeed("run", sys.argv[1:] if args is None else args)))
    if code:
        raise SystemExit(code)


def _carry_out(words: Sequence[str]) -> int:
    """Run a command line; return the exit code."""
    parsed = parse_as_deepspeed("run", words)
    try:
        parsed = _as_reference(parsed)
    except BiremeError:
        raise
    except ValueError as error:
        raise BadInputError(str(error)) from None
    return carry_out(parsed)


def _as_reference(parsed: Parsed) -> Parsed:
    """The command line as DeepSpeed understands it, where ``bireme run`` understands it otherwise."""
    if parsed.options["help"]:
        return parsed
    path = parsed.options["hostfile"]
    if path and not parsed.options["hosts"] and not os.path.exists(path):
        logger.warning(
            f"no hostfile {path}: the job runs on THIS MACHINE ALONE\n  for many nodes: name an existing file"
        )
        here = {"hostfile": None, "hosts": "localhost", "master_addr": None}  # the address may be of another machine
        parsed = parsed.replace(options={**parsed.options, **here})
    _refuse_as_reference(parsed)
    return parsed


def _refuse_as_reference(parsed: Parsed) -> None:
    """Refuse what DeepSpeed refuses and the job itself would not, or would with another text."""
    options = parsed.options
    if options["hosts"] or options["accelerator"] != "auto":
        return
    filtered = bool(options["include"] or options["exclude"])
    numbered = options["num_nodes"] not in (None, -1, 1) or options["num_gpus"] not in (None, "-1")
    entries = read_hostfile(options["hostfile"])
    if entries is None:
        if not filtered and not numbered and find_allocation(os.environ) is None:
            _refuse_unknown_visible_devices()
        return
    if options["launcher"] == SLURM_LAUNCHER and all(entry.slots is not None for entry in entries):
        active = parse_inclusion_exclusion(_numbers(entries, ""), options["include"], options["exclude"])
        SlurmRunner.validate_active_resources(active)


def _refuse_unknown_visible_devices() -> None:
    """Refuse unknown devices in ``CUDA_VISIBLE_DEVICES=0,2`` as in a filter."""
    accelerator = get_accelerator()
    for variable in accelerator.visible_devices_envs()[:1]:
        visible = os.environ.get(variable, "")
        if visible and all(word.strip().isdecimal() for word in visible.split(",")):
            parse_inclusion_exclusion({"localhost": accelerator.device_count()}, f"localhost:{visible}", "")


if __name__ == "__main__":
    guarded(_carry_out, sys.argv[1:])
