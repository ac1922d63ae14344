"""How experiments are launched: what all of them have in common, and the command of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from bireme.errors import BadInputError
from bireme.resources import devices
from bireme.resources.locality import is_this_machine
from bireme.runner import launch, local, pool
from bireme.tune.slots import Reservation
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


class Ground(Value):
    """Where experiments may run.

    ``pool``: host → slot ids. ``numbered``: nobody has declared the slots of this machine, and it has no devices to
    name, so that a run is told how many ranks it has and not which slots.
    """

    pool: Pool
    numbered: bool = False

    def words(self, reservation: Reservation) -> tuple[str, ...]:
        """What restricts a run to its slots."""
        if self.numbered:
            return ("--num_gpus", str(reservation.size))
        return ("--include", reservation.include())

    def only_here(self, reservation: Reservation) -> bool:
        """Whether all of it is on this machine."""
        return all(host == local.HOST or is_this_machine(host) for host, _ in reservation.places)


def ground(spec: JobSpec, environ: Mapping[str, str], ranks: int | None) -> Ground:
    """The slots that experiments may use: those of the job, as its filters leave them.

    Args:
        spec: the job, without numbers of nodes and slots: under tuning, these say how wide an experiment is.
        environ: the environment.
        ranks: how many slots an experiment asks for on a node. On a CPU that nobody has divided into slots, there are
            as many as that: experiments that share cores would measure each other.

    Raises:
        BadInputError: there are none, or a node's are not declared.
    """
    found = launch.find(spec, environ)
    if found is not None:
        entries, slots = pool.select(spec, found)
        known = {}
        for entry in entries:
            ids = slots[entry.name]
            if ids is None:
                raise BadInputError(
                    f"the slots of {entry.name} are not declared, and experiments are given slots",
                    mend="add slots=N there, or name the nodes by --hosts 'NODE:N,…'",
                    where=found.source,
                )
            known[entry.name] = ids
        return Ground(known)
    there = devices.discover(spec.accelerator, environ)
    numbered = there.accelerator == "cpu" and not (spec.include or spec.exclude)
    prepared = launch.plan(spec.replace(num_gpus=ranks) if numbered else spec, environ)
    workers = prepared.nodes[0].workers
    if numbered:
        return Ground({local.HOST: tuple(map(str, range(len(workers))))}, numbered=True)
    return Ground({local.HOST: tuple(worker.slot for worker in workers)})


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
        self, name: str, reservation: Reservation, place: int, *, options: Sequence[str], args: Sequence[str]
    ) -> tuple[str, ...]:
        """A run on these slots, beside others.

        Args:
            name: the experiment's.
            reservation: its slots.
            place: a number that no other running experiment has, for its port.
            options: further options of ``bireme run``.
            args: the script's arguments.
        """
        port = () if self.port is None else ("--master_port", str(self.port + place))
        logs = self._logs("--log_dir", self.log_dir, name) + self._logs(
            "--enable_each_rank_log", self.rank_log_dir, name
        )
        return (*self.words, *self.ground.words(reservation), *port, *logs, *options, self.script, *args)

    @staticmethod
    def _logs(option: str, folder: str | None, name: str) -> tuple[str, ...]:
        return () if folder is None else (option, os.path.join(folder, name))

    def settling(self, reservation: Reservation) -> float:
        """Seconds until nothing can be left of a run that did not live to tell so.

        Its channel is closed: the agents of other nodes stop their ranks, at the latest after a heartbeat.
        """
        return 0.0 if self.ground.only_here(reservation) else self.heartbeat + self.grace + 2.0


def executable() -> tuple[str, ...]:
    """This program, by its interpreter; ``-P``: a module of the user's working directory is not taken for ours."""
    return (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()), "-m", "bireme")
