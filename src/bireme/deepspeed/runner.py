"""The names of ``deepspeed.launcher.runner``: the command, and the helpers that others import from it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import OrderedDict

from bireme.cli.options import RUN, parse
from bireme.cli.run import carry_out
from bireme.errors import BadInputError
from bireme.plan.world import encode_world_info
from bireme.resources.filters import apply_filters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["encode_world_info", "main", "parse_args", "parse_inclusion_exclusion", "parse_resource_filter"]

# What an option that was not given is there, where it is not what it is here.
_DEFAULTS = {"num_gpus": -1, "master_addr": "", "master_port": 29500, "enable_each_rank_log": "None"}


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """The command line as a namespace, with ``user_script`` and ``user_args``.

    Raises:
        SystemExit: with code 2, for a command line that cannot be read.
    """
    try:
        parsed = parse(RUN, sys.argv[1:] if args is None else args)
        if not parsed.command:
            raise BadInputError("no script is named")
    except BadInputError as error:
        sys.stderr.write(f"bireme: {error}\n")
        raise SystemExit(error.code) from None
    options = dict(parsed.options)
    if options["num_gpus"] is not None and options["num_gpus"].removeprefix("-").isdecimal():
        options["num_gpus"] = int(options["num_gpus"])
    options.update({name: value for name, value in _DEFAULTS.items() if options[name] is None})
    return Namespace(**options, user_script=parsed.command[0], user_args=list(parsed.command[1:]))


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> Mapping[str, Sequence[int]]:
    """Filter ``host → slots`` by ``NODE[:SLOT,…][@NODE…]``; hosts keep their order, those left empty are dropped.

    Raises:
        ValueError: both filters are given, one cannot be read, or it names what is not there.
    """
    if not include_str and not exclude_str:
        return host_info
    pool = {host: tuple(map(str, slots)) for host, slots in host_info.items()}
    left = apply_filters(pool, include_str, exclude_str, may_be_empty=True)
    return OrderedDict((host, [int(slot) for slot in slots]) for host, slots in left.items())


def parse_inclusion_exclusion(
    resource_pool: Mapping[str, int], inclusion: str, exclusion: str
) -> Mapping[str, Sequence[int]]:
    """The same, from ``host → number of slots``.

    Raises:
        ValueError: as :func:`parse_resource_filter`.
    """
    active = OrderedDict((host, list(range(slots))) for host, slots in resource_pool.items())
    return parse_resource_filter(active, inclusion, exclusion)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line; return when the job has ended well.

    Raises:
        ValueError: bad input; nothing was started.
        SystemExit: with the job's exit code, when it is not 0.
    """
    code = carry_out(parse(RUN, sys.argv[1:] if args is None else args))
    if code:
        raise SystemExit(code)
