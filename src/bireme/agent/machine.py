"""The interface of runner and agent to their machine: guardians, helpers, the preflight. The simulation replaces it."""

from __future__ import annotations

import time

from bireme.loop import Loop
from bireme.process import guardian
from bireme.process.process_tree import ProcessTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.agent.node_preflight import NodePreflight
    from bireme.job import JobSpec
    from bireme.process.helper import Helper


class Machine:
    """The real machine; ``tests/simulation`` has a simulated one."""

    now = staticmethod(time.monotonic)
    loop: type[Loop] = Loop
    process_tree: type[ProcessTree] = ProcessTree
    start_guardian = staticmethod(guardian.start)

    def helper(self, argv: Sequence[str], environ: Mapping[str, str]) -> Helper:
        """Start a helper program, which answers with one line of JSON."""
        from bireme.process.helper import Helper

        return Helper(argv, environ)

    def preflight(self, spec: JobSpec, own: Mapping[str, str], environ: Mapping[str, str]) -> NodePreflight:
        """Prepare the preflight of this node.

        Args:
            own: the agent's environment.
            environ: what the ranks are to inherit.
        """
        from bireme.agent.node_preflight import NodePreflight

        return NodePreflight(spec, own, environ)

    def reachable(self, addresses: Sequence[str], port: int, seconds: float) -> list[str]:
        """Find the addresses to which a TCP connection succeeds.

        Args:
            addresses: numeric addresses.
            seconds: time limit for all connections together.
        """
        from bireme.resources import reach

        return reach.reachable(addresses, port, seconds=seconds)

    def count_marked(self, name: str, value: str) -> int:
        """How many processes have ``name=value`` in their environment."""
        from bireme.process.kernel import marked

        return len(marked(name, value))


MACHINE = Machine()
"""This machine."""
