"""Blocks: trials that are compared with each other run one after the other, on the same slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from bireme.tune.execution.slots import SlotReservation
from bireme.tune.study.trial import Trial

T = TypeVar("T", bound=Trial)


class Blocks(Generic[T]):
    """Holds back the trials of a block while another one of it is pending, and remembers the slots of the block.

    Args:
        ask: the next trial, then pending for the study; None if there is none now.
    """

    def __init__(self, ask: Callable[[], T | None]) -> None:
        self._ask = ask
        self._held: list[T] = []
        self._busy: dict[str, str] = {}
        self._places: dict[str, SlotReservation] = {}

    def next(self) -> T | None:
        """The next trial that may be queued now; None if there is none."""
        for held in self._held:
            if held.block not in self._busy.values():
                self._held.remove(held)
                return self._begin(held)
        while (trial := self._ask()) is not None:
            if trial.block not in self._busy.values():
                return self._begin(trial)
            self._held.append(trial)
        return None

    def _begin(self, trial: T) -> T:
        if trial.block:
            self._busy[trial.name] = trial.block
        return trial

    def pinned(self, trial: T) -> SlotReservation | None:
        """The only slots that the trial may get; None: any."""
        return self._places.get(trial.block)

    def started(self, trial: T, reservation: SlotReservation) -> None:
        """The trial runs on these slots; so do the others of its block."""
        if trial.block:
            self._places[trial.block] = reservation

    def ended(self, name: str) -> None:
        """The trial has ended, or will not run."""
        self._busy.pop(name, None)
