"""What is measured of a trial: goals, limits, and the sources of their figures.

A source is one of

- a pattern on the output: ``'samples/s: {}'``,
- a key of a JSON file that the program writes: ``results.json:train.rate``,
- a figure of :func:`bireme.report`, by its name,
- the clock: ``time``,
- peak memory on this machine: ``peak_memory`` (all ranks together), ``peak_gpu_memory`` (the fullest GPU).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from bireme.errors import BadInputError
from bireme.tune.metrics.numbers import UNITS, Pattern, amount, shown
from bireme.value import Value

Kind = Literal["pattern", "file", "reported", "clock", "peak_memory", "peak_gpu_memory"]
Direction = Literal["maximize", "minimize"]

MEMORY = ("peak_memory", "peak_gpu_memory")
_FILE = re.compile(r"(.+\.json):(.+)")
_LIMIT = re.compile(r"(.*?)\s*(<=|>=|<|>)([^<>]*)")
_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Source(Value):
    """Where a figure comes from; ``text``: as written."""

    kind: Kind
    text: str

    @property
    def pattern(self) -> Pattern:
        """The pattern, for that kind."""
        return Pattern.parse(self.text)

    @property
    def path(self) -> str:
        """The JSON file, for that kind, relative to the program's working directory."""
        return self.text.rpartition(".json:")[0] + ".json"

    @property
    def key(self) -> str:
        """The key in the JSON file, with dots between its parts."""
        return self.text.rpartition(".json:")[2]

    @property
    def unit(self) -> str:
        """The unit of its figures that is known before any is read: ``s``, ``B``, or ""."""
        return {"clock": "s", "peak_memory": "B", "peak_gpu_memory": "B"}.get(self.kind, "")

    @property
    def name(self) -> str:
        """What its figure is called."""
        if self.kind == "pattern":
            return self.pattern.name
        return self.key.rpartition(".")[2] if self.kind == "file" else self.text


class Goal(Value):
    """What is maximized or minimized."""

    name: str
    direction: Direction
    source: Source


class Limit(Value):
    """What a figure must be for a trial to count.

    Attributes:
        operator: the comparison: figure, operator, bound.
        bound: in the base unit, if `unit` is given.
        unit: the unit as written, if it is one that the figure is converted to or from; "" if numbers are compared
            as they are printed.
        text: the limit as written.
    """

    name: str
    source: Source
    operator: str
    bound: float
    unit: str
    text: str

    @property
    def base(self) -> str:
        """The base unit that the figure must have: ``s``, ``B``, ``%``, or "" for none."""
        return UNITS[self.unit][0] if self.unit else ""

    def broken_by(self, figure: float) -> str:
        """How a figure breaks the limit; "" if it does not."""
        if _HOLDS[self.operator](figure, self.bound):
            return ""
        factor = UNITS[self.unit][1] if self.unit else 1.0
        is_, limit = shown(figure / factor, self.unit), shown(self.bound / factor, self.unit)
        if is_ == limit and self.operator in ("<=", ">="):  # they differ in a digit that is not shown
            is_ = f"{figure / factor!r} {self.unit}".rstrip()
        return f"{self.name} is {is_}, the limit is {self.operator} {limit}"


class Readings(Value):
    """What was measured of one trial.

    Attributes:
        figures: the figures by name: of each rank, the mean of its steady part; of these, the mean.
        units: their base units, by name: ``s``, ``B``, ``%``, or "".
        series: the readings, by name: seconds since the trial's start (None if unknown), and the value. Of several
            ranks, that of the first.
        warm_up: how many readings at the beginning of the series were left out, by name.
        notes: what a reader of the figures should know, such as that a series had not become steady.
        problem: why a figure is missing, in one or two lines; "" if none is.
        diverged: whether a reading was not a number, or too large.
    """

    figures: Mapping[str, float]
    units: Mapping[str, str] = {}
    series: Mapping[str, tuple[tuple[float | None, float], ...]] = {}
    warm_up: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    problem: str = ""
    diverged: bool = False


class Measure(Value):
    """All that is measured: one goal or two, and any number of limits."""

    goals: tuple[Goal, ...]
    limits: tuple[Limit, ...] = ()

    @property
    def sources(self) -> dict[str, Source]:
        """The source of each figure, by the figure's name; goals first."""
        goals = {goal.name: goal.source for goal in self.goals}
        return goals | {limit.name: limit.source for limit in self.limits}

    @property
    def memory(self) -> tuple[str, ...]:
        """Which peaks of memory are measured."""
        kinds = {source.kind for source in self.sources.values()}
        return tuple(kind for kind in MEMORY if kind in kinds)

    def over(self, figures: Mapping[str, float]) -> str:
        """How a trial's figures break a limit, such as ``p99 is 231, the limit is < 200``; "" if none is broken."""
        broken = [limit.broken_by(figures[limit.name]) for limit in self.limits if limit.name in figures]
        return "; ".join(filter(None, broken))


def parse(goals: Sequence[tuple[Direction, str]], limits: Sequence[str] = ()) -> Measure:
    """Read what is to be measured: goals ``("maximize", "samples/s: {}")``, limits such as ``p99: {} < 200``."""
    if not goals:
        raise BadInputError("no goal", hint="add --maximize 'samples/s: {}', or --minimize time")
    if len(goals) > 2:
        raise BadInputError(
            f"{len(goals)} goals, but at most two are allowed", hint="give the others as --limit 'WHAT < NUMBER'"
        )
    names: dict[str, Source] = {}
    found: list[Goal] = []
    for direction, text in goals:
        source = _source(text, f"--{direction}")
        if any(source == goal.source for goal in found):
            raise BadInputError(f"given twice: {text!r}", where=f"--{direction}")
        found.append(Goal(_name(source, names), direction, source))
    return Measure(tuple(found), tuple(_limit(text, names) for text in limits))


def _name(source: Source, names: dict[str, Source]) -> str:
    """The name of a source's figure; the whole text if another source has that name."""
    name = source.name if names.get(source.name, source) == source else source.text
    names[name] = source
    return name


def _source(text: str, where: str) -> Source:
    text = text.strip()
    if text in MEMORY:
        return Source(text, text)  # type: ignore[arg-type]  # the kinds have these names
    if text == "time":
        return Source("clock", text)
    if file := _FILE.fullmatch(text):
        if not all(file[2].split(".")):
            raise BadInputError(f"not a key: {file[2]!r}", where=where, hint="as in results.json:train.rate")
        return Source("file", text)
    if text.isidentifier():
        return Source("reported", text)
    if not text:
        raise BadInputError("the figure is missing", where=where, hint="as in 'samples/s: {}' or time")
    try:
        Pattern.parse(text)
    except BadInputError as error:
        raise BadInputError(error.what, where=where, hint=error.hint) from None
    return Source("pattern", text)


def _limit(text: str, names: dict[str, Source]) -> Limit:
    where = "--limit"
    parts = _LIMIT.fullmatch(text.strip())
    if parts is None or "==" in text:
        raise BadInputError(f"no <, <=, > or >= in {text!r}", where=where, hint="as in 'p99: {} < 200'")
    source = _source(parts[1], where)
    if not parts[3].strip():
        raise BadInputError(f"no number after {parts[2]} in {text!r}", where=where)
    try:
        number, unit = amount(parts[3])
    except BadInputError as error:
        raise BadInputError(f"{error.what} in {text!r}", where=where, hint=error.hint) from None
    unit = unit or {"clock": "s"}.get(source.kind, "")
    bound = number * UNITS[unit][1] if unit else number
    if source.kind == "pattern" and (own := source.pattern.own_unit) and unit:
        if UNITS[own][0] != UNITS[unit][0]:
            raise BadInputError(f"{own} and {unit} cannot be compared: {text!r}", where=where)
        bound, unit = bound / UNITS[own][1], ""
    elif source.kind in ("file", "reported") or (source.kind == "pattern" and source.pattern.after.strip()):
        if unit:
            raise BadInputError(
                f"the unit of the figure is not known, but the limit has {unit}: {text!r}",
                where=where,
                hint="write the number alone, in the unit of the figure",
            )
    elif source.unit and UNITS.get(unit, ("",))[0] != source.unit:
        such = "16GiB" if source.unit == "B" else "300s"
        raise BadInputError(f"give {source.text} a unit, such as {such}: {text!r}", where=where)
    return Limit(name=_name(source, names), source=source, operator=parts[2], bound=bound, unit=unit, text=text)
