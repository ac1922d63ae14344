"""The command ``bireme top``: shows what each rank of a job uses, and the age of its last line, node by node."""

from __future__ import annotations

import time

from bireme.errors import BadInputError, counted
from bireme.logs.console import printable
from bireme.result.rank_use import behind
from bireme.result.report import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import curses
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    Facts: TypeAlias = dict[str, Any]
    """What a job answers: about itself, and of each rank, in columns; here also ``each`` rank."""
    Ask: TypeAlias = Callable[..., Facts]

_PAUSE = 1.0
"""Seconds between two samples."""
_FIRST_PAUSE = 0.5
_KEYS = "s stacks  l last lines  d drain the marked node  q quit"
_CELL, _STEP, _GPU = 22, 14, 13
"""Columns of a cell, and more where steps or GPUs are known."""
_SAME = 5.0
_STALE = 60.0
"""Seconds without a line after which a cell stands out."""


def measure(ask: Ask) -> Facts:
    """Ask a job what its ranks use."""
    facts = ask(do="top")
    if "columns" not in facts:
        raise BadInputError("the job was started by another version of Bireme", hint="ask it with that one")
    names, keys = facts["nodes"], tuple(facts["columns"])
    facts["each"] = [dict(zip(keys, row, strict=True)) for row in zip(*facts["columns"].values(), strict=True)]
    for each in facts["each"]:
        each["node"], each["at"] = names[each["node"]], facts["at"]
    return facts


def slowest(facts: Facts) -> list[tuple[str, list[Facts]]]:
    """The ranks of each node, and the nodes, by how long ago they have written: the slowest first.

    A few seconds are no difference, or all would change their places all the time.
    """

    def late(each: Facts) -> int:
        return int(each["age"] / _SAME)

    nodes: dict[str, list[Facts]] = {name: [] for name in facts["nodes"]}
    for each in sorted(facts["each"], key=lambda each: (-late(each), each["rank"])):
        nodes.setdefault(each["node"], []).append(each)
    return sorted(nodes.items(), key=lambda node: -max(map(late, node[1]), default=0))


def head(facts: Facts) -> str:
    """The line about the job."""
    name = f" {facts['name']}" if facts["name"] else ""
    of = f"{counted(facts['ranks'], 'rank')} on {counted(len(facts['nodes']), 'node')}"
    late = behind({each["rank"]: each["step"] for each in facts["each"]})
    about = f"job {facts['id']}{name}: {of}, {facts['state']} for {duration(facts['seconds'])}"
    return printable(f"{about}; {late}" if late else about)


def cell(each: Facts, before: dict[int, Facts]) -> str:
    """What is shown of a rank: its number, its share of a core, its memory, and how long ago it has written."""
    if each["state"] is None:
        return f"{each['rank']}: ended"
    old = before.get(each["rank"], each)
    seconds = each["at"] - old["at"]
    share = f"{(each['cpu'] - old['cpu']) / seconds:4.0%}" if seconds > 0 else "   -"
    text = f"{each['rank']}: {share} {_size(each['rss'])} {_short(each['age'])}"
    if each["gpu_memory"] >= 0:
        busy = f"{each['gpu']:4.0%}" if each["gpu"] >= 0 else "   -"
        text += f" gpu{busy} {_size(each['gpu_memory'])}"
    if each["step"] < 0:
        return text
    speed = f" {max(0.0, each['step'] - old['step']) / seconds:.2g}/s" if seconds > 0 and old["step"] >= 0 else ""
    return f"{text} #{each['step']:.15g}{speed}"


def _size(number: float) -> str:
    for unit in ("M", "G", "T"):
        number /= 1024 if unit != "M" else 1 << 20
        if number < 999.5:
            break
    return f"{number:.0f}{unit}" if number >= 9.95 or unit == "M" else f"{number:.1f}{unit}"


def _short(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.0f}h"


def arranged(facts: Facts, width: int) -> list[tuple[str, list[Facts]]]:
    """The rows: the node ("" on further rows of it), and its ranks there."""
    across = max(1, (width - _names(facts) - 3) // _cell_width(facts))
    return [
        ("" if first else name, ranks[first : first + across])
        for name, ranks in slowest(facts)
        for first in range(0, max(1, len(ranks)), across)
    ]


def line(row: tuple[str, list[Facts]], facts: Facts, before: dict[int, Facts]) -> tuple[str, bool]:
    """A row as text, and whether a rank in it is stale."""
    name, ranks = row
    width = _cell_width(facts)
    text = "".join(f"{cell(each, before):{width}}" for each in ranks).rstrip()
    stale = any(each["age"] >= _STALE for each in ranks if each["state"] is not None)
    return printable(f"{name:{_names(facts)}}  {text}"), stale


def _names(facts: Facts) -> int:
    return max(map(len, facts["nodes"]), default=0)


def _known(facts: Facts, name: str) -> bool:
    return any(each[name] >= 0 for each in facts["each"])


def _cell_width(facts: Facts) -> int:
    if "width" not in facts:
        facts["width"] = _CELL + _STEP * _known(facts, "step") + _GPU * _known(facts, "gpu_memory")
    return int(facts["width"])


def legend(facts: Facts) -> str:
    """What the parts of a cell are."""
    gpu = ", GPU and its memory" if _known(facts, "gpu_memory") else ""
    step = ", #step, steps/s" if _known(facts, "step") else ""
    return f"rank: share of a core, memory, age of its last line{gpu}{step}"


def once(ask: Ask, width: int) -> str:
    """A snapshot as text."""
    first = measure(ask)
    time.sleep(_FIRST_PAUSE)
    facts = measure(ask)
    before = {each["rank"]: each for each in first["each"]}
    rows = (line(row, facts, before)[0] for row in arranged(facts, width))
    return "\n".join((head(facts), legend(facts), *rows, ""))


class Screen:
    """The screen, until ``q`` is pressed or the job ends. ``ask`` raises what ends it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._before: dict[int, Facts] = {}
        self._marked = 0
        self._facts: Facts = {}
        self._news = ""

    def run(self, window: curses.window) -> None:
        """Show the job on this window."""
        import curses

        curses.use_default_colors()
        try:
            curses.curs_set(0)
        except curses.error:
            pass  # a terminal without that
        pause = _FIRST_PAUSE
        while True:
            facts = measure(self._ask)
            self._before = {each["rank"]: each for each in self._facts.get("each", ())}
            self._facts = facts
            until = time.monotonic() + pause
            pause = _PAUSE
            while (left := until - time.monotonic()) > 0:
                self._draw(window)
                window.timeout(max(1, round(left * 1000)))
                key = window.getch()
                if key == ord("q"):
                    return
                self._press(window, key)

    def _draw(self, window: curses.window) -> None:
        import curses

        height, width = window.getmaxyx()
        rows = arranged(self._facts, width)
        nodes = [name for name, _ in rows if name]
        self._marked = max(0, min(self._marked, len(nodes) - 1))
        window.erase()
        _put(window, 0, head(self._facts), curses.A_BOLD)
        _put(window, 1, self._news or legend(self._facts), curses.A_DIM)
        marked = next((number for number, row in enumerate(rows) if nodes and row[0] == nodes[self._marked]), 0)
        top = max(0, marked - max(1, height - 4) + 1)
        for place, row in enumerate(rows[top : top + max(0, height - 3)]):
            text, stale = line(row, self._facts, self._before)
            is_marked = top + place == marked and row[0]
            style = (curses.A_BOLD if stale else 0) | (curses.A_REVERSE if is_marked else 0)
            _put(window, 2 + place, text, style)
        _put(window, height - 1, _KEYS, curses.A_DIM)
        window.refresh()

    def _press(self, window: curses.window, key: int) -> None:
        import curses

        if key >= 0:
            self._news = ""
        if key in (curses.KEY_DOWN, curses.KEY_UP):
            self._marked += 1 if key == curses.KEY_DOWN else -1
        elif key == ord("s"):
            _put(window, 1, "taking the stacks …", curses.A_DIM)
            window.refresh()
            self._page(window, printable(self._ask(do="stacks")["said"]).splitlines())
        elif key == ord("l"):
            last = self._ask(do="lines")["last"]
            self._page(window, [printable(f"{rank}: {last[rank]}") for rank in sorted(last, key=int)])
        elif key == ord("d") and not self._facts["elastic"]:
            self._news = "it is not an elastic job: no node can be drained"
        elif key == ord("d"):
            node = slowest(self._facts)[self._marked][0]
            _put(window, 1, f"drain {node}: its ranks are stopped, the others go on? y/n", curses.A_BOLD)
            window.timeout(-1)
            if window.getch() == ord("y"):
                try:
                    self._news = printable(str(self._ask(node=node, back=False)["said"]))
                except BadInputError as error:
                    self._news = printable(error.what)

    def _page(self, window: curses.window, text: Sequence[str]) -> None:
        """Show a text until a key is pressed; the arrows move it."""
        import curses

        first = 0
        while True:
            height, _ = window.getmaxyx()
            window.erase()
            for place, line in enumerate(text[first : first + height - 1]):
                _put(window, place, line, 0)
            _put(window, height - 1, "↑ ↓ move  any other key: back", curses.A_DIM)
            window.timeout(-1)
            key = window.getch()
            if key not in (curses.KEY_DOWN, curses.KEY_UP, curses.KEY_RESIZE):
                return
            first += {curses.KEY_DOWN: 1, curses.KEY_UP: -1}.get(key, 0)
            first = max(0, min(first, len(text) - 1))


def _put(window: curses.window, row: int, text: str, style: int) -> None:
    import curses

    height, width = window.getmaxyx()
    if 0 <= row < height:
        try:
            window.addnstr(row, 0, text, width - 1, style)
            window.clrtoeol()
        except curses.error:
            pass  # it has become smaller meanwhile
