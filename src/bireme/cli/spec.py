"""Makes the job from the parsed options."""

from __future__ import annotations

from bireme.cli.parser import whole
from bireme.errors import BadInputError
from bireme.job import DEFAULT_ELASTIC_RESTARTS, JobSpec, Program
from bireme.options import conflicts
from bireme.options.table import GROUPS, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.cli.parser import Parsed


_MOST_RANKS = 1_000_000


def job_spec(parsed: Parsed) -> JobSpec:
    """The job that a command line describes.

    Raises:
        BadInputError: a value is invalid, options cannot be used together, or no script is given.
    """
    options = parsed.options
    program = _program(parsed)
    conflicts.refuse(conflicts.of_options(options))
    return JobSpec(program, **{**_fields(options), **_elastic(options)})


def nodes_spec(parsed: Parsed) -> JobSpec:
    """The job that ``bireme check`` checks: the nodes, and the program if one is given.

    Raises:
        BadInputError: a value is invalid, or options cannot be used together.
    """
    _number(parsed.options)
    conflicts.refuse(conflicts.of_options(parsed.options))
    target, *args = parsed.command or ("",)
    return JobSpec(Program(target, tuple(args)), **_fields(parsed.options))


def tuning_width(options: dict[str, Any]) -> tuple[int | None, int | None]:
    """(nodes, slots per node) of an experiment, as given by ``--num_nodes`` and ``--num_gpus``; ``None``: not given.

    Raises:
        BadInputError: ``--num_nodes`` is a range.
    """
    return _number(options), _slots(options).get("num_gpus")


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the job that options set; the others keep their defaults."""
    found: dict[str, Any] = {}
    for option, field in fields(GROUPS):
        value = options.get(option.dest)
        if option.kind == "flag":
            if value:
                found[field] = option.sets
        elif value is not None:
            found[field] = value
    found.update(_slots(options))
    found.update(_address(options))
    for name in ("wrap", "launcher_args"):
        found[name] = _words(options.get(name, ""), f"--{name}")
    found["wrap_ranks"] = _ranks(options.get("wrap_ranks", ""))
    found["save_pid"] = bool(options.get("save_pid"))
    return found


def _elastic(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the job that differ in elastic training."""
    number = options.get("num_nodes")
    if isinstance(number, tuple):
        least, most = number
    elif options["elastic_training"]:
        least, most = options["min_elastic_nodes"], options["max_elastic_nodes"] or number
    else:
        return {}
    least = 1 if least is None else least
    if least < 1 or (most is not None and most < least):
        raise BadInputError(
            f"not a range of nodes: {least} to {'any number' if most is None else most}",
            hint="expected 1 <= MIN <= MAX",
            where="--min_elastic_nodes" if options["elastic_training"] else "--num_nodes",
        )
    restarts = DEFAULT_ELASTIC_RESTARTS if options["restarts"] is None else options["restarts"]
    return {"elastic": True, "min_nodes": least, "max_nodes": most, "num_nodes": None, "restarts": restarts}


def _number(options: dict[str, Any]) -> int | None:
    """``--num_nodes`` where it cannot be a range."""
    number: int | tuple[int, int] | None = options["num_nodes"]
    if isinstance(number, tuple):
        raise BadInputError("a range is only for elastic training with bireme run", where="--num_nodes")
    return number


def _program(parsed: Parsed) -> Program:
    if not parsed.command:
        raise BadInputError("no script given", hint="put it after the options and before its own arguments")
    target, *args = parsed.command
    if not target:
        raise BadInputError("the name of the script is empty")
    if parsed.options["module"]:
        return Program(target, tuple(args), "module")
    return Program(target, tuple(args), "exec" if parsed.options["no_python"] else "script")


def _slots(options: dict[str, Any]) -> dict[str, Any]:
    """Slots per node, and the accelerator where torchrun's word ``cpu`` chooses both."""
    number = options.get("num_gpus")
    if number != "cpu":
        return {"num_gpus": number}
    import os

    return {"num_gpus": os.cpu_count() or 1, "accelerator": "cpu"}


def _address(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``--rdzv_endpoint``: ``ADDR``, ``ADDR:PORT`` or ``[IPV6]:PORT``; port 0 is chosen by Bireme."""
    endpoint, where = options.get("rdzv_endpoint"), "--rdzv_endpoint"
    if not endpoint:
        return {}
    if endpoint.startswith("["):
        addr, bracket, rest = endpoint[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadInputError(
                f"not an address and a port: {endpoint!r}", hint="expected e.g. [fe80::1]:29500", where=where
            )
        text = rest[1:]
    elif endpoint.count(":") > 1:
        raise BadInputError(f"an IPv6 address needs brackets: {endpoint!r}", hint=f"write [{endpoint}]", where=where)
    else:
        addr, _, text = endpoint.partition(":")
    port = (whole(text, where) or None) if text else None
    if not addr:
        raise BadInputError("the address is empty", where=where)
    if port is not None and not 1 <= port <= 65535:
        raise BadInputError(f"not a port: {port} (expected 1 to 65535)", where=where)
    return {"master_addr": addr, "master_port": port}


def _words(text: str, where: str) -> tuple[str, ...]:
    if not text:
        return ()
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise BadInputError(f"{text!r}: {error}", where=where) from None


def _ranks(text: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for word in text.split(",") if text else ():
        first, dash, last = word.strip().partition("-")
        low = whole(first, "--wrap_ranks")
        high = whole(last, "--wrap_ranks") if dash else low
        if not 0 <= low <= high <= _MOST_RANKS:
            raise BadInputError(f"not a list of ranks: {word!r} (expected e.g. 0,3-5)", where="--wrap_ranks")
        ranks += range(low, high + 1)
    return tuple(ranks)
