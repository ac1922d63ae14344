"""What the user asks for: the job, as one value."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    ProgramKind: TypeAlias = Literal["script", "module", "exec"]
    LocalRankArg: TypeAlias = Literal["auto", "always", "never"]
    OutputMode: TypeAlias = Literal["auto", "prefix", "raw", "rank0", "none"]

CHOICES = {
    "ProgramKind": ("script", "module", "exec"),
    "LocalRankArg": ("auto", "always", "never"),
    "OutputMode": ("auto", "prefix", "raw", "rank0", "none"),
}
"""The same at run time, for `bireme.validate`."""

DEFAULT_GRACE = 10.0
"""Seconds between the first stop signal and SIGKILL.

Long enough for a handler that writes a small checkpoint, short enough that a hang in a collective
does not cost minutes on every node. torchrun and DeepSpeed wait 30 s.
"""

DEFAULT_HEARTBEAT = 10.0
"""Seconds of silence after which a node is lost."""

DEFAULT_RESTART_WINDOW = 3600.0
"""Seconds without a failure after which the restarts that were used up are forgiven."""

DEFAULT_ELASTIC_RESTARTS = 3
"""Restarts of an elastic job whose workers fail; torchrun has 0, where a node that joins or leaves counts as none."""

DEFAULT_ELASTIC_TIMEOUT = 600.0
"""Seconds that an elastic job waits for enough nodes, as PyTorch's rendezvous does."""

DEFAULT_ELASTIC_INTERVAL = 30.0
"""Seconds at most between two looks for a node that is not there."""

DEFAULT_PORT = 29500
"""The rendezvous port that PyTorch's and DeepSpeed's launchers use by default."""


class Program(Value):
    """What every rank runs.

    ``kind`` is ``script`` (under the Python interpreter), ``module`` (``python -m``) or ``exec``
    (run directly, looked up on ``PATH``).
    """

    target: str
    args: tuple[str, ...] = ()
    kind: ProgramKind = "script"


class JobSpec(Value):
    """A job as the user described it; nothing in it was looked up in the world yet.

    ``num_gpus`` counts slots per node. ``master_port`` ``None`` means: the default, or another free
    one. ``grace`` and ``time_limit`` are in seconds. ``wrap`` is a command line, already split into words, that is put
    before the program's on the ranks of ``wrap_ranks`` (all when empty); ``{rank}``,
    ``{local_rank}`` and ``{host}`` in it are replaced.

    ``hosts`` and ``hostfile`` declare the pool. ``native_ranks``: the engine starts every rank itself. ``preflight``:
    nodes that are not fit keep the job from starting.
    ``by_hand``: every node's command is typed there, with its ``node_rank``. ``exports``: ``NAME``, ``PREFIX*`` or
    ``NAME=VALUE``. ``rank_log_dir`` is on each node, ``log_dir`` on this machine. ``heartbeat`` is in seconds.

    ``restarts``: how often the job is started again after a failure; ``attempt`` counts them, from 0. ``avoid``: nodes
    to leave out where the pool has others. ``restart_window``: seconds without a failure after which restarts are
    forgiven.

    ``elastic``: nodes may come and go, between ``min_nodes`` and ``max_nodes`` (``None``: as many as there are);
    ``master_addr`` counts only while it is the first node's. With too few, the job waits ``elastic_timeout``
    seconds; ``elastic_interval``: seconds at most between two looks for a node. ``run_id``: the same in every epoch.
    """

    program: Program
    include: str = ""
    exclude: str = ""
    num_gpus: int | None = None
    accelerator: str = "auto"
    master_addr: str | None = None
    master_port: int | None = None
    local_rank_arg: LocalRankArg = "auto"
    save_pid: bool = False
    rank_log_dir: str | None = None
    bind_cores: bool = False
    bind_core_list: str | None = None
    venv_script: str | None = None
    grace: float = DEFAULT_GRACE
    time_limit: float | None = None
    output: OutputMode = "auto"
    timestamps: bool = False
    fold: bool = False
    wrap: tuple[str, ...] = ()
    wrap_ranks: tuple[int, ...] = ()
    log_level: str = "info"
    hosts: str = ""
    hostfile: str | None = None
    num_nodes: int | None = None
    launcher: str = "auto"
    launcher_args: tuple[str, ...] = ()
    ssh_port: int | None = None
    preflight: bool = True
    force_multi: bool = False
    native_ranks: bool = False
    by_hand: bool = False
    node_rank: int | None = None
    exports: tuple[str, ...] = ()
    log_dir: str | None = None
    heartbeat: float = DEFAULT_HEARTBEAT
    restarts: int = 0
    restart_window: float = DEFAULT_RESTART_WINDOW
    attempt: int = 0
    avoid: tuple[str, ...] = ()
    elastic: bool = False
    min_nodes: int = 1
    max_nodes: int | None = None
    elastic_timeout: float = DEFAULT_ELASTIC_TIMEOUT
    elastic_interval: float = DEFAULT_ELASTIC_INTERVAL
    run_id: str = ""
