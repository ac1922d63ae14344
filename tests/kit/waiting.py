"""Waits for what sends no event: the only place where tests poll."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str = "a condition", seconds: float = 60.0, every: float = 0.002) -> T:
    """Return the first true value of the condition; TimeoutError says what did not come.

    What comes late is looked for less often: a look may cost much more than the wait.
    """
    begin = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begin
        if waited > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(max(every, min(waited / 20, 0.5)))
    return found
