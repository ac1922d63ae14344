"""Handles the output of all ranks: decides which is shown and how, and keeps the end of stderr for the report."""

from __future__ import annotations

import os

from bireme.logs.console import ERR, OUT
from bireme.logs.lines import Block, Label, LineCutter
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import OutputMode
    from bireme.logs.console import Console
    from bireme.logs.fold import Folder
    from bireme.logs.live_rows import LiveRows
    from bireme.loop import Loop

_TAIL = 32 * 1024
"""Bytes of each rank's stderr that are kept for the report."""

_FOLD_SECONDS = 0.1
"""Seconds for which a line waits for equal lines of other ranks."""
_FOLD_BYTES = 256 * 1024

_NARROWEST = 20
"""Columns that a rank gets at least, however long its label is."""


class Style(Value):
    """How output is shown; if there is more than one rank, lines are labelled by default."""

    mode: OutputMode
    timestamps: bool
    world_size: int
    fold: bool = False

    @property
    def effective(self) -> OutputMode:
        """The mode, with ``auto`` resolved."""
        if self.mode != "auto":
            return self.mode
        return "prefix" if self.world_size > 1 else "raw"


class _Stream:
    """One stream of one rank.

    Args:
        cutter: ``None`` if the stream is not shown, or shown unchanged.
        alone: whether it is shown unchanged, as the only stream on the screen.
        live: follows what the rank redraws, where it is shown on a terminal; otherwise ``None``.
    """

    def __init__(
        self, rank: int, number: int, cutter: LineCutter | None, *, alone: bool, live: LiveRows | None
    ) -> None:
        self.rank, self.number, self.cutter, self.alone, self.live = rank, number, cutter, alone, live
        self.tail = b""


class JobOutput:
    """The output of all ranks of a job, wherever they run."""

    def __init__(self, loop: Loop, console: Console, style: Style) -> None:
        self._loop, self._console, self._style = loop, console, style
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._hosts: dict[int, str] = {}
        self._folders: dict[int, Folder] = {}
        if style.fold:
            from bireme.logs.fold import Folder

            self._folders = {OUT: Folder(), ERR: Folder()}

    def add(self, rank: int, host: str, number: int, *, shown: bool = True) -> None:
        """Prepare for the output of one stream of a rank.

        Args:
            shown: whether ``--local_ranks_filter`` lets the rank's output through.
        """
        style, mode = self._style, self._style.effective
        terminal = self._console.is_terminal(number)
        labelled = mode == "prefix" or style.timestamps
        shown = shown and mode != "none" and (mode != "rank0" or rank == 0)
        alone = shown and not labelled and (style.world_size == 1 or mode == "rank0")
        cutter, live = None, None
        self._hosts[rank] = host
        if shown and not alone:
            plain = not labelled or style.fold
            label = Label.empty if plain else Label.of(host, rank, timestamps=style.timestamps)
            cutter = LineCutter(label)
            if terminal and not style.fold:
                from bireme.logs.live_rows import LiveRows

                live = LiveRows()
        self._streams[rank, number] = _Stream(rank, number, cutter, alone=alone, live=live)

    def window(self, rank: int, number: int) -> os.terminal_size | None:
        """The part of our terminal that a stream may use, in columns and lines; ``None``: it is not shown on one."""
        stream = self._streams[rank, number]
        if not (stream.alone or stream.live):
            return None
        if stream.alone and not self._console.is_terminal(number):
            return None
        from bireme.logs.live_rows import size_of

        size = size_of(number)
        label = len(stream.cutter.label().first) if stream.cutter is not None else 0
        return os.terminal_size((max(size.columns - label, min(size.columns, _NARROWEST)), size.lines))

    def shows_as_one(self, rank: int) -> bool:
        """Whether both streams of a rank are passed on unchanged to one terminal, so that their order matters."""
        alone = all(self._streams[rank, number].alone and self._console.is_terminal(number) for number in (OUT, ERR))
        return alone and os.path.sameopenfile(OUT, ERR)

    def columns_beside_labels(self) -> int:
        """The width of our terminal less the longest label; 0 if lines have no labels, or go elsewhere."""
        labelled = [key for key, stream in self._streams.items() if stream.cutter and stream.cutter.label().first]
        windows = [self.window(rank, number) for rank, number in labelled]
        return min((window.columns for window in windows if window is not None), default=0)

    def feed(self, rank: int, number: int, chunk: bytes) -> None:
        """Take a chunk of a rank's output."""
        stream = self._streams[rank, number]
        if number == ERR:
            stream.tail = chunk[-_TAIL:] if len(chunk) >= _TAIL else (stream.tail + chunk)[-_TAIL:]
        if stream.alone:
            self._console.pass_on(number, chunk)
        elif stream.live is not None:
            other = self._streams[rank, OUT + ERR - number]
            if other.live is not None and other.live.left:  # its bar was written before this
                self._follow(other, other.live, other.live.end())
            self._follow(stream, stream.live, stream.live.feed(chunk, self._loop.now()))
        elif stream.cutter is not None:
            self._put(stream, stream.cutter.feed(chunk))

    def _follow(self, stream: _Stream, live: LiveRows, text: bytes) -> None:
        """Show what has become ordinary text, and what is still redrawn."""
        assert stream.cutter is not None
        if live.takes_back:
            stream.cutter.take_back()
            self._console.take_back(stream.number, stream)
        rows = live.rows
        label = stream.cutter.label().first if rows else b""
        self._console.put_rows(stream.number, stream.rank, [label + row for row in rows])
        if text:
            self._put(stream, stream.cutter.feed(text))

    def eof(self, rank: int, number: int) -> None:
        """Note the end of a stream, and show its unfinished line."""
        stream = self._streams[rank, number]
        if stream.live is not None:
            self._follow(stream, stream.live, stream.live.end())
        self.rested(rank, number)

    def rested(self, rank: int, number: int) -> None:
        """Show an unfinished line, as nothing was added to it for a moment."""
        stream = self._streams[rank, number]
        if stream.live is not None:
            self._follow(stream, stream.live, stream.live.rested())
        if stream.cutter is not None:
            self._put(stream, stream.cutter.flush())

    def _gather(self, rank: int, number: int, block: Block | None) -> None:
        """Keep a rank's lines for a moment in which other ranks may write the same."""
        if block is None:
            return
        folder = self._folders[number]
        if not folder.size:
            self._loop.after(_FOLD_SECONDS, lambda: self._unfold(number))
        folder.add(rank, block.data if block.data.endswith(b"\n") else block.data + b"\n")
        if folder.size > _FOLD_BYTES:
            self._unfold(number)

    def _unfold(self, number: int) -> None:
        from bireme.resources.pool import ranges

        for by, line in self._folders[number].take():
            host = self._hosts[by[0]] if len({self._hosts[rank] for rank in by}) == 1 else "*"
            label = Label.of(host, ranges(by), timestamps=self._style.timestamps)()
            self._console.put(number, self, Block(label.first + line, label.more))

    def flush(self) -> None:
        """Show what was held back."""
        for number in self._folders:
            self._unfold(number)

    def tail(self, rank: int) -> bytes:
        """The last bytes of a rank's stderr."""
        return self._streams[rank, ERR].tail

    def _put(self, stream: _Stream, block: Block | None) -> None:
        if self._style.fold:
            self._gather(stream.rank, stream.number, block)
        elif block is not None:
            self._console.put(stream.number, stream, block)
