"""The names of ``deepspeed.launcher.runner``: the command, and the helpers that others import from it.

What a filter names and the pool lacks is a ``ValueError`` in DeepSpeed's words, since programs look for them.
"""

from __future__ import annotations

import os
import subprocess  # noqa: F401 - programs that wrap DeepSpeed's runner look for its Popen here
import sys
from collections import OrderedDict

from bireme.cli.run import carry_out
from bireme.deepspeed.accelerator import get_accelerator
from bireme.deepspeed.arguments import parse_runner, parsed_again, runner_namespace
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
from bireme.errors import BadInputError
from bireme.logs.console import complain
from bireme.planning import exports
from bireme.planning.world import encode_world_info
from bireme.resources import filters
from bireme.resources.allocation import find_allocation
from bireme.resources.hostfile import DEFAULT_HOSTFILE, parse_hostfile, read_hostfile, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Mapping, Sequence

    from bireme.cli.options import Parsed
    from bireme.resources.hostfile import HostEntry

__all__ = [
    "DEEPSPEED_ENVIRONMENT_NAME",
    "DEEPSPEED_ENVIRONMENT_PATHS",
    "DLTS_HOSTFILE",
    "EXPORT_ENVS",
    "LAUNCHER_CLASSES",
    "PDSH_MAX_FAN_OUT",
    "apply_num_nodes_and_gpus",
    "encode_world_info",
    "fetch_hostfile",
    "get_accelerator",
    "main",
    "parse_args",
    "parse_inclusion_exclusion",
    "parse_node_config",
    "parse_node_config_list",
    "parse_resource_filter",
    "run_autotuning",
]

DLTS_HOSTFILE = DEFAULT_HOSTFILE
"""Where a hostfile is looked for that nobody has named."""

EXPORT_ENVS = list(exports.PREFIXES)
"""A variable travels when its name begins with one of these. To be read: changing it changes nothing."""

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get(exports.REFERENCE_ENV_FILE_VARIABLE, exports.REFERENCE_ENV_FILE)
"""The file with further variables that travel."""

DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]
"""Where that file is looked for."""

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
    """The command line as a namespace, with ``user_script`` and ``user_args``; options may be shortened.

    Raises:
        SystemExit: with code 2, for a command line that cannot be read; with 0 for ``--help``.
    """
    return runner_namespace(sys.argv[1:] if args is None else args)


def fetch_hostfile(hostfile_path: str) -> OrderedDict[str, int] | None:
    """The pool of a hostfile, ``host → number of slots``; ``None``, and a word on stderr, where there is no file.

    Raises:
        ValueError: as :func:`_parse_hostfile`.
    """
    if not os.path.isfile(hostfile_path):
        complain(f"there is no hostfile {hostfile_path}: only this machine is used")
        return None
    return _numbers(parse_hostfile(read_text(hostfile_path), hostfile_path), hostfile_path)


def _parse_hostfile(hostfile_lines: Iterable[str]) -> OrderedDict[str, int]:
    """The pool that the lines of a hostfile declare.

    Raises:
        ValueError: a line is malformed or has no number of slots, a host stands there twice, or there is none.
    """
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
    """``NODE[:SLOT,…]`` as (node, slots); no slots stand for all.

    Raises:
        ValueError: it cannot be read.
    """
    host, colon, slots = node_config.partition(":")
    return host, [int(slot) for slot in slots.split(",")] if colon else []


def parse_node_config_list(node_config_list: str) -> dict[str, list[int]]:
    """``NODE[:SLOT,…][@NODE…]`` as node → slots, sorted, each once.

    Raises:
        ValueError: it cannot be read.
    """
    nodes: dict[str, set[int]] = {}
    for node in node_config_list.split("@"):
        host, slots = parse_node_config(node)
        nodes.setdefault(host, set()).update(slots)
    return {host: sorted(slots) for host, slots in nodes.items()}


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> Mapping[str, Sequence[int]]:
    """Filter ``host → slots`` by ``NODE[:SLOT,…][@NODE…]``; hosts keep their order, those left empty are dropped.

    As in DeepSpeed, ``a@a:0`` names slot 0 of ``a`` alone (under ``bireme run``, all its slots).

    Raises:
        ValueError: both filters are given, one cannot be read, or it names what is not there.
    """
    if not include_str and not exclude_str:
        return host_info
    if include_str and exclude_str:
        raise BadInputError("--include and --exclude cannot be given together")
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
    """The same, from ``host → number of slots``.

    Raises:
        ValueError: as :func:`parse_resource_filter`.
    """
    active = OrderedDict((host, list(range(slots))) for host, slots in resource_pool.items())
    return parse_resource_filter(active, inclusion, exclusion)


def apply_num_nodes_and_gpus(
    active_resources: Mapping[str, Sequence[int]], num_nodes: int, num_gpus: int
) -> Mapping[str, Sequence[int]]:
    """The first ``num_nodes`` hosts and the first ``num_gpus`` slots of each; all where the number is -1.

    Raises:
        ValueError: a number is more than there are.
    """
    pool = {host: tuple(map(str, slots)) for host, slots in active_resources.items()}
    left = filters.take(pool, num_nodes if num_nodes > 0 else None, num_gpus if num_gpus > 0 else None)
    return OrderedDict((host, [int(slot) for slot in slots]) for host, slots in left.items())


def run_autotuning(args: Namespace, active_resources: Mapping[str, Sequence[int]]) -> None:
    """Tune on these slots; with ``--autotuning run``, then run the job.

    Raises:
        SystemExit: with the exit code of ``bireme run --autotuning``, when it is not 0.
    """
    from bireme.cli import tune

    parsed = parsed_again(args)
    include = "@".join(
        str(filters.NodeFilter(host, tuple(map(str, slots)))) for host, slots in active_resources.items()
    )
    code, best = tune.study(parsed.replace(options={**parsed.options, "include": include, "exclude": ""}))
    if not code and parsed.options["autotuning"] == "run":
        code = carry_out(parse_runner(best[2:]))  # in this process: our caller goes on behind it
    if code:
        raise SystemExit(code)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line; return when the job has ended well.

    Raises:
        ValueError: bad input; nothing was started. As in DeepSpeed that includes, with ``--launcher slurm``,
            filters that ``srun`` itself could not carry out, although ``bireme run`` can.
        SystemExit: with the job's exit code, when it is not 0.
    """
    parsed = parse_runner(sys.argv[1:] if args is None else args)
    if not parsed.options["help"]:
        _refuse_as_reference(parsed)
    code = carry_out(parsed)
    if code:
        raise SystemExit(code)


def _refuse_as_reference(parsed: Parsed) -> None:
    """What the job's own run would not refuse, or would in other words."""
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
    """A list such as ``CUDA_VISIBLE_DEVICES=0,2`` names devices of this machine, as a filter does."""
    accelerator = get_accelerator()
    for variable in accelerator.visible_devices_envs()[:1]:
        visible = os.environ.get(variable, "")
        if visible and all(word.strip().isdecimal() for word in visible.split(",")):
            parse_inclusion_exclusion({"localhost": accelerator.device_count()}, f"localhost:{visible}", "")
