"""Membership monitor: probes lost and new nodes, decides when one is let in, and carries out ``bireme drain``."""

from __future__ import annotations

import os
import re

from bireme.backends import choice
from bireme.cluster import cluster_job, node_selection
from bireme.cluster.node_selection import DeclaredPool
from bireme.elastic import node_probe
from bireme.elastic.roster import Roster
from bireme.errors import BadInputError, BiremeError
from bireme.options import conflicts
from bireme.resources.hostfile import DEFAULT_HOSTFILE, HostEntry
from bireme.resources.pool import listed
from bireme.runner.control_socket import ControlSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from bireme.job import JobSpec
    from bireme.loop import Timer
    from bireme.one_node.machine import Helper, Machine
    from bireme.runner.session import Session

_FILE_LOOK = 5.0
"""Seconds between two checks of the hostfile's time stamp."""
_AT_ONCE = 16
"""Nodes probed at a time, each by a process of its own, so that one that hangs does not delay the others."""
_PROBE_LIMIT = 60.0
"""Seconds that a probe may take; its preflight gives up after half of that."""
_TOGETHER = 3.0
"""Seconds to wait for probes in progress once one node is found, so that the job is stopped once for all of them."""

Stamp = tuple[int, int, int]


class PoolFile:
    """Watches the file that declares the pool, which may change while the job runs.

    Args:
        path: the file; None: the pool is declared in another way.
        interval: seconds between two checks, 5 at most.

    Attributes:
        next_look: when the next check is due (monotonic seconds); None: never.
    """

    def __init__(self, path: str | None, interval: float) -> None:
        self._path, self._interval = path, min(_FILE_LOOK, interval)
        self._seen = self._stamp()
        self.next_look: float | None = None if path is None else 0.0

    def has_changed(self, now: float) -> bool:
        """Whether the file has changed since the last check; checks it only once per interval."""
        if self.next_look is None or now < self.next_look:
            return False
        self.next_look = now + self._interval
        before, self._seen = self._seen, self._stamp()
        return self._seen != before and self._seen is not None

    def _stamp(self) -> Stamp | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


_THIS_MACHINE = "this machine"
_FORGIVEN = 600.0
"""The least time, in seconds, after which earlier losses of a node are forgiven."""


class MembershipMonitor:
    """Keeps the nodes of an elastic job up to date, and ends a session when the set of nodes should change.

    Attributes:
        pool: as it was last read; nodes that are removed from it stay in use, so their entries are kept.
        accelerator: the kind of device that the job runs on; "": not known yet.
    """

    def __init__(self, spec: JobSpec, environ: Mapping[str, str], machine: Machine) -> None:
        self._environ, self._machine = environ, machine
        path = None if spec.hosts else spec.hostfile
        self._file = PoolFile(path or DEFAULT_HOSTFILE, spec.elastic_interval)  # note its time stamp before reading it
        self.pool = _find(spec, environ)
        self.spec = spec if self.pool.source != _THIS_MACHINE else node_selection.by_one_name(spec)
        if self.pool.source not in (path, DEFAULT_HOSTFILE):
            self._file = PoolFile(None, spec.elastic_interval)
        names = node_selection.select(self.spec, self.pool).names
        conflicts.refuse_node_rank(spec, len(names))
        if len(names) < spec.min_nodes and not self.may_grow:
            what = f"{spec.min_nodes} nodes are required, but only {len(names)} given"
            raise BadInputError(what, hint="add nodes, or give a smaller number", where="--min_elastic_nodes")
        self.roster = Roster(
            names,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            interval=spec.elastic_interval,
            window=max(spec.restart_window, _FORGIVEN),
        )
        # Once: a file that is broken later must not end the job.
        self.exports = cluster_job.what_travels(spec, environ)
        self.launcher = choice.choose(spec, self.pool.scheduler)
        self._over = choice.load(self.launcher).OVER
        self.accelerator = ""
        self.own_names: dict[str, str] = {}  # by which ps and top call the nodes: their names in the pool
        self._control_socket = ControlSocket()
        self._session: Session | None = None
        self._runs = False
        self._probes: dict[str, tuple[Helper, Timer]] = {}
        self._found: list[str] = []
        self._timer: Timer | None = None
        self._announcement: Timer | None = None
        self._complaints: set[str] = set()

    @property
    def may_grow(self) -> bool:
        """Whether a file declares the pool, to which nodes may be added."""
        return self._file.next_look is not None

    def is_over(self, why: str) -> bool:
        """Whether the reason for an unfit node says that the whole allocation has ended: its nodes never come back."""
        return bool(self._over and re.search(self._over, why))

    def close(self) -> None:
        """Take no more requests."""
        self._control_socket.close()

    def attach(self, session: Session, *, runs: bool) -> None:
        """Attach to a session that has begun."""
        self._session, self._runs = session, runs
        session.on_drain = self._asked
        session.open_socket(self._control_socket)
        self.plan_look()

    def detach(self) -> None:
        """Detach from a session that has ended, and end all probes."""
        self._session = self._timer = self._announcement = None
        for name in self._found:
            self.roster.find(name, self._machine.now())
        self._found.clear()
        for helper, _ in self._probes.values():
            helper.close()
        self._probes.clear()

    # -- probing ---------------------------------------------------------------------------------

    def plan_look(self) -> None:
        """Set the timer for the next check or probe; to be called whenever a node is lost."""
        if self._session is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        times = [self._file.next_look, self.roster.next_look(self._pending) if self._may_probe() else None]
        due = min((when for when in times if when is not None), default=None)
        if due is not None:
            self._timer = self._session.loop.after(max(0.0, due - self._machine.now()), self._look)

    @property
    def _pending(self) -> set[str]:
        """Nodes that are being probed, or were found and not yet announced."""
        return {*self._probes, *self._found}

    def _may_probe(self) -> bool:
        return self.roster.has_room and len(self._probes) < _AT_ONCE

    def _look(self) -> None:
        now = self._machine.now()
        if self._file.has_changed(now):
            self._read_again(now)
        for name in self.roster.due(now, self._pending):
            if self._session is not None and self._may_probe():
                self._begin_probe(self._session, name, now)
        self.plan_look()

    def _begin_probe(self, session: Session, name: str, now: float) -> None:
        try:
            helper = self._machine.helper(node_probe.words(), self._environ)
        except OSError as error:
            self._complain(f"cannot probe nodes: {error.strerror}")
            self.roster.missed(name, now)
            return
        too_long = {"error": "a probe took too long"}
        self._probes[name] = helper, session.loop.after(_PROBE_LIMIT, lambda: self._probed(name, too_long))
        helper.tell(**node_probe.request(self.spec, self.pool, name, self.accelerator, self.exports))
        helper.when_answered(session.loop, lambda answer: self._probed(name, answer))

    def _read_again(self, now: float) -> None:
        """Read the pool again, and add the nodes that are new in it."""
        try:
            pool = _find(self.spec, self._environ)
            new = self.roster.add(node_selection.select(self.spec, pool).names, now)
        except BiremeError as error:
            self._complain(f"the hostfile has changed but cannot be used: {error}")
            return
        known = {entry.name for entry in pool.entries}
        kept = tuple(entry for entry in self.pool.entries if entry.name not in known)
        self.pool = pool.replace(entries=(*pool.entries, *kept))
        if new:
            self._say("info", f"new in the hostfile: {listed(new)}")

    def _probed(self, name: str, answer: dict[str, Any]) -> None:
        helper, limit = self._probes.pop(name)
        helper.close()
        limit.cancel()
        if "error" in answer:
            self._complain(f"cannot probe nodes: {answer['error']}")
        why = " ".join(str(answer.get("why", "")).split())
        ending = self._session is None or (self._runs and self._session.ending)
        if answer.get("there") and not ending:
            self._found.append(name)
        elif self.roster.missed(name, self._machine.now(), why):
            self._say("info", f"{name} is not admitted: {why}")
        if why and self.is_over(why) and self._session is not None and not ending:
            self._session.trouble("agent lost", f"the allocation is gone: {why}", self._machine.now())
        if not self._probes:
            self._announce()
        elif self._found and self._announcement is None and self._session is not None:
            self._announcement = self._session.loop.after(_TOGETHER, self._announce)
        self.plan_look()

    def _announce(self) -> None:
        """Enter the nodes that were found in the roster, and begin a new epoch if there are enough."""
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None
        if self._session is None or (self._runs and self._session.ending):
            return
        for name in self._found:
            self.roster.find(name, self._machine.now())
        there = [name for name in self._found if name in self.roster.present]
        self._found.clear()
        if there and not self.roster.lacking:
            self.rearrange(f"{listed(there)} {'is' if len(there) == 1 else 'are'} available")
        elif there:
            self._say("info", f"{listed(there)}: available; still missing: {self.roster.missing()}")

    # -- requests --------------------------------------------------------------------------------

    def _asked(self, request: dict[str, Any]) -> dict[str, object]:
        """Drain a node or take it back, as requested; return the answer."""
        name = str(request.get("node", ""))
        name = name if name in self.roster.names else self.own_names.get(name, name)
        if name not in self.roster.names:
            return {"error": f"{name} is not a node of the job (nodes: {listed(self.roster.names)})"}
        if request.get("back"):
            if not self.roster.call_back(name, self._machine.now()):
                return {"error": f"{name} is not drained"}
            self.plan_look()
            return {"said": f"{name} may be used again once it answers"}
        return self._drain(name)

    def _drain(self, name: str) -> dict[str, object]:
        if self._runs and self._session is not None and self._session.ending:
            return {"error": "the current epoch is ending: try again"}
        worked = self._runs and name in self.roster.invited()
        if not self.roster.drain(name):
            return {"error": f"{name} is already drained"}
        if not worked:
            return {"said": f"{name} is drained"}
        self.rearrange(f"{name} is drained")
        waits = f"; the job waits until {self.roster.min_nodes} nodes are available" if self.roster.lacking else ""
        return {"said": f"{name} is drained: its ranks are being stopped{waits}"}

    def rearrange(self, why: str) -> None:
        """End the epoch, so that the next begins with the nodes that are available; nothing if it is ending already."""
        if self._session is not None and not self._session.ending:
            self._session.trouble("membership", why, self._machine.now())

    def _complain(self, text: str) -> None:
        """Show a warning, unless the same was shown before."""
        if text not in self._complaints:
            self._complaints.add(text)
            self._say("warning", text)

    def _say(self, level: str, text: str) -> None:
        if self._session is not None:
            self._session.console.say(level, text)


def _find(spec: JobSpec, environ: Mapping[str, str]) -> DeclaredPool:
    """Find the declared pool; if there is none, this machine is the pool."""
    pool = node_selection.find(spec, environ)
    return pool if pool is not None else DeclaredPool((HostEntry(name="localhost"),), _THIS_MACHINE)
