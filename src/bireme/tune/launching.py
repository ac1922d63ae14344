"""How experiments are launched: what all of them have in common, and the command of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from bireme.cluster import many_nodes, node_selection
from bireme.errors import OK, BadInputError, UnfitError
from bireme.launch import one_machine, placement
from bireme.resources import device_memory, devices
from bireme.resources.locality import is_this_machine
from bireme.tune.slots import SlotReservation
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.node_selection import Found
    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


class Ground(Value):
    """Where experiments may run.

    ``pool``: host → slot ids. ``numbered``: nobody has declared the slots of this machine, and it has no devices to
    name, so that a run is told how many ranks it has and not which slots.
    """

    pool: Pool
    numbered: bool = False

    def words(self, reservation: SlotReservation) -> tuple[str, ...]:
        """What restricts a run to its slots."""
        if self.numbered:
            return ("--num_gpus", str(reservation.size))
        return ("--include", reservation.include())

    def only_here(self, reservation: SlotReservation) -> bool:
        """Whether all of it is on this machine."""
        return all(host == one_machine.HOST or is_this_machine(host) for host, _ in reservation.places)


def ground(spec: JobSpec, environ: Mapping[str, str], ranks: int | None) -> Ground:
    """The slots that experiments may use: those of the job, as its filters leave them.

    Args:
        spec: the job, without numbers of nodes and slots: under tuning, these say how wide an experiment is.
        environ: the environment.
        ranks: how many slots an experiment asks for on a node. On a CPU that nobody has divided into slots, there are
            as many as that: experiments that share cores would measure each other.

    Raises:
        BadInputError: there are none, or a node without accelerators has not declared how many.
        UnfitError: they are not declared, and a node that was to be asked cannot say.
    """
    found = placement.find(spec, environ)
    if found is None:
        return _here(spec, environ, ranks, one_machine.HOST)
    entries, slots = node_selection.select(spec, found)
    if None not in slots.values():
        return Ground({entry.name: slots[entry.name] or () for entry in entries})
    if placement.only_here(spec, found) is not None:
        return _here(spec, environ, ranks, entries[0].name)
    return Ground(node_selection.resolve(spec, _asked(spec, environ, found)))


def _here(spec: JobSpec, environ: Mapping[str, str], ranks: int | None, host: str) -> Ground:
    """This machine, of which nobody has said what it has."""
    there = devices.discover(spec.accelerator, environ)
    numbered = there.accelerator == "cpu" and not (spec.include or spec.exclude)
    prepared = placement.plan(spec.replace(num_gpus=ranks) if numbered else spec, environ).whole()
    workers = prepared.nodes[0].workers
    if numbered:
        return Ground({host: tuple(map(str, range(len(workers))))}, numbered=True)
    return Ground({host: tuple(worker.slot for worker in workers)})


def _asked(spec: JobSpec, environ: Mapping[str, str], found: Found) -> dict[str, tuple[str, ...]]:
    """The slots of many nodes, as they say themselves: the preflight of a run that does not begin."""
    known: dict[str, tuple[str, ...]] = {}
    without: list[str] = []

    def checked(members: Sequence[AgentHandle]) -> str:
        for member in members:
            known[member.name] = tuple(member.hello.slots)
            if member.hello.accelerator == "cpu" and member.slots is None:
                without.append(member.name)
        return ""

    outcome = many_nodes.run(
        spec.replace(log_dir=None, rank_log_dir=None, save_pid=False), environ, found, checked=checked
    )
    if outcome.cause == "signal":
        sys.exit(outcome.exit_code)
    if outcome.exit_code != OK:
        raise UnfitError(outcome.note)
    if without:
        raise BadInputError(
            f"{without[0]} has no accelerator and does not declare slots, and experiments are given slots",
            hint="add slots=N there, or name the nodes by --hosts 'NODE:N,…'",
            where=found.source,
        )
    return known


_LAST_PORT, _FIRST_PORT = 65535, 1024
"""After the last port comes the first that needs no rights."""

_MAY_LEAVE = ("agent lost", "internal error")
"""Ends of a run, by its report, after which ranks on other nodes may still be about to end."""


def gpu_memory(spec: JobSpec, environ: Mapping[str, str]) -> int | None:
    """Bytes of memory of the smallest GPU that experiments may use; None: nobody knows.

    That of another node may have another size, and is asked by nobody.

    Args:
        spec: as for `ground`.
        environ: the environment.
    """
    if spec.accelerator not in ("auto", "cuda"):
        return None
    found = placement.find(spec, environ)
    if found is not None and placement.only_here(spec, found) is None:
        return None
    if devices.discover(spec.accelerator, environ).accelerator != "cuda":
        return None
    # The plan knows which device a slot is; it is of all slots, whose cores and port need not do for one job.
    plan = placement.plan(spec.replace(master_port=None, bind_cores=False, bind_core_list=None), environ).whole()
    return device_memory.smallest([worker.slot for worker in plan.nodes[0].workers])


class Launch(Value):
    """The launch that all experiments share.

    ``words``: options of ``bireme run``, as the user gave them, without those that say where. ``port``: the first of
    the ports at which ranks meet; None: each run finds its own. ``grace`` and ``heartbeat`` in seconds. ``log_dir`` and
    ``rank_log_dir``: where each experiment makes a folder for its ranks' output.
    """

    ground: Ground
    words: tuple[str, ...]
    script: str
    port: int | None = None
    grace: float = 10.0
    heartbeat: float = 10.0
    log_dir: str | None = None
    rank_log_dir: str | None = None

    def command(
        self, name: str, reservation: SlotReservation, place: int, *, options: Sequence[str], args: Sequence[str]
    ) -> tuple[str, ...]:
        """A run on these slots, beside others.

        Args:
            name: the experiment's.
            reservation: its slots.
            place: a number that no other running experiment has, for its port.
            options: further options of ``bireme run``.
            args: the script's arguments.
        """
        port = () if self.port is None else ("--master_port", str(_port(self.port + place)))
        logs = self._logs("--log_dir", self.log_dir, name) + self._logs(
            "--enable_each_rank_log", self.rank_log_dir, name
        )
        return (*self.words, *self.ground.words(reservation), *port, *logs, *options, self.script, *args)

    @staticmethod
    def _logs(option: str, folder: str | None, name: str) -> tuple[str, ...]:
        return () if folder is None else (option, os.path.join(folder, name))

    def settling(self, reservation: SlotReservation, report: Mapping[str, object] | None = None) -> float:
        """Seconds until nothing can be left of a run; 0.0: it has seen to that itself.

        Where an agent was lost, or the run did not live to write a report, a channel is closed: the agents of other
        nodes stop their ranks, at the latest after a heartbeat.
        """
        if report is not None and report.get("cause") not in _MAY_LEAVE:
            return 0.0
        return 0.0 if self.ground.only_here(reservation) else self.heartbeat + self.grace + 2.0


def _port(number: int) -> int:
    beyond = number - _LAST_PORT - 1
    return number if beyond < 0 else _FIRST_PORT + beyond % (_LAST_PORT + 1 - _FIRST_PORT)
