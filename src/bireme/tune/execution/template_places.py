"""The templates of a study's trials (``--preload``): for each set of slots of this machine, one that outlives them."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.errors import UnfitError
from bireme.planning.environment import TEMPLATES
from bireme.process.keeper import Keeper
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.execution.trial_launch import ResourcePool


class TemplatePlaces:
    """Starts a keeper of templates where the first trial starts on some slots; ends all of them.

    Args:
        keep: file descriptors that the keepers hold as long as they live.
    """

    def __init__(self, pool: ResourcePool, keep: Sequence[int]) -> None:
        self._pool, self._keep = pool, keep
        self._keepers: dict[str, Keeper] = {}

    def environment(self, reservation: SlotReservation) -> dict[str, str]:
        """The variable by which a trial on these slots finds its keeper; {}: it starts its own templates."""
        if not self._pool.only_here(reservation):
            return {}
        slots = reservation.include()
        try:
            if slots not in self._keepers:
                self._keepers[slots] = Keeper(self._keep)
        except (OSError, UnfitError):  # no process, or no such sockets
            return {}
        return {TEMPLATES: self._keepers[slots].name}

    def close(self) -> None:
        """End all keepers."""
        for keeper in self._keepers.values():
            keeper.close()
