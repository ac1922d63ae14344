"""The templates of a study's trials (``--preload``): for each set of slots of this machine, one that outlives them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from bireme.errors import UnfitError
from bireme.planning.environment import TEMPLATES
from bireme.process import guardian, keeper
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.execution.trial_launch import ResourcePool


class TemplatePlaces:
    """Starts a keeper of templates where the first trial starts on some slots; ends all of them.

    Args:
        keep: file descriptors that the keepers hold as long as they live.
    """

    def __init__(self, pool: ResourcePool, keep: Sequence[int]) -> None:
        self._pool, self._keep = pool, keep
        self._folder = ""
        self._keepers: dict[str, tuple[str, guardian.Handle]] = {}

    def environment(self, reservation: SlotReservation) -> dict[str, str]:
        """The variable by which a trial on these slots finds its keeper; {}: it starts its own templates."""
        if not self._pool.only_here(reservation):
            return {}
        slots = reservation.include()
        try:
            if slots not in self._keepers:
                self._folder = self._folder or tempfile.mkdtemp(prefix="bireme-templates-")
                path = os.path.join(self._folder, str(len(self._keepers)))
                self._keepers[slots] = path, keeper.start(path, keep=self._keep)
        except (OSError, UnfitError):  # no process, or no room for the socket
            return {}
        return {TEMPLATES: self._keepers[slots][0]}

    def close(self) -> None:
        """End all keepers."""
        for path, handle in self._keepers.values():
            handle.close()
            handle.wait()
            keeper.remove(path)
