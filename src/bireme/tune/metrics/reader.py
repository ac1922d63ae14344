"""Reads the figures of a trial: from its output while it runs, from files and the job's report when it has ended.

Each line of the output says from which rank it is, and how many seconds after the trial's start it came
(`bireme.logs.lines.SINCE`). A line may hold many figures: a progress bar is redrawn after each carriage return. Memory
is bounded: a long series is kept as means of several readings each.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import count

from bireme import jsontext
from bireme.errors import similar
from bireme.figure_report import MARK as _MARK
from bireme.regular_file import open_regular, read_regular
from bireme.tune.metrics.metric import MEMORY, Measure, Readings, Source
from bireme.tune.metrics.numbers import Number, Pattern
from bireme.tune.metrics.warm_up import Series, SteadyPart, steady_part

MARK = _MARK.encode()

_LABEL = re.compile(rb"\[(\d+\.\d+) ([^\]+]*)(\+?)\] ")
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CHUNK = 1 << 20
_AT_ONCE = 4
"""Chunks that one update reads at most, so that the caller is not held up."""

_LONG = 1 << 16
_TAIL = 4096
"""Bytes at the end of a long unfinished line that are kept: a figure may be torn there."""

_MOST = 2048
_MOST_TOGETHER = 1 << 17
"""Readings that are kept of a rank, and of all ranks."""

_LOOKED_AT, _MOST_ROWS = 1 << 20, 4000
"""Bytes at the beginning and at the end of a file, and rows, among which a similar line is sought."""

_SHOWN, _WIDE, _LAST = 120, 400, 3
"""Characters of a row that are shown, and compared; and rows at the end that are shown."""

_ALIKE = 0.5
"""How much of the pattern's text a similar line has."""

_MOST_NAMES = 100
_LONGEST = 1000
"""Characters of a line that says why a figure is missing: it may have names that the program chose."""


class _Stream:
    """How far a file of output has been read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self.rest = b""
        self.open: dict[bytes, tuple[re.Match[bytes], bytes]] = {}  # each rank's last line, which may go on: its label

    def blocks(self, chunks: Iterable[object]) -> Iterator[bytes]:
        """The complete lines that were written since the last call, in as many chunks as are asked for."""
        try:
            with open(open_regular(self.path), "rb") as file:
                file.seek(self.offset)
                for _ in chunks:
                    chunk = file.read(_CHUNK)
                    if not chunk:
                        return
                    self.offset += len(chunk)
                    block, _, self.rest = (self.rest + chunk).rpartition(b"\n")
                    yield block
                    if len(self.rest) > _CHUNK:  # the launcher cuts lines long before
                        self.rest = self.rest[:_LONG]
        except OSError:
            return


class Reader:
    """Reads one trial. Make it before the trial starts; its name replaces ``{trial}`` in the path of a JSON file."""

    def __init__(
        self, measure: Measure, stdout: str, stderr: str = "", *, directory: str = ".", name: str = ""
    ) -> None:
        self._measure = measure
        self._sources = measure.sources
        self._streams = [_Stream(path) for path in (stdout, stderr) if path]
        self._patterns: list[tuple[str, Pattern, bytes, re.Pattern[bytes]]] = [
            (figure, source.pattern, source.pattern.anchor, source.pattern.compiled())
            for figure, source in self._sources.items()
            if source.kind == "pattern"
        ]
        self._anchors = [b"+] ", b"\x1b", MARK, *(anchor for _, _, anchor, _ in self._patterns)]
        self._series: dict[str, dict[bytes, Series]] = {figure: {} for figure in self._sources}
        self._reported: dict[str, None] = {}
        self._files: dict[str, tuple[str, object]] = {}
        for figure, source in self._sources.items():
            if source.kind == "file":
                path = os.path.join(directory, source.path.replace("{trial}", name))
                self._files[figure] = (path, _state(path))

    def values(self, name: str) -> list[float]:
        """The readings of a figure until now, of the first rank that has any: for the judgement of a running trial.

        A rank's last line is not read yet, since it may be continued.
        """
        return next((list(series.values) for series in self._series[name].values()), [])

    def update(self) -> None:
        """Read what the trial has written since the last call, up to 4 MiB of each file."""
        for stream in self._streams:
            for block in stream.blocks(range(_AT_ONCE)):
                self._block(stream, block)

    def finish(self, report: Mapping[str, object] | None, peaks: Mapping[str, float] | None = None) -> Readings:
        """The figures of a trial that has ended with success.

        ``report``: what its ``bireme run --report`` wrote; ``peaks``: of memory in bytes, by source.
        """
        for stream in self._streams:
            for block in stream.blocks(count()):
                self._block(stream, block)
            self._line(stream, stream.rest)
            stream.rest = b""
            self._search_open(stream)
        figures: dict[str, float] = {}
        problems = []
        steady: dict[str, list[SteadyPart]] = {}
        for figure, source in self._sources.items():
            problem = self._take(figure, source, report or {}, peaks or {})
            problem = problem or self._unfit(figure)
            if problem:
                problems.append(problem)
                continue
            steady[figure] = [steady_part(series.values) for series in self._series[figure].values()]
            figures[figure] = sum(part.mean for part in steady[figure]) / len(steady[figure])
        if self._measure.goals[0].name not in figures:  # the others are of no use
            figures = {}
        return Readings(
            figures=figures,
            units={figure: self._first(figure).unit for figure in figures},
            series={figure: self._first(figure).readings for figure in figures},
            warm_up={figure: steady[figure][0].left_out for figure in figures},
            notes=tuple(self._notes(steady)),
            problem="\n".join(line[:_LONGEST] for line in problems[0].split("\n")) if problems else "",
            diverged=any(series.diverged for ranks in self._series.values() for series in ranks.values()),
        )

    def _first(self, figure: str) -> Series:
        return next(iter(self._series[figure].values()))

    def _notes(self, steady: Mapping[str, list[SteadyPart]]) -> Iterator[str]:
        for figure, parts in steady.items():
            first = self._first(figure)
            if first.stride > 1:
                yield f"{figure}: {first.count:,} readings, kept as means of {first.stride:,} each"
            if not all(part.settled for part in parts):
                yield f"{figure} was not yet steady when the trial ended"

    def _block(self, stream: _Stream, block: bytes) -> None:
        """Take the figures of complete lines."""
        if len(block) > _LONG and not any(anchor in block for anchor in self._anchors):
            self._search_open(stream)
            block = block[block.rfind(b"\n", 0, -_LONG) + 1 :]  # only the last lines: the next may continue them
        for line in block.split(b"\n"):
            self._line(stream, line)

    def _search_open(self, stream: _Stream) -> None:
        """Take the figures of each rank's last line, which does not go on."""
        for label, row in stream.open.values():
            self._search(label, row)
        stream.open.clear()

    def _line(self, stream: _Stream, line: bytes) -> None:
        """Search a rank's last line, and keep this one, since the next may continue it."""
        label = _LABEL.match(line)
        if label is None:  # a message of the launcher
            return
        rank = label[2]
        earlier = stream.open.get(rank)
        row = line[label.end() :]
        if earlier is not None and label[3]:
            label, row = earlier[0], earlier[1] + row
        elif earlier is not None:
            self._search(*earlier)
        if len(row) > _LONG:
            cut = max(row.rfind(b"\r"), len(row) - _TAIL)
            self._search(label, row[:cut])
            row = row[cut:]
        stream.open[rank] = label, row

    def _search(self, label: re.Match[bytes], row: bytes) -> None:
        """Take the figures of a line."""
        if MARK in row:
            row, *said = row.split(MARK)
            for text in said:
                self._hear(label, text)
        if b"\x1b" in row:
            row = _ESCAPE.sub(b"", row)
        for figure, pattern, anchor, compiled in self._patterns:
            if anchor in row:
                for found in compiled.finditer(row):
                    self._add(figure, label[2], float(label[1]), pattern.read(found))

    def _hear(self, label: re.Match[bytes], text: bytes) -> None:
        """Take the figures of a call of :func:`bireme.report`."""
        try:
            said, _ = json.JSONDecoder().raw_decode(text.decode())
        except (ValueError, RecursionError):  # torn by other output in the same pipe
            return
        for name, value in said.items() if isinstance(said, dict) else ():
            if len(self._reported) < _MOST_NAMES:
                self._reported[name] = None
            source = self._sources.get(name)
            if source is not None and source.kind == "reported":
                self._add(name, label[2], float(label[1]), _plain(value))

    def _add(self, figure: str, rank: bytes, when: float | None, number: Number) -> None:
        ranks = self._series[figure]
        if rank not in ranks:
            ranks[rank] = Series()
        ranks[rank].add(when, number, max(32, min(_MOST, _MOST_TOGETHER // len(ranks) // 2 * 2)))

    def _take(self, figure: str, source: Source, report: Mapping[str, object], peaks: Mapping[str, float]) -> str:
        """Take the readings that are known only at the end; return why there are none, or ""."""
        if source.kind == "file":
            return self._take_file(figure, source)
        if source.kind == "clock":
            ends = report.get("ends")
            seconds = [end.get("seconds") for end in ends if isinstance(end, dict)] if isinstance(ends, list) else []
            numbers = [value for value in seconds if isinstance(value, (int, float))]
            if not numbers:
                return "time: the run wrote no report"
            self._add(figure, b"", None, Number(float(max(numbers)), "s", ""))
        elif source.unit:
            if source.text not in peaks:
                return f"{source.text} was not measured: the program may have ended before the first measurement"
            self._add(figure, b"", None, Number(peaks[source.text], "B", ""))
        elif not self._series[figure]:
            if source.kind == "pattern":
                return never_matched(source.text, [stream.path for stream in self._streams])
            told = f"reported: {', '.join(self._reported)}" if self._reported else "bireme.report was not called"
            near = similar(figure, (*self._reported, "time", *MEMORY))
            meant = f"did you mean {near}? Or " if near else ""
            return (
                f"no figure {figure!r}: {told}\n"
                f"  {meant}call bireme.report({figure}=…), or give a pattern: '{self._printed(figure)}'"
            )
        return ""

    def _printed(self, figure: str) -> str:
        """The pattern by which the output has a figure, if it has its name; else one to begin with."""
        for stream in self._streams:
            for row in _rows(stream.path):
                if found := re.search(rf"(?<!\w){re.escape(figure)}\s*[:=]\s*(?=[-+.]?\d)", row, re.ASCII):
                    return f"{found[0]}{{}}"
        return f"{figure}: {{}}"

    def _take_file(self, figure: str, source: Source) -> str:
        path, before = self._files[figure]
        now = _state(path)
        if now is None:
            return f"{source.path} was not written by the program (looked for at {path})"
        if now == before:
            return f"{source.path} was there before the trial, and the program did not write it ({path})"
        try:
            value = _lookup(jsontext.loads(read_regular(path)), source.key.split("."))
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        except ValueError as error:
            return f"{path} is not readable as JSON: {error}"
        except LookupError as error:
            return f"{source.path} has no {source.key!r}: {error.args[0]}"
        for item in value if isinstance(value, list) else [value]:
            self._add(figure, b"", None, _plain(item))
        return "" if self._series[figure] else f"{source.text} is an empty list"

    def _unfit(self, figure: str) -> str:
        """Why the readings of a figure are none; ""."""
        text = self._sources[figure].text
        ranks = list(self._series[figure].values())
        if wrong := next((series.wrong for series in ranks if series.wrong), ""):
            return f"{text}: {wrong}"
        if not all(series.values for series in ranks):
            return f"{text}: too few readings"
        unit = ranks[0].unit
        if any(series.unit != unit for series in ranks):
            return f"{text}: the ranks print different units"
        for limit in self._measure.limits:
            if limit.name == figure and limit.base != unit:
                first = ranks[0].first
                return f"--limit {limit.text!r}: the program prints {first}\n  " + (
                    "write the limit in that unit" if unit else "write the limit without a unit, as the program does"
                )
        return ""


def _plain(value: object) -> Number:
    """A number that was read from JSON."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Number.of(value)
    return Number(float("nan"), "", value if isinstance(value, str) else jsontext.dumps(value)[:60])


def _state(path: str) -> object:
    """What changes when a file is written; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _lookup(data: object, key: list[str]) -> object:
    """The value at a key, whose parts may have dots themselves.

    Raises:
        LookupError: there is none; its argument says what there is.
    """
    if not key:
        return data
    if isinstance(data, list) and key[0].isdigit() and int(key[0]) < len(data):
        return _lookup(data[int(key[0])], key[1:])
    if isinstance(data, dict):
        for parts in range(len(key), 0, -1):
            if (name := ".".join(key[:parts])) in data:
                return _lookup(data[name], key[parts:])
        raise LookupError(f"the keys there are {', '.join(map(str, list(data)[:12])) or 'none'}")
    raise LookupError(
        f"found a list of {len(data)}"
        if isinstance(data, list)
        else f"found {jsontext.dumps(data)[:60]}, which has no keys"
    )


# -- a pattern that never matched -----------------------------------------------------------------------


def never_matched(pattern: str, paths: Sequence[str]) -> str:
    """Says that a pattern never matched: with the line that is most like it, and the end of the output.

    Args:
        paths: the files of the output: of stdout, then of stderr.
    """
    rows = [list(_rows(path)) for path in paths]
    if not any(rows):
        return f"{pattern!r} matches no line: the program printed nothing"
    first = f"{pattern!r} matches no line of the output"
    near = _most_similar(pattern, [row for part in rows for row in part])
    ends = " | ".join(_short(row) for row in next(part for part in rows if part)[-_LAST:])
    if near:
        return f"{first}; the most similar: {_short(near)}\n  the output ends: {ends}"
    return f"{first}, which ends: {ends}"


def _short(row: str) -> str:
    return row if len(row) <= _SHOWN else row[: _SHOWN - 1] + "…"


def _rows(path: str) -> Iterator[str]:
    """What the ranks printed, row by row, without labels; rows that differ only in digits once."""
    seen: set[str] = set()
    for piece in _ends_of(path):
        for line in piece.split(b"\n"):
            label = _LABEL.match(line)
            if label is None:
                continue  # a message of the launcher
            for part in _ESCAPE.sub(b"", line[label.end() :]).split(b"\r"):
                row = part.decode(errors="replace").strip(" \t\0")
                kind = re.sub(r"\d+", "0", row)[:_WIDE]
                if row and kind not in seen and len(seen) < _MOST_ROWS and not row.startswith("\x1e"):
                    seen.add(kind)
                    yield row


def _ends_of(path: str) -> Iterator[bytes]:
    """The beginning and the end of a file, which are all of it if it is short."""
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield file.read(_LOOKED_AT)
            if size > _LOOKED_AT:
                file.seek(max(_LOOKED_AT, size - _LOOKED_AT))
                yield file.read(_LOOKED_AT)
    except OSError:
        return


def _most_similar(pattern: str, rows: list[str]) -> str:
    """The row that has the longest pieces of the pattern's text; "" if none has enough of it."""
    parts = [part.strip().lower() for part in pattern.split("{}") if part.strip()]
    pairs = {part[at : at + 2] for part in parts for at in range(len(part) - 1)}

    def shared_pairs(row: str) -> tuple[int, bool]:
        low = row[:_WIDE].lower()
        return sum(1 for pair in pairs if pair in low), any(char.isdigit() for char in low)

    def shared_pieces(row: str) -> int:
        low = row[:_WIDE].lower()
        return sum(
            SequenceMatcher(None, part, low, autojunk=False).find_longest_match(0, len(part), 0, len(low)).size
            for part in parts
        )

    likely = sorted(rows, key=shared_pairs, reverse=True)[:20]
    best = max(likely, key=shared_pieces, default="")
    return best if best and shared_pieces(best) >= max(2, _ALIKE * sum(map(len, parts))) else ""
