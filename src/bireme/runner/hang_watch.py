"""Decides whether a job hangs: it is quiet for longer than ever, and nothing moves between two looks at its ranks."""

from __future__ import annotations

from bireme.result.report import duration
from bireme.result.stacks import RankStack, merged
from bireme.runner.quiet_time import TICK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from bireme.runner.quiet_time import QuietTime

    Look: TypeAlias = dict[tuple[int, str], RankStack]

_PAUSE = 10.0
"""Seconds between the two looks, fewer where the user has given fewer for the silence."""
_FLAT_CPU, _FLAT_IO = 0.02, 1 << 16
"""The part of a core, and the bytes, below which a rank does nothing."""
_COLLECTIVES = ("/torch/distributed/", "/deepspeed/comm/", "/mpi4py/", "/horovod/")
_DEBUGGERS = ("/bdb.py", "/pdb.py", "/debugpy/", "/IPython/")


class HangWatch:
    """Looks at the ranks of one job when its silence is suspicious.

    Args:
        now: the time in seconds.
        look: finds out what the ranks are doing, and calls back with it.
        say: shows a message of this level.
        on_hang: called with the seconds of silence and the last look when the job hangs.
        note: writes an event with the seconds of silence.
    """

    def __init__(
        self,
        quiet: QuietTime,
        *,
        now: Callable[[], float],
        look: Callable[[Callable[[Look], None]], object],
        say: Callable[[str, str], object],
        on_hang: Callable[[float, Look], object],
        note: Callable[[str, float], object] = lambda *_: None,
    ) -> None:
        self._quiet, self._now, self._look, self._say, self._on_hang = quiet, now, look, say, on_hang
        self._note = note
        self._first: Look | None = None
        self._since = 0.0  # the time of the first look
        self._is_looking = self._is_told = False

    def tick(self) -> None:
        """Look at the ranks if it is time. Call it after each `QuietTime.tick`."""
        quiet = self._quiet
        if not quiet.seconds:
            if self._is_told:
                self._say("info", f"the job writes again, after {duration(quiet.last)}")
            self._first, self._is_told = None, False
            return
        limit = quiet.limit
        if limit is None or self._is_told or self._is_looking:
            return
        pause = min(_PAUSE, max(TICK, limit / 2))
        if quiet.seconds >= (limit if self._first is None else limit + pause):
            self._is_looking = True
            if self._first is None:
                self._note("suspected", quiet.seconds)
            self._look(self._seen)

    def _seen(self, look: Look) -> None:
        self._is_looking, self._is_told = False, self._is_told or not look
        if not self._quiet.seconds or not look:
            return
        now = self._now()
        if self._first is None:
            self._first, self._since = look, now
        elif self._hangs(self._first, look, now - self._since):
            self._is_told = True
            self._on_hang(self._quiet.seconds, look)
        else:
            self._note("quiet", self._quiet.seconds)
            self._quiet.seconds, self._first = 0.0, None  # it moves: wait as long again

    def _hangs(self, first: Look, look: Look, seconds: float) -> bool:
        """Whether nothing has moved between two looks."""
        before, after = ({key: each for key, each in one.items() if not each.thread} for one in (first, look))
        if before.keys() != after.keys() or any(map(_is_debugged, after.values())):
            return False
        if any(_place(before[key]) != _place(after[key]) for key in after):
            return False
        if any(after[key].io - before[key].io > _FLAT_IO for key in after):
            return False
        if self._quiet.given is not None:
            return True  # also if they spin
        busy = (key for key in after if after[key].cpu - before[key].cpu > _FLAT_CPU * seconds)
        if not all(_stands(before[key], after[key]) for key in busy):
            return False
        # A server that waits for requests, and ranks that all wait for something, do not move either. But where some
        # wait for the others in a collective, and one is elsewhere, nothing can come.
        known = all(each.frames or each.state.startswith("stopped") for each in after.values())
        return known and any(map(_waits_for_others, after.values())) and len(set(map(_place, after.values()))) > 1


def _place(each: RankStack) -> tuple[object, ...]:
    """Where a rank is; a loop of some lines is one place."""
    inner = tuple((frame.file, frame.function) for frame in each.frames[:1])
    return (inner, each.frames[1:])


def _stands(before: RankStack, after: RankStack) -> bool:
    """Whether a rank waits in the same collective as before, as far as that is known; CUDA spins meanwhile."""
    waits = ({(group.name, group.waits) for group in each.groups if group.waits} for each in (before, after))
    return bool(set.intersection(*waits))


def _waits_for_others(each: RankStack) -> bool:
    in_one = any(part in frame.file for frame in each.frames for part in _COLLECTIVES)
    return in_one or any(group.waits for group in each.groups)


def _is_debugged(each: RankStack) -> bool:
    return each.state.startswith("traced") or any(part in frame.file for frame in each.frames for part in _DEBUGGERS)


def hang_text(quiet: float, look: Look, hosts: dict[int, str], folder: str) -> tuple[str, str]:
    """What is said of a job that hangs: in a line, and the stacks."""
    return f"nothing was written for {duration(quiet)}, and no rank moves", merged(look.values(), hosts, own=folder)
