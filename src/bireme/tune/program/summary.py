"""The summary at the end of a study of a program, as written to ``summary.txt`` and to the screen."""

from __future__ import annotations

from collections.abc import Iterator

from bireme.errors import counted
from bireme.result.report import duration
from bireme.tune.define.declarations import Declaration
from bireme.tune.metrics.metric import Measure
from bireme.tune.metrics.numbers import scaled, shown_ratio
from bireme.tune.program.board import described
from bireme.tune.program.trials import ProgramTrials
from bireme.tune.report.tables import few, listed, table, wrapped
from bireme.tune.space.points import key_of
from bireme.tune.study.study import Answer

_ROWS = 40
"""Lines of the table; the report has all trials."""

_TIES = 12
"""Lines of points that cannot be told apart from the answer."""


def summary(trials: ProgramTrials, measure: Measure, declaration: Declaration, why: str) -> str:
    """The table of all points, the best first, and why trials failed; ends with a newline.

    Args:
        trials: all trials of the study.
        measure: what was measured.
        declaration: what varied.
        why: why the study ended.
    """
    parts = [_table(trials, measure, declaration)] if trials.results else []
    reasons: dict[str, list[str]] = {}
    for name, result in trials.results.items():
        if result.cause not in ("ok", "pruned", "out of memory"):
            reasons.setdefault(f"{result.cause}: {result.reason}", []).append(name)
    if reasons:
        parts.append(listed("What failed:", (f"{few(names)}: {reason}" for reason, names in reasons.items())))
    count = counted(len(trials.results), "trial")
    parts.append(wrapped(f"Tuning took {duration(trials.took)}; {count}. It ended: {why}."))
    return "\n\n".join(parts) + "\n"


def _table(trials: ProgramTrials, measure: Measure, declaration: Declaration) -> str:
    """All points, the best first; those without a figure last, in the order of their first trials."""
    goal = measure.goals[0]
    sign = -1.0 if goal.direction == "maximize" else 1.0
    points: dict[str, list[str]] = {}
    for name in trials.results:
        points.setdefault(key_of(trials.trials[name].point), []).append(name)

    def mean(names: list[str], what: str) -> float | None:
        found = [
            value
            for name in names
            if trials.results[name].cause == "ok" and (value := trials.results[name].metrics.get(what)) is not None
        ]
        return sum(found) / len(found) if found else None

    ranked = sorted(
        points.values(), key=lambda names: (mean(names, goal.name) is None, sign * (mean(names, goal.name) or 0))
    )
    columns = [*(each.name for each in measure.goals), *(each.name for each in measure.limits)]

    def rows() -> Iterator[tuple[str, ...]]:
        for names in ranked[:_ROWS]:
            cells = (
                ("" if (value := mean(names, what)) is None else scaled(value, trials.units.get(what, "")))
                for what in columns
            )
            causes = dict.fromkeys(trials.results[name].cause for name in names)
            yield described(declaration, trials.trials[names[0]].point), str(len(names)), *cells, ", ".join(causes)

    text = table(("configuration", "runs", *columns, "end"), rows())
    return text if len(ranked) <= _ROWS else f"{text}\n(and {len(ranked) - _ROWS} more: bireme tune report)"


def answer_lines(answer: Answer, confidence: float, declaration: Declaration) -> str:
    """What the study found, with its confidence; ends with a newline."""
    lines = []
    if answer.noise is not None:
        lines.append(f"noise of a run: {100 * answer.noise:.1f} % (standard deviation, by what ran several times)")
    if answer.best is None:
        return "\n".join([*lines, "no configuration worked"]) + "\n"
    failed = key_of(answer.baseline) != key_of(declaration.space.default)
    baseline = f"({described(declaration, answer.baseline)})" if failed else "the default"
    sure = ""
    if answer.confirmed and answer.high is not None:
        rounds = counted(answer.rounds, "paired round")
        interval = f"{100 * confidence:g} %: {shown_ratio(answer.low)} to {shown_ratio(answer.high)}"
        sure = f"    {shown_ratio(answer.ratio)} x {baseline} ({interval}, {rounds})"
    lines.append(f"best: {described(declaration, answer.best)}{sure}")
    if answer.text and not answer.confirmed:
        lines.append(answer.text)
        if answer.promising is not None and not answer.front and key_of(answer.promising) != key_of(answer.best):
            lines.append(f"promising, but not confirmed: {described(declaration, answer.promising)}")
    if answer.default_failed:
        lines.append(f"the default itself failed: {answer.default_failed}")
    for tie in answer.ties[:_TIES]:
        lines.append(f"not distinguishable from {'it' if sure else baseline}: {described(declaration, tie)}")
    if len(answer.ties) > _TIES:
        lines.append(f"(and {len(answer.ties) - _TIES} more: bireme tune report)")
    for point in answer.front:
        lines.append(f"on the front: {described(declaration, point)}")
    return "\n".join(lines) + "\n"
