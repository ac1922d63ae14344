"""The names of ``deepspeed.autotuning.scheduler``: experiments, given as files, on the slots of some hosts.

An adapter over :mod:`bireme.tune`. What DeepSpeed does is done, with what it does wrong left out: every experiment
has arguments of its own, a configuration fails by what its ranks raised and not by a word on stderr, what the
infrastructure has failed is run again, times are minimised, and nothing is ended by its name.

Where DeepSpeed sleeps and looks, :meth:`ResourceManager.run` waits for what happens. Like all of Bireme that runs
jobs it belongs to the main thread.
"""

from __future__ import annotations

import os
import signal
import time

from bireme.deepspeed.arguments import parsed_again
from bireme.deepspeed.claim import Claim
from bireme.deepspeed.experiments import Experiments, read_experiment
from bireme.deepspeed.nodes import Node, Reservation, pool_of, reserve
from bireme.deepspeed.outcomes import best_of, error_of
from bireme.errors import BadInputError, UnfitError
from bireme.loop import STOP_SIGNALS
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.executor import Executor, Job
from bireme.tune.scheduler import Scheduler
from bireme.tune.slots import Shape, why_impossible
from bireme.tune.trial_result import TrialResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeGuard

__all__ = ["Node", "Reservation", "ResourceManager", "clean_up", "get_job_id", "get_user", "run_experiment"]


class ResourceManager:
    """Runs experiments on the slots of some hosts.

    Args:
        args: the launcher's command line, as ``bireme.deepspeed.runner.parse_args`` gives it.
        hosts: their names; or, where nodes differ, host → slot ids.
        num_gpus_per_node: slots of each, where ``hosts`` does not say.
        results_dir: where each experiment has a folder.
        exps_dir: where their files lie.
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
        self.nodes = [Node(host, hosts[host] if _is_mapping(hosts) else num_gpus_per_node) for host in hosts]
        self.experiment_queue: list[dict[str, Any]] = []
        self.running_experiments: dict[int, tuple[Executor, dict[str, Any], list[Reservation], float]] = {}
        self.finished_experiments: dict[int, tuple[dict[str, Any], str | None]] = {}
        self.experiment_count = 0
        self.exp_paths: set[str] = set()
        self.arg_mappings: dict[str, str] = {}
        for key, flag in (arg_mappings or {}).items():
            self.arg_mappings.setdefault(key.strip(), flag.strip())
        self._claim: Claim | None = None

    # -- the queue -----------------------------------------------------------------------------------

    def schedule_experiments(self, exp_paths: Iterable[str]) -> None:
        """Queue experiments, JSON or HJSON files; those that have ended before are taken as finished.

        Raises:
            ValueError: a file is none, has the name of another one, or asks for more than there will ever be.
        """
        for path in exp_paths:
            if path in self.exp_paths:
                continue
            exp = read_experiment(path, self.results_dir, self._pool(), self._names())
            ending = self._experiments().earlier(exp)
            self.exp_paths.add(path)
            exp["exp_id"], self.experiment_count = self.experiment_count, self.experiment_count + 1
            if ending is None:
                self.experiment_queue.append(exp)
            else:
                self.finished_experiments[exp["exp_id"]] = (exp, error_of(ending))

    def _names(self) -> set[str]:
        known = [*self.experiment_queue, *(exp for exp, _ in self.finished_experiments.values())]
        return {exp["name"] for exp in (*known, *(exp for _, exp, _, _ in self.running_experiments.values()))}

    def resource_request(self, exp: Mapping[str, Any]) -> list[Reservation] | None:
        """Slots for an experiment, on the first nodes that have enough; None: there are too few now."""
        return reserve(self.nodes, exp["num_nodes"], exp["num_gpus"])

    def status(self) -> str:
        """The idle slots of every node, in words."""
        return ", ".join(f"{node.host} ({len(node.idle_slots)} idle gpus)" for node in self.nodes)

    # -- the whole queue -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run the queue, as many at a time as there are slots for, in order; return when all have ended.

        A signal stops all in order, and does then what it would have done without us; what has not ended is queued
        again. A second Ctrl+C does not wait for them.

        Raises:
            BadInputError: another tuner is at work in this folder, or slots that are needed are reserved.
            UnfitError: no host can run anything; what is left is queued again.
            KeyboardInterrupt: Ctrl+C.
        """
        while self.running_experiments:  # by `run_job`, on slots that are needed here
            self.experiment_check()
        pool = pool_of((node.host, node.idle_slots) for node in self.nodes)
        for exp in self.experiment_queue:
            if reason := why_impossible(pool, _shape(exp)):
                raise BadInputError(f"experiment {exp['name']} cannot run while slots are reserved: {reason}")
        claim = self._open()
        try:
            signum = self._run(claim, self._scheduler(pool))
        finally:
            self._close()
        signum = signum or claim.loop.late
        if signum:
            signal.raise_signal(signum)
            raise KeyboardInterrupt  # the signal was handled, and we have not done what was asked for

    def _scheduler(self, pool: Mapping[str, tuple[str, ...]]) -> Scheduler:
        """In order, as DeepSpeed; with ``--order longest`` the widest first, and what is not in its way beside it.

        How long anything takes is not known: nobody has run it.
        """
        order = parsed_again(self.args).options["order"]
        return Scheduler(pool, order=order, backfill=order != "fifo")

    def _run(self, claim: Claim, scheduler: Scheduler) -> int:
        """Return the signal that has stopped it, or 0."""
        loop, client = claim.loop, self._experiments(self._ended)
        executor = Executor(loop, scheduler, client, keep=(claim.fileno(),))
        signals: list[int] = []

        def interrupt(signum: int) -> None:
            (executor.kill if signals and signum in (signal.SIGINT, signal.SIGQUIT) else executor.stop)()
            signals.append(signum)
            loop.stop()

        loop.on_signals(STOP_SIGNALS, interrupt)
        waiting, self.experiment_queue = self.experiment_queue, []
        for exp in waiting:
            client.add(exp)
            self.running_experiments[exp["exp_id"]] = (executor, exp, [], time.time())
        try:
            for exp in waiting:
                executor.submit(Job(exp["name"], _shape(exp)))
            executor.start_ready()
            while self.running_experiments and not (signals and executor.idle) and not executor.hopeless:
                loop.run()
            if executor.hopeless:
                raise UnfitError(f"no experiment can run: {executor.hopeless}")
        finally:
            executor.stop()  # for an error of ours, such as a full disk: otherwise nothing runs any more
            while not executor.idle:
                loop.run()
            executor.close()
            self.experiment_queue = [exp for _, exp, _, _ in self.running_experiments.values()]
            self.running_experiments.clear()
        return signals[0] if signals else 0

    # -- one by one ----------------------------------------------------------------------------------

    def run_job(self, exp: dict[str, Any], reservations: list[Reservation]) -> None:
        """Start an experiment on slots that were reserved for it; :meth:`experiment_check` waits for its end."""
        try:
            self._start(exp, reservations)
        except BaseException:
            self._forget(exp, reservations)
            self._close_if_idle()
            raise

    def _start(self, exp: dict[str, Any], reservations: list[Reservation]) -> None:
        claim = self._open()

        def ended(exp: dict[str, Any], ending: TrialResult) -> None:
            claim.loop.after(client.lingering, lambda: self._ended(exp, ending))

        client = self._experiments(ended, port=exp["exp_id"])  # as in DeepSpeed
        client.add(exp)
        pool = pool_of((each.node.host, each.slots) for each in reservations)
        executor = Executor(claim.loop, Scheduler(pool), client, keep=(claim.fileno(),))
        executor.submit(Job(exp["name"], Shape(len(reservations), len(reservations[0].slots))))
        self.running_experiments[exp["exp_id"]] = (executor, exp, reservations, time.time())
        _RUNNING[_folder(exp)] = self
        executor.start_ready()

    def experiment_check(self, pbar: Any = None) -> None:
        """Wait until one of those that run has ended, if any does; its slots are idle then."""
        before = len(self.finished_experiments)
        if self.running_experiments:
            self._wait()
        self._close_if_idle()
        if pbar is not None:
            pbar.update(len(self.finished_experiments) - before)

    def _ended(self, exp: dict[str, Any], ending: TrialResult) -> None:
        """An experiment has ended for good. One that `run` was told to stop has not: it is queued again."""
        executor, _, reservations, _ = self.running_experiments[exp["exp_id"]]
        self._open().loop.stop()
        if ending.counts or reservations or not executor.stopping:
            self.finished_experiments[exp["exp_id"]] = (exp, error_of(ending))
            self._forget(exp, reservations)

    def _forget(self, exp: Mapping[str, Any], reservations: list[Reservation]) -> None:
        """It runs no more, and its slots are idle."""
        self.running_experiments.pop(exp["exp_id"], None)
        _RUNNING.pop(_folder(exp), None)
        for reservation in reservations:
            reservation.restore_slots()

    def _stop(self, exp_ids: Iterable[int]) -> None:
        """Have these end in order, and wait for it."""
        exp_ids = list(exp_ids)
        for number in exp_ids:
            executor, exp, _, _ = self.running_experiments[number]
            executor.stop()
            if executor.withdraw():  # it was to be started again
                self._ended(exp, TrialResult("stopped"))
        while any(number in self.running_experiments for number in exp_ids):
            self._wait()
        self._close_if_idle()

    def _wait(self) -> None:
        """Run the loop until something stops it.

        A signal does then what it would have done without us: in the midst of what is told of an end it would leave
        an experiment that neither runs nor has ended.
        """
        loop, signals = self._open().loop, list[int]()

        def interrupt(signum: int, frame: object) -> None:
            signals.append(signum)
            loop.stop()

        taken = [signum for signum in STOP_SIGNALS if signal.getsignal(signum) not in (signal.SIG_IGN, None)]
        before = {signum: signal.signal(signum, interrupt) for signum in taken}
        loop.after(0.0, lambda: loop.stop() if signals else None)  # one that came before the loop ran
        try:
            loop.run()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
        if signals:
            signal.raise_signal(signals[0])

    # -- results -------------------------------------------------------------------------------------

    def parse_results(self, metric: str) -> tuple[dict[str, Any] | None, float | None]:
        """(the best experiment, its figure); (some experiment or None, None) where none has one.

        Each experiment that has figures gets them as ``results``.
        """
        finished = self.finished_experiments.values()
        for exp, error in finished:
            if not error and (figures := self._experiments().figures(exp)):
                exp["results"] = figures
        best, value = best_of((exp for exp, error in finished if not error and "results" in exp), metric)
        return (best, value) if best else (next((exp for exp, _ in reversed(finished)), None), None)

    def clear(self) -> None:
        """Stop what runs and forget what there was; experiments are counted on."""
        self._stop(list(self.running_experiments))
        self.experiment_queue, self.running_experiments, self.finished_experiments = [], {}, {}
        self.exp_paths = set()

    # -- inside --------------------------------------------------------------------------------------

    def _experiments(
        self, on_end: Callable[[dict[str, Any], TrialResult], object] = lambda exp, ending: None, port: int = 0
    ) -> Experiments:
        files = StudyFiles.at(self.results_dir, self.exps_dir)
        return Experiments(self.args, self._pool(), files, self.arg_mappings, on_end, port)

    def _pool(self) -> dict[str, tuple[str, ...]]:
        return pool_of((node.host, node.slots) for node in self.nodes)

    def _open(self) -> Claim:
        """The folder is ours, and signals go to the loop, as long as something runs."""
        self._claim = self._claim or Claim(StudyFiles.at(self.results_dir, self.exps_dir))
        return self._claim

    def _close_if_idle(self) -> None:
        if not self.running_experiments:
            self._close()

    def _close(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None


_RUNNING: dict[str, ResourceManager] = {}
"""Who runs the experiments of `ResourceManager.run_job`, by their folders."""


def run_experiment(
    exp: dict[str, Any], reservations: list[Reservation], user_script: str, user_args: Sequence[str]
) -> None:
    """Run one experiment on reserved slots to its end; its files are in ``exp["result_dir"]``."""
    from argparse import Namespace

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
    """Nothing of an experiment may be left on its nodes: one that still runs is stopped, by its own channel.

    One that has ended has left nothing; nothing is looked for by its name, which another's may contain.
    """
    if manager := _RUNNING.get(_folder(exp)):
        manager._stop([exp["exp_id"]])


def get_job_id() -> str:
    """The job id of the infrastructure, as some clusters have it."""
    return os.environ.get("DLWS_JOB_ID") or os.environ.get("DLTS_JOB_ID") or "unknown-job-id"


def get_user() -> str:
    """Who runs this."""
    return os.environ.get("USER", "unknown-user")


def _shape(exp: Mapping[str, Any]) -> Shape:
    return Shape(exp["num_nodes"], exp["num_gpus"])


def _folder(exp: Mapping[str, Any]) -> str:
    return os.path.abspath(str(exp["result_dir"]))


def _is_mapping(hosts: object) -> TypeGuard[Mapping[str, Sequence[int]]]:
    return hasattr(hosts, "keys")
