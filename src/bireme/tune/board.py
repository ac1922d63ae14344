"""The board: what the display of a study shows of it, whatever is tuned."""

from __future__ import annotations

from typing import Protocol


class Board(Protocol):
    """A study, as far as it is shown while it runs."""

    @property
    def left(self) -> int | None:
        """How many trials may still end at most, running ones included; None if not known yet."""

    @property
    def outlook(self) -> str:
        """What is left to do in words where ``left`` is not known; "" if that is not known either."""

    @property
    def done(self) -> int:
        """How many trials have ended."""

    @property
    def best(self) -> str:
        """The best result so far in a few words; "" if there is none."""

    def title(self, name: str) -> str:
        """What a trial is called on the screen."""

    def figure(self, name: str) -> str:
        """The figure of an ended trial with its unit; "" if it has none."""

    def leads(self, name: str) -> bool:
        """Whether an ended trial is the best so far."""
