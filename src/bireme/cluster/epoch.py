"""One epoch of an elastic job, as seen by the code that runs jobs on many nodes."""

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
        number: counted from 0.
        min_nodes: with fewer nodes it does not start.
        left_out: called with the name of a node that cannot take part, and the reason.
        begun: called with the nodes that take part, in rank order, and the plan.
        attach: called with the session once it runs, to attach the membership monitor.
        pid_file: the pid file of the job.
        accelerator: the kind of device of earlier epochs; a node with another kind is unfit. "": none yet.
        exports: the exported variables as they were when the job began; None: as they are now.
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
