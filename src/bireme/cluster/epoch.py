"""One epoch of an elastic job, as the code that runs a job on many nodes sees it."""

from __future__ import annotations

from bireme.backends.base import CONNECT_TIMEOUT
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.agent.session import Session
    from bireme.planning.exports import Exports
    from bireme.planning.start import StartPlan
    from bireme.process.pid_file import PidFile


class Epoch(Value):
    """What an elastic job adds to a cluster job.

    Attributes:
        number: from 0.
        min_nodes: with fewer it does not start.
        left_out: called with the name of a node that cannot take part, and why.
        begun: called with the nodes that take part, in rank order, and the plan.
        attach: called with the session once it runs: what goes on beside the job.
        pid_file: of the job.
        accelerator: what the job has run on so far: a node that has another by now is not what it was; "": nothing yet.
        exports: the variables that travel, as they were when the job began; None: as they are.
        connect_timeout: seconds that a node may take to accept a connection.
    """

    number: int
    min_nodes: int
    left_out: Callable[[str, str], object]
    begun: Callable[[tuple[str, ...], StartPlan], object]
    attach: Callable[[Session], object]
    pid_file: PidFile
    accelerator: str = ""
    exports: Exports | None = None
    connect_timeout: int = CONNECT_TIMEOUT
