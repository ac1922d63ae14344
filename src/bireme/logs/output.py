"""Handles the output of all ranks: decides which is shown and how, and keeps the end of stderr for the report."""

from __future__ import annotations

from bireme.logs.console import ERR, OUT
from bireme.logs.fold import Folder, rank_set
from bireme.logs.lines import Block, Label, LineCutter
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import OutputMode
    from bireme.logs.console import Console
    from bireme.loop import Loop

_TAIL = 32 * 1024
"""Bytes of each rank's stderr that are kept for the report."""

_FOLD_SECONDS = 0.1
"""Seconds for which a line waits for equal lines of other ranks."""
_FOLD_BYTES = 256 * 1024


class Style(Value):
    """How output is shown.

    Attributes:
        mode: which ranks' lines are shown, and whether they are labelled.
        timestamps: whether labels include the time.
        world_size: the number of ranks; with more than one, lines are labelled by default.
        fold: whether equal lines of several ranks are shown once.
    """

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
        rank: the rank.
        number: 1 for stdout, 2 for stderr.
        cutter: ``None`` if the stream is not shown, or shown unchanged.
        alone: whether it is shown unchanged, as the only stream on the screen.
    """

    def __init__(self, rank: int, number: int, cutter: LineCutter | None, *, alone: bool) -> None:
        self.rank, self.number, self.cutter, self.alone = rank, number, cutter, alone
        self.tail = b""


class JobOutput:
    """The output of all ranks of a job, wherever they run."""

    def __init__(self, loop: Loop, console: Console, style: Style) -> None:
        self._loop, self._console, self._style = loop, console, style
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._hosts: dict[int, str] = {}
        self._folders = {OUT: Folder(), ERR: Folder()}

    def add(self, rank: int, host: str, number: int, *, shown: bool = True) -> None:
        """Expect output of a rank's stdout (1) or stderr (2); ``shown``: not left out by ``--local_ranks_filter``."""
        style, mode = self._style, self._style.effective
        terminal = self._console.is_terminal(number)
        labelled = mode == "prefix" or style.timestamps
        shown = shown and mode != "none" and (mode != "rank0" or rank == 0)
        alone = shown and not labelled and (style.world_size == 1 or mode == "rank0")
        cutter = None
        self._hosts[rank] = host
        if shown and not alone:
            plain = not labelled or style.fold
            label = Label.empty if plain else Label.of(host, rank, timestamps=style.timestamps)
            cutter = LineCutter(label, relabel_cr=terminal)
        self._streams[rank, number] = _Stream(rank, number, cutter, alone=alone)

    def feed(self, rank: int, number: int, chunk: bytes) -> None:
        """Take a chunk of a rank's output."""
        stream = self._streams[rank, number]
        if number == ERR:
            stream.tail = chunk[-_TAIL:] if len(chunk) >= _TAIL else (stream.tail + chunk)[-_TAIL:]
        if stream.alone:
            self._console.pass_on(number, chunk)
        elif stream.cutter is not None:
            self._put(stream, stream.cutter.feed(chunk))

    def eof(self, rank: int, number: int) -> None:
        """Note the end of a stream, and show its unfinished line."""
        self.rested(rank, number)

    def rested(self, rank: int, number: int) -> None:
        """Show an unfinished line, as nothing was added to it for a moment."""
        stream = self._streams[rank, number]
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
        for ranks, line in self._folders[number].take():
            host = self._hosts[ranks[0]] if len({self._hosts[rank] for rank in ranks}) == 1 else "*"
            label = Label.of(host, rank_set(ranks), timestamps=self._style.timestamps)()
            self._console.put(number, self, Block(label.first + line, label.more))

    def flush(self) -> None:
        """Show what was held back."""
        self._unfold(OUT)
        self._unfold(ERR)

    def tail(self, rank: int) -> bytes:
        """The last bytes of a rank's stderr."""
        return self._streams[rank, ERR].tail

    def _put(self, stream: _Stream, block: Block | None) -> None:
        if self._style.fold:
            self._gather(stream.rank, stream.number, block)
        elif block is not None:
            self._console.put(stream.number, stream, block)
