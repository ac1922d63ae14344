"""An elastic job: epoch after epoch, each a whole job on the nodes that there are, and what leads from one to the next.

An epoch ends when a worker fails, a node is lost or drained, or one is there that was not. Its ranks are stopped as
those of any job are, so nothing of it is left when the next begins, and the ranks go on from their checkpoint.
"""

from __future__ import annotations

import os
import re
import time

from bireme.agent import session
from bireme.backends import base
from bireme.cluster import many_nodes, node_selection
from bireme.cluster.epoch import Epoch
from bireme.cluster.node_selection import Found
from bireme.elastic.control_socket import ControlSocket
from bireme.elastic.deferred_signals import DeferredSignals
from bireme.elastic.idle_crew import IdleCrew
from bireme.elastic.membership_monitor import MembershipMonitor, PoolFile
from bireme.elastic.roster import Roster
from bireme.errors import UNFIT, BadInputError, UnfitError
from bireme.launch import placement
from bireme.launch.restart_budget import RestartBudget
from bireme.process.pid_file import PidFile
from bireme.resources.hostfile import DEFAULT_HOSTFILE, HostEntry
from bireme.resources.pool import listed
from bireme.result.outcome import Outcome
from bireme.result.report import duration, headline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.agent.session import Session
    from bireme.job import JobSpec
    from bireme.planning.start import StartPlan

_THIS_MACHINE = "this machine"
_FRUITLESS = 10
"""So many epochs may come to nothing, one after the other, before any rank has started."""

_FORGIVEN = 600.0
"""Seconds at least after which it is forgiven to a node that it was lost."""


def find(spec: JobSpec, environ: Mapping[str, str]) -> Found:
    """The declared pool; this machine where there is none.

    Raises:
        BadInputError: as `pool.find`.
    """
    found = node_selection.find(spec, environ)
    return found if found is not None else Found((HostEntry("localhost"),), _THIS_MACHINE)


def run(
    spec: JobSpec, environ: Mapping[str, str], on_change: Callable[[Outcome, str], object] = lambda *_: None
) -> Outcome:
    """Run an elastic job until it is done, has failed once too often, or has had too few nodes for too long.

    Args:
        spec: the job.
        environ: what the ranks inherit.
        on_change: called between two epochs, with how the one has ended and what follows, in words.

    Raises:
        BadInputError: the job cannot be run as described; nothing was started.
    """
    job = ElasticJob(spec.replace(run_id=spec.run_id or os.urandom(6).hex()), environ, on_change)
    try:
        with PidFile(os.getpid() if spec.save_pid else None) as pid_file:
            return job.run(pid_file)
    finally:
        job.close()


class ElasticJob:
    """What lasts from epoch to epoch: see `run`."""

    def __init__(self, spec: JobSpec, environ: Mapping[str, str], on_change: Callable[[Outcome, str], object]) -> None:
        self._spec, self._environ, self._on_change = spec, environ, on_change
        path = None if spec.hosts else spec.hostfile
        file = PoolFile(path or DEFAULT_HOSTFILE, spec.elastic_interval)  # stamped before it is read
        self._found = find(spec, environ)
        if self._found.source == _THIS_MACHINE:
            self._spec = spec = node_selection.by_one_name(spec)
        if self._found.source not in (path, DEFAULT_HOSTFILE):
            file = PoolFile(None, spec.elastic_interval)
        names = self._names(self._found)
        placement.check_node_rank(spec, len(names))
        if len(names) < spec.min_nodes and file.next_look is None:
            what = f"there are {len(names)} nodes, and at least {spec.min_nodes} are needed"
            raise BadInputError(what, hint="name more, or fewer are needed", where="--min_elastic_nodes")
        if spec.output == "auto" and (len(names) > 1 or file.next_look is not None):
            # Also while there is but one rank: the form is the same to the end.
            self._spec = spec = spec.replace(output="prefix")
        self._exports = many_nodes.what_travels(
            spec, environ
        )  # a file that is broken later does not end a job that runs
        self._roster = Roster(
            names,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            interval=spec.elastic_interval,
            window=max(spec.restart_window, _FORGIVEN),
        )
        self._budget = RestartBudget(spec.restarts, spec.restart_window)
        self._control_socket = ControlSocket()
        self._monitor = MembershipMonitor(
            self._roster,
            spec,
            environ,
            file=file,
            pool=lambda: self._found,
            accelerator=lambda: self._accelerator,
            exports=self._exports,
            read_pool=self._read_again,
            is_over=self._is_over,
            door=self._control_socket,
        )
        self._over = base.load(many_nodes.launcher_name(spec, self._found)).OVER
        self._deferred = DeferredSignals()
        self._begin = time.monotonic()
        self._has_begun = False
        self._waiting_since: float | None = None
        self._epoch = 0
        self._fruitless = 0
        self._failures = 0
        self._accelerator = ""
        self._history: list[str] = []
        self._logs: list[str] = []
        self._stuck: list[str] = []
        self._invited: tuple[str, ...] = ()
        self._running: Session | None = None

    def close(self) -> None:
        """Leave nothing behind."""
        self._control_socket.close()

    def _names(self, found: Found) -> tuple[str, ...]:
        entries, _ = node_selection.select(self._spec, found)
        return tuple(entry.name for entry in entries)

    def _read_again(self) -> tuple[str, ...]:
        """The pool, which may have grown. A node that is gone from it goes on working: its description is kept."""
        found = find(self._spec, self._environ)
        names = self._names(found)
        known = {entry.name for entry in found.entries}
        kept = tuple(entry for entry in self._found.entries if entry.name not in known)
        self._found = found.replace(entries=(*found.entries, *kept))
        return names

    # -- epoch after epoch -----------------------------------------------------------------------

    def run(self, pid_file: PidFile) -> Outcome:
        """Until the end of the job."""
        with self._deferred:
            return self._run(pid_file)

    def _run(self, pid_file: PidFile) -> Outcome:
        while True:
            outcome = self._waited() if self._roster.lacking else self._one_epoch(pid_file)
            self._logs += outcome.logs
            self._stuck += outcome.stuck
            why = self._why_go_on(outcome)
            if not why or self._comes_to_nothing():
                return self._at_the_end(outcome)
            self._history.append(f"after {duration(time.monotonic() - self._begin)}: {why}")
            self._on_change(outcome, why)

    def _comes_to_nothing(self) -> bool:
        """Whether too many epochs have ended before a rank was started, and nobody has gone or come in them."""
        if not self._has_begun and self._invited == self._roster.invited():
            self._fruitless += 1
        return self._fruitless >= _FRUITLESS

    def _one_epoch(self, pid_file: PidFile) -> Outcome:
        number, self._epoch = self._epoch, self._epoch + 1
        self._has_begun = False
        self._invited = self._roster.invited()
        epoch = Epoch(
            number,
            self._spec.min_nodes,
            left_out=self._left_out,
            begun=self._begun,
            attach=self._attach,
            pid_file=pid_file,
            accelerator=self._accelerator,
            exports=self._exports,
        )
        found = self._found.replace(
            entries=tuple(entry for entry in self._found.entries if entry.name in self._invited)
        )
        spec = node_selection.narrowed(self._spec, self._invited).replace(
            attempt=self._failures, time_limit=self._time_left()
        )
        try:
            return many_nodes.run(spec, self._environ, found, epoch=epoch)
        except (BadInputError, UnfitError, OSError) as error:
            if number == 0:
                raise
            return Outcome(UNFIT, "unfit", 0.0, note=str(error))  # something has been started, and may have run long
        finally:
            self._detach()

    def _waited(self) -> Outcome:
        """Until there are enough nodes."""
        self._invited = ()
        spec, now = self._spec, time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        left = max(0.0, spec.elastic_timeout - (now - self._waiting_since))
        gave_up = f"too few nodes for {spec.elastic_timeout:g} s"
        options = session.SessionOptions.of(spec).replace(time_limit=self._time_left())
        try:
            return session.run(
                options, lambda waiting: IdleCrew(waiting, self._whom, left, gave_up, self._attach_waiting)
            )
        finally:
            self._detach()

    def _whom(self) -> str:
        roster = self._roster
        missing = f", not {roster.missing()}" if roster.missing() else ""
        return f"{len(roster.present)} of {roster.min_nodes} nodes are there{missing}"

    def _time_left(self) -> float | None:
        limit = self._spec.time_limit
        return None if limit is None else max(0.01, limit - (time.monotonic() - self._begin))

    def _at_the_end(self, outcome: Outcome) -> Outcome:
        """The outcome of the last epoch, as that of the job."""
        signum = outcome.interrupted or self._deferred.signum
        if signum and outcome.cause in ("membership", "agent lost", "unfit"):  # without it the job would have gone on
            outcome = outcome.replace(cause="signal", signum=signum, exit_code=128 + signum, note="")
        elif outcome.cause == "membership":
            note = f"{self._fruitless} times in a row no rank could be started, at last: {outcome.note}"
            outcome = outcome.replace(cause="unfit", exit_code=UNFIT, note=note)
        if outcome.cause == "time limit" and self._spec.time_limit is not None:
            outcome = outcome.replace(note=session.limit_note(self._spec.time_limit))
        return outcome.replace(
            history=tuple(self._history),
            logs=tuple(self._logs),
            stuck=tuple(self._stuck),
            seconds=time.monotonic() - self._begin,
        )

    # -- what an epoch tells ---------------------------------------------------------------------

    def _attach(self, running: Session) -> None:
        self._running = running
        self._monitor.attach(running, runs=True)
        self._deferred.deliver()

    def _attach_waiting(self, waiting: Session) -> None:
        self._monitor.attach(waiting, runs=False)
        self._deferred.deliver()

    def _detach(self) -> None:
        self._running = None
        self._monitor.detach()

    def _left_out(self, name: str, why: str) -> None:
        self._say("warning", f"{name} is left out: {why}")
        self._roster.lose((name,), why, time.monotonic())
        spare = [other for other in self._roster.invited() if other not in self._invited]
        if spare:
            self._monitor.rearrange(f"{spare[0]} takes the place of {name}")
        self._monitor.plan_look()

    def _begun(self, names: tuple[str, ...], plan: StartPlan) -> None:
        now, ranks = time.monotonic(), plan.world_size
        self._accelerator = plan.accelerator
        self._has_begun, self._waiting_since, self._fruitless = True, None, 0
        self._roster.working(names)
        self._budget.begin(now)
        of_ranks = f"{ranks} rank{'' if ranks == 1 else 's'}"
        nodes = f"{len(names)} node{'' if len(names) == 1 else 's'}"
        epoch = f", epoch {self._epoch}" if self._epoch > 1 else ""
        self._say("info", f"elastic job {os.getpid()}{epoch}: {of_ranks} on {nodes}: {listed(names)}")
        self._monitor.plan_look()

    def _say(self, level: str, text: str) -> None:
        if self._running is not None:
            self._running.console.say(level, text)

    def _why_go_on(self, outcome: Outcome) -> str:
        """Why there is another epoch; "" if this was the last."""
        now = time.monotonic()
        if outcome.interrupted:
            return ""
        if outcome.cause == "membership":
            return outcome.note
        if outcome.cause == "too few nodes" and not self._roster.lacking:
            return "at the last moment there are enough nodes"
        if outcome.cause == "rank failed":
            if not self._budget.spend(now):
                return ""
            self._failures += 1
            return f"{headline(outcome)}: restart {self._budget.used} of {self._budget.most}"
        if outcome.cause == "agent lost" and outcome.hosts:
            note = outcome.note.partition("\n")[0]
            self._roster.lose(outcome.hosts, note.partition(": ")[2] or note, now)
            return note
        if outcome.cause == "unfit" and outcome.hosts:
            return self._unfit(outcome, now)
        return ""

    def _unfit(self, outcome: Outcome, now: float) -> str:
        """Nodes could not take part. At the first time that is a mistake to be mended, unless they were not there."""
        there = [host for host in outcome.hosts if host in self._roster.present]
        if self._epoch == 1 and there:
            return ""
        first, *more = outcome.note.splitlines()
        why = more[0].strip() if more and first.endswith(":") else first
        self._roster.lose(there, why, now)
        return "" if self._is_over(why) else why

    def _is_over(self, why: str) -> bool:
        """Whether the nodes are gone for good, with the allocation that they were of."""
        return bool(self._over and re.search(self._over, why))
