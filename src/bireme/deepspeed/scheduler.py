"""The public names of ``deepspeed.autotuning.scheduler``: runs experiments, given as files, on the slots of hosts.

An adapter over :mod:`bireme.tune`. It behaves like DeepSpeed's scheduler without its defects: each experiment has its
own arguments; a configuration fails because of what its ranks raised, not of a word on stderr; experiments that the
infrastructure failed are run again; times are minimized; and no process is killed by its name.

Where DeepSpeed polls, :meth:`ResourceManager.run` waits for events. It must be called in the main thread.

The folder of an experiment contains ``outcome.json`` (``bireme run --report``), which is removed first before a start
and written last: a folder with an outcome holds a complete run.
"""

from __future__ import annotations

import copy
import os
import re
import signal
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack

from bireme import drafts
from bireme.cli.parser import Parsed
from bireme.cli.tune_words import NOT_SHARED, with_accelerator, words_of
from bireme.deepspeed.arguments import parsed_again
from bireme.errors import BadInputError, UnfitError
from bireme.logs.console import complain
from bireme.loop import STOP_SIGNALS, Loop
from bireme.tune.deepspeed.command import experiment_args, fits_argument
from bireme.tune.deepspeed.config import SECTION, read_document
from bireme.tune.deepspeed.files import LOCK, StudyFiles, get_job_id, get_user, sweep
from bireme.tune.deepspeed.results import METRICS, Metric, read_metrics, read_model_info
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.executor import Executor
from bireme.tune.execution.experiment import End, LaunchRequest, read_report, tail
from bireme.tune.execution.slot_scheduler import Scheduler, Shape, Task, why_impossible
from bireme.tune.execution.trial_launch import Launch, ResourcePool
from bireme.tune.store.folder import ExperimentsLock
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import JOURNAL
from bireme.tune.study.trial import TrialResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from bireme.resources.pool import Pool
    from bireme.tune.execution.slot_scheduler import SlotReservation

__all__ = ["Node", "Reservation", "ResourceManager", "clean_up", "get_job_id", "get_user", "run_experiment"]


class Node:
    """A host and its slots: their number, counted from 0, or the list of them."""

    def __init__(self, host: str, max_slots: int | Sequence[int]) -> None:
        self.host = host
        self.slots = tuple(range(max_slots) if isinstance(max_slots, int) else max_slots)
        self.idle_slots = list(self.slots)
        self.max_slots = len(self.slots)

    def reserve_slots(self, slot_request: int) -> list[int] | None:
        """Reserve this many idle slots; None if there are fewer."""
        if len(self.idle_slots) < slot_request:
            return None
        taken, self.idle_slots = self.idle_slots[:slot_request], self.idle_slots[slot_request:]
        return taken

    def restore_slots(self, slots: Iterable[int]) -> None:
        """Make slots idle again; those already idle stay so."""
        self.idle_slots = sorted({*self.idle_slots, *slots})


class Reservation:
    """Reserved slots of a node."""

    def __init__(self, node: Node, slots: list[int]) -> None:
        self.node, self.slots = node, slots

    def restore_slots(self) -> None:
        """Make the slots idle again."""
        self.node.restore_slots(self.slots)

    def desc(self) -> str:
        """The slots as DeepSpeed writes them: ``host:0,1@``."""
        return f"{self.node.host}:{','.join(map(str, self.slots))}@"


class ResourceManager:
    """Runs experiments on the slots of some hosts.

    Args:
        args: the launcher's command line, as ``bireme.deepspeed.runner.parse_args`` gives it.
        hosts: their names; or host → slot ids, if nodes differ.
        num_gpus_per_node: slots of each host, if ``hosts`` gives only names.
        results_dir: where each experiment gets a folder.
        exps_dir: the folder of the experiments' files.
        arg_mappings: configuration key → flag of the script.
    """

    def __init__(
        self,
        args: Namespace,
        hosts: Iterable[str] | Mapping[str, Sequence[int]],
        num_gpus_per_node: int,
        results_dir: str,
        exps_dir: str,
        arg_mappings: Mapping[str, str] | None,
    ) -> None:
        self.args, self.num_gpus_per_node = args, num_gpus_per_node
        self.results_dir, self.exps_dir = results_dir, exps_dir
        self.nodes = [Node(host, hosts[host] if isinstance(hosts, Mapping) else num_gpus_per_node) for host in hosts]
        self.experiment_queue: list[dict[str, Any]] = []
        self.running_experiments: dict[int, tuple[Executor, dict[str, Any], list[Reservation], float]] = {}
        self.finished_experiments: dict[int, tuple[dict[str, Any], str | None]] = {}
        self.experiment_count = 0
        self.exp_paths: set[str] = set()
        self.arg_mappings: dict[str, str] = {}
        for key, flag in (arg_mappings or {}).items():
            self.arg_mappings.setdefault(key.strip(), flag.strip())
        self._claim: _Claim | None = None

    # -- the queue -----------------------------------------------------------------------------------

    def schedule_experiments(self, exp_paths: Iterable[str]) -> None:
        """Queue experiments, given as JSON or HJSON files; those that ended earlier count as finished.

        Raises:
            ValueError: a file is not an experiment, its name is taken, or it needs more slots than there are.
        """
        for path in exp_paths:
            if path in self.exp_paths:
                continue
            exp = self._read(path)
            result = _Run(self, exp).earlier()
            self.exp_paths.add(path)
            exp["exp_id"], self.experiment_count = self.experiment_count, self.experiment_count + 1
            if result is None:
                self.experiment_queue.append(exp)
            else:
                self.finished_experiments[exp["exp_id"]] = (exp, _error_of(result))

    def _read(self, path: str) -> dict[str, Any]:
        """Read an experiment's file; add its results folder, and to its configuration the file for its figures."""
        document = read_document(path)
        exp: dict[str, Any] = copy.deepcopy(document.data)
        for key, kind in (("name", str), ("ds_config", dict), ("num_gpus", int), ("num_nodes", int)):
            if not isinstance(exp.get(key), kind):
                what = f"missing or not of type {kind.__name__}: {key!r}"
                raise BadInputError(what, hint="every experiment needs it", where=document.where(key))
        name = exp["name"]
        known = [*self.experiment_queue, *(exp for exp, _ in self.finished_experiments.values())]
        known += (exp for _, exp, _, _ in self.running_experiments.values())
        if any(other["name"] == name for other in known):
            hint = "it becomes the name of a folder: give each experiment its own"
            raise BadInputError(f"duplicate experiment name: {name}", hint=hint, where=document.where("name"))
        if reason := why_impossible(self._pool(), _shape(exp)):
            raise BadInputError(f"experiment {name} can never run: {reason}", where=document.where("num_gpus"))
        figures = self._files().result(name, "metrics.json")  # refuses a name that cannot be one of a folder
        exp["result_dir"] = os.path.join(os.path.expanduser(self.results_dir), name)
        if isinstance(section := exp["ds_config"].get(SECTION), dict):
            section["metric_path"] = figures
        return exp

    def resource_request(self, exp: Mapping[str, Any]) -> list[Reservation] | None:
        """Reserve slots for an experiment on the first nodes that have enough; None if there are too few now.

        All nodes are reserved in one step, so that two experiments cannot wait for each other's slots.
        """
        fit = [node for node in self.nodes if len(node.idle_slots) >= exp["num_gpus"]][: exp["num_nodes"]]
        taken = [(node, node.reserve_slots(exp["num_gpus"])) for node in fit if len(fit) == exp["num_nodes"]]
        return [Reservation(node, slots) for node, slots in taken if slots] or None

    def status(self) -> str:
        """A line with the number of idle slots of every node."""
        return ", ".join(f"{node.host} ({len(node.idle_slots)} idle gpus)" for node in self.nodes)

    # -- running -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the queue in order, as many experiments at a time as there are slots for; return when all have ended.

        A signal stops all experiments gracefully, and then has its usual effect; unfinished experiments are queued
        again. A second Ctrl+C kills them.

        Raises:
            BadInputError: another tuner is using this folder, or slots that are needed are reserved.
            UnfitError: no host can run anything; unfinished experiments are queued again.
            KeyboardInterrupt: Ctrl+C.
        """
        while self.running_experiments:  # started by `run_job`, on slots that are needed here
            self.experiment_check()
        pool = _pool_of((node.host, node.idle_slots) for node in self.nodes)
        for exp in self.experiment_queue:
            if reason := why_impossible(pool, _shape(exp)):
                raise BadInputError(f"experiment {exp['name']} cannot run while slots are reserved: {reason}")
        # In order, as DeepSpeed; with ``--order longest`` the widest first, with backfill: durations are unknown.
        order = parsed_again(self.args).options["order"]
        scheduler = Scheduler(pool, order=order, backfill=order != "fifo")
        claim = self._open()
        try:
            signum = self._run(Executor(claim.loop, scheduler, self, keep=(claim.fileno(),)), claim.loop)
        finally:
            self._close()
        signum = signum or claim.loop.late
        if signum:
            signal.raise_signal(signum)
            raise KeyboardInterrupt  # the caller handled the signal, but the queue is not done

    def _run(self, executor: Executor, loop: Loop) -> int:
        """Run the queue; return the signal that stopped it, or 0."""
        signals: list[int] = []

        def interrupt(signum: int) -> None:
            if signals and signum in (signal.SIGINT, signal.SIGQUIT):
                executor.kill()
            else:
                executor.stop(signum)
            signals.append(signum)
            loop.stop()

        loop.on_signals(STOP_SIGNALS, interrupt)
        waiting, self.experiment_queue = self.experiment_queue, []
        try:
            self._begin(waiting, executor)
            while self.running_experiments and not (signals and executor.idle) and not executor.cannot_run:
                loop.run()
            if executor.cannot_run:
                raise UnfitError(f"no experiment can run: {executor.cannot_run}")
        finally:
            executor.stop()  # after an error such as a full disk; otherwise nothing is running
            while not executor.idle:
                loop.run()
            executor.close()
            self.experiment_queue = [exp for _, exp, _, _ in self.running_experiments.values()]
            self.running_experiments.clear()
        return signals[0] if signals else 0

    def run_job(self, exp: dict[str, Any], reservations: list[Reservation]) -> None:
        """Start an experiment on slots reserved for it; :meth:`experiment_check` waits for its end."""
        try:
            claim, pool = self._open(), _pool_of((each.node.host, each.slots) for each in reservations)
            _RUNNING[_folder(exp)] = self
            self._begin([exp], Executor(claim.loop, Scheduler(pool), self, keep=(claim.fileno(),)), reservations)
        except BaseException:
            self._forget(exp, reservations)
            self._close_if_idle()
            raise

    def _begin(self, exps: list[dict[str, Any]], executor: Executor, reserved: Sequence[Reservation] = ()) -> None:
        """Start experiments: one on reserved slots, any number on those of the executor."""
        for exp in exps:
            self.running_experiments[exp["exp_id"]] = (executor, exp, list(reserved), time.time())
        for exp in exps:
            shape = Shape(len(reserved), len(reserved[0].slots)) if reserved else _shape(exp)
            executor.submit(Task(key=exp["name"], shape=shape))
        executor.start_ready()

    def experiment_check(self, pbar: Any = None) -> None:
        """Wait until a running experiment has ended, if any is running; its slots are then idle."""
        before = len(self.finished_experiments)
        if self.running_experiments:
            self._wait()
        self._close_if_idle()
        if pbar is not None:
            pbar.update(len(self.finished_experiments) - before)

    def _wait(self) -> None:
        """Run the loop until something stops it.

        A signal has its usual effect only afterwards: during the handling of an experiment's end it would leave the
        experiment neither running nor ended.
        """
        loop, signals = self._open().loop, list[int]()

        def interrupt(signum: int) -> None:
            signals.append(signum)
            loop.stop()

        loop.on_signals(STOP_SIGNALS, interrupt)
        try:
            loop.run()
        finally:
            loop.restore_signals()
        if signum := next(iter(signals), loop.late):
            signal.raise_signal(signum)

    def _stop(self, exp_ids: Iterable[int]) -> None:
        """Stop these experiments gracefully, and wait for their ends."""
        exp_ids = list(exp_ids)
        for number in exp_ids:
            executor, exp, _, _ = self.running_experiments[number]
            executor.stop()
            if executor.withdraw():  # it was waiting to be retried
                self._ended(exp, TrialResult(cause="stopped"))
        while any(number in self.running_experiments for number in exp_ids):
            self._wait()
        self._close_if_idle()

    def clear(self) -> None:
        """Stop running experiments and forget all; the numbering of experiments continues."""
        self._stop(list(self.running_experiments))
        self.experiment_queue, self.running_experiments, self.finished_experiments = [], {}, {}
        self.exp_paths = set()

    # -- what the executor asks ----------------------------------------------------------------------

    def _running(self, name: str) -> tuple[dict[str, Any], list[Reservation]]:
        return next((exp, own) for _, exp, own, _ in self.running_experiments.values() if exp["name"] == name)

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """What to start for an experiment; as in DeepSpeed, its number gives the port of one of :meth:`run_job`."""
        exp, own = self._running(name)
        return _Run(self, exp).request(reservation, place + (exp["exp_id"] if own else 0))

    def started(self, name: str, reservation: SlotReservation) -> None:
        """Do nothing: nobody watches."""

    def judge(self, name: str, end: End) -> TrialResult:
        """The result of a run that has ended."""
        return _Run(self, self._running(name)[0]).judge(end)

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until a run has certainly left nothing on other nodes."""
        self._settling = _launch_of(self.args, self._pool())[0].settling(reservation, end.report)
        return self._settling

    def ended(self, name: str, result: TrialResult, *, again: bool) -> None:
        """Note the end of an experiment, unless it was queued for another attempt."""
        exp, own = self._running(name)
        if own and not again:
            self._open().loop.after(self._settling, lambda: self._ended(exp, result))
        elif not again:
            self._ended(exp, result)

    def _ended(self, exp: dict[str, Any], result: TrialResult) -> None:
        """An experiment has ended and is not retried. One that was stopped by a signal in `run` is queued again."""
        executor, _, reservations, _ = self.running_experiments[exp["exp_id"]]
        self._open().loop.stop()
        if result.counts or reservations or not executor.stopping:
            self.finished_experiments[exp["exp_id"]] = (exp, _error_of(result))
            self._forget(exp, reservations)

    def _forget(self, exp: Mapping[str, Any], reservations: list[Reservation]) -> None:
        """Remove an experiment from the running ones, and free its slots."""
        self.running_experiments.pop(exp["exp_id"], None)
        _RUNNING.pop(_folder(exp), None)
        for reservation in reservations:
            reservation.restore_slots()

    # -- results -------------------------------------------------------------------------------------

    def parse_results(self, metric: str) -> tuple[dict[str, Any] | None, float | None]:
        """(the best experiment, its figure); (any experiment or None, None) if none has a figure.

        Adds the figures of each experiment to it as ``results``. For an unknown metric, more is better.
        """
        finished = self.finished_experiments.values()
        for exp, error in finished:
            if not error and (figures := _Run(self, exp).figures()):
                exp["results"] = figures
        known = METRICS.get(metric, Metric(metric, "maximize", ""))
        results = [(exp["results"].get(known.key), exp) for exp, error in finished if not error and "results" in exp]
        # Zero means not measured. It would win where less is better.
        measured = [(value, exp) for value, exp in results if value is not None and value > 0]
        if not measured:
            return next((exp for exp, _ in reversed(finished)), None), None
        value, best = (max if known.direction == "maximize" else min)(measured, key=lambda each: each[0])
        return best, value

    # -- its folder ----------------------------------------------------------------------------------

    def _files(self) -> StudyFiles:
        return StudyFiles.at(self.results_dir, self.exps_dir)

    def _pool(self) -> Pool:
        return _pool_of((node.host, node.slots) for node in self.nodes)

    def _open(self) -> _Claim:
        """Lock the folder and direct signals to the loop, as long as something is running."""
        self._claim = self._claim or _Claim(self._files())
        return self._claim

    def _close_if_idle(self) -> None:
        if not self.running_experiments:
            self._close()

    def _close(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None


_RUNNING: dict[str, ResourceManager] = {}
"""The managers of experiments started by `ResourceManager.run_job`, by the experiments' folders."""


def run_experiment(
    exp: dict[str, Any], reservations: list[Reservation], user_script: str, user_args: Sequence[str]
) -> None:
    """Run one experiment on reserved slots to its end; its files are in ``exp["result_dir"]``."""
    results_dir, name = os.path.split(_folder(exp))
    hosts = {each.node.host: each.node.slots for each in reservations}
    args = Namespace(user_script=user_script, user_args=list(user_args))
    manager = ResourceManager(args, hosts, 0, results_dir, results_dir, None)
    manager.run_job({"exp_id": 0, **exp, "name": name}, reservations)
    try:
        while manager.running_experiments:
            manager.experiment_check()
    finally:
        manager.clear()


def clean_up(exp: Mapping[str, Any], reservations: Iterable[Reservation]) -> None:
    """Stop an experiment if it is still running, over its own channels.

    An ended experiment leaves nothing behind. Processes are not searched by name, since another experiment's name may
    contain this one's.
    """
    if manager := _RUNNING.get(_folder(exp)):
        manager._stop([exp["exp_id"]])


class _Claim:
    """A loop, and the locks that ``bireme tune`` holds on its folder too, so that the two exclude each other.

    The running tuner holds the lock of the journal. (Nothing is written to the journal here: each experiment's own
    files say how it ended.) The experiments lock is held until no process of the experiments is left, even if their
    tuner was killed: the guardians hold its descriptor.
    """

    def __init__(self, files: StudyFiles) -> None:
        files.prepare()
        with ExitStack() as opened:
            opened.callback(Journal.open(os.path.join(files.results_dir, JOURNAL)).close)
            lock = opened.enter_context(ExperimentsLock(os.path.join(files.results_dir, LOCK)))
            if not lock.taken():
                complain("waiting for experiments of an earlier tuner to end")
                lock.wait()
            sweep(files)
            self.fileno, self.loop = lock.fileno, Loop()
            opened.callback(self.loop.close)
            self.close = opened.pop_all().close


def _pool_of(places: Iterable[tuple[str, Sequence[int]]]) -> Pool:
    return {host: tuple(map(str, slots)) for host, slots in places}


def _shape(exp: Mapping[str, Any]) -> Shape:
    return Shape(exp["num_nodes"], exp["num_gpus"])


def _folder(exp: Mapping[str, Any]) -> str:
    return os.path.abspath(str(exp["result_dir"]))


# -- one experiment -----------------------------------------------------------------------------------


def _launch_of(args: Namespace, pool: Pool, hostfile: str | None = None) -> tuple[Launch, dict[str, Any]]:
    """What all experiments have in common, and all options, from the launcher's command line.

    Args:
        pool: the hosts, used if there is no hostfile.
        hostfile: the experiment's own hostfile; None: that of the command line.
    """
    own = {"hostfile": hostfile} if hostfile and os.path.isfile(hostfile) else {}
    options = with_accelerator(parsed_again(Namespace(**{**vars(args), **own})).options)
    if options["hostfile"] is None and not options["hosts"]:
        declared = {host: 1 + max(map(int, slots)) for host, slots in pool.items() if slots}
        options["hosts"] = ",".join(f"{host}:{slots}" for host, slots in declared.items())
    launch = Launch(
        pool=ResourcePool(pool),
        words=words_of(Parsed(options, ()), without=(*NOT_SHARED, "no_ssh", "node_rank")),
        script=args.user_script,
        port=options["master_port"],
        grace=options["grace"],
        heartbeat=options["heartbeat"],
        log_dir=options["log_dir"],
        rank_log_dir=options["enable_each_rank_log"],
    )
    return launch, options


class _Run:
    """A run of an experiment: what to start, what identifies it, and what it has measured."""

    def __init__(self, manager: ResourceManager, exp: Mapping[str, Any]) -> None:
        self._exp, self._args, self._mappings, self._files = exp, manager.args, manager.arg_mappings, manager._files()
        self._launch, self._options = _launch_of(manager.args, manager._pool(), exp.get("hostfile"))
        section = exp["ds_config"].get(SECTION)
        self._is_tuned, given = isinstance(section, dict), section if isinstance(section, dict) else {}
        info = given.get("model_info")
        self._profiles = isinstance(info, dict) and info.get("profile") is True
        # The files that DeepSpeed writes: its figures, and what it found about the model.
        self._metrics = os.path.abspath(given.get("metric_path") or self._file("metrics.json"))
        self._info = os.path.abspath(given.get("model_info_path") or self._file("model_info.json"))

    def _file(self, file: str) -> str:
        return self._files.result(self._exp["name"], file)

    def request(self, reservation: SlotReservation, place: int) -> LaunchRequest:
        """What to start; its files are written."""
        name, identity, report = self._exp["name"], self._identity(), self._file("outcome.json")
        limit, args = identity["experiment_limit"], identity["user_args"]
        options = ("--report", report, *(() if limit is None else ("--time_limit", f"{limit:g}")))
        argv = self._launch.command(name, reservation, place, options=options, args=args)
        # The command that is written runs the real job after tuning, which must not overwrite the report.
        words = self._launch.command(name, reservation, place, options=(), args=args)
        for file in (report, self._metrics, self._info):
            drafts.remove(file)
        facts = {key: value for key, value in self._exp.items() if key not in ("name", "results")} | identity
        facts["hostfile"] = self._exp.get("hostfile") or getattr(self._args, "hostfile", None)
        ds_config = facts.pop("ds_config")
        self._files.write_start(name, ds_config, words, args, **facts, slots=reservation.include())
        return LaunchRequest.of_run(argv, os.environ, self._file, grace=self._launch.grace)

    def _identity(self) -> dict[str, Any]:
        """What identifies a run, as JSON reads it back."""
        ds_config: dict[str, Any] = copy.deepcopy(self._exp["ds_config"])
        if self._is_tuned:
            ds_config[SECTION]["metric_path"] = self._metrics
        if self._profiles:
            ds_config[SECTION]["model_info_path"] = self._info
        by_file = self._options["config_as"] == "file" or not fits_argument(ds_config)
        path = self._file("ds_config.json") if by_file else ""
        return {
            "ds_config": ds_config,
            "num_nodes": self._exp["num_nodes"],
            "num_gpus": self._exp["num_gpus"],
            "user_script": self._launch.script,
            "user_args": list(experiment_args(self._args.user_args, ds_config, self._mappings, path=path)),
            "experiment_limit": self._options["experiment_limit"],
        }

    def judge(self, end: End) -> TrialResult:
        """The result of a run that has ended."""
        return diagnose(end, *self._read(), tail(self._file("stderr.log")))

    def figures(self) -> Mapping[str, float]:
        """The figures that DeepSpeed measured; empty if none."""
        return read_metrics(self._metrics).values

    def _read(self) -> tuple[Mapping[str, float], str]:
        """(figures, why they are missing). Without an ``autotuning`` section none are expected."""
        if self._profiles:
            info = read_model_info(self._info)
            return {"num_params": float(info.params or 0)}, info.reason
        if not self._is_tuned:
            return {}, ""
        metrics = read_metrics(self._metrics)
        return metrics.values, metrics.reason

    def earlier(self) -> TrialResult | None:
        """The result of an earlier process; None if the experiment is to be run.

        An experiment without figures is run again, as in DeepSpeed: they may have been deleted.
        """
        identity, written = self._identity(), read_report(self._file("exp.json")) or {}
        report = read_report(self._file("outcome.json"))
        if report is None and "slots" not in written:
            return self._of_deepspeed(identity, written)
        report = report or {}
        code, seconds = report.get("exit_code"), report.get("seconds")
        if not isinstance(code, int) or not isinstance(seconds, (int, float)):
            return None
        if any(written.get(key) != value for key, value in identity.items()):
            return None
        result = self.judge(End(exit_code=code, report=report, seconds=float(seconds), stopped=False))
        return result if result.counts and result.cause != "no metric" else None

    def _of_deepspeed(self, identity: Mapping[str, Any], written: Mapping[str, object]) -> TrialResult | None:
        """The result in a folder that DeepSpeed's own scheduler made; None if the experiment is to be run.

        By DeepSpeed's rule: it is run again if Ctrl+C interrupted it, or if it left neither an error nor a figure.
        """
        ours, theirs = (_without_section(each.get("ds_config")) for each in (identity, written))
        alike = all(written.get(key) == identity[key] for key in ("num_nodes", "num_gpus")) and ours == theirs
        if not alike or not os.path.exists(self._file("stderr.log")):
            return None
        stderr = tail(self._file("stderr.log"))
        if "KeyboardInterrupt" in stderr:
            return None
        if any(self._read()[0].values()):
            return TrialResult(cause="ok")
        error = re.search(r"[Ee]rror:? *(.*)|ERROR:? *(.*)", stderr)
        return error and TrialResult(cause="failed", reason=(error[1] or error[2] or "").strip() or "error")


def _error_of(result: TrialResult) -> str | None:
    """What DeepSpeed calls an error: why there is no figure; None if there is no error."""
    if result.cause == "ok":
        return None
    if not result.reason or result.reason.startswith(f"{result.cause}:"):
        return result.reason or result.cause
    return f"{result.cause}: {result.reason}"


def _without_section(ds_config: object) -> object:
    """A configuration without its ``autotuning`` section, in which the paths of the figures differ."""
    return {key: value for key, value in ds_config.items() if key != SECTION} if isinstance(ds_config, dict) else None
