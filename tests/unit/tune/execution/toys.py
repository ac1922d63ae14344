"""Experiments that are not trainings: any program under the executor, with a client that records what it is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bireme.tune.execution.experiment import End, LaunchRequest
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.study.trial import TrialResult


def result_of(end: End) -> TrialResult:
    """By the exit code alone: 75 is the infrastructure's fault, and its stdout names the hosts."""
    if end.exit_code == 75:
        return TrialResult(
            "infrastructure", "a node was lost", hosts=tuple(map(str, (end.report or {}).get("hosts", ())))
        )
    if end.stopped:
        return TrialResult("stopped", seconds=end.seconds)
    cause = "ok" if end.exit_code == 0 else "failed"
    return TrialResult(cause, seconds=end.seconds)  # type: ignore[arg-type]


class Client:
    """Runs Python programs by name and keeps what happened, in order.

    Args:
        folder: for their files.
        programs: name → source; ``{slots}`` in it is replaced by the reservation.
        when_ended: called after each end, e.g. to stop the loop.
    """

    def __init__(self, folder: Path, programs: Mapping[str, str], when_ended: Callable[[], object] = lambda: None):
        self.folder, self.programs, self.when_ended = folder, programs, when_ended
        self.told: list[tuple[str, str, str]] = []
        self.places: dict[str, list[int]] = {}
        self.settle = 0.0
        self.end_reason: dict[str, Callable[[float], str]] = {}
        self.ends: dict[str, End] = {}

    def launch_request(self, name: str, reservation: SlotReservation, place: int) -> LaunchRequest:
        self.places.setdefault(name, []).append(place)
        source = self.programs[name].replace("{slots}", reservation.include())
        files = [str(self.folder / f"{name}.{suffix}") for suffix in ("out", "err", "report")]
        return LaunchRequest(
            (sys.executable, "-c", source),
            dict(os.environ),
            str(self.folder),
            *files,
            grace=1.0,
            end_reason=self.end_reason.get(name),
            every=0.05,
        )

    def judge(self, name: str, end: End) -> TrialResult:
        self.ends[name] = end
        return result_of(end)

    def settling(self, reservation: SlotReservation, end: End) -> float:
        return self.settle

    def started(self, name: str, reservation: SlotReservation) -> None:
        self.told.append(("started", name, reservation.include()))

    def ended(self, name: str, result: TrialResult, *, again: bool) -> None:
        self.told.append(("again" if again else "ended", name, result.cause))
        self.when_ended()

    def names(self, event: str) -> list[str]:
        """The names that an event was told of, in order."""
        return [name for what, name, _ in self.told if what == event]
