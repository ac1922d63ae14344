"""What runner and agent ask of the machine they run on. The simulation (``tests/simulation``) passes another one."""

from __future__ import annotations

import time

from bireme.loop import Loop
from bireme.process import guardian
from bireme.process.process_tree import ProcessTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.agent.preflight import NodePreflight
    from bireme.job import JobSpec
    from bireme.process.helper import Helper


class Machine:
    """The real machine: each method does what its name says."""

    now = staticmethod(time.monotonic)
    loop: type[Loop] = Loop
    process_tree: type[ProcessTree] = ProcessTree
    start_guardian = staticmethod(guardian.start)

    def helper(self, argv: Sequence[str], environ: Mapping[str, str]) -> Helper:
        """Start a helper program; see `Helper`."""
        from bireme.process.helper import Helper

        return Helper(argv, environ)

    def preflight(self, spec: JobSpec, own: Mapping[str, str], environ: Mapping[str, str]) -> NodePreflight:
        """Prepare the preflight of this node; for the arguments see `NodePreflight`."""
        from bireme.agent.preflight import NodePreflight

        return NodePreflight(spec, own, environ)

    def reachable(self, addresses: Sequence[str], port: int, seconds: float) -> list[str]:
        """The addresses that accept a connection; see `reach.reachable`."""
        from bireme.resources import reach

        return reach.reachable(addresses, port, seconds=seconds)

    def count_marked(self, name: str, value: str) -> int:
        """How many processes have ``name=value`` in their environment."""
        from bireme.process.kernel import marked

        return len(marked(name, value))


MACHINE = Machine()
"""This machine."""
