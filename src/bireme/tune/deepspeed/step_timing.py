"""Step timing by our own clock: the engine prints a line for each step, and ``--timestamps`` says when.

The engine's own figure is that of its last step, without what lies between two steps, such as loading data.

Which line that is depends on DeepSpeed's version: while it tunes, it times every step and prints the times of it
(``time (ms) | fwd: …``, once a step, while those of its micro-batches begin with ``fwd_microstep``); where its log
shows progress, ``step=7, skipped=0, …`` stands there as well, and has the step's number. The pipeline engine, which
knows nothing of tuning, says ``steps: 7 loss: … iter time (s): …``; scripts, too, write of steps and losses, but not of
the time of an iteration in these words.
"""

from __future__ import annotations

import re

_STAMP = rb"\[(\d\d):(\d\d):(\d\d\.\d\d\d) [^\]]*\] .*"
_NUMBERED = re.compile(_STAMP + rb"\bstep=(\d+), skipped=")
_PIPELINE = re.compile(_STAMP + rb"\bsteps: (\d+) loss: \S+ .*\biter time \(s\): ")
_TIMED = re.compile(_STAMP + rb"time \(ms\) \| fwd: ")
_DAY = 86400.0


def samples_per_second(path: str, samples: int, first: int) -> float | None:
    """Samples per second of wall time over a run's steps; None: it has said too few.

    Args:
        path: what the run has written, with timestamps.
        samples: how many there are in a step (``train_batch_size``).
        first: the step at whose end the time begins; those before it are the warm-up.
    """
    steps = _steps(path)
    begun = [number for number in steps if number >= first]
    if len(begun) < 2:
        return None
    low, high = min(begun), max(begun)
    seconds = (steps[high] - steps[low]) % _DAY  # past midnight
    return samples * (high - low) / seconds if seconds > 0 else None


def last_step(text: str) -> int:
    """The number of the last step that the end of a run's output tells; 0: of none."""
    numbers = [int(found[4]) for line in text.encode().splitlines() if (found := _numbered(line))]
    return max(numbers, default=0)


def _numbered(line: bytes) -> re.Match[bytes] | None:
    return _NUMBERED.match(line) or _PIPELINE.match(line)


def _steps(path: str) -> dict[int, float]:
    """The second of the day at which each step had ended, by its number from 1."""
    numbered: dict[int, float] = {}
    timed: list[float] = []
    try:
        with open(path, "rb") as file:
            for line in file:
                if found := _numbered(line):
                    numbered[int(found[4])] = _second(found)
                elif found := _TIMED.match(line):
                    timed.append(_second(found))
    except OSError:
        return {}
    return numbered if len(numbered) > 1 else dict(enumerate(timed, 1))


def _second(found: re.Match[bytes]) -> float:
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
