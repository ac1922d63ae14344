"""How an experiment ended: one cause for every end, and its metrics where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from bireme.value import Value

Cause = Literal["ok", "out of memory", "failed", "timed out", "no metric", "stopped", "infrastructure"]

CAUSES: tuple[Cause, ...] = get_args(Cause)

NOT_THE_CONFIGURATION = ("stopped", "infrastructure")
"""Ends that say nothing of the configuration: its experiment has to be run again."""


class TrialResult(Value):
    """The end of one experiment.

    ``reason`` is one line, "" when all went well; ``detail`` the last lines of the traceback. ``seconds``: wall time
    of the run, its start-up included. ``metrics``: the figures by their names. ``samples``: samples per second of wall
    time, by our own clock; None: not known. ``hosts``: those at fault where the cause is ``infrastructure``.
    """

    cause: Cause
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    metrics: Mapping[str, float] = {}
    samples: float | None = None
    hosts: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it tells something of the configuration, and need not be run again."""
        return self.cause not in NOT_THE_CONFIGURATION

    def record(self) -> dict[str, object]:
        """It as JSON can write it; `from_record` reads it back."""
        return {name: getattr(self, name) for name in self._fields}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> TrialResult:
        """Read back what `record` gave; what a newer version may have added is left out."""
        known = {name: record[name] for name in cls._fields if name in record}
        hosts = known.pop("hosts", ())
        assert isinstance(hosts, (list, tuple))
        return cls(**known, hosts=tuple(hosts))  # type: ignore[arg-type]  # as they were written
