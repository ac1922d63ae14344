"""What a fleet is to do, as one value."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bireme.backends.base import Backend, HostLaunch
    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


class Voyage(Value):
    """What a fleet is to do.

    ``hosts`` and ``slots``: the nodes, with the slots that the pool gives them, ``None`` where the node is asked.
    ``resolve``: the active resources, once the slots of all nodes are known. ``exports``: the variables that
    travel. ``heartbeat`` in seconds. ``check_only``: end after the preflight.
    """

    spec: JobSpec
    hosts: tuple[HostLaunch, ...]
    slots: tuple[tuple[str, ...] | None, ...]
    resolve: Callable[[Pool], Pool]
    exports: Mapping[str, str]
    environ: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    backend: Backend
    heartbeat: float
    log_dir: str | None = None
    check_only: bool = False
