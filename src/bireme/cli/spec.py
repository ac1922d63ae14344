"""Makes the job from the parsed options, and refuses options that cannot be used together."""

from __future__ import annotations

from bireme.cli.options import NODES, whole
from bireme.errors import BadInputError
from bireme.job import (
    DEFAULT_ELASTIC_INTERVAL,
    DEFAULT_ELASTIC_RESTARTS,
    DEFAULT_ELASTIC_TIMEOUT,
    DEFAULT_RESTART_WINDOW,
    JobSpec,
    Program,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bireme.cli.options import Parsed


_MOST_RANKS = 1_000_000

_ABSENT: dict[str, Any] = {
    "include": "",
    "exclude": "",
    "num_gpus": None,
    "rdzv_endpoint": None,
    "log_dir": None,
    "restart_window": DEFAULT_RESTART_WINDOW,
    "elastic_timeout": DEFAULT_ELASTIC_TIMEOUT,
    "elastic_interval": DEFAULT_ELASTIC_INTERVAL,
    **{option.dest: option.default for option in NODES},
    "export": (),
}
"""Values of the options that ``python -m bireme.agent`` does not have."""


def job_spec(parsed: Parsed) -> JobSpec:
    """The job that a command line describes.

    Raises:
        BadInputError: a value is invalid, options cannot be used together, or no script is given.
    """
    options = {**_ABSENT, **parsed.options}
    program = _program(parsed)
    num_gpus, accelerator = _slots(options)
    if num_gpus is not None and (options["include"] or options["exclude"]):
        raise BadInputError("--num_gpus cannot be used with --include or --exclude", hint="use one or the other")
    addr, port = _endpoint(options)
    elastic, min_nodes, max_nodes = _elastic(options)
    return JobSpec(
        program,
        include=options["include"],
        exclude=options["exclude"],
        num_gpus=num_gpus,
        accelerator=accelerator,
        master_addr=addr,
        master_port=port,
        local_rank_arg=_local_rank(options),
        save_pid=bool(options["save_pid"]),
        rank_log_dir=_log_dir(options["enable_each_rank_log"]),
        bind_cores=options["bind_cores_to_rank"],
        bind_core_list=options["bind_core_list"],
        venv_script=options["venv_script"],
        grace=options["grace"],
        time_limit=options["time_limit"],
        output=options["output"],
        timestamps=options["timestamps"],
        fold=options["fold"],
        wrap=_wrap(options),
        wrap_ranks=_ranks(options["wrap_ranks"]),
        log_level="error" if options["quiet"] else options["log_level"],
        hosts=options["hosts"],
        hostfile=options["hostfile"],
        num_nodes=None if elastic else _num_nodes(options),
        launcher=options["launcher"],
        launcher_args=_words(options["launcher_args"], "--launcher_args"),
        ssh_port=options["ssh_port"],
        preflight=not options["no_ssh_check"],
        force_multi=bool(options["force_multi"]),
        native_ranks=bool(options["native_ranks"]),
        by_hand=bool(options["no_ssh"]),
        node_rank=options["node_rank"],
        exports=options["export"],
        log_dir=options["log_dir"],
        heartbeat=_heartbeat(options["heartbeat"]),
        restarts=_restarts(options, elastic),
        restart_window=_restart_window(options["restart_window"]),
        elastic=elastic,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        elastic_timeout=options["elastic_timeout"],
        elastic_interval=max(options["elastic_interval"], 0.1),
    )


def _elastic(options: dict[str, Any]) -> tuple[bool, int, int | None]:
    """(whether the job is elastic, its minimum and its maximum number of nodes)."""
    least, most = (_bound(options, name) for name in ("min_elastic_nodes", "max_elastic_nodes"))
    ranged = isinstance(options["num_nodes"], tuple)
    if not (options["elastic_training"] or ranged):
        for name, bound in (("min", least), ("max", most)):
            if bound is not None:
                where = f"--{name}_elastic_nodes"
                raise BadInputError("only for elastic training", hint="add --elastic_training", where=where)
        return False, 1, None
    if options["native_ranks"]:
        what = "--elastic_training cannot be used with --native_ranks"
        raise BadInputError(what, hint="leave out --native_ranks: the launcher cannot restart its ranks")
    if ranged:
        if least is not None or most is not None:
            what = "MIN:MAX cannot be used with --min_elastic_nodes or --max_elastic_nodes"
            raise BadInputError(what, hint="use one or the other", where="--num_nodes")
        least, most = options["num_nodes"]
    elif _num_nodes(options) is not None:
        if most is not None:
            raise BadInputError("--num_nodes cannot be used with --max_elastic_nodes", hint="use one or the other")
        most = _num_nodes(options)
    least = 1 if least is None else least
    if least < 1 or (most is not None and most < least):
        what = f"not a range of nodes: {least} to {'any number' if most is None else most}"
        raise BadInputError(
            what, hint="expected 1 <= MIN <= MAX", where="--num_nodes" if ranged else "--min_elastic_nodes"
        )
    return True, least, most


def _bound(options: dict[str, Any], name: str) -> int | None:
    number = options[name]
    return None if number in (None, -1) else int(number)  # -1 is DeepSpeed's default


def _restarts(options: dict[str, Any], elastic: bool) -> int:
    given = options["restarts"]
    if given is None:
        return DEFAULT_ELASTIC_RESTARTS if elastic else 0
    number = int(given)
    if number < 0:
        raise BadInputError(f"must be at least 0, not {number}", where="--restarts")
    if number and options["native_ranks"]:
        raise BadInputError(
            "--restarts cannot be used with --native_ranks", hint="the launcher cannot restart its ranks"
        )
    return number


def nodes_spec(parsed: Parsed) -> JobSpec:
    """The job that ``bireme check`` checks: the nodes, and the program if one is given."""
    options = {**_ABSENT, **parsed.options}
    num_gpus, accelerator = _slots(options)
    target, *args = parsed.command or ("",)
    return JobSpec(
        Program(target, tuple(args)),
        include=options["include"],
        exclude=options["exclude"],
        num_gpus=num_gpus,
        accelerator=accelerator,
        venv_script=options["venv_script"],
        hosts=options["hosts"],
        hostfile=options["hostfile"],
        num_nodes=_num_nodes(options),
        launcher=options["launcher"],
        launcher_args=_words(options["launcher_args"], "--launcher_args"),
        ssh_port=options["ssh_port"],
        exports=options["export"],
        heartbeat=_heartbeat(options["heartbeat"]),
    )


def tuning_width(options: dict[str, Any]) -> tuple[int | None, int | None]:
    """(nodes, slots per node) of an experiment, as given by ``--num_nodes`` and ``--num_gpus``; ``None``: not given.

    Raises:
        BadInputError: a number is malformed or too small.
    """
    return _nodes(options), _slots(options)[0]


def _num_nodes(options: dict[str, Any]) -> int | None:
    number = _nodes(options)
    if number is not None and (options["include"] or options["exclude"]):
        raise BadInputError("--num_nodes cannot be used with --include or --exclude", hint="use one or the other")
    return number


def _nodes(options: dict[str, Any]) -> int | None:
    number = options["num_nodes"]
    if isinstance(number, tuple):
        raise BadInputError("a range is only for elastic training with bireme run", where="--num_nodes")
    if number in (None, -1):  # -1 is DeepSpeed's default
        return None
    if number < 1:
        raise BadInputError(f"must be at least 1, not {number}", where="--num_nodes")
    return int(number)


def _restart_window(seconds: float) -> float:
    if seconds == 0:
        what = "0 would let a failing job restart forever"
        raise BadInputError(
            what, hint="give the number of seconds after which a run counts as healthy", where="--restart_window"
        )
    return seconds


def _heartbeat(seconds: float) -> float:
    if not 0.5 <= seconds <= 3600:
        raise BadInputError(f"must be between 0.5 and 3600 seconds, not {seconds:g}", where="--heartbeat")
    return seconds


def _words(text: str, where: str) -> tuple[str, ...]:
    if not text:
        return ()
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise BadInputError(f"{text!r}: {error}", where=where) from None


def _program(parsed: Parsed) -> Program:
    if not parsed.command:
        raise BadInputError("no script given", hint="put it after the options and before its own arguments")
    if parsed.options["module"] and parsed.options["no_python"]:
        raise BadInputError("--module and --no_python cannot be used together", hint="use one or the other")
    target, *args = parsed.command
    if not target:
        raise BadInputError("the name of the script is empty")
    if parsed.options["module"]:
        return Program(target, tuple(args), "module")
    return Program(target, tuple(args), "exec" if parsed.options["no_python"] else "script")


def _slots(options: dict[str, Any]) -> tuple[int | None, str]:
    """(slots per node, accelerator). The words of torchrun, ``gpu``, ``cpu`` and ``auto``, mean all of the kind."""
    text, accelerator = options["num_gpus"], options["accelerator"]
    if text in (None, "-1", "auto", "gpu"):  # -1 is DeepSpeed's default
        return None, accelerator
    if text == "cpu":
        import os

        return os.cpu_count() or 1, "cpu"
    number = whole(text, "--num_gpus")
    if number < 1:
        raise BadInputError(f"must be at least 1, not {number}", where="--num_gpus")
    return number, accelerator


def _endpoint(options: dict[str, Any]) -> tuple[str | None, int | None]:
    addr, port = options["master_addr"], options["master_port"]
    endpoint = options["rdzv_endpoint"]
    if endpoint:
        if addr or port:
            raise BadInputError(
                "--rdzv_endpoint cannot be used with --master_addr or --master_port", hint="use one or the other"
            )
        addr, port = _split_endpoint(endpoint)
    where = "--rdzv_endpoint" if endpoint else "--master_addr"
    if addr == "":
        raise BadInputError("the address is empty", where=where)
    if port is not None and not 1 <= port <= 65535:
        where = where if endpoint else "--master_port"
        raise BadInputError(f"not a port: {port} (expected 1 to 65535)", where=where)
    return addr, port


def _split_endpoint(endpoint: str) -> tuple[str, int | None]:
    """``ADDR``, ``ADDR:PORT`` or ``[IPV6]:PORT``; port 0 lets Bireme choose a port, as torchrun does."""
    where = "--rdzv_endpoint"
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
    return addr, (whole(text, where) or None) if text else None


def _local_rank(options: dict[str, Any]) -> Any:
    if options["no_local_rank"] and options["local_rank_arg"]:
        raise BadInputError("--no_local_rank and --local_rank_arg cannot be used together", hint="use one or the other")
    if options["no_local_rank"]:
        return "never"
    return "always" if options["local_rank_arg"] else "auto"


def _log_dir(text: str | None) -> str | None:
    return None if text in (None, "None") else text  # "None" is DeepSpeed's default


def _wrap(options: dict[str, Any]) -> tuple[str, ...]:
    if not options["wrap"]:
        if options["wrap_ranks"]:
            raise BadInputError("--wrap_ranks only works with --wrap", hint="add --wrap CMD")
        return ()
    return _words(options["wrap"], "--wrap")


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
