"""The templates of a study's trials (``--preload``): for each set of slots of this machine, one that outlives them."""

from __future__ import annotations

from collections.abc import Sequence

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
        keeper = self._keepers.get(slots) or Keeper.started(self._keep)
        if keeper is None:
            return {}
        self._keepers[slots] = keeper
        return {TEMPLATES: keeper.name}

    def close(self) -> None:
        """End all keepers."""
        for keeper in self._keepers.values():
            keeper.close()
