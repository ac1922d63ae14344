"""The result of an experiment: the cause of its end, and its metrics if there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bireme.value import Value

Cause = Literal[
    "ok", "out of memory", "failed", "timed out", "no metric", "over limit", "pruned", "stopped", "infrastructure"
]
"""``over limit``: it broke a limit of the user's. ``pruned``: it was ended because it could not win any more."""

NOT_THE_CONFIGURATION = ("stopped", "infrastructure")
"""Causes that say nothing about the configuration: the experiment has to be run again."""


class TrialResult(Value):
    """The result of one experiment.

    Attributes:
        cause: why it ended.
        reason: the cause in one line; "" if it succeeded.
        detail: the last lines of the traceback.
        seconds: wall time of the run, start-up included.
        metrics: the figures by name.
        samples: samples per second of wall time by our own clock; None if unknown.
        hosts: the hosts at fault if the cause is ``infrastructure``.
    """

    cause: Cause = "ok"
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    metrics: Mapping[str, float] = {}
    samples: float | None = None
    hosts: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it says something about the configuration, so the experiment need not be run again."""
        return self.cause not in NOT_THE_CONFIGURATION

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> TrialResult:
        """Read back what ``as_dict`` returned; unknown fields of a newer version are ignored."""
        known = {name: record[name] for name in cls._fields if name in record}
        hosts = known.pop("hosts", ())
        assert isinstance(hosts, (list, tuple))
        return cls(**known, hosts=tuple(hosts))  # type: ignore[arg-type]  # as they were written
