"""What the tuner's experiments have in common, from the parsed command line: the options of their runs."""

from __future__ import annotations

from signal import SIGPIPE

from bireme.cli.spec import tuning_width
from bireme.errors import BadInputError, BiremeError
from bireme.logs.sink import is_gone
from bireme.options.table import OPTIONS, select
from bireme.tune.execution.adapter import Setting
from bireme.tune.execution.launch import Launch, ResourcePool, resource_pool
from bireme.tune.execution.slots import FreeSlots, Shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from bireme.cli.parser import Parsed
    from bireme.job import JobSpec
    from bireme.options.option import Option

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


def shown_to_the_end(show: Callable[[], None]) -> int:
    """Write the result of a study; return SIGPIPE if the reader of stdout is gone, else 0.

    Raises:
        BiremeError: stdout cannot be written for another reason.
    """
    try:
        show()
    except OSError as error:
        if not is_gone(error):
            raise BiremeError(f"stdout cannot be written: {error.strerror}") from error
        return SIGPIPE
    return 0


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
            "a study sends what git knows", hint="leave out the folder", where=f"--ship={options['ship']}"
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
