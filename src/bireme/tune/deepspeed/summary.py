"""The table at the end: ``summary.txt``, and what stands on the screen. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bireme.supervise.report import duration
from bireme.tune.deepspeed.space import STAGE
from bireme.tune.deepspeed.tuning import Row, Tuning

_LONGEST_REASON = 60


def summary(tuning: Tuning, why: str, seconds: float) -> str:
    """The whole summary, ending with a newline.

    Args:
        tuning: the study.
        why: why it has ended.
        seconds: how long this run of it took.
    """
    parts = [_spaces(tuning), _trials(tuning)] if tuning.rows else []
    if tuning.skipped:
        parts.append("Not tried:\n" + "\n".join(f"  {line}" for line in tuning.skipped))
    if tuning.given_up:
        parts.append(
            f"Could not be run, and will be when the same command is typed again: {', '.join(tuning.given_up)}"
        )
    experiments = len(tuning.rows)
    parts.append(f"Tuning took {duration(seconds)}; {experiments} experiments. It ended because {why}.")
    return "\n\n".join(parts) + "\n"


def _spaces(tuning: Tuning) -> str:
    """The reference's table: the best of each stage, and of all."""
    groups = {
        f"z{stage}": [row for row in tuning.rows if row.trial.point[STAGE] == stage] for stage in tuning.space.stages
    }
    rows = []
    for name, members in {**groups, "global": list(tuning.rows)}.items():
        best = tuning.best_of(members)
        if best is not None and best.value is not None:
            rows.append((name, str(len(members)), f"{best.value:.6g}", best.trial.name))
    return _table(("tuning_space", "num_experiments", "best_metric_val", "best_exp_name"), rows)


def _trials(tuning: Tuning) -> str:
    """Every experiment, the best first."""
    ranked = sorted(tuning.rows, key=lambda row: (row.value is None, tuning.cost(row)))
    header = ("experiment", tuning.section.metric, "samples/s by the clock", "took", "end")
    return _table(header, (_cells(tuning, row) for row in ranked))


def _cells(tuning: Tuning, row: Row) -> tuple[str, ...]:
    ending = row.ending
    end = ending.cause if ending.cause == "ok" else f"{ending.cause}: {row.reason}" if row.reason else ending.cause
    return (
        row.trial.name,
        "" if row.value is None else tuning.metric.show(row.value),
        "" if ending.samples is None else f"{ending.samples:.4g}",
        duration(ending.seconds),
        end if len(end) <= _LONGEST_REASON else end[: _LONGEST_REASON - 1] + "…",
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of pipes, as the reference prints its own."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    drawn = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join(":" + "-" * (width + 1) for width in widths) + "|"
    return "\n".join([drawn[0], rule, *drawn[1:]])
