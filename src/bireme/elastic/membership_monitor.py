"""Beside a running job: probes nodes that are gone or new, and answers `bireme drain`."""

from __future__ import annotations

import os
import time

from bireme.elastic import node_probe
from bireme.errors import BiremeError
from bireme.process.helper import Helper
from bireme.resources.pool import listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.agent.session import Session
    from bireme.cluster.node_selection import Found
    from bireme.elastic.control_socket import ControlSocket
    from bireme.elastic.roster import Roster
    from bireme.job import JobSpec
    from bireme.loop import Timer
    from bireme.planning.exports import Exports

_FILE_LOOK = 5.0
"""Seconds between two looks at the hostfile's time stamp."""
_AT_ONCE = 16
"""So many nodes are looked for at a time, each by itself: one that does not answer holds up no other."""
_LOOK_LIMIT = 60.0
"""Seconds that a look may take; a preflight gives up on a node after half of that."""
_TOGETHER = 3.0
"""Seconds for which a node that is there waits for others that are just being looked for: one stop will do for all."""

Stamp = tuple[int, int, int]


class PoolFile:
    """The file that declares the pool, which may change while the job runs.

    Args:
        path: the file; None: the pool is declared otherwise.
        interval: seconds between two looks at it.
    """

    def __init__(self, path: str | None, interval: float) -> None:
        self._path, self._interval = path, min(_FILE_LOOK, interval)
        self._seen = self._stamp()
        self.next_look: float | None = None if path is None else 0.0

    def has_changed(self, now: float) -> bool:
        """Whether it is another than at the last look; it is looked at only so often."""
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


class MembershipMonitor:
    """Keeps the roster true while a session runs, and ends the session when the job is to be arranged anew.

    Args:
        roster: the nodes.
        spec: what a node must be fit for.
        environ: the environment.
        file: where the pool is declared.
        pool: the pool as it was read last.
        accelerator: what the job runs on.
        exports: the variables that travel.
        read_pool: read it again; the names that it has now.
        is_over: whether a node that is not there for this reason, none ever will be.
        door: where requests come in.
    """

    def __init__(
        self,
        roster: Roster,
        spec: JobSpec,
        environ: Mapping[str, str],
        *,
        file: PoolFile,
        pool: Callable[[], Found],
        accelerator: Callable[[], str],
        exports: Exports,
        read_pool: Callable[[], tuple[str, ...]],
        is_over: Callable[[str], bool],
        door: ControlSocket,
    ) -> None:
        self._roster, self._spec, self._environ = roster, spec, environ
        self._file, self._pool, self._accelerator, self._exports = file, pool, accelerator, exports
        self._read_pool, self._is_over, self._control_socket = read_pool, is_over, door
        self._session: Session | None = None
        self._runs = False
        self._looks: dict[str, tuple[Helper, Timer]] = {}
        self._found: list[str] = []
        self._timer: Timer | None = None
        self._announcement: Timer | None = None
        self._complaints: set[str] = set()

    def attach(self, session: Session, *, runs: bool) -> None:
        """A session has begun: of an epoch that runs, or of one that waits for nodes."""
        self._session, self._runs = session, runs
        self._control_socket.listen(session.loop, self._asked)
        self.plan_look()

    def detach(self) -> None:
        """It is over, and its loop with it."""
        self._session = self._timer = self._announcement = None
        for name in self._found:
            self._roster.find(name, time.monotonic())
        self._found.clear()
        self._control_socket.rest()
        for helper, _ in self._looks.values():
            helper.close()
        self._looks.clear()

    # -- looking ---------------------------------------------------------------------------------

    def plan_look(self) -> None:
        """One timer, for whatever is due first; call it when somebody is gone."""
        if self._session is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        times = [self._file.next_look, self._roster.next_look(self._seen_to) if self._may_look() else None]
        due = min((when for when in times if when is not None), default=None)
        if due is not None:
            self._timer = self._session.loop.after(max(0.0, due - time.monotonic()), self._look)

    @property
    def _seen_to(self) -> set[str]:
        """Who is being looked for, or is there and yet to be announced."""
        return {*self._looks, *self._found}

    def _may_look(self) -> bool:
        return self._roster.has_room and len(self._looks) < _AT_ONCE

    def _look(self) -> None:
        now = time.monotonic()
        if self._file.has_changed(now):
            self._read_again(now)
        for name in self._roster.due(now, self._seen_to):
            if self._session is not None and self._may_look():
                self._begin_look(self._session, name, now)
        self.plan_look()

    def _begin_look(self, session: Session, name: str, now: float) -> None:
        try:
            helper = Helper(node_probe.words(), self._environ)
        except OSError as error:
            self._complain(f"cannot look for nodes: {error.strerror}")
            self._roster.missed(name, now)
            return
        too_long = {"error": "a look took too long"}
        self._looks[name] = helper, session.loop.after(_LOOK_LIMIT, lambda: self._seen(name, too_long))
        helper.tell(**node_probe.request(self._spec, self._pool(), name, self._accelerator(), self._exports))
        helper.when_answered(session.loop, lambda answer: self._seen(name, answer))

    def _read_again(self, now: float) -> None:
        """Has somebody added nodes to the hostfile?"""
        try:
            new = self._roster.add(self._read_pool(), now)
        except BiremeError as error:
            self._complain(f"the hostfile has changed, and cannot be used: {error}")
            return
        if new:
            self._say("info", f"new in the hostfile: {listed(new)}")

    def _seen(self, name: str, answer: dict[str, Any]) -> None:
        helper, limit = self._looks.pop(name)
        helper.close()
        limit.cancel()
        if "error" in answer:
            self._complain(f"cannot look for nodes: {answer['error']}")
        why = str(answer.get("why", ""))
        ending = self._session is None or (self._runs and self._session.ending)
        if answer.get("there") and not ending:
            self._found.append(name)
        elif self._roster.missed(name, time.monotonic(), why):
            self._say("info", f"{name} is not taken in: {why}")
        if why and self._is_over(why) and self._session is not None and not ending:
            self._session.trouble("agent lost", f"the allocation is gone: {why}", time.monotonic())
        if not self._looks:
            self._announce()
        elif self._found and self._announcement is None and self._session is not None:
            self._announcement = self._session.loop.after(_TOGETHER, self._announce)
        self.plan_look()

    def _announce(self) -> None:
        """These are there: the job begins anew with them if it can. One that is just ending does so anyhow."""
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None
        if self._session is None or (self._runs and self._session.ending):
            return
        for name in self._found:
            self._roster.find(name, time.monotonic())
        there = [name for name in self._found if name in self._roster.present]
        self._found.clear()
        if there and not self._roster.lacking:
            self.rearrange(f"{listed(there)} {'is' if len(there) == 1 else 'are'} there")
        elif there:
            self._say("info", f"{listed(there)}: there; still missing: {self._roster.missing()}")

    # -- requests --------------------------------------------------------------------------------

    def _asked(self, request: dict[str, Any]) -> dict[str, object]:
        """Drain a node, or call it back; return what to answer."""
        name = str(request.get("node", ""))
        if name not in self._roster.names:
            return {"error": f"{name} is no node of the job: it has {listed(self._roster.names)}"}
        if request.get("back"):
            if not self._roster.call_back(name, time.monotonic()):
                return {"error": f"{name} is not drained"}
            self.plan_look()
            return {"said": f"{name} is looked for again"}
        return self._drain(name)

    def _drain(self, name: str) -> dict[str, object]:
        if self._runs and self._session is not None and self._session.ending:
            return {"error": "what runs is just ending: try again"}
        worked = self._runs and name in self._roster.invited()
        if not self._roster.drain(name):
            return {"error": f"{name} is drained already"}
        if not worked:
            return {"said": f"{name} is drained"}
        self.rearrange(f"{name} is drained")
        waits = f"; the job waits, for it needs {self._roster.min_nodes}" if self._roster.lacking else ""
        return {"said": f"{name} is drained: its ranks are being stopped{waits}"}

    def rearrange(self, why: str) -> None:
        """End what runs, so that the job begins anew with the nodes that there are; not what ends anyhow."""
        if self._session is not None and not self._session.ending:
            self._session.trouble("membership", why, time.monotonic())

    def _complain(self, text: str) -> None:
        """The same is said once."""
        if text not in self._complaints:
            self._complaints.add(text)
            self._say("warning", text)

    def _say(self, level: str, text: str) -> None:
        if self._session is not None:
            self._session.console.say(level, text)
