"""Signals: :mod:`signal` without its enums, so that signals and handlers are plain numbers and functions.

Importing `signal` brings `enum`, `functools` and `collections` along, which takes a tenth of the start of a job.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403
