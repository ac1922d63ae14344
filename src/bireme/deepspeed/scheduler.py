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

from bireme import drafts, isolated
from bireme.cli.parser import Parsed
from bireme.cli.tune_words import NOT_SHARED, with_accelerator, words_of
from bireme.deepspeed.arguments import parsed_again
from bireme.errors import BadInputError, UnfitError
from bireme.logs.console import complain
from bireme.loop import STOP_SIGNALS, Loop
from bireme.tune.deepspeed.command import experiment_args, fits_argument
from bireme.tune.deepspeed.config import SECTION, read_document
from bireme.tune.deepspeed.files import LOCK, StudyFiles, facts_of_deepspeed, get_job_id, get_user, sweep
from bireme.tune.deepspeed.results import METRICS, Metric, read_metrics, read_model_info
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.executor import Executor
from bireme.tune.execution.experiment import End, LaunchRequest, read_report, tail
from bireme.tune.execution.launch import Launch, ResourcePool
from bireme.tune.execution.slot_scheduler import Scheduler, Shape, Task, why_impossible
from bireme.tune.store.folder import ExperimentsLock
from bireme.tune.store.journal import Journal
from bireme.tune.store.records import JOURNAL
from bireme.tune.study.trial_result import TrialResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from bireme.resources.pool import Pool
    from bireme.tune.execution.slot_scheduler import SlotReservation

__all__ = ["Node", "Reservation", "ResourceManager", "clean_up", "get_job_id", "get_user", "run_experiment"]


class Node:
    """A host and its slots.

    Args:
        host: its name.
        max_slots: the number of its slots, counted from 0, or the list of them.
    """

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
            exp = _read_experiment(path, self.results_dir, self._pool(), self._names())
            result = self._experiments().earlier(exp)
            self.exp_paths.add(path)
            exp["exp_id"], self.experiment_count = self.experiment_count, self.experiment_count + 1
            if result is None:
                self.experiment_queue.append(exp)
            else:
                self.finished_experiments[exp["exp_id"]] = (exp, _error_of(result))

    def _names(self) -> set[str]:
        known = [*self.experiment_queue, *(exp for exp, _ in self.finished_experiments.values())]
        return {exp["name"] for exp in (*known, *(exp for _, exp, _, _ in self.running_experiments.values()))}

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

    # -- the whole queue -----------------------------------------------------------------------------

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
        claim = self._open()
        try:
            signum = self._run(claim, Scheduler(pool, order=order, backfill=order != "fifo"))
        finally:
            self._close()
        signum = signum or claim.loop.late
        if signum:
            signal.raise_signal(signum)
            raise KeyboardInterrupt  # the caller handled the signal, but the queue is not done

    def _run(self, claim: _Claim, scheduler: Scheduler) -> int:
        """Run the queue; return the signal that stopped it, or 0."""
        loop, client = claim.loop, self._experiments(self._ended)
        executor = Executor(loop, scheduler, client, keep=(claim.fileno(),))
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
        for exp in waiting:
            client.add(exp)
            self.running_experiments[exp["exp_id"]] = (executor, exp, [], time.time())
        try:
            for exp in waiting:
                executor.submit(Task(key=exp["name"], shape=_shape(exp)))
            executor.start_ready()
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

    # -- one by one ----------------------------------------------------------------------------------

    def run_job(self, exp: dict[str, Any], reservations: list[Reservation]) -> None:
        """Start an experiment on slots reserved for it; :meth:`experiment_check` waits for its end."""
        try:
            self._start(exp, reservations)
        except BaseException:
            self._forget(exp, reservations)
            self._close_if_idle()
            raise

    def _start(self, exp: dict[str, Any], reservations: list[Reservation]) -> None:
        claim = self._open()

        def ended(exp: dict[str, Any], result: TrialResult) -> None:
            claim.loop.after(client.lingering, lambda: self._ended(exp, result))

        client = self._experiments(ended, port=exp["exp_id"])  # as in DeepSpeed
        client.add(exp)
        pool = _pool_of((each.node.host, each.slots) for each in reservations)
        executor = Executor(claim.loop, Scheduler(pool), client, keep=(claim.fileno(),))
        shape = Shape(len(reservations), len(reservations[0].slots))
        executor.submit(Task(key=exp["name"], shape=shape))
        self.running_experiments[exp["exp_id"]] = (executor, exp, reservations, time.time())
        _RUNNING[_folder(exp)] = self
        executor.start_ready()

    def experiment_check(self, pbar: Any = None) -> None:
        """Wait until a running experiment has ended, if any is running; its slots are then idle."""
        before = len(self.finished_experiments)
        if self.running_experiments:
            self._wait()
        self._close_if_idle()
        if pbar is not None:
            pbar.update(len(self.finished_experiments) - before)

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

    def _wait(self) -> None:
        """Run the loop until something stops it.

        A signal has its usual effect only afterwards: during the handling of an experiment's end it would leave the
        experiment neither running nor ended.
        """
        loop, signals = self._open().loop, list[int]()

        def interrupt(signum: int, frame: object) -> None:
            signals.append(signum)
            loop.stop()

        taken = [signum for signum in STOP_SIGNALS if signal.getsignal(signum) not in (signal.SIG_IGN, None)]
        before = {signum: signal.signal(signum, interrupt) for signum in taken}
        loop.after(0.0, lambda: loop.stop() if signals else None)  # for a signal before the loop ran
        try:
            loop.run()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
        if signals:
            signal.raise_signal(signals[0])

    # -- results -------------------------------------------------------------------------------------

    def parse_results(self, metric: str) -> tuple[dict[str, Any] | None, float | None]:
        """(the best experiment, its figure); (any experiment or None, None) if none has a figure.

        Adds the figures of each experiment to it as ``results``. For an unknown metric, more is better.
        """
        finished = self.finished_experiments.values()
        for exp, error in finished:
            if not error and (figures := self._experiments().figures(exp)):
                exp["results"] = figures
        known = METRICS.get(metric, Metric(metric, "maximize", ""))
        results = [(exp["results"].get(known.key), exp) for exp, error in finished if not error and "results" in exp]
        # Zero means not measured. It would win where less is better.
        measured = [(value, exp) for value, exp in results if value is not None and value > 0]
        if not measured:
            return next((exp for exp, _ in reversed(finished)), None), None
        value, best = (max if known.direction == "maximize" else min)(measured, key=lambda each: each[0])
        return best, value

    def clear(self) -> None:
        """Stop running experiments and forget all; the numbering of experiments continues."""
        self._stop(list(self.running_experiments))
        self.experiment_queue, self.running_experiments, self.finished_experiments = [], {}, {}
        self.exp_paths = set()

    # -- inside --------------------------------------------------------------------------------------

    def _experiments(
        self, on_end: Callable[[dict[str, Any], TrialResult], object] = lambda exp, result: None, port: int = 0
    ) -> _Experiments:
        files = StudyFiles.at(self.results_dir, self.exps_dir)
        return _Experiments(self.args, self._pool(), files, self.arg_mappings, on_end, port)

    def _pool(self) -> dict[str, tuple[str, ...]]:
        return _pool_of((node.host, node.slots) for node in self.nodes)

    def _open(self) -> _Claim:
        """Lock the folder and direct signals to the loop, as long as something is running."""
        self._claim = self._claim or _Claim(StudyFiles.at(self.results_dir, self.exps_dir))
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
    """The locks that ``bireme tune`` holds on its folder too, so that the two exclude each other.

    The running tuner holds the lock of the journal. (Nothing is written to the journal here: each experiment's own
    files say how it ended.) The experiments lock is held until no process of the experiments is left, even if their
    tuner was killed.

    Attributes:
        loop: the event loop, which receives the signals.
    """

    def __init__(self, files: StudyFiles) -> None:
        files.prepare()
        with ExitStack() as opened:
            opened.callback(Journal.open(os.path.join(files.results_dir, JOURNAL)).close)
            self._lock = opened.enter_context(ExperimentsLock(os.path.join(files.results_dir, LOCK)))
            if not self._lock.taken():
                complain("waiting for experiments of an earlier tuner to end")
                self._lock.wait()
            sweep(files)
            self.loop = Loop()
            opened.callback(self.loop.close)
            self._held = opened.pop_all()

    def fileno(self) -> int:
        """The file descriptor that the guardians hold as long as any process of an experiment lives."""
        return self._lock.fileno()

    def close(self) -> None:
        """Restore the signal handlers and release the locks."""
        self._held.close()


def _pool_of(places: Iterable[tuple[str, Sequence[int]]]) -> dict[str, tuple[str, ...]]:
    """The hosts and slots as a resource pool: host → slot ids."""
    return {host: tuple(map(str, slots)) for host, slots in places}


def _shape(exp: Mapping[str, Any]) -> Shape:
    return Shape(exp["num_nodes"], exp["num_gpus"])


def _folder(exp: Mapping[str, Any]) -> str:
    return os.path.abspath(str(exp["result_dir"]))


# -- one experiment -----------------------------------------------------------------------------------


def _read_experiment(path: str, results_dir: str, pool: Pool, taken: Collection[str] = ()) -> dict[str, Any]:
    """Read an experiment's file; add its results folder, and to its configuration the file for its figures.

    Args:
        taken: the names of other experiments.
    """
    document = read_document(path)
    exp: dict[str, Any] = copy.deepcopy(document.data)
    for key, kind in (("name", str), ("ds_config", dict), ("num_gpus", int), ("num_nodes", int)):
        if not isinstance(exp.get(key), kind):
            what = f"missing or not of type {kind.__name__}: {key!r}"
            raise BadInputError(what, hint="every experiment needs it", where=document.where(key))
    if exp["name"] in taken:
        hint = "it becomes the name of a folder: give each experiment its own"
        raise BadInputError(f"duplicate experiment name: {exp['name']}", hint=hint, where=document.where("name"))
    if reason := why_impossible(pool, Shape(exp["num_nodes"], exp["num_gpus"])):
        raise BadInputError(f"experiment {exp['name']} can never run: {reason}", where=document.where("num_gpus"))
    files = StudyFiles.at(results_dir, "")
    files.result(exp["name"])  # it becomes the name of a folder, if it can
    exp["result_dir"] = os.path.join(os.path.expanduser(results_dir), exp["name"])
    if (section := _section(exp)) is not None:
        section["metric_path"] = files.result(exp["name"], "metrics.json")
    return exp


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


class _Experiments:
    """The executor's client for experiments of DeepSpeed's scheduler.

    Args:
        args: the launcher's command line.
        mappings: ``arg_mappings``.
        on_end: called with each experiment that has ended and is not retried.
        port: added to the port of the command line, together with the number among the running experiments.

    Attributes:
        lingering: seconds until the experiment that ended last has certainly left nothing.
    """

    def __init__(
        self,
        args: Namespace,
        pool: Pool,
        files: StudyFiles,
        mappings: Mapping[str, str],
        on_end: Callable[[dict[str, Any], TrialResult], object],
        port: int,
    ) -> None:
        self._args, self._pool, self._files, self._mappings = args, pool, files, mappings
        self._on_end, self._port = on_end, port
        self.lingering = 0.0
        self._exps: dict[str, dict[str, Any]] = {}

    def add(self, exp: dict[str, Any]) -> None:
        self._exps[exp["name"]] = exp

    # -- before --------------------------------------------------------------------------------------

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        """Return what to start for an experiment, and write its files.

        Args:
            place: a low number that no other running experiment has, another one at each attempt.
        """
        exp = self._exps[name]
        (launch, _), identity, report = self._launch(exp), self._identity(exp), self._files.result(name, "outcome.json")
        limit, args = identity["experiment_limit"], identity["user_args"]
        limit = () if limit is None else ("--time_limit", f"{limit:g}")
        argv = launch.command(name, reservation, place + self._port, options=("--report", report, *limit), args=args)
        # The command that is written runs the real job after tuning, which must not overwrite the report.
        words = launch.command(name, reservation, place + self._port, options=(), args=args)
        for file in (report, *self._figures(exp)):
            drafts.remove(file)
        facts = {key: value for key, value in exp.items() if key not in ("name", "results")}
        facts.update(identity, **self._facts_of_deepspeed(exp, words, identity), slots=reservation.include())
        self._files.write_start(name, facts.pop("ds_config"), ("bireme", "run", *words), **facts)
        return LaunchRequest(
            argv=isolated.command("bireme", "run", *argv),
            env=dict(os.environ),
            cwd=os.getcwd(),
            stdout=self._files.result(name, "stdout.log"),
            stderr=self._files.result(name, "stderr.log"),
            report=report,
            grace=launch.grace,
        )

    def _facts_of_deepspeed(
        self, exp: Mapping[str, Any], words: Sequence[str], identity: Mapping[str, Any]
    ) -> dict[str, object]:
        """The other keys of ``exp.json`` that DeepSpeed's scheduler writes."""
        launcher_args = words[: len(words) - len(identity["user_args"]) - 1]
        return {
            "hostfile": exp.get("hostfile") or getattr(self._args, "hostfile", None),
            **facts_of_deepspeed(self._files, exp["name"], identity["ds_config"], launcher_args),
            "result_dir": exp["result_dir"],
        }

    def _launch(self, exp: Mapping[str, Any]) -> tuple[Launch, dict[str, Any]]:
        return _launch_of(self._args, self._pool, exp.get("hostfile"))

    def _identity(self, exp: Mapping[str, Any]) -> dict[str, Any]:
        """What identifies a run, as JSON reads it back."""
        ds_config: dict[str, Any] = copy.deepcopy(exp["ds_config"])
        metrics, info = self._figures(exp)
        if isinstance(ds_config.get(SECTION), dict):
            ds_config[SECTION]["metric_path"] = metrics
        if _is_profile(exp):
            ds_config[SECTION]["model_info_path"] = info
        launch, options = self._launch(exp)
        by_file = options["config_as"] == "file" or not fits_argument(ds_config)
        path = self._files.result(exp["name"], "ds_config.json") if by_file else ""
        return {
            "ds_config": ds_config,
            "num_nodes": exp["num_nodes"],
            "num_gpus": exp["num_gpus"],
            "user_script": launch.script,
            "user_args": list(experiment_args(self._args.user_args, ds_config, self._mappings, path=path)),
            "experiment_limit": options["experiment_limit"],
        }

    def _figures(self, exp: Mapping[str, Any]) -> tuple[str, str]:
        """The files that DeepSpeed writes: (its figures, what it found about the model)."""
        given = _section(exp) or {}
        return (
            os.path.abspath(given.get("metric_path") or self._files.result(exp["name"], "metrics.json")),
            os.path.abspath(given.get("model_info_path") or self._files.result(exp["name"], "model_info.json")),
        )

    def started(self, name: str, reservation: SlotReservation) -> None:
        """Do nothing: no watcher shows the start."""

    # -- after ---------------------------------------------------------------------------------------

    def judge(self, name: str, end: End) -> TrialResult:
        """Read the figures of a run that has ended, and decide its result."""
        figures, reason = self._read(self._exps[name])
        return diagnose(end, figures, reason, tail(self._files.result(name, "stderr.log")))

    def settling(self, reservation: SlotReservation, end: End) -> float:
        """Seconds until a run has certainly left nothing on other nodes."""
        launch, _ = _launch_of(self._args, self._pool)
        self.lingering = launch.settling(reservation, end.report)
        return self.lingering

    def ended(self, name: str, result: TrialResult, *, again: bool) -> None:
        """Report an experiment, unless it was queued for another attempt."""
        if not again:
            self._on_end(self._exps[name], result)

    def earlier(self, exp: dict[str, Any]) -> TrialResult | None:
        """The result of this experiment from an earlier process; None if it is to be run.

        An experiment without figures is run again, as in DeepSpeed: they may have been deleted.
        """
        identity = self._identity(exp)
        written = read_report(self._files.result(exp["name"], "exp.json")) or {}
        report = read_report(self._files.result(exp["name"], "outcome.json"))
        if report is None and "slots" not in written:
            return self._of_deepspeed(exp, identity, written)
        report = report or {}
        code, seconds = report.get("exit_code"), report.get("seconds")
        if not isinstance(code, int) or not isinstance(seconds, (int, float)):
            return None
        if any(written.get(key) != value for key, value in identity.items()):
            return None
        self.add(exp)
        result = self.judge(exp["name"], End(exit_code=code, report=report, seconds=float(seconds), stopped=False))
        return result if result.counts and result.cause != "no metric" else None

    def _of_deepspeed(
        self, exp: Mapping[str, Any], identity: Mapping[str, Any], written: Mapping[str, object]
    ) -> TrialResult | None:
        """The result in a folder that DeepSpeed's own scheduler made; None if the experiment is to be run.

        By DeepSpeed's rule: it is run again if Ctrl+C interrupted it, or if it left neither an error nor a figure.
        """
        ours, theirs = (_without_section(each.get("ds_config")) for each in (identity, written))
        alike = all(written.get(key) == exp[key] for key in ("num_nodes", "num_gpus")) and ours == theirs
        if not alike or not os.path.exists(self._files.result(exp["name"], "stderr.log")):
            return None
        stderr = tail(self._files.result(exp["name"], "stderr.log"))
        if "KeyboardInterrupt" in stderr:
            return None
        if any(self._read(exp)[0].values()):
            return TrialResult(cause="ok")
        error = re.search(r"[Ee]rror:? *(.*)|ERROR:? *(.*)", stderr)
        return error and TrialResult(cause="failed", reason=(error[1] or error[2] or "").strip() or "error")

    def figures(self, exp: Mapping[str, Any]) -> dict[str, float]:
        """The figures that DeepSpeed measured; empty if none."""
        return read_metrics(self._figures(exp)[0]).values

    def _read(self, exp: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """(figures, why they are missing). Without an ``autotuning`` section none are expected."""
        if _is_profile(exp):
            info = read_model_info(self._figures(exp)[1])
            return {"num_params": float(info.params or 0)}, info.reason
        if _section(exp) is None:
            return {}, ""
        metrics = read_metrics(self._figures(exp)[0])
        return metrics.values, metrics.reason


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


def _section(exp: Mapping[str, Any]) -> dict[str, Any] | None:
    """The ``autotuning`` section of its configuration."""
    section = exp["ds_config"].get(SECTION)
    return section if isinstance(section, dict) else None


def _is_profile(exp: Mapping[str, Any]) -> bool:
    info = (_section(exp) or {}).get("model_info")
    return isinstance(info, dict) and info.get("profile") is True
