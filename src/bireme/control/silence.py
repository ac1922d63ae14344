"""When is a silence on a channel one of the other side? Not while we ourselves were halted, or busy.

Both sides look in beats, several within the time after which the other is missed. A beat that is late tells how long
we were away, and that much is forgiven: a machine that stands still for a while (a virtual one, or one that swaps)
halts both sides, and whichever wakes first must not give up the other.
"""

from __future__ import annotations

BEATS = 4
"""How often each side looks within the time after which the other is missed; how often the runner asks, too."""


def forgiven(last_heard: float, due: float, now: float) -> float:
    """When the other side was heard last, had we not been away between ``due`` and ``now`` (seconds of one clock)."""
    return min(now, last_heard + max(0.0, now - due))
