"""The first part of the page: the answer with its confidence, the command to copy, and the figures behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from bireme.errors import counted
from bireme.result.report import duration
from bireme.tune.metrics.numbers import shown_ratio
from bireme.tune.report.study_record import MEASURED, Finalist, StudyRecord
from bireme.tune.report.time_use import TimeUse

_STATES = {"running": "still running", "over": "over", "stopped": "stopped before its end"}
_MOST_TIES = 12


def state_words(study: StudyRecord, used: TimeUse) -> str:
    """The state and the time in a few words."""
    return f"{_STATES[study.state]}, {duration(used.wall)}" if used.wall else _STATES[study.state]


def answer(study: StudyRecord, used: TimeUse, names: Sequence[str]) -> str:
    """The HTML of the section; ``names``: what the configurations are called."""
    parts = [_headline(study, names), _no_default(study), _ties(study, names), _command(study), _facts(study, used)]
    return "\n".join(part for part in parts if part)


def _headline(study: StudyRecord, names: Sequence[str]) -> str:
    known, best = study.answer, study.best
    if best is None:
        what = "Nothing has been measured yet" if study.state == "running" else "No trial gave a figure"
        return _head("", what)
    if known is None:
        ratio = _single_ratio(study, best)
        base = "the default, by single runs. " if ratio else ""
        lead = f"{base}The best of many runs looks better than it is: only the comparison of the finalists is sure."
        return _head('Best so far, <b class="open">not confirmed</b>', names[best], ratio, lead, sure=False)
    if len(study.goals) == 2 and known.front:
        count = len(known.front)
        what = f"{count} configurations cannot be beaten in both goals at once" if count > 1 else names[known.front[0]]
        return _head("The front of the two goals", what, "", known.text)
    if not known.confirmed:
        base = "The default is kept" if best == 0 else names[best]
        after = f" after {counted(known.rounds, 'paired round')}" if known.rounds else ""
        text = f"No configuration is better than it with {study.confidence:.0%} confidence{after}."
        if known.promising is not None and known.promising != best:
            text += f" Promising, but not confirmed: {names[known.promising]}."
        return _head('<b class="open">No certain improvement</b>', base, "", text)
    goal = study.goals[0].name if study.goals else "figure"
    direction = "the default's" if not study.goals or study.goals[0].maximized else "as good as the default's"
    low, high = (shown_ratio(each) if each is not None else "unknown" for each in (known.low, known.high))
    lead = f"{direction} {goal}. With {study.confidence:.0%} confidence"
    lead += f" {low} to {high}, from {counted(known.rounds, 'paired round')}."
    eyebrow = "<b>Confirmed</b> to be better than the default"
    return _head(eyebrow, names[best], f"{shown_ratio(known.ratio)} ×", lead)


def _head(eyebrow: str, title: str, ratio: str = "", text: str = "", *, sure: bool = True) -> str:
    """``eyebrow`` is HTML; all else is text."""
    above = f'<p class="eyebrow">{eyebrow}</p>' if eyebrow else ""
    big = f'<span class="ratio{"" if sure else " open"}">{escape(ratio)}</span>' if ratio else ""
    below = f'<div class="verdict">{big}<p>{escape(text)}</p></div>' if text or big else ""
    return f'{above}<h1 id="headline">{escape(title)}</h1>{below}'


def _single_ratio(study: StudyRecord, config: int) -> str:
    mean, base = study.mean(config), study.mean(0)
    if not mean or not base or config == 0:
        return ""
    return f"{mean / base if study.goals[0].maximized else base / mean:.2f} ×"


def _no_default(study: StudyRecord) -> str:
    if study.answer is None or not (why := study.answer.default_failed):
        return ""
    base = study.configurations[study.answer.baseline].text
    text = f"The default itself gave no figure ({why}). What is called the default here is {base}."
    return f'<p class="lead note">{escape(text)}</p>'


def _ties(study: StudyRecord, names: Sequence[str]) -> str:
    known = study.answer
    several = known is not None and len(study.goals) == 2 and len(known.front) > 1
    chosen = () if known is None else known.front if several else known.ties
    if not chosen:
        return ""
    items = "".join(f'<li class="mono">{escape(names[each])}</li>' for each in chosen[:_MOST_TIES])
    more = f"<li>and {len(chosen) - _MOST_TIES} more</li>" if len(chosen) > _MOST_TIES else ""
    title = "They are" if several else "Not distinguishable from it"
    return f'<p class="lead sub">{title}:</p><ul class="ties">{items}{more}</ul>'


def _command(study: StudyRecord) -> str:
    if not study.best_command:
        return ""
    hidden = ""
    if study.hidden:
        place = f"{study.folder}/cmd_best.txt"
        hidden = f'<p class="note">Some values are hidden here; the whole command is in {escape(place)}.</p>'
    return (
        f'<div class="command"><code id="command">{escape(study.best_command)}</code>'
        f'<button type="button" data-copy="command" aria-label="Copy the command">Copy</button></div>{hidden}'
    )


def _facts(study: StudyRecord, used: TimeUse) -> str:
    best, facts = study.best, []
    goal = study.goals[0].title if study.goals else ""
    if best and (mean := study.mean(best)) is not None:
        facts.append(("Best", _figure(mean), goal))
    if (base := study.mean(0)) is not None:
        facts.append(("Default", _figure(base), goal))
    if study.noise is not None:
        facts.append(("Noise of a run", f"{100 * study.noise:.2g} %", "standard deviation"))
    counts = Counter(trial.cause for trial in study.ended)
    words = ", ".join(f"{count} {'measured' if cause == MEASURED else cause}" for cause, count in counts.most_common())
    facts.append(("Trials", f"{len(study.ended):,}", words))
    tried = len({trial.config for trial in study.ended})
    facts.append(("Configurations", f"{tried:,}", "tried"))
    slots = f"on {used.slots} slots" if used.slots > 1 else "on one slot" if used.slots else ""
    facts.append(("Time", duration(used.wall), slots))
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in facts
    )
    return f'<dl class="facts">{items}</dl>'


def _figure(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def numbers(study: StudyRecord, names: Sequence[str]) -> str:
    """The finalists as a table."""
    several = len(study.goals) > 1
    head = "<th>Configuration</th>" + ("<th>Goal</th>" if several else "")
    head += '<th class="number">× default</th><th class="number">at least</th><th class="number">at most</th>'
    head += '<th class="number">Rounds</th><th>Verdict</th>'
    rows = "".join(_finalist(each, names[each.config], several) for each in study.finalists)
    return (
        '<div class="wide numbers" tabindex="0" role="region" aria-label="Finalists in numbers">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _finalist(each: Finalist, name: str, several: bool) -> str:
    ends = "".join(f'<td class="number">{"" if end is None else f"{end:.3f}"}</td>' for end in (each.low, each.high))
    goal = f"<td>{escape(each.goal)}</td>" if several else ""
    return (
        f'<tr><td class="mono">{escape(name)}</td>{goal}<td class="number">{each.ratio:.3f}</td>{ends}'
        f'<td class="number">{each.count}</td><td>{escape(each.verdict)}</td></tr>'
    )
