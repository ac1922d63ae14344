"""What the user asks for: the job, as one value."""

from __future__ import annotations

from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    ProgramKind: TypeAlias = Literal["script", "module", "exec"]
    LocalRankArg: TypeAlias = Literal["auto", "always", "never"]
    OutputMode: TypeAlias = Literal["auto", "prefix", "raw", "rank0", "none"]

DEFAULT_GRACE = 10.0
"""Seconds between the first stop signal and SIGKILL.

Long enough for a handler that writes a small checkpoint, short enough that a hang in a collective
does not cost minutes on every node. torchrun and the reference wait 30 s.
"""

DEFAULT_HEARTBEAT = 10.0
"""Seconds of silence after which a node is lost."""

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
    to leave out where the pool has others.
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
    attempt: int = 0
    avoid: tuple[str, ...] = ()
