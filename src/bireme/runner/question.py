"""A question to all nodes of a job, such as what its ranks are doing: collects the answers, for a limited time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop, Timer


class Question:
    """Asks the nodes when somebody wants to know, and again when somebody wants to know later.

    Args:
        ask: asks the nodes; returns how many answers will come. Some may come meanwhile.
        patience: seconds in which they are to come.

    Attributes:
        found: what has been answered, by rank or another key.
    """

    def __init__(self, loop: Loop, ask: Callable[[], int], patience: float) -> None:
        self._loop, self._ask, self._patience = loop, ask, patience
        self.found: dict[Any, Any] = {}
        self._waiting: list[Callable[[dict[Any, Any]], object]] = []
        self._missing = 0
        self._timer: Timer | None = None

    def put(self, then: Callable[[dict[Any, Any]], object]) -> None:
        """Call ``then`` with the answers, once all have come or it takes too long, and not before this returns."""
        self._waiting.append(then)
        if self._timer is None:
            self.found, self._missing = {}, 0
            asked = self._ask()
            self._missing += asked
            self._timer = self._loop.after(self._patience if self._missing else 0, self.end)

    def answered(self, found: dict[Any, Any]) -> None:
        """Note the answer of a node."""
        self.found.update(found)
        self._missing -= 1
        if not self._missing and self._timer is not None:
            self.end()

    def end(self) -> None:
        """Tell what has been answered to all who wait for it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, waiting, self._waiting = None, self._waiting, []
        for then in waiting:
            then(self.found)
