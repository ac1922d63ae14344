"""The queue of waiting tasks, each with its rank and how long it will take. Nothing here knows what waits.

Where many wait, those that are short enough to go before their turn are not looked for one by one: the line is cut
into short pieces, and of each the least duration is known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Rank = tuple[float, ...]
Entry = tuple[Rank, float, T]
"""Rank, seconds, what waits. No two ranks in a line are equal."""

_LONGEST_PIECE = 128


class WaitQueue(Generic[T]):
    """Entries in the order of their ranks; the lowest is the next."""

    def __init__(self) -> None:
        self._pieces: list[list[Entry[T]]] = []
        self._least: list[float] = []  # seconds, of each piece

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __iter__(self) -> Iterator[Entry[T]]:
        return (entry for piece in self._pieces for entry in piece)

    def add(self, entry: Entry[T]) -> None:
        """One more waits."""
        if not self._pieces:
            self._pieces, self._least = [[entry]], [entry[1]]
            return
        number = min(self._piece_of(entry[0]), len(self._pieces) - 1)
        piece = self._pieces[number]
        insort(piece, entry, key=_rank)
        self._least[number] = min(self._least[number], entry[1])
        if len(piece) > _LONGEST_PIECE:
            half = len(piece) // 2
            self._replace(number, piece[:half], piece[half:])

    def remove(self, rank: Rank) -> None:
        """The one with this rank waits no more. Raises KeyError: there is none."""
        number = self._piece_of(rank)
        piece = self._pieces[number] if number < len(self._pieces) else []
        place = bisect_left(piece, rank, key=_rank)
        if place == len(piece) or piece[place][0] != rank:
            raise KeyError(rank)
        _, seconds, _ = piece.pop(place)
        if not piece:
            self._replace(number)
        elif seconds <= self._least[number]:
            self._least[number] = _least_of(piece)

    @property
    def first(self) -> Entry[T]:
        """The next. Raises IndexError: nobody waits."""
        return self._pieces[0][0]

    def first_ending(self, now: float, by: float) -> Entry[T] | None:
        """The first that, if it begins now, will have ended by then."""
        for piece, least in zip(self._pieces, self._least, strict=True):
            if now + least <= by:
                return next(entry for entry in piece if now + entry[1] <= by)
        return None

    def _piece_of(self, rank: Rank) -> int:
        """The first piece that does not end before this rank."""
        return bisect_left(self._pieces, rank, key=lambda piece: piece[-1][0])

    def _replace(self, number: int, *pieces: list[Entry[T]]) -> None:
        self._pieces[number : number + 1] = pieces
        self._least[number : number + 1] = map(_least_of, pieces)


def _rank(entry: Entry[T]) -> Rank:
    return entry[0]


def _least_of(piece: list[Entry[T]]) -> float:
    return min(seconds for _, seconds, _ in piece)
