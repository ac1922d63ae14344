"""The stop ladder: the steps from a request to stop to the end of all processes, the same for every cause. Pure.

SIGTERM (or the signal that was received) to all at once, one shared deadline, SIGKILL, and a bounded wait for processes
that the kernel holds. The user says how long the ranks get (`bireme.job.DEFAULT_GRACE`). It is a table, so that it can
be read and tested without processes.
"""

from __future__ import annotations

from bireme import signal_numbers as signal
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    State: TypeAlias = Literal["running", "stopping", "killing", "done"]
    Event: TypeAlias = Literal["stop", "kill now", "deserted", "deadline", "empty"]
    Deadline: TypeAlias = float | Literal["cancel", "keep"]
    Do: TypeAlias = Literal["signal", "sweep", "kill", "give up", "finish"]

KILL_WAIT = 5.0
"""Seconds to wait after SIGKILL for a process that the kernel holds; then it is reported and left behind."""


class Step(Value):
    """The result of an event: the new state, what to do, and when the next deadline is."""

    state: State
    do: tuple[Do, ...] = ()
    deadline: Literal["grace", "kill", "cancel", "keep"] = "keep"


# stop: the job is to end. kill now: at once, without the grace time. deserted: every rank has ended, but processes
# are left. deadline: the time is over. empty: nothing is left below the guardian.
TABLE: dict[tuple[State, Event], Step] = {
    ("running", "stop"): Step("stopping", ("signal",), "grace"),
    ("running", "kill now"): Step("killing", ("kill",), "kill"),
    ("running", "deserted"): Step("stopping", ("sweep",), "grace"),
    ("running", "empty"): Step("done", ("finish",), "cancel"),
    ("stopping", "kill now"): Step("killing", ("kill",), "kill"),
    ("stopping", "deadline"): Step("killing", ("kill",), "kill"),
    ("stopping", "empty"): Step("done", ("finish",), "cancel"),
    ("killing", "deadline"): Step("done", ("give up", "finish"), "cancel"),
    ("killing", "empty"): Step("done", ("finish",), "cancel"),
}


class Ladder:
    """The present state in the table."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.state: State = "running"
        self.signum: int = signal.SIGTERM

    def on(self, event: Event, signum: int = signal.SIGTERM) -> tuple[tuple[Do, ...], Deadline]:
        """Go to the next state. An event that the table does not list for this state changes nothing.

        Returns:
            What to do now, and when the next ``deadline`` comes: in N seconds, never ("cancel"), or as before.
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
