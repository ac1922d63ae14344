"""The stop ladder: one for everything that ends a node's part of a job.

TERM (or the signal that came) to all at once, one shared deadline, KILL, a sweep, a bounded wait for
what the kernel holds. A table, so that it can be read and tested without a process.
"""

from __future__ import annotations

import signal

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    State: TypeAlias = Literal["running", "stopping", "killing", "done"]
    Event: TypeAlias = Literal["stop", "urge", "deserted", "deadline", "empty"]
    Deadline: TypeAlias = float | Literal["cancel", "keep"]
    Do: TypeAlias = Literal["signal", "sweep", "kill", "give up", "finish"]

KILL_WAIT = 5.0
"""Seconds to wait after SIGKILL for a process that the kernel holds, before it is named and left."""


class Step(Value):
    """Where an event leads: the new state, what to do, and when the next deadline is."""

    state: State
    do: tuple[Do, ...] = ()
    deadline: Literal["grace", "kill", "cancel", "keep"] = "keep"


# stop: somebody wants the end. urge: and does not want to wait. deserted: every rank has ended, but
# has left processes behind. deadline: the time is over. empty: nothing is left below the guardian.
TABLE: dict[tuple[State, Event], Step] = {
    ("running", "stop"): Step("stopping", ("signal",), "grace"),
    ("running", "urge"): Step("killing", ("kill",), "kill"),
    ("running", "deserted"): Step("stopping", ("sweep",), "grace"),
    ("running", "empty"): Step("done", ("finish",), "cancel"),
    ("stopping", "urge"): Step("killing", ("kill",), "kill"),
    ("stopping", "deadline"): Step("killing", ("kill",), "kill"),
    ("stopping", "empty"): Step("done", ("finish",), "cancel"),
    ("killing", "deadline"): Step("done", ("give up", "finish"), "cancel"),
    ("killing", "empty"): Step("done", ("finish",), "cancel"),
}


class Ladder:
    """The table's current row, and the grace time."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.state: State = "running"
        self.signum: int = signal.SIGTERM

    def on(
        self, event: Event, signum: int = signal.SIGTERM
    ) -> tuple[tuple[Do, ...], float | Literal["cancel", "keep"]]:
        """What to do now, and when the next ``deadline`` comes: in so many seconds, never, or as it was.

        An event that the table does not know in this state changes nothing.
        """
        step = TABLE.get((self.state, event))
        if step is None:
            return (), "keep"
        self.state = step.state
        if event == "stop":
            self.signum = signum
        if step.deadline == "grace":
            return step.do, self.grace
        return step.do, KILL_WAIT if step.deadline == "kill" else step.deadline
