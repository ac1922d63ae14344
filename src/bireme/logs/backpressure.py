"""Backpressure: decides when the ranks' output is held back, because ours is not read as fast as they write.

While a sink is *full*, the ranks' pipes are not read, so that the ranks wait instead of our memory growing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HIGH_WATER = 256 * 1024
"""Waiting bytes above which a sink is full."""
_LOW_WATER = _HIGH_WATER // 2
"""Waiting bytes below which a full sink has room again."""


class Backpressure:
    """Counts the bytes that wait to be written at one sink.

    Args:
        on_room: called when a full sink has room again.

    Attributes:
        size: waiting bytes.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        self.size = 0
        self.full = False

    def keep(self, size: int) -> None:
        """Note that ``size`` more bytes wait."""
        self.size += size
        self.full = self.full or self.size > _HIGH_WATER

    def written(self, size: int) -> None:
        """Note that ``size`` bytes were written or discarded."""
        self.size -= size

    def relieve(self) -> None:
        """Let the ranks go on if there is room again."""
        if self.full and self.size < _LOW_WATER:
            self.full = False
            self._on_room()
