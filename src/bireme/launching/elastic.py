"""Runs an elastic job as a sequence of epochs, and decides after each whether another one follows.

Each epoch is a whole job on the nodes that are available. It ends when a rank fails, a node is lost or drained, or a
node becomes available. Its ranks are stopped as in any job, so that nothing of it is left when the next epoch begins;
the ranks resume from their checkpoint.
"""

from __future__ import annotations

import os

from bireme.cluster import cluster_job, node_selection
from bireme.cluster.cluster_crew import ClusterCrew, WholeJob
from bireme.cluster.cluster_job import ClusterJob
from bireme.cluster.standby import Standby
from bireme.elastic.membership_monitor import MembershipMonitor
from bireme.errors import UNFIT, BadInputError, UnfitError, counted
from bireme.launching.restarts import RestartBudget, preempted
from bireme.one_node.machine import MACHINE
from bireme.process.pid_file import PidFile
from bireme.resources.pool import listed
from bireme.result.outcome import Outcome
from bireme.result.report import duration, headline
from bireme.runner import session
from bireme.runner.crew import Crew
from bireme.runner.signals import DeferredSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.connections import NodeConnections
    from bireme.job import JobSpec
    from bireme.one_node.machine import Machine
    from bireme.planning.start import StartPlan
    from bireme.runner.session import Session
    from bireme.ship.source import SourceTree


class IdleCrew(Crew):
    """A crew without ranks: keeps an elastic job's session alive while too few nodes are available."""

    def __init__(
        self,
        session: Session,
        note: Callable[[], str],
        seconds: float,
        gave_up: str,
        attach: Callable[[Session], object],
    ) -> None:
        self._session, self._note, self._seconds, self._attach = session, note, seconds, attach
        self._gave_up = gave_up

    def start(self) -> None:
        """Begin to wait."""
        self._session.console.say("warning", f"waiting up to {self._seconds:.0f} s for nodes: {self._note()}")
        self._session.loop.after(self._seconds, self._give_up)
        self._attach(self._session)

    def _give_up(self) -> None:
        self._session.trouble("too few nodes", f"{self._gave_up}: {self._note()}", self._session.loop.now())

    def stop(self, signum: int) -> None:
        """End the session; there are no ranks to stop."""
        self._session.gone()
        self._session.over()


_FRUITLESS = 10
"""How many epochs in a row may end before any rank has started."""


def run(
    spec: JobSpec,
    environ: Mapping[str, str],
    on_change: Callable[[Outcome, str], object] = lambda *_: None,
    machine: Machine = MACHINE,
) -> Outcome:
    """Run an elastic job until it succeeds, fails too often, or has too few nodes for too long.

    Args:
        on_change: called between two epochs, with the outcome of the first and the reason for the second.
    """
    job = ElasticJob(spec.replace(run_id=spec.run_id or os.urandom(6).hex()), environ, on_change, machine)
    try:
        with PidFile(os.getpid() if spec.save_pid else None) as pid_file:
            return job.run(pid_file)
    finally:
        job.close()


class ElasticJob(WholeJob):
    """The state that lasts from epoch to epoch; observes each epoch."""

    def __init__(
        self, spec: JobSpec, environ: Mapping[str, str], on_change: Callable[[Outcome, str], object], machine: Machine
    ) -> None:
        self._environ, self._on_change, self._machine = environ, on_change, machine
        self._monitor = MembershipMonitor(spec, environ, machine)
        self._spec, self._roster = self._monitor.spec, self._monitor.roster
        if spec.output == "auto" and (len(self._roster.names) > 1 or self._monitor.may_grow):
            # Label lines even while there is only one rank, so that the format never changes.
            self._spec = self._spec.replace(output="prefix")
        self._budget = RestartBudget(spec.restarts, spec.restart_window)
        self._deferred = DeferredSignals()
        self._begin = self._machine.now()
        self._has_begun = self._admits = False
        self._waiting_since: float | None = None
        self._epoch = 0
        self._fruitless = 0
        self._failures = 0
        self._history: list[str] = []
        self._logs: list[str] = []
        self._stuck: list[str] = []
        self._invited: tuple[str, ...] = ()
        self._running: Session | None = None
        self._tree: SourceTree | None = None
        self._took_part: dict[str, None] = {}
        self.standby = Standby() if spec.preload else None
        self._fetched = False

    def close(self) -> None:
        """Take no more requests, and release agents that wait."""
        self._monitor.close()
        self._release()

    def _release(self) -> None:
        if self.standby is not None:
            self.standby.close()

    # -- epoch after epoch -----------------------------------------------------------------------

    def run(self, pid_file: PidFile) -> Outcome:
        """Run epochs until the job ends."""
        with self._deferred:
            return self._epochs(pid_file)

    def _epochs(self, pid_file: PidFile) -> Outcome:
        while True:
            outcome = self._waited() if self._roster.lacking else self._one_epoch(pid_file)
            self._logs += outcome.logs
            self._stuck += outcome.stuck
            why = self._why_go_on(outcome)
            if not why or self._comes_to_nothing():
                return self._at_the_end(outcome)
            self._history.append(f"after {duration(self._machine.now() - self._begin)}: {why}")
            self._on_change(outcome, why)

    def _comes_to_nothing(self) -> bool:
        """Whether too many epochs in a row have ended before any rank started, with the same nodes."""
        if not self._has_begun and self._invited == self._roster.invited():
            self._fruitless += 1
        return self._fruitless >= _FRUITLESS

    def _one_epoch(self, pid_file: PidFile) -> Outcome:
        number, self._epoch = self._epoch, self._epoch + 1
        self._has_begun = self._admits = False
        self._invited = self._roster.invited()
        pool, monitor = self._monitor.pool, self._monitor
        pool = pool.replace(entries=tuple(entry for entry in pool.entries if entry.name in self._invited))
        spec = node_selection.narrowed(self._spec, self._invited).replace(
            attempt=self._failures, time_limit=self._time_left()
        )
        try:
            nodes, changed = node_selection.select(spec, pool), self._look_at_tree(spec)
            job = cluster_job.prepare(
                *(spec, self._environ, nodes, monitor.launcher, monitor.exports),
                accelerator=monitor.accelerator,
                tree=self._tree,
                log_dir=spec.log_dir,
            )
            return session.run(
                spec,
                (*changed, *job.notes(monitor.exports)),
                lambda running: ClusterCrew(running, job, pid_file, self._machine, self),
                self._machine.loop,
            )
        except (BadInputError, UnfitError, OSError) as error:
            if number == 0:
                raise
            # Earlier epochs ran: report this as their outcome.
            return Outcome(exit_code=UNFIT, cause="unfit", seconds=0.0, note=str(error))
        finally:
            self._detach()

    def _look_at_tree(self, spec: JobSpec) -> tuple[tuple[str, str], ...]:
        """Find the files to send: those of the last epoch as long as they are there. Return messages, with levels."""
        found, last = ClusterJob.find_tree(spec, self._environ), self._tree
        if found is not None and last is not None and set(last.manifest.entries) <= set(found.manifest.entries):
            self._tree = last.replace(notes=())  # said once
            return ()
        self._tree = found
        if found is None or last is None:
            return ()
        what = "the ranks run in a new copy, without the files that they wrote to relative paths"
        return (("warning", f"files in {found.roots[0]} have changed: {what}"),)

    def _waited(self) -> Outcome:
        """Wait until enough nodes are available, or for too long."""
        self._invited = ()
        self._release()
        spec, now = self._spec, self._machine.now()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        left = max(0.0, spec.elastic_timeout - (now - self._waiting_since))
        gave_up = f"too few nodes for {spec.elastic_timeout:g} s"
        try:
            return session.run(
                spec.replace(time_limit=self._time_left()),
                (),
                lambda waiting: IdleCrew(waiting, self._lacking, left, gave_up, self._attach_waiting),
                self._machine.loop,
            )
        finally:
            self._detach()

    def _lacking(self) -> str:
        roster = self._roster
        missing = f"; missing: {roster.missing()}" if roster.missing() else ""
        return f"{len(roster.present)} of {roster.min_nodes} required nodes are available{missing}"

    def _time_left(self) -> float | None:
        limit = self._spec.time_limit
        return None if limit is None else max(0.01, limit - (self._machine.now() - self._begin))

    def _at_the_end(self, outcome: Outcome) -> Outcome:
        """Turn the outcome of the last epoch into that of the job."""
        signum = outcome.interrupted or self._deferred.signum
        failed = outcome.cause in ("rank failed", "hang") and self._budget.is_left(self._machine.now())
        # Without the signal there would be another epoch.
        goes_on = outcome.cause in ("membership", "agent lost", "unfit")
        if (goes_on or failed) and (told := preempted(self._spec, outcome, signum)):
            outcome = told
        elif signum and goes_on:
            outcome = outcome.replace(cause="signal", signum=signum, exit_code=128 + signum, note="")
        elif outcome.cause == "membership":
            note = f"no rank could be started {self._fruitless} times in a row; the last time: {outcome.note}"
            outcome = outcome.replace(cause="unfit", exit_code=UNFIT, note=note)
        if outcome.cause == "time limit" and self._spec.time_limit is not None:
            outcome = outcome.replace(note=session.limit_note(self._spec.time_limit))
        if self._spec.fetch and self._took_part and not self._fetched:
            where = f"files on {listed(self.took_part())} were not fetched, because the job ended between two epochs"
            outcome = outcome.replace(note=f"{outcome.note}\n{where}".lstrip())
        return outcome.replace(
            history=tuple(self._history),
            logs=tuple(self._logs),
            stuck=tuple(self._stuck),
            seconds=self._machine.now() - self._begin,
        )

    # -- what an epoch reports ---------------------------------------------------------------------

    def attach(self, running: Session) -> None:
        """Let the membership monitor watch a session that runs ranks."""
        self._running = running
        self._monitor.attach(running, runs=True)

    def _attach_waiting(self, waiting: Session) -> None:
        self._monitor.attach(waiting, runs=False)

    def _detach(self) -> None:
        self._running = None
        self._monitor.detach()

    def unfit(self, nodes: NodeConnections) -> list[AgentHandle]:
        """Begin without the unfit nodes; return those that prevent the epoch from beginning.

        In the first epoch, a node that answers and is unfit is a mistake that the user has to fix. Later, it is a node
        that came back too early.
        """
        if not self._admits:
            nodes.answers.judge_by_filters()
        bad = nodes.answers.unfit()
        mistakes = [member for member in bad if member.has_answered and not member.hint]
        if self._epoch == 1 and mistakes:
            return mistakes
        for member in bad:
            nodes.leave_out(member)
            why = (member.problems or [member.hint or "it did not answer"])[-1]
            self._leave_out(member.name, " ".join(why.split()))
        nodes.loss.admitted = len(nodes.members) >= self._spec.min_nodes
        self._admits = self._admits or nodes.loss.admitted
        return [] if nodes.loss.admitted else bad

    def _leave_out(self, name: str, why: str) -> None:
        """Enter in the roster that a node cannot take part."""
        self._say("warning", f"{name} is left out: {why}")
        self._roster.lose((name,), why, self._machine.now())
        spare = [other for other in self._roster.invited() if other not in self._invited]
        if spare:
            self._monitor.rearrange(f"{spare[0]} replaces {name}")
        self._monitor.plan_look()

    def begun(self, names: tuple[str, ...], plan: StartPlan) -> None:
        """Enter in the roster which nodes work in this epoch."""
        now = self._machine.now()
        self._monitor.accelerator = plan.accelerator
        hosts = [node.host for node in plan.nodes]
        self._monitor.own_names = {
            host: name for host, name in zip(hosts, names, strict=True) if hosts.count(host) == 1
        }
        self._has_begun, self._waiting_since, self._fruitless = True, None, 0
        self._roster.working(names)
        self._took_part |= dict.fromkeys(names)
        self._budget.begin(now)
        epoch = f", epoch {self._epoch}" if self._epoch > 1 else ""
        size = f"{counted(plan.world_size, 'rank')} on {counted(len(names), 'node')}"
        self._say("info", f"elastic job {os.getpid()}{epoch}: {size}: {listed(names)}")
        self._monitor.plan_look()

    def took_part(self) -> tuple[str, ...]:
        """The nodes of all epochs so far."""
        return tuple(self._took_part)

    def is_last(self, outcome: Outcome) -> bool:
        """Whether `_why_go_on` will find no reason for another epoch."""
        goes_on = outcome.cause == "membership" or (outcome.cause in ("agent lost", "unfit") and outcome.hosts)
        restarted = outcome.cause in ("rank failed", "hang") and self._budget.is_left(self._machine.now())
        self._fetched = bool(outcome.interrupted) or not (goes_on or restarted)
        return self._fetched

    def _say(self, level: str, text: str) -> None:
        if self._running is not None:
            self._running.console.say(level, text)

    def _why_go_on(self, outcome: Outcome) -> str:
        """The reason for another epoch; "": this was the last."""
        now = self._machine.now()
        if outcome.interrupted:
            return ""
        if outcome.cause == "membership":
            return outcome.note
        if outcome.cause == "too few nodes" and not self._roster.lacking:
            return "enough nodes became available at the last moment"
        if outcome.cause in ("rank failed", "hang"):
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
        """Nodes were unfit. In the first epoch, a node that answers and is unfit is a mistake that ends the job."""
        there = [host for host in outcome.hosts if host in self._roster.present]
        if self._epoch == 1 and there:
            return ""
        first, *more = outcome.note.splitlines()
        why = more[0].strip() if more and first.endswith(":") else first
        self._roster.lose(there, why, now)
        return "" if self._monitor.is_over(why) else why
