"""DeepSpeed's autotuning, as a whole: from the script's configuration to the best one and the command that runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from bireme.errors import BadInputError
from bireme.tune.deepspeed.command import find_config, real_job
from bireme.tune.deepspeed.config import Config, read_config
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.space import read_space
from bireme.tune.deepspeed.summary import summary
from bireme.tune.deepspeed.trials import Manner, Trials, past_of
from bireme.tune.deepspeed.tuning import Past, Tuning
from bireme.tune.journal import Journal
from bireme.tune.launching import Launch
from bireme.tune.lock import ExperimentsLock
from bireme.tune.scheduler import Order, Scheduler
from bireme.tune.slots import Shape
from bireme.tune.study import Conclusion, Study, Watcher
from bireme.value import Value

JOURNAL, LOCK = "journal", "experiments.lock"


class Request(Value):
    """What is asked for.

    ``real``: the launch of the real job, as ``("bireme", "run", …, script)``. ``by_file``, ``limit``: as
    `trials.Manner`. ``order``: ``fifo`` or ``longest``. ``capacity``: bytes of memory of a GPU; None: not known.
    """

    launch: Launch
    shape: Shape
    args: tuple[str, ...]
    real: tuple[str, ...]
    environ: Mapping[str, str]
    by_file: bool = False
    limit: float | None = None
    capacity: int | None = None
    order: Order = "fifo"


class Result(Value):
    """What came of it. ``best``: the command of the real job; empty: no configuration worked."""

    conclusion: Conclusion
    summary: str
    best: tuple[str, ...]
    files: StudyFiles


def autotune(request: Request, show: Callable[[Tuning], Watcher]) -> Result:
    """Run a study, or go on with one.

    Args:
        request: what is asked for.
        show: makes the watcher of what decides.

    Raises:
        BadInputError: the configuration, or what stands in the way of the study; nothing was started.
        BiremeError: a file cannot be written; what had ended by then is kept.
    """
    config = read_config(find_config(request.args).path)
    world = request.shape.size
    space = read_space(config, world, request.args)
    scheduler = Scheduler(request.launch.ground.pool, order=request.order, backfill=True)
    if reason := scheduler.impossible(request.shape):
        raise BadInputError(f"no experiment can run: {reason}", mend="--num_nodes and --num_gpus say how wide one is")
    files = StudyFiles.at(config.autotuning.results_dir, config.autotuning.exps_dir)
    files.prepare()
    journal = Journal.open(os.path.join(files.results_dir, JOURNAL))
    try:
        with ExperimentsLock(os.path.join(files.results_dir, LOCK)) as lock:
            past, notes = _take_up(journal, files, config, request)
            tuning = Tuning(space, world, capacity=request.capacity, past=past)
            watcher = show(tuning)
            for note in (journal.note, *notes):
                watcher.note(note)
            if not lock.taken():
                watcher.note("waiting for what an earlier tuner has left to end")
                lock.wait()
            trials = Trials(tuning, request.launch, files, _manner(request, config))
            begin = time.monotonic()
            conclusion = Study(trials, scheduler, journal, watcher, keep=(lock.fileno(),)).run()
            return _conclude(request, config, tuning, conclusion, time.monotonic() - begin, journal, files)
    finally:
        journal.close()


def _manner(request: Request, config: Config) -> Manner:
    mappings = config.autotuning.arg_mappings or {}
    return Manner(request.shape, request.args, mappings, request.environ, request.by_file, request.limit)


# -- the past ----------------------------------------------------------------------------------------


def _take_up(
    journal: Journal, files: StudyFiles, config: Config, request: Request
) -> tuple[tuple[Past, ...], tuple[str, ...]]:
    """What an earlier run of this study has left, and what to say of it.

    The last study of the journal is taken up if it is this one and has not come to its end. With ``overwrite`` any
    other is cleared away; without, one that is this one's gives its results, and one that is not is in the way.

    Raises:
        BadInputError: the folder holds another study, which may not be overwritten.
    """
    identity = _identity(config, request)
    begun, records = _last_study(journal.records)
    same, finished = begun == identity, any("over" in record for record in records)
    if begun is not None and same and not (finished and config.autotuning.overwrite):
        past = tuple(past_of(record) for record in records if "end" in record)
        return past, (f"taken up where it was: {len(past)} of its experiments have ended",) if past else ()
    if begun is not None and not config.autotuning.overwrite:
        raise BadInputError(
            f"{files.results_dir} holds the results of another study",
            mend="set autotuning.results_dir to another folder, or autotuning.overwrite to true",
            where="autotuning.overwrite",
        )
    if begun is not None:
        files.clear()
    elif config.autotuning.overwrite:
        files.clear_results()  # another tuner's, which would be taken for ours where nothing works
    journal.append({"study": identity})
    return (), ("an unfinished study of another configuration was cleared away",) if begun and not finished else ()


def _identity(config: Config, request: Request) -> dict[str, object]:
    """What makes two studies the same one; as JSON gives it back."""
    return {
        "config": dict(config.data),
        "script": request.launch.script,
        "args": list(request.args),
        "nodes": request.shape.nodes,
        "slots": request.shape.slots,
    }


def _last_study(
    records: Sequence[Mapping[str, object]],
) -> tuple[Mapping[str, object] | None, Sequence[Mapping[str, object]]]:
    starts = [number for number, record in enumerate(records) if "study" in record]
    if not starts:
        return None, ()
    begun = records[starts[-1]]["study"]
    assert isinstance(begun, Mapping)
    return begun, records[starts[-1] + 1 :]


# -- the end -----------------------------------------------------------------------------------------


def _conclude(
    request: Request,
    config: Config,
    tuning: Tuning,
    conclusion: Conclusion,
    seconds: float,
    journal: Journal,
    files: StudyFiles,
) -> Result:
    """Write down what came of it, whether it is over or was interrupted."""
    why = "it was interrupted" if conclusion.signum else conclusion.over or "some experiments could not be run"
    text = summary(tuning, why, seconds)
    files.write_summary(text)
    best: tuple[str, ...] = ()
    if tuning.best is not None:
        ds_config = tuning.ds_config(tuning.best.trial)
        mappings = config.autotuning.arg_mappings or {}
        best = real_job(request.real, request.args, files.best_config, ds_config, mappings)
        files.write_best(ds_config, best)
    if conclusion.over and not conclusion.signum:
        journal.append({"over": conclusion.over})  # the last: what is over may be cleared away
    return Result(conclusion, text, best, files)
