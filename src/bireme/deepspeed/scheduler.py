"""The names of ``deepspeed.autotuning.scheduler``: experiments, given as files, on the slots of some hosts.

An adapter over :mod:`bireme.tune`. What the reference does is done, with what it does wrong left out: every experiment
has arguments of its own, a configuration fails by what its ranks raised and not by a word on stderr, what the
infrastructure has failed is run again, times are minimised, and nothing is ended by its name.

Where the reference sleeps and looks, :meth:`ResourceManager.run` waits for what happens. Like all of Bireme that runs
jobs it belongs to the main thread.
"""

from __future__ import annotations

import getpass
import os
import signal
import time

from bireme.deepspeed.experiments import Experiments, command_of, read_experiment
from bireme.errors import BadInputError
from bireme.loop import Loop
from bireme.resources.filters import NodeFilter
from bireme.tune.deepspeed.results import METRICS, Metric
from bireme.tune.ending import Ending
from bireme.tune.executor import Executor, Job
from bireme.tune.lock import ExperimentsLock
from bireme.tune.scheduler import Scheduler
from bireme.tune.slots import Shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeGuard

__all__ = ["Node", "Reservation", "ResourceManager", "clean_up", "get_job_id", "get_user", "run_experiment"]

_LOCK = "experiments.lock"
_RUNNING: dict[str, tuple[Executor, Loop]] = {}
"""Who runs an experiment, by its folder of results."""


class Node:
    """A host and its slots.

    Args:
        host: its name.
        max_slots: how many slots it has, numbered from 0; or which.
    """

    def __init__(self, host: str, max_slots: int | Sequence[int]) -> None:
        self.host = host
        self.slots = tuple(range(max_slots) if isinstance(max_slots, int) else max_slots)
        self.idle_slots = list(self.slots)
        self.max_slots = len(self.slots)

    def reserve_slots(self, slot_request: int) -> list[int] | None:
        """So many idle slots, which are idle no more; None: there are fewer."""
        if len(self.idle_slots) < slot_request:
            return None
        taken, self.idle_slots = self.idle_slots[:slot_request], self.idle_slots[slot_request:]
        return taken

    def restore_slots(self, slots: Iterable[int]) -> None:
        """They are idle again."""
        self.idle_slots = sorted({*self.idle_slots, *slots})


class Reservation:
    """Some slots of a node."""

    def __init__(self, node: Node, slots: list[int]) -> None:
        self.node, self.slots = node, slots

    def restore_slots(self) -> None:
        """Give them back."""
        self.node.restore_slots(self.slots)

    def desc(self) -> str:
        """``host:0,1@``."""
        return f"{self.node.host}:{','.join(map(str, self.slots))}@"


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
        self._loop: Loop | None = None

    # -- the queue -----------------------------------------------------------------------------------

    def schedule_experiments(self, exp_paths: Iterable[str]) -> None:
        """Queue experiments, JSON or HJSON files; those that have ended before are taken as finished.

        Raises:
            ValueError: a file is none, or asks for more than there will ever be.
        """
        for path in exp_paths:
            if path in self.exp_paths:
                continue
            exp = read_experiment(path, self.results_dir)
            shape = Shape(exp["num_nodes"], exp["num_gpus"])
            if reason := Scheduler(self._pool(idle=False)).impossible(shape):
                raise BadInputError(f"experiment {exp['name']} can never run: {reason}", where=path)
            self.exp_paths.add(path)
            exp["exp_id"], self.experiment_count = self.experiment_count, self.experiment_count + 1
            ending = self._experiments().earlier(exp)
            if ending is None:
                self.experiment_queue.append(exp)
            else:
                self.finished_experiments[exp["exp_id"]] = (exp, _error(ending))

    def resource_request(self, exp: Mapping[str, Any]) -> list[Reservation] | None:
        """Slots for an experiment, on the first nodes that have enough; None: there are too few now."""
        reservations: list[Reservation] = []
        for node in self.nodes:
            if len(reservations) == exp["num_nodes"]:
                break
            if slots := node.reserve_slots(exp["num_gpus"]):
                reservations.append(Reservation(node, slots))
        if len(reservations) == exp["num_nodes"]:
            return reservations
        for reservation in reservations:
            reservation.restore_slots()
        return None

    def status(self) -> str:
        """The idle slots of every node, in words."""
        return ", ".join(f"{node.host} ({len(node.idle_slots)} idle gpus)" for node in self.nodes)

    # -- running -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the queue, as many at a time as there are slots for, in order; return when all have ended.

        Raises:
            BadInputError: another process runs experiments in this folder.
            KeyboardInterrupt: Ctrl+C; all experiments were stopped, and what has not ended is queued again.
        """
        with ExperimentsLock(os.path.join(self.results_dir, _LOCK)) as lock:
            if not lock.taken():
                raise BadInputError("another tuner runs experiments here", where=self.results_dir)
            waiting, self.experiment_queue = self.experiment_queue, []
            interrupted = self._run(waiting, lock.fileno())
        self._close()
        if interrupted:
            raise KeyboardInterrupt

    def _run(self, waiting: list[dict[str, Any]], lock: int) -> bool:
        loop = self._open()
        client = self._experiments(self._ended)
        executor = Executor(loop, Scheduler(self._pool()), client, keep=(lock,))
        signals: list[int] = []

        def interrupt(signum: int) -> None:
            (executor.kill if signals else executor.stop)()
            signals.append(signum)
            self._maybe_stop()

        loop.on_signals((signal.SIGINT, signal.SIGTERM), interrupt)
        for exp in waiting:
            client.add(exp)
            self.running_experiments[exp["exp_id"]] = (executor, exp, [], time.time())
            _RUNNING[exp["result_dir"]] = (executor, loop)
            executor.submit(Job(exp["name"], Shape(exp["num_nodes"], exp["num_gpus"])))
        executor.start_ready()
        while self.running_experiments and not (signals and executor.idle):
            loop.run()
        for _, exp, _, _ in self.running_experiments.values():
            self.experiment_queue.append(exp)
        self.running_experiments.clear()
        return bool(signals)

    def run_job(self, exp: dict[str, Any], reservations: list[Reservation]) -> None:
        """Start an experiment on slots that were reserved for it; :meth:`experiment_check` waits for its end."""
        client = self._experiments(self._ended)
        client.add(exp)
        pool = {each.node.host: tuple(map(str, each.slots)) for each in reservations}
        executor = Executor(self._open(), Scheduler(pool), client)
        self.running_experiments[exp["exp_id"]] = (executor, exp, reservations, time.time())
        _RUNNING[exp["result_dir"]] = (executor, self._open())
        executor.submit(Job(exp["name"], Shape(len(reservations), len(reservations[0].slots))))
        executor.start_ready()

    def experiment_check(self, pbar: Any = None) -> None:
        """Wait until one of those that run has ended, if any does; its slots are idle then."""
        before = len(self.finished_experiments)
        if self.running_experiments:
            self._open().run()
        if pbar is not None:
            pbar.update(len(self.finished_experiments) - before)
        if not self.running_experiments:
            self._close()

    def _ended(self, exp: dict[str, Any], ending: Ending) -> None:
        """An experiment has ended for good."""
        executor, _, reservations, _ = self.running_experiments[exp["exp_id"]]
        if ending.cause != "stopped" or not executor.stopping:
            self.finished_experiments[exp["exp_id"]] = (exp, _error(ending))
            del self.running_experiments[exp["exp_id"]]
        _RUNNING.pop(exp["result_dir"], None)
        for reservation in reservations:
            reservation.restore_slots()
        self._maybe_stop()

    def _maybe_stop(self) -> None:
        if self._loop is not None:
            self._loop.stop()

    # -- results -------------------------------------------------------------------------------------

    def parse_results(self, metric: str) -> tuple[dict[str, Any] | None, float | None]:
        """(the best experiment, its figure); (some experiment or None, None) where none has one.

        Each experiment that has figures gets them as ``results``.
        """
        known = METRICS.get(metric, Metric(metric, "maximise", ""))
        best: tuple[float, dict[str, Any]] | None = None
        last: dict[str, Any] | None = None
        for exp, error in self.finished_experiments.values():
            last = exp
            figures = {} if error else self._experiments().figures(exp)
            if figures:
                exp["results"] = figures
            value = figures.get(known.key)
            if value is None or value <= 0:
                continue
            cost = -value if known.direction == "maximise" else value
            if best is None or cost < best[0]:
                best = cost, exp
        return (last, None) if best is None else (best[1], abs(best[0]))

    def clear(self) -> None:
        """Stop what runs and forget what there was; experiments are counted on."""
        for executor, _, _, _ in list(self.running_experiments.values()):
            executor.stop()
        while any(not executor.idle for executor, _, _, _ in self.running_experiments.values()):
            self._open().run()
        self._close()
        self.experiment_queue, self.running_experiments, self.finished_experiments = [], {}, {}
        self.exp_paths = set()

    # -- inside --------------------------------------------------------------------------------------

    def _pool(self, *, idle: bool = True) -> dict[str, tuple[str, ...]]:
        return {node.host: tuple(map(str, node.idle_slots if idle else node.slots)) for node in self.nodes}

    def _experiments(
        self, on_end: Callable[[dict[str, Any], Ending], object] = lambda exp, ending: None
    ) -> Experiments:
        command = command_of(self.args, self._pool(idle=False))
        return Experiments(command, self.results_dir, self.exps_dir, self.arg_mappings, on_end)

    def _open(self) -> Loop:
        self._loop = self._loop or Loop()
        return self._loop

    def _close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None


def run_experiment(
    exp: dict[str, Any], reservations: list[Reservation], user_script: str, user_args: Sequence[str]
) -> None:
    """Run one experiment on reserved slots to its end; its files are in ``exp["result_dir"]``."""
    from argparse import Namespace

    args = Namespace(user_script=user_script, user_args=list(user_args), hostfile=exp.get("hostfile"))
    hosts = {each.node.host: each.node.slots for each in reservations}
    manager = ResourceManager(
        args, hosts, 0, os.path.dirname(exp["result_dir"]), os.path.dirname(exp["result_dir"]), {}
    )
    exp.setdefault("exp_id", 0)
    manager.run_job(exp, reservations)
    while manager.running_experiments:
        manager.experiment_check()


def clean_up(exp: Mapping[str, Any], reservations: Iterable[Reservation]) -> None:
    """Nothing of an experiment may be left on its nodes: one that still runs is stopped, by its own channel.

    One that has ended has left nothing; nothing is looked for by its name, which another's may contain.
    """
    running = _RUNNING.get(exp["result_dir"])
    if running is None:
        return
    executor, loop = running
    executor.stop()
    while not executor.idle:
        loop.run()


def get_job_id() -> str:
    """The job id of the infrastructure, as some clusters have it."""
    return os.environ.get("DLWS_JOB_ID") or os.environ.get("DLTS_JOB_ID") or "unknown-job-id"


def get_user() -> str:
    """Who runs this."""
    return os.environ.get("USER") or getpass.getuser()


def include_of(reservations: Iterable[Reservation]) -> str:
    """For ``--include``: ``node1:0,1@node2:3``."""
    return "@".join(str(NodeFilter(each.node.host, tuple(map(str, each.slots)))) for each in reservations)


def _error(ending: Ending) -> str | None:
    """What the reference calls an error: why there is no figure; None: all is well."""
    return None if ending.cause == "ok" else f"{ending.cause}: {ending.reason}" if ending.reason else ending.cause


def _is_mapping(hosts: object) -> TypeGuard[Mapping[str, Sequence[int]]]:
    return hasattr(hosts, "keys")
