"""Beside a running job: looking for nodes that are gone or new, and listening to who drains one."""

from __future__ import annotations

import os
import time

from bireme.errors import BiremeError
from bireme.runner import look
from bireme.supervise.helper import Helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bireme.agent.session import Session
    from bireme.elastic.roster import Roster
    from bireme.job import JobSpec
    from bireme.loop import Timer
    from bireme.runner.door import Door


class Lookout:
    """Keeps the roster true while a session runs, and ends the session when the job is to be arranged anew.

    Args:
        roster: the nodes.
        spec: what a node must be fit for.
        environ: the environment.
        pool: the names in the pool as it is declared now.
        door: where requests come in.
    """

    def __init__(
        self,
        roster: Roster,
        spec: JobSpec,
        environ: Mapping[str, str],
        *,
        pool: Callable[[], tuple[str, ...]],
        door: Door,
    ) -> None:
        self._roster, self._spec, self._environ, self._pool, self._door = roster, spec, environ, pool, door
        self._file_seen = _stamp(spec.hostfile)
        self._next_file_look = 0.0
        self._session: Session | None = None
        self._helper: Helper | None = None
        self._timer: Timer | None = None

    def attach(self, session: Session) -> None:
        """A session runs from now on."""
        self._session = session
        self._door.listen(session.loop, self._asked)
        self._plan_look()

    def detach(self) -> None:
        """It is over, and its loop with it."""
        self._session = self._timer = None
        self._door.rest()
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    # -- looking ---------------------------------------------------------------------------------

    def _plan_look(self) -> None:
        """One timer, for whatever is due first."""
        if self._session is None or self._helper is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        times = []
        if self._spec.hostfile is not None and self._roster.has_room:
            times.append(self._next_file_look)
        due = self._roster.next_look() if self._roster.has_room else None
        if due is not None:
            times.append(due)
        if times:
            self._timer = self._session.loop.after(max(0.0, min(times) - time.monotonic()), self._look)

    def _look(self) -> None:
        now = time.monotonic()
        self._read_the_pool(now)
        due = self._roster.due(now)
        if due:
            self._helper = Helper(look.words(), self._environ)
            self._helper.tell(**look.request(self._spec, due))
            assert self._session is not None
            self._helper.when_answered(self._session.loop, lambda answer: self._seen(due, answer))
        else:
            self._plan_look()

    def _read_the_pool(self, now: float) -> None:
        """Has somebody added nodes to the hostfile? One that is half written is read again when it changes."""
        if self._spec.hostfile is None or now < self._next_file_look:
            return
        self._next_file_look = now + min(_FILE_LOOK, self._spec.elastic_interval)
        stamp = _stamp(self._spec.hostfile)
        if stamp == self._file_seen:
            return
        self._file_seen = stamp
        try:
            new = self._roster.add(self._pool(), now)
        except BiremeError as error:
            self._say("warning", f"the hostfile has changed, and is not read: {error}")
            return
        if new:
            self._say("info", f"new in the hostfile: {', '.join(new)}")

    def _seen(self, asked: tuple[str, ...], answer: dict[str, Any]) -> None:
        assert self._helper is not None
        self._helper.close()
        self._helper = None
        now = time.monotonic()
        there = [name for name in answer.get("there", ()) if name in asked]
        for name in asked:
            if name in there:
                self._roster.find(name)
            else:
                self._roster.missed(name, now)
        if there and not self._roster.lacking:
            self.rearrange(f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there")
        elif there:
            self._say("info", f"{', '.join(there)}: there; still missing: {self._roster.missing()}")
        self._plan_look()

    # -- requests --------------------------------------------------------------------------------

    def _asked(self, request: dict[str, Any]) -> dict[str, object]:
        """Drain a node, or call it back; return what to answer."""
        name, back = str(request.get("node", "")), bool(request.get("back"))
        if name not in self._roster.names:
            return {"error": f"{name} is no node of the job: it has {', '.join(self._roster.names)}"}
        if back:
            if not self._roster.call_back(name, time.monotonic()):
                return {"error": f"{name} is not drained"}
            self._plan_look()
            return {"said": f"{name} is looked for again"}
        worked = name in self._roster.invited()
        if not self._roster.drain(name):
            return {"error": f"{name} is drained already"}
        if worked:
            self.rearrange(f"{name} is drained")
        lacking = self._roster.lacking
        waits = f"; the job waits, for it needs {self._roster.min_nodes} nodes" if lacking else ""
        return {"said": f"{name} is drained: its ranks are being stopped{waits}" if worked else f"{name} is drained"}

    def rearrange(self, why: str) -> None:
        """End what runs, so that the job begins anew with the nodes that there are."""
        if self._session is not None:
            self._session.trouble("membership", why, time.monotonic())

    def _say(self, level: str, text: str) -> None:
        if self._session is not None:
            self._session.console.say(level, text)


_FILE_LOOK = 5.0
"""Seconds between two looks at the hostfile's time stamp."""


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
