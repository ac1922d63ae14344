"""Signals: :mod:`signal` without its enums, so that signals and handlers are plain numbers and functions.

Importing `signal` brings `enum`, `functools` and `collections` along, which takes a tenth of the start of a job.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403


def named(text: str) -> int:
    """The number of a signal, by ``USR1``, ``SIGUSR1`` or ``10``; 0: there is no such signal."""
    number = int(text) if text.isdecimal() else globals().get("SIG" + text.upper().removeprefix("SIG"), 0)
    return int(number) if number in globals()["valid_signals"]() else 0
