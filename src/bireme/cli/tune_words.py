"""Turns a parsed command line into a study: its trials, what it is to find, and the options of the real job."""

from __future__ import annotations

import os
import shutil

from bireme.cli.job_options import job_spec, refuse_duplicate_starts, tuning_width
from bireme.cli.parser import Parsed, enter, parse
from bireme.errors import BadInputError
from bireme.options.table import OPTIONS, select
from bireme.resources import program
from bireme.tune.execution.adapter import Setting
from bireme.tune.execution.slot_scheduler import FreeSlots, Shape
from bireme.tune.execution.trial_launch import Launch, ResourcePool, gpu_memory, resource_pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from bireme.job import JobSpec
    from bireme.options.option import Option
    from bireme.tune.deepspeed.deepspeed_study import DeepSpeedStudy
    from bireme.tune.define.declarations import Declaration
    from bireme.tune.define.study_file import StudyFile
    from bireme.tune.program.program_study import ProgramStudy

DECLARES = ("param", "env", "in", "when", "constraint", "default")
"""Options that say what varies."""

GIT = "git"
"""The value of ``--ship`` without a folder."""
_WHERE = ("include", "exclude", "num_nodes", "num_gpus")
_OURS = tuple(option.dest for option in (*select("tune")["tuning any program"], *select("tune")["tuning"]))
NOT_SHARED = tuple(option.dest for option in OPTIONS if not option.shared)
"""Options of the command line that are not passed to experiments unchanged."""


def _launch(parsed: Parsed, spec: JobSpec, pool: ResourcePool) -> Launch:
    """What all experiments have in common, for a job that is tuned on the slots of a pool."""
    addr = ("--master_addr", spec.master_addr) if spec.master_addr else ()
    return Launch(
        pool=pool,
        words=(*words_of(parsed, without=NOT_SHARED), *addr),
        script=spec.program.target,
        port=spec.master_port,
        grace=spec.grace,
        heartbeat=spec.heartbeat,
        log_dir=spec.log_dir,
        rank_log_dir=spec.rank_log_dir,
    )


def make_setting(parsed: Parsed, spec: JobSpec, environ: Mapping[str, str]) -> Setting:
    """How all trials of a study run."""
    options = parsed.options
    nodes, slots = tuning_width(options)
    pool = resource_pool(spec, environ, slots)
    return Setting(
        launch=_launch(parsed, spec, pool),
        shape=Shape(nodes or len(pool.slots), slots or min(map(len, pool.slots.values()))),
        args=spec.program.args,
        environ=environ,
        limit=options["experiment_limit"],
        order=options["order"],
        ships=_ships(options),
    )


def real_words(parsed: Parsed, setting: Setting) -> tuple[str, ...]:
    """Options of the real job. It gets as many ranks as each experiment had: the batch sizes depend on them."""
    pool, shape = setting.launch.pool, setting.shape
    shared = words_of(parsed, without=(*_WHERE, *_OURS))
    if shape.size == sum(map(len, pool.slots.values())) and not pool.numbered:
        return (*shared, *words_of(parsed, only=("include", "exclude")))
    room = FreeSlots(pool.slots).find(shape)
    if room is None:  # too large for the pool: the scheduler reports that
        return shared
    filtered = parsed.options["include"] or parsed.options["exclude"]
    first = list(pool.slots)[: shape.nodes]
    if filtered or [host for host, _ in room.places] != first:  # the first nodes are too small
        return (*shared, "--include", room.include())
    nodes = () if len(pool.slots) == 1 else ("--num_nodes", str(shape.nodes))
    return (*shared, *nodes, "--num_gpus", str(shape.slots))


def _ships(options: Mapping[str, Any]) -> bool:
    """Whether trials run in a copy of the working tree."""
    if options["ship"] not in (None, GIT):
        raise BadInputError(
            "a study can send only what git does not ignore",
            hint="leave out the folder",
            where=f"--ship={options['ship']}",
        )
    return options["ship"] is not None


def with_accelerator(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the accelerator that ``--num_gpus cpu`` implies: experiments are not given ``--num_gpus``."""
    return {**options, "accelerator": "cpu"} if options["num_gpus"] == "cpu" else options


def words_of(parsed: Parsed, *, without: Collection[str] = (), only: Collection[str] | None = None) -> tuple[str, ...]:
    """Turn parsed options back into words of a command line, leaving out default values.

    Args:
        without: keys of options to leave out.
        only: keys of the options to use; ``None``: all.
    """
    words: list[str] = []
    for option in (option for group in select("run").values() for option in group):
        if option.dest in parsed.options and option.dest not in without and (only is None or option.dest in only):
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
    if value == option.bare:
        return [name]
    if isinstance(value, tuple):
        value = ":".join(map(str, value))
    return [f"{name}={value}"]


# -- a study of a program ---------------------------------------------------------------------------


def of_file(parsed: Parsed, argv: list[str]) -> tuple[Parsed, StudyFile]:
    """The command line that a study file describes, and the file; options on the command line take precedence."""
    from bireme.tune.define.study_file import read_study

    path, *more = parsed.command
    if more:
        raise BadInputError(f"unexpected word after the study file: {more[0]}", hint=f"put options before {path}")
    for name in DECLARES:
        if parsed.options[name]:
            raise BadInputError(f"--{name} cannot be used with a study file", hint=f"write it into {path}")
    study = read_study(path)
    study = study.without(
        goals=bool(parsed.options["maximize"] or parsed.options["minimize"]), limits=parsed.options["limit"]
    )
    for each in study.options:
        try:
            parse(select("tune"), (each.text,))
        except BadInputError as error:
            raise study.located(error) from None
    typed = argv[: len(argv) - 1]
    words = [*study.words, *(word for word in typed if word != "--"), "--", *study.command]
    entered = parsed.options["cwd"]  # now an absolute path
    parsed = parse(select("tune"), words)
    parsed = parsed.replace(options={**parsed.options, "cwd": entered}) if entered else enter(parsed)
    options = {**parsed.options, "autotuning": parsed.options["autotuning"] or "tune"}
    return parsed.replace(options=options), study


def program_study(parsed: Parsed, environ: Mapping[str, str], declaration: Declaration | None = None) -> ProgramStudy:
    """The study that a parsed command line describes.

    Args:
        declaration: what varies; None: what the command line declares.
    """
    from bireme.tune.define.spec import StudySpec
    from bireme.tune.program.program_study import ProgramStudy

    parsed = _direct(parsed.replace(options=with_accelerator(parsed.options)))
    options = parsed.options
    spec = program.recognized(job_spec(parsed.replace(options={**options, "num_nodes": None, "num_gpus": None})))
    refuse_duplicate_starts(spec, environ)
    study = StudySpec.of(options, spec.program.args, declaration)
    program.check(spec, environ)
    if spec.program.kind == "exec":  # also if it was only found to be an executable file of another language
        parsed = parsed.replace(options={**options, "no_python": True})
    setting = make_setting(parsed, spec, environ)
    real = ("bireme", "run", *real_words(parsed, setting))

    def command(exports: tuple[str, ...]) -> tuple[str, ...]:
        return (*real, *(word for export in exports for word in ("--export", export)), spec.program.target)

    return ProgramStudy(study, setting, command)


def _direct(parsed: Parsed) -> Parsed:
    """The command line, with ``--no_python`` if its program is no file but a program on PATH."""
    options = parsed.options
    if not parsed.command or options["module"] or options["no_python"]:
        return parsed
    word = parsed.command[0]
    if os.path.exists(word) or word.endswith(".py") or os.sep in word or shutil.which(word) is None:
        return parsed
    return parsed.replace(options={**options, "no_python": True})


# -- a study of a DeepSpeed configuration -----------------------------------------------------------


def deepspeed_study(parsed: Parsed, environ: Mapping[str, str]) -> DeepSpeedStudy:
    """The study that a parsed command line describes.

    Raises:
        BadInputError: the job cannot be tuned as described; nothing has been started.
    """
    from bireme.tune.deepspeed.command import find_config
    from bireme.tune.deepspeed.deepspeed_study import DeepSpeedStudy

    options = with_accelerator(parsed.options)
    parsed = parsed.replace(options=options)
    spec = job_spec(parsed.replace(options={**options, "num_nodes": None, "num_gpus": None}))
    refuse_duplicate_starts(spec, environ)
    find_config(spec.program.args)  # first, as it needs no look at the nodes
    program.check(spec, environ)
    setting = make_setting(parsed, spec, environ)
    return DeepSpeedStudy(
        setting,
        ("bireme", "run", *real_words(parsed, setting), spec.program.target),
        by_file=options["config_as"] == "file",
        capacity=gpu_memory(spec, environ),
        **_bounds(options),
    )


def _bounds(options: Mapping[str, Any]) -> dict[str, Any]:
    """How sure the winner must be; with ``--confidence 0`` every configuration is run once.

    Raises:
        BadInputError: a number is not one of percent.
    """
    from bireme.tune.define.spec import shares

    if options.get("confidence") in ("0", "0%"):
        return {"confidence": None, "seconds": options.get("budget")}
    return {**shares(options), "seconds": options.get("budget"), "confirm": options.get("confirm")}
