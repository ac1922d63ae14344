"""``bireme tune`` and ``bireme run --autotuning``: from the command line to a study, and its end on the screen."""

from __future__ import annotations

import os
import sys
from signal import SIGPIPE

from bireme import isolated
from bireme.cli.options import RUN, TUNING, Option, Parsed, parse
from bireme.cli.spec import job_spec, tuning_width
from bireme.errors import OK, BadInputError, BiremeError
from bireme.logs.console import printable, show
from bireme.logs.sink import is_gone
from bireme.resources import program
from bireme.tune import requirements
from bireme.tune.launching import Ground, Launch, gpu_memory, ground
from bireme.tune.slots import FreeSlots, Shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from bireme.job import JobSpec
    from bireme.tune.deepspeed.autotune import Request, Result

NOTHING_WORKS = 1
"""The exit code of a study that has found no configuration that works."""

_WHERE = ("include", "exclude", "num_nodes", "num_gpus")
_OURS = tuple(option.dest for option in TUNING)
NOT_SHARED = (
    *(*_WHERE, *_OURS, "master_addr", "master_port", "rdzv_endpoint", "time_limit", "restarts", "save_pid", "log_dir"),
    *("enable_each_rank_log", "report", "output", "timestamps", "fold", "dry_run", "json", "help"),
)
"""What an experiment does not take over as it stands."""


def main(argv: list[str]) -> int:
    """Carry out ``bireme tune ARGV``; return the exit code."""
    parsed = parse(RUN, argv)
    mode = parsed.options["autotuning"] or "tune"
    parsed = parsed.replace(options={**parsed.options, "autotuning": mode})
    if parsed.options["help"]:
        from bireme.cli.help import tune_help

        show(tune_help())
        return OK
    return carry_out(parsed)


def carry_out(parsed: Parsed) -> int:
    """Tune the job of a command line that has been read; return the exit code."""
    code, best = study(parsed)
    if code == OK and parsed.options["autotuning"] == "run":
        os.execv(sys.executable, isolated.command("bireme", *best[1:]))  # without the word ``bireme``
    return code


def study(parsed: Parsed) -> tuple[int, tuple[str, ...]]:
    """The same without the real job; return the exit code, and that job's command where it is OK."""
    requirements.check("bireme tune")
    if parsed.options["elastic_training"] or isinstance(parsed.options["num_nodes"], tuple):
        raise BadInputError("--autotuning cannot be used with --elastic_training", hint="tune first")
    from bireme.cli.progress import any_text

    with any_text(sys.stdout):
        return _study(parsed)


def _study(parsed: Parsed) -> tuple[int, tuple[str, ...]]:
    from bireme.cli.progress import watcher
    from bireme.tune.deepspeed.autotune import autotune

    request = make_request(parsed, os.environ)
    result = autotune(request, lambda tuning: watcher(tuning, quiet=parsed.options["quiet"]))
    signum = result.conclusion.signum
    try:
        print(printable(result.summary), end="", flush=True)
        _say_end(result)
    except OSError as error:
        if not is_gone(error):
            raise BiremeError(f"stdout cannot be written: {error.strerror}") from error
        signum = signum or SIGPIPE
    if signum:
        return 128 + signum, ()
    if not result.best:
        return NOTHING_WORKS, ()
    return OK, result.best


def _say_end(result: Result) -> None:
    import shlex

    from bireme.planning.masking import masked_words
    from bireme.tune.deepspeed.files import BEST_COMMAND

    if result.conclusion.signum:
        print("interrupted: the same command goes on where it was")
    if result.best:
        shown = masked_words(result.best)
        also = f"{result.files.results_dir}/{BEST_COMMAND}"
        also += "" if shown == list(result.best) else ", with the values that are hidden here"
        print(f"the real job, with the best configuration (also in {also}):")
        print(f"  {shlex.join(shown)}", flush=True)


def make_request(parsed: Parsed, environ: Mapping[str, str]) -> Request:
    """What a command line asks the tuner for.

    Raises:
        BadInputError: it cannot be tuned as described; nothing was started.
    """
    from bireme.tune.deepspeed.autotune import Request
    from bireme.tune.deepspeed.trial_command import find_config

    options = with_accelerator(parsed.options)
    parsed = parsed.replace(options=options)
    for name in ("no_ssh", "dry_run", "json"):
        if options[name]:
            raise BadInputError(f"--{name} is for one job, and tuning runs many", where="--autotuning")
    if options["experiment_limit"] == 0:
        raise BadInputError("every experiment would time out", hint="seconds, above 0", where="--experiment_limit")
    nodes, slots = tuning_width(options)
    spec = job_spec(parsed.replace(options={**options, "num_nodes": None, "num_gpus": None}))
    find_config(spec.program.args)  # before anything is looked up in the world
    program.check(spec, environ, own_interpreter=spec.venv_script is None)
    floor = ground(spec, environ, slots)
    shape = Shape(nodes or len(floor.pool), slots or min(map(len, floor.pool.values())))
    return Request(
        _launch(parsed, spec, floor),
        shape,
        spec.program.args,
        ("bireme", "run", *_real_words(parsed, floor, shape), spec.program.target),
        environ,
        by_file=options["config_as"] == "file",
        limit=options["experiment_limit"],
        capacity=gpu_memory(spec, environ),
        order=options["order"],
    )


def _launch(parsed: Parsed, spec: JobSpec, floor: Ground) -> Launch:
    addr = ("--master_addr", spec.master_addr) if spec.master_addr else ()
    return Launch(
        floor,
        (*words_of(parsed, without=NOT_SHARED), *addr),
        spec.program.target,
        spec.master_port,
        spec.grace,
        spec.heartbeat,
        spec.log_dir,
        spec.rank_log_dir,
    )


def _real_words(parsed: Parsed, floor: Ground, shape: Shape) -> tuple[str, ...]:
    """The real job's options: as many ranks as each experiment had, for the batch sizes are made for them."""
    shared = words_of(parsed, without=(*_WHERE, *_OURS))
    if shape.size == sum(map(len, floor.pool.values())) and not floor.numbered:
        return (*shared, *words_of(parsed, only=("include", "exclude")))
    free = FreeSlots(floor.pool)
    places = free.first(shape)
    if places is None:  # too wide for the pool, as the scheduler will say
        return shared
    filtered = parsed.options["include"] or parsed.options["exclude"]
    if filtered or any(number >= shape.nodes for number, _ in places):  # not the first nodes, which are too small
        return (*shared, "--include", free.reservation(places).include())
    nodes = () if len(floor.pool) == 1 else ("--num_nodes", str(shape.nodes))
    return (*shared, *nodes, "--num_gpus", str(shape.slots))


def with_accelerator(options: dict[str, Any]) -> dict[str, Any]:
    """The options; torchrun's ``--num_gpus cpu`` names an accelerator too, which stays where the width is left out."""
    return {**options, "accelerator": "cpu"} if options["num_gpus"] == "cpu" else options


def words_of(parsed: Parsed, *, without: Collection[str] = (), only: Collection[str] | None = None) -> tuple[str, ...]:
    """The options of a command line again, as words; those that have their default value are left out."""
    words: list[str] = []
    for option in (option for group in RUN.values() for option in group):
        if option.dest not in without and (only is None or option.dest in only):
            words += _words(option, parsed.options[option.dest])
    return tuple(words)


def _words(option: Option, value: object) -> list[str]:
    name = f"--{option.dest}"
    if option.kind == "flag":
        return [name] if value else []
    if option.kind == "list":
        assert isinstance(value, tuple)
        return [f"{name}={each}" for each in value]
    if value == option.default:
        return []
    if isinstance(value, tuple):
        value = ":".join(map(str, value))
    return [f"{name}={value}"]
