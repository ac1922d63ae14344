"""The function :func:`bireme.report`, with which a training script reports its figures to the tuner.

Users' scripts import it, so it imports almost nothing itself.
"""

from __future__ import annotations

import os

MARK = "\x1ebireme "
"""What a line with figures begins with; a JSON object follows. The first character separates records in ASCII."""

_LONGEST = 60


def report(*, step: object = None, **figures: object) -> None:
    """Tell ``bireme tune`` figures of this trial, such as ``report(samples_per_second=812.5)``.

    Call it as often as figures are known: the tuner leaves the warm-up out and takes the mean. Each rank may call it,
    or one alone. Outside a tuning it does nothing, and it never raises. Figures are written to stdout (descriptor 1).

    Args:
        step: the step that they belong to, for people who read the log.
        figures: numbers, or what ``float`` makes a number of, such as scalars of NumPy and PyTorch.
    """
    if "BIREME_TRIAL" not in os.environ:
        return
    try:
        _write(figures, step)
    except Exception:  # whatever a figure's type does in float() or repr(): the script goes on
        pass


def _write(figures: dict[str, object], step: object) -> None:
    from bireme.jsontext import dumps

    said: dict[str, object] = {name: _number(value) for name, value in figures.items()}
    if step is not None:
        said["step"] = _number(step)
    os.write(1, f"{MARK}{dumps(said)}\n".encode())


def _number(value: object) -> float | str:
    """The number; a text where it is none, which the tuner will quote."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:
        return f"{value!r:.{_LONGEST}}"
    return number if number - number == 0 else str(number)  # inf and nan have no form in JSON
