"""The function :func:`bireme.report`, with which a training script reports its figures to the tuner.

Users' scripts import it, so it imports almost nothing itself.
"""

from __future__ import annotations

import os

_STEPS = "BIREME_STEPS"
"""As `bireme.planning.environment.STEPS`, which scripts need not import."""

MARK = "\x1ebireme "
"""What a line with figures begins with; a JSON object follows. The first character separates records in ASCII."""

_LONGEST = 60


def report(*, step: object = None, **figures: object) -> None:
    """Tell how far this rank is, and ``bireme tune`` figures of this trial, such as ``report(samples_per_second=812)``.

    Call it as often as figures are known: the tuner leaves the warm-up out and takes the mean. Each rank may call it,
    or one alone. It never raises, and outside a job of Bireme it does nothing. In a tuning, figures are written to
    stdout (descriptor 1).

    Args:
        step: the number of the step: ``bireme top`` and reports show which ranks are behind.
        figures: numbers, or what ``float`` makes a number of, such as scalars of NumPy and PyTorch.
    """
    try:
        if "BIREME_TRIAL" in os.environ:
            _write(figures, step)
    except Exception:  # whatever a figure's type does in float() or repr(): the script goes on
        pass
    try:
        if step is not None and _STEPS in os.environ:
            _note_step(step)
    except Exception:  # it is no number, or the disk is full: the figures are told all the same
        pass


_file: tuple[str, int] | None = None  # the rank's own: its path and descriptor


def _note_step(step: object) -> None:
    global _file
    path = os.environ[_STEPS] + os.environ["RANK"]
    if _file is None or _file[0] != path:
        _file = path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.pwrite(_file[1], f"{float(step):<24.15g}".encode(), 0)  # type: ignore[arg-type]


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
