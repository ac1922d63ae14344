"""Makes the job from the parsed options, and refuses to make it once for each task of ``srun`` or ``mpirun``."""

from __future__ import annotations

import os

from bireme.errors import BAD_INPUT, BadInputError
from bireme.job import DEFAULT_ELASTIC_RESTARTS, JobSpec, Program
from bireme.options import conflicts
from bireme.options.option import whole
from bireme.options.table import GROUPS, TORCHRUN, fields, uses_accelerate
from bireme.resources.own_task import find_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from bireme.cli.parser import Parsed


_MOST_RANKS = 1_000_000


def job_spec(parsed: Parsed) -> JobSpec:
    """The job that a command line describes."""
    options = parsed.options
    program = _program(parsed)
    conflicts.refuse_name(options["job_name"])
    conflicts.refuse_signals(options.get("checkpoint_signal", ""), options.get("preempt_signal", ""))
    conflicts.refuse_modules(_modules(options))
    conflicts.refuse(conflicts.of_options(options))
    return JobSpec(program=program, **{**_fields(options), **_elastic(options)})


def nodes_spec(parsed: Parsed) -> JobSpec:
    """The job that ``bireme check`` checks: the nodes, and the program if one is given."""
    _number(parsed.options)
    conflicts.refuse(conflicts.of_options(parsed.options))
    target, *args = parsed.command or ("",)
    return JobSpec(program=Program(target, tuple(args)), **_fields(parsed.options))


def tuning_width(options: dict[str, Any]) -> tuple[int | None, int | None]:
    """(nodes, slots per node) of an experiment, as given by ``--num_nodes`` and ``--num_gpus``; ``None``: not given."""
    return _number(options), _slots(options).get("num_gpus")


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of the job that options set; the others keep their defaults."""
    found: dict[str, Any] = {}
    for option, field in fields():
        value = options.get(option.dest)
        if option.kind == "flag":
            if value:
                found[field] = option.sets
        elif value is not None:
            found[field] = value
    found.update(_address(options))
    found.update(_slots(options))
    found.update(_as_other_launchers(options))
    if "python_from" in options:
        found["python_from"] = options["python_from"]
    for name in ("wrap", "launcher_args"):
        found[name] = _words(options.get(name, ""), f"--{name}")
    found["preload"] = _modules(options)
    found["wrap_ranks"] = _ranks(options.get("wrap_ranks", ""), "--wrap_ranks")
    found["save_pid"] = bool(options.get("save_pid"))
    return found


def _modules(options: dict[str, Any]) -> tuple[str, ...]:
    """The modules of ``--preload``."""
    return tuple(options.get("preload", "").replace(",", " ").split())


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
        what = f"not a range of nodes: {least} to {'any number' if most is None else most}"
        where = "--min_elastic_nodes" if options["elastic_training"] else "--num_nodes"
        raise BadInputError(what, hint="expected 1 <= MIN <= MAX", where=where)
    restarts = DEFAULT_ELASTIC_RESTARTS if options["restarts"] is None else options["restarts"]
    return {"elastic": True, "min_nodes": least, "max_nodes": most, "num_nodes": None, "restarts": restarts}


def _number(options: dict[str, Any]) -> int | None:
    """The value of ``--num_nodes``, which must not be a range here."""
    number: int | tuple[int, int] | None = options["num_nodes"]
    if isinstance(number, tuple):
        raise BadInputError("a range is only for elastic training with bireme run", where="--num_nodes")
    return number


def _program(parsed: Parsed) -> Program:
    if not parsed.command:
        raise BadInputError("no script given", hint=_taken(parsed.options))
    target, *args = parsed.command
    if not target:
        raise BadInputError("the name of the script is empty")
    if parsed.options["module"]:
        return Program(target, tuple(args), "module")
    return Program(target, tuple(args), "exec" if parsed.options["no_python"] else "script")


def _taken(options: dict[str, Any]) -> str:
    """What to type if there is no script: an option may have taken it as its value."""
    for option in (option for rows in GROUPS.values() for option in rows if "run" in option.commands):
        value = options.get(option.dest)
        for word in value if isinstance(value, tuple) else (value,):
            if isinstance(word, str) and word.endswith(".py"):
                return f"{option.name} took it as its value: type {option.name} {option.placeholder} {word}"
    return "put it after the options and before its own arguments"


def _slots(options: dict[str, Any]) -> dict[str, Any]:
    """Slots per node, and the accelerator if a word of torchrun (``cpu``, ``xpu``) chooses it."""
    number, ids = options.get("num_gpus"), options.get("gpu_ids")
    if number == "xpu":
        return {"accelerator": "xpu", "num_gpus": None}
    if number == "cpu":
        return {"num_gpus": os.cpu_count() or 1, "accelerator": "cpu"}
    if options.get("num_processes"):
        number = _for_each(options["num_processes"], options.get("num_nodes") or 1)
    if ids is None:
        return {"num_gpus": number}
    if options.get("num_nodes") not in (None, 1):
        hint = "set CUDA_VISIBLE_DEVICES on each node instead"
        raise BadInputError("names devices of one machine only", hint=hint, where="--gpu_ids")
    return {"num_nodes": None, "include": "localhost:" + ",".join(ids.split(",")[:number])}


def _for_each(processes: int, nodes: int | tuple[int, int]) -> int:
    """The number of ranks on each node, from accelerate's number for all nodes together."""
    if isinstance(nodes, tuple) or processes % nodes:
        what = f"{processes} processes cannot be shared equally by the nodes"
        raise BadInputError(what, hint="use --num_gpus N, the number of ranks on each node", where="--num_processes")
    return processes // nodes


def _as_other_launchers(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that options of torchrun and accelerate set, where these differ from ours."""
    found: dict[str, Any] = {}
    if options.get("standalone"):
        found["hosts"] = "localhost"
    if options.get("local_ranks_filter"):
        found["local_ranks"] = _ranks(options["local_ranks_filter"], "--local_ranks_filter")
    if options.get("redirects") or options.get("tee"):
        found.update(_redirected(options, found.get("local_ranks", ())))
    nodes, backend = options.get("num_nodes"), options.get("rdzv_backend")
    numbered = options.get("node_rank") is not None and backend != "c10d"
    pool = any(options.get(name) for name in ("hosts", "hostfile", "standalone", "no_ssh", "native_ranks"))
    address = options.get("rdzv_endpoint") or (numbered and options.get("master_addr"))
    if nodes not in (None, 1) and address and not pool and not (numbered and isinstance(nodes, tuple)):
        found["rendezvous"] = "static" if numbered else "c10d"
        found["torchrun_args"] = tuple(_to_torchrun(options))
    if options.get("numa_binding") and not found.get("rendezvous"):
        found["bind_cores"] = True
    variables = {
        "OMP_NUM_THREADS": options.get("num_cpu_threads_per_process"),
        "ACCELERATE_USE_CPU": options.get("cpu") or None,
        "ACCELERATE_DEBUG_MODE": "true" if options.get("debug") else None,
    }
    if uses_accelerate(options):
        from bireme.cli.accelerate import variables as of_accelerate

        variables |= of_accelerate(options)
    set_here = tuple(f"{name}={value}" for name, value in variables.items() if value is not None)
    if set_here:
        found["exports"] = (*set_here, *options.get("export", ()))
    return found


def _redirected(options: dict[str, Any], only: tuple[int, ...]) -> dict[str, Any]:
    """The fields that ``--redirects`` and ``--tee`` set, given the local ranks that may be shown."""
    from bireme.cli.accelerate import shown

    ranks = shown(options.get("redirects") or "", options.get("tee") or "", only)
    if ranks is None:
        conflicts.refuse({"--fold": True, "--output": "none"} if options.get("fold") else {})
        return {"output": "none"}
    return {"local_ranks": ranks}


def _to_torchrun(options: dict[str, Any]) -> Iterator[str]:
    """The options that only PyTorch's agent has, as words for it."""
    for option in TORCHRUN:
        value = options.get(option.dest)
        if option.to_torchrun and value not in (None, False):
            yield option.name.replace("_", "-") + ("" if value is True else f"={value}")


def _address(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``--rdzv_endpoint``: ``ADDR``, ``ADDR:PORT`` or ``[IPV6]:PORT``; port 0 is chosen by Bireme."""
    endpoint, where = options.get("rdzv_endpoint"), "--rdzv_endpoint"
    if not endpoint:
        return {}
    if endpoint.startswith("["):
        addr, bracket, rest = endpoint[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            what = f"not an address and a port: {endpoint!r}"
            raise BadInputError(what, hint="expected e.g. [fe80::1]:29500", where=where)
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


def _ranks(text: str, where: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for word in text.split(",") if text else ():
        first, dash, last = word.strip().partition("-")
        low = whole(first, where)
        high = whole(last, where) if dash else low
        if not 0 <= low <= high <= _MOST_RANKS:
            raise BadInputError(f"not a list of ranks: {word!r} (expected e.g. 0,3-5)", where=where)
        ranks += range(low, high + 1)
    return tuple(ranks)


def refuse_duplicate_starts(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Refuse a job that ``srun`` or ``mpirun`` has started once for each task: each task would run it as a whole.

    Not refused are a job of which each task starts its own part (``--no_ssh``, or as for torchrun), and jobs on this
    machine alone (``--hosts localhost``), which several tasks may start side by side.

    Raises:
        BadInputError: this is the first of several tasks.
        SystemExit: with code 2 in the other tasks, which leave the message to the first.
    """
    task = find_task(environ)
    if task.tasks < 2 or spec.by_hand or spec.rendezvous or _only_here(spec):
        return
    if task.number:
        raise SystemExit(BAD_INPUT)
    what = f"{task.program} has started this command {task.tasks} times, and each would run the whole job"
    raise BadInputError(what, hint=f"type it without {task.program}: {_typed()}")


def _only_here(spec: JobSpec) -> bool:
    if not spec.hosts or spec.has_own_names:
        return False
    from bireme.resources.hostfile import parse_hosts
    from bireme.resources.locality import is_this_machine

    entries = parse_hosts(spec.hosts)
    return len(entries) == 1 and is_this_machine(entries[0].name)


def _typed() -> str:
    """The command line of this process, without secrets, and shortened."""
    import sys

    from bireme.planning.masking import shortened

    name = os.path.basename(sys.argv[0])
    words = {"runner.py": ["python", "-m", "bireme.deepspeed.runner"]}.get(name, ["bireme"])
    return shortened([*words, *sys.argv[1:]])
