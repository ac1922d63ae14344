"""Step timing by our own clock: computes samples per second from the times at which DeepSpeed logs its steps.

DeepSpeed's own figure is that of its last step, without the time between two steps, such as loading data. The log has a
line for each step, whose label has the time (`bireme.logs.lines.SINCE`).

Which line that is depends on DeepSpeed's version. While tuning, it prints the times of every step (``time (ms) | fwd:
…``, once a step; lines about micro-batches begin with ``fwd_microstep``). If its log shows progress, there is also
``step=7, skipped=0, …`` with the step's number. The pipeline engine, which ignores tuning, prints
``steps: 7 loss: … iter time (s): …``; scripts print steps and losses too, but not the iteration time in these words.
"""

from __future__ import annotations

import re

from bireme.regular_file import open_regular

_STAMP = rb"\[(\d+\.\d+) [^\]]*\] .*"
_NUMBERED = re.compile(_STAMP + rb"\bstep=(\d+), skipped=")
_PIPELINE = re.compile(_STAMP + rb"\bsteps: (\d+) loss: \S+ .*\biter time \(s\): ")
_TIMED = re.compile(_STAMP + rb"time \(ms\) \| fwd: ")


def samples_per_second(path: str, samples: int, first: int) -> float | None:
    """Samples per second of wall time over the steps of a run; None if it logged too few.

    Args:
        path: the output of the run.
        samples: samples in a step (``train_batch_size``).
        first: the step at whose end timing begins, after the warm-up.
    """
    steps = _steps(path)
    begun = [number for number in steps if number >= first]
    if len(begun) < 2:
        return None
    low, high = min(begun), max(begun)
    seconds = steps[high] - steps[low]
    return samples * (high - low) / seconds if seconds > 0 else None


def last_step(text: str) -> int:
    """The number of the last step logged in the end of a run's output; 0 if none is."""
    numbers = [int(found[2]) for line in text.encode().splitlines() if (found := _numbered(line))]
    return max(numbers, default=0)


def _numbered(line: bytes) -> re.Match[bytes] | None:
    return _NUMBERED.match(line) or _PIPELINE.match(line)


def _steps(path: str) -> dict[int, float]:
    """When each step ended, in seconds, by its number from 1."""
    numbered: dict[int, float] = {}
    timed: list[float] = []
    try:
        with open(open_regular(path), "rb") as file:
            for line in file:
                if found := _numbered(line):
                    numbered[int(found[2])] = float(found[1])
                elif found := _TIMED.match(line):
                    timed.append(float(found[1]))
    except OSError:
        return {}
    return numbered if len(numbered) > 1 else dict(enumerate(timed, 1))
