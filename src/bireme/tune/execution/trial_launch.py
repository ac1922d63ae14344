"""Finds the slots that experiments may use, and makes their command lines, with a port for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from bireme.errors import OK, BadInputError, UnfitError
from bireme.job import DEFAULT_GRACE, DEFAULT_HEARTBEAT
from bireme.launching import one_machine, placement
from bireme.resources import devices, nvidia
from bireme.resources.locality import is_this_machine
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.cluster.node_selection import Nodes
    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


class ResourcePool(Value):
    """The resource pool: where experiments may run.

    Attributes:
        slots: host → slot ids.
        numbered: whether this machine has no declared slots and no devices, so that a run is told only how many ranks
            it has, not which slots.
        own_names: whether its hosts have names that only their launcher knows.
    """

    slots: Pool
    numbered: bool = False
    own_names: bool = False

    def words(self, reservation: SlotReservation) -> tuple[str, ...]:
        """The options that restrict a run to its slots."""
        if self.numbered:
            return ("--num_gpus", str(reservation.size))
        return ("--include", reservation.include())

    @property
    def local(self) -> bool:
        """Whether all slots are on this machine."""
        return all(map(self._is_here, self.slots))

    def only_here(self, reservation: SlotReservation) -> bool:
        """Whether all slots of a reservation are on this machine."""
        return all(self._is_here(host) for host, _ in reservation.places)

    def _is_here(self, host: str) -> bool:
        return not self.own_names and (host == one_machine.HOST or is_this_machine(host))


def resource_pool(spec: JobSpec, environ: Mapping[str, str], ranks: int | None) -> ResourcePool:
    """Find the slots that experiments may use: those of the job, after its filters.

    Args:
        spec: the job, without ``num_nodes`` and ``num_gpus``: under tuning they set the size of an experiment.
        ranks: slots that an experiment needs on each node. This machine's CPU without declared slots counts as that
            many slots, because experiments that share cores would disturb each other's measurements.

    Raises:
        UnfitError: slots are not declared, and a node could not be asked for them.
    """
    place = placement.resolve(spec, environ)
    if isinstance(place, placement.ThisMachine):
        declared = None if place.nodes is None else place.nodes.slots[place.nodes.names[0]]
        if declared is None:
            return _here(spec, environ, ranks, place.nodes)
        return ResourcePool({one_machine.name_here(place.nodes): declared})
    assert isinstance(place, (placement.Agents, placement.NativeRanks)), "the tuner has no such options"
    nodes = place.nodes
    if None not in nodes.slots.values():
        return ResourcePool({name: nodes.slots[name] or () for name in nodes.names}, own_names=spec.has_own_names)
    active = nodes.active(spec, _asked(spec, environ, nodes, place.launcher))
    return ResourcePool(active, own_names=spec.has_own_names)


def _here(spec: JobSpec, environ: Mapping[str, str], ranks: int | None, nodes: Nodes | None) -> ResourcePool:
    """The pool of this machine when its slots are not declared."""
    host = one_machine.name_here(nodes)
    there = devices.discover(spec.accelerator, environ)
    numbered = there.accelerator == "cpu" and not (spec.include or spec.exclude)
    plan = one_machine.preview(spec.replace(num_gpus=ranks) if numbered else spec, environ, nodes)
    workers = plan.nodes[0].workers
    if numbered:
        return ResourcePool({host: tuple(map(str, range(len(workers))))}, numbered=True)
    return ResourcePool({host: tuple(worker.slot for worker in workers)})


def _asked(spec: JobSpec, environ: Mapping[str, str], nodes: Nodes, launcher: str) -> dict[str, tuple[str, ...]]:
    """Ask the nodes for their slots, by a preflight."""
    from bireme.cluster.preflight import preflight  # a study on this machine needs nothing of it

    found = preflight(spec.replace(rank_log_dir=None), environ, nodes, launcher)
    if found.outcome.cause == "signal":
        sys.exit(found.outcome.exit_code)
    if found.outcome.exit_code != OK:
        raise UnfitError(found.outcome.note)
    facts = {answer.name: answer.facts for answer in found.answers if answer.facts is not None}
    undeclared = [answer.name for answer in found.answers if answer.declared is None]
    without = [name for name in undeclared if facts[name].accelerator == "cpu"]
    if without:
        raise BadInputError(
            f"{without[0]} has no accelerator and no declared slots, and experiments need slots",
            hint="add slots=N there, or name the nodes with --hosts 'NODE:N,…'",
            where=nodes.pool.source,
        )
    return {name: tuple(there.slots) for name, there in facts.items()}


_LAST_PORT, _FIRST_PORT = 65535, 1024
"""After the last port, numbering continues with the first unprivileged one."""

_MAY_LEAVE = ("agent lost", "internal error")
"""Causes in a run's report after which ranks on other nodes may still be ending."""


def gpu_memory(spec: JobSpec, environ: Mapping[str, str]) -> int | None:
    """Bytes of memory of the smallest GPU that experiments may use; None if unknown.

    Known only if all experiments run on this machine: other nodes are not asked.
    """
    if spec.accelerator not in ("auto", "cuda"):
        return None
    place = placement.resolve(spec, environ)
    if not isinstance(place, placement.ThisMachine):
        return None
    if devices.discover(spec.accelerator, environ).accelerator != "cuda":
        return None
    # The plan maps slots to devices. It covers all slots, so cores and port that suit one experiment are left out.
    free = spec.replace(master_port=None, bind_cores=False, bind_core_list=None)
    plan = one_machine.preview(free, environ, place.nodes)
    return nvidia.smallest_memory([worker.slot for worker in plan.nodes[0].workers])


class Launch(Value):
    """What all experiments have in common.

    Attributes:
        words: the user's options of ``bireme run``, without those that choose nodes and slots.
        port: the first rendezvous port; None: each run finds its own.
        grace: seconds between SIGTERM and SIGKILL.
        heartbeat: seconds of silence after which a node counts as lost.
        log_dir, rank_log_dir: where each experiment gets a folder for its ranks' output; None: no such output.
    """

    pool: ResourcePool
    words: tuple[str, ...]
    script: str
    port: int | None = None
    grace: float = DEFAULT_GRACE
    heartbeat: float = DEFAULT_HEARTBEAT
    log_dir: str | None = None
    rank_log_dir: str | None = None

    def command(
        self, name: str, reservation: SlotReservation, place: int, *, options: Sequence[str], args: Sequence[str]
    ) -> tuple[str, ...]:
        """The command line of an experiment, without ``bireme run`` itself.

        Args:
            place: a number that no other running experiment has; added to ``port``.
            options: further options of ``bireme run``.
        """
        port = () if self.port is None else ("--master_port", str(_port(self.port + place)))
        logs = self._logs("--log_dir", self.log_dir, name) + self._logs(
            "--enable_each_rank_log", self.rank_log_dir, name
        )
        return (*self.words, *self.pool.words(reservation), *port, *logs, *options, self.script, *args)

    @property
    def preloads(self) -> bool:
        """Whether ranks are forked from templates."""
        return any(word.startswith("--preload") for word in self.words)

    @staticmethod
    def _logs(option: str, folder: str | None, name: str) -> tuple[str, ...]:
        return () if folder is None else (option, os.path.join(folder, name))

    def settling(self, reservation: SlotReservation, report: Mapping[str, object] | None = None) -> float:
        """Seconds until a run has certainly left nothing behind; 0.0 if it made sure of that itself.

        If an agent was lost, or the run was killed before it wrote a report, agents on other nodes stop their ranks
        when they notice the closed channel, at the latest after a heartbeat.
        """
        if report is not None and report.get("cause") not in _MAY_LEAVE:
            return 0.0
        return 0.0 if self.pool.only_here(reservation) else self.heartbeat + self.grace + 2.0


def _port(number: int) -> int:
    beyond = number - _LAST_PORT - 1
    return number if beyond < 0 else _FIRST_PORT + beyond % (_LAST_PORT + 1 - _FIRST_PORT)
