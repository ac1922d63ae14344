"""An elastic job: epoch after epoch, each a whole job on the nodes that there are, and what leads from one to the next.

An epoch ends when a worker fails, a node is lost or drained, or one is there that was not. Its ranks are stopped as
those of any job are, so nothing of it is left when the next begins, and the ranks go on from their checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import time

from bireme.agent import session
from bireme.elastic.budget import Budget
from bireme.elastic.roster import Roster
from bireme.errors import BadInputError
from bireme.resources import filters
from bireme.resources.hostfile import HostEntry
from bireme.runner import many, pool
from bireme.runner.door import Door
from bireme.runner.gathering import Epoch
from bireme.runner.lookout import Lookout
from bireme.runner.pool import Found
from bireme.runner.store import Store
from bireme.runner.waiting import Waiting
from bireme.supervise import activation
from bireme.supervise.report import duration, headline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.agent.session import Session
    from bireme.job import JobSpec
    from bireme.supervise.outcome import Outcome


def find(spec: JobSpec, environ: Mapping[str, str]) -> Found:
    """The declared pool; this machine where there is none.

    Raises:
        BadInputError: as `pool.find`.
    """
    found = pool.find(spec, environ)
    return found if found is not None else Found((HostEntry("localhost"),), "this machine")


def narrowed(spec: JobSpec, found: Found, names: Sequence[str]) -> tuple[Found, JobSpec]:
    """The pool, and the job's filters, for these nodes only."""
    entries = tuple(entry for entry in found.entries if entry.name in names)

    def only(text: str, where: str) -> str:
        nodes = filters.parse_filter(text, where=where) if text else ()
        return "@".join(str(node) for node in nodes if node.host in names)

    return found.replace(entries=entries), spec.replace(
        include=only(spec.include, "--include"), exclude=only(spec.exclude, "--exclude")
    )


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
        return job.run()
    finally:
        job.close()


class ElasticJob:
    """What lasts from epoch to epoch: see `run`."""

    def __init__(self, spec: JobSpec, environ: Mapping[str, str], on_change: Callable[[Outcome, str], object]) -> None:
        self._spec, self._environ, self._on_change = spec, environ, on_change
        self._found = find(spec, environ)
        names = self._names()
        if len(names) < spec.min_nodes and spec.hostfile is None:
            what = f"there are {len(names)} nodes, and at least {spec.min_nodes} are needed"
            raise BadInputError(what, mend="name more, or fewer are needed", where="--min_elastic_nodes")
        interpreter = _with_torch(spec, environ)
        self._roster = Roster(names, min_nodes=spec.min_nodes, max_nodes=spec.max_nodes, interval=spec.elastic_interval)
        self._budget = Budget(spec.restarts, spec.restart_window)
        self._store = Store(interpreter, environ, spec.master_addr, spec.master_port)
        self._door = Door()
        self._lookout = Lookout(self._roster, spec, environ, pool=self._read_again, door=self._door)
        self._begin = time.monotonic()
        self._epoch = 0
        self._failures = 0
        self._history: list[str] = []

    def close(self) -> None:
        """Leave nothing behind."""
        self._door.close()
        self._store.close()

    def _names(self) -> tuple[str, ...]:
        entries, _ = pool.select(self._spec, self._found)
        return tuple(entry.name for entry in entries)

    def _read_again(self) -> tuple[str, ...]:
        """The pool, which may have grown. A node that is gone from it goes on working: its description is kept."""
        found = find(self._spec, self._environ)
        known = {entry.name for entry in found.entries}
        kept = tuple(entry for entry in self._found.entries if entry.name not in known)
        self._found = found.replace(entries=(*found.entries, *kept))
        return self._names()

    # -- epoch after epoch -----------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the end of the job."""
        while True:
            outcome = self._waited() if self._roster.lacking else self._one_epoch()
            why = self._why_go_on(outcome)
            if not why:
                return outcome.replace(history=tuple(self._history), seconds=time.monotonic() - self._begin)
            self._history.append(f"after {duration(time.monotonic() - self._begin)}: {why}")
            self._on_change(outcome, why)

    def _one_epoch(self) -> Outcome:
        number, self._epoch = self._epoch, self._epoch + 1
        self._store.begin()
        invited = self._roster.invited()
        epoch = Epoch(number, self._spec.min_nodes, self._store, self._left_out, self._begun, self._attach)
        found, spec = narrowed(self._spec, self._found, invited)
        self._running: Session | None = None
        try:
            return many.run(
                spec.replace(attempt=self._failures, time_limit=self._time_left()), self._environ, found, epoch=epoch
            )
        finally:
            self._lookout.detach()

    def _waited(self) -> Outcome:
        """Until there are enough nodes."""
        spec = self._spec
        manner = session.Manner(spec.output, log_level=spec.log_level, time_limit=self._time_left())
        try:
            return session.run(
                manner, lambda waiting: Waiting(waiting, self._whom, spec.elastic_timeout, self._lookout.attach)
            )
        finally:
            self._lookout.detach()

    def _whom(self) -> str:
        roster = self._roster
        return f"{len(roster.present)} of {roster.min_nodes} nodes are there, not {roster.missing()}"

    def _time_left(self) -> float | None:
        limit = self._spec.time_limit
        return None if limit is None else max(0.01, limit - (time.monotonic() - self._begin))

    # -- what an epoch tells ---------------------------------------------------------------------

    def _attach(self, running: Session) -> None:
        self._running = running
        self._lookout.attach(running)

    def _left_out(self, name: str, why: str) -> None:
        self._roster.lose((name,), why, time.monotonic())
        if self._running is not None:
            self._running.console.say("warning", f"{name} is left out: {why}")

    def _begun(self, names: tuple[str, ...], ranks: int) -> None:
        late = [name for name in self._roster.invited() if name not in names]
        self._roster.lose(late, "late for the rendezvous", time.monotonic())
        self._roster.working(names)
        self._budget.begin(time.monotonic())
        if self._running is not None:
            nodes = f"{len(names)} node{'' if len(names) == 1 else 's'}"
            who = f"elastic job {os.getpid()}, epoch {self._epoch}" if self._epoch > 1 else f"elastic job {os.getpid()}"
            self._running.console.say("info", f"{who}: {ranks} ranks on {nodes}: {', '.join(names)}")

    def _why_go_on(self, outcome: Outcome) -> str:
        """Why there is another epoch; "" if this was the last."""
        now = time.monotonic()
        if outcome.cause == "membership":
            return outcome.note
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
            absent = set(outcome.hosts) - set(self._roster.present)
            if self._epoch == 1 and not absent:
                return ""  # a mistake that is to be mended
            note = outcome.note.partition("\n")[2].strip() or outcome.note
            self._roster.lose((host for host in outcome.hosts if host not in absent), note, now)
            return note.partition("\n")[0]
        return ""


def _with_torch(spec: JobSpec, environ: Mapping[str, str]) -> str:
    """The interpreter that runs the store here.

    Raises:
        BadInputError: it has no torch.
    """
    interpreter, activated = activation.interpreter(spec, environ)
    test = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        done = subprocess.run((interpreter, "-c", test), env=dict(activated), stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise BadInputError(f"cannot start {interpreter}: {error.strerror}") from None
    if done.returncode:
        what = f"elastic training needs PyTorch, and {interpreter} has none"
        raise BadInputError(what, mend="pip install torch, or --restarts for a job of fixed size")
    return interpreter
