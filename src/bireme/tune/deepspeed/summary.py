"""The summary at the end of a study, as written to ``summary.txt`` and to the screen."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from bireme.errors import counted
from bireme.result.report import duration
from bireme.tune.deepspeed.config_space import STAGE
from bireme.tune.deepspeed.finals import Finals
from bireme.tune.deepspeed.tuning import CompletedTrial, Tuning
from bireme.tune.report.tables import few, figure, listed, table, wrapped


def summary(tuning: Tuning, why: str, seconds: float) -> str:
    """The whole summary, ending with a newline.

    Args:
        seconds: how long this run of the study took.
    """
    parts = [_spaces(tuning), _trials(tuning)] if tuning.completed else []
    parts += _finals(tuning)
    reasons = _reasons(tuning.completed)
    if reasons:
        parts.append(listed("What failed:", (f"{few(names)}: {reason}" for reason, names in reasons.items())))
    if tuning.skipped:
        parts.append(listed("What was not tried:", tuning.skipped))
    if tuning.given_up:
        names = ", ".join(tuning.given_up)
        parts.append(wrapped(f"Could not be run (run the same command again to retry): {names}"))
    experiments = counted(len(tuning.completed), "experiment")
    parts.append(wrapped(f"Tuning took {duration(seconds)}; {experiments}. It ended: {why}."))
    return "\n\n".join(parts) + "\n"


# -- the tables --------------------------------------------------------------------------------------


def _spaces(tuning: Tuning) -> str:
    """DeepSpeed's table: the best experiment of each stage, and of all."""
    groups = {
        f"z{stage}": [row for row in tuning.completed if row.trial.point[STAGE] == stage]
        for stage in sorted(tuning.space.stages)
    }
    rows = []
    for name, members in {**groups, "global": list(tuning.completed)}.items():
        best = tuning.best_of(members)
        if best is not None and best.value is not None:
            rows.append((name, str(len(members)), f"{best.value:.6g}", best.trial.name))
        elif members:
            rows.append((name, str(len(members)), "", ""))
    return table(("tuning_space", "num_experiments", "best_metric_val", "best_exp_name"), rows)


def _trials(tuning: Tuning) -> str:
    """All experiments, the best first; those without a figure last, in the order of their ends."""
    ranked = sorted(tuning.completed, key=lambda row: (row.value is None, tuning.cost(row)))
    header = ("experiment", tuning.section.metric, "by the clock", "took", "end")
    return table(header, (_cells(tuning, row) for row in ranked))


def _cells(tuning: Tuning, row: CompletedTrial) -> tuple[str, ...]:
    samples = row.result.samples
    return (
        row.trial.name,
        "" if row.value is None else tuning.metric.cell(row.value),
        "" if samples is None else f"{figure(samples)} samples/s",
        duration(row.result.seconds),
        row.result.cause,
    )


def _finals(tuning: Tuning) -> list[str]:
    """The paired rounds, and what they confirm."""
    finals, winner = tuning.finals, tuning.winner
    if winner is None:
        return []
    if finals is None or finals.winner is None:
        return [wrapped(f"best: {winner.trial.name}, {tuning.answer.text}.")] if tuning.unrepeated else []
    confidence = f"{100 * finals.care.confidence:g} %"
    rows = []
    for done in sorted(finals.finalists, key=lambda each: each != winner):
        ratio = finals.ratio(done, winner)
        same = done == winner
        rows.append((
            done.trial.name,
            str(finals.count(done)),
            "" if same or not ratio.count else f"{ratio.mean:.3f} x",
            "" if same or not isfinite(ratio.high) else f"{ratio.low:.3f} to {ratio.high:.3f}",
        ))  # fmt: skip
    header = ("repeated", "rounds", f"of the best, by {tuning.compared_by}", confidence)
    return [table(header, rows), *_verdict(tuning, finals, winner)]


def _verdict(tuning: Tuning, finals: Finals, winner: CompletedTrial) -> list[str]:
    """What the paired rounds have decided, and what they have not."""
    ties = [done.trial.name for done in finals.ties]
    runs = counted(finals.count(winner), "run")
    lines = [f"best: {winner.trial.name}, {tuning.answer.text}"]
    if ties:
        lines.append(f"not distinguishable from it in {runs} of each: {', '.join(ties)}")
    if left_out := [done.trial.name for done in finals.left_out]:
        lines.append(f"left out after the first rounds, in which they were worse: {', '.join(left_out)}")
    first = tuning.best
    if first is not None and first != winner and first.trial.name not in ties:
        lines.append(f"DeepSpeed's figure of one run preferred {first.trial.name}")
    return ["\n".join(map(wrapped, lines))]


# -- the remarks below ---------------------------------------------------------------------------------


def _reasons(rows: Iterable[CompletedTrial]) -> dict[str, list[str]]:
    """Why experiments failed, and which ones; out of memory is only shown in the table."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.value is None and row.reason and not row.out_of_memory:
            reasons.setdefault(row.reason, []).append(row.trial.name)
    return reasons
