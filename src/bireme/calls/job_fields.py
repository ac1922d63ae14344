"""The fields of a job as keywords of `bireme.launch` and its kin, with their types, for editors and type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bireme.job import LocalRankArg, OutputMode


class JobFields(TypedDict, total=False):
    """Those of a `JobSpec` but for the program; where it has a tuple of words, one word will do."""

    include: str
    exclude: str
    num_gpus: int | None
    accelerator: str
    master_addr: str | None
    master_port: int | None
    local_rank_arg: LocalRankArg
    save_pid: bool
    rank_log_dir: str | None
    bind_cores: bool
    bind_core_list: str | None
    venv_script: str | None
    python: str | None
    python_from: str
    node_python: str
    grace: float
    time_limit: float | None
    output: OutputMode
    timestamps: bool
    fold: bool
    wrap: Sequence[str] | str
    wrap_ranks: Sequence[int]
    stdin: str
    log_level: str
    hosts: str
    hostfile: str | None
    num_nodes: int | None
    launcher: str
    launcher_args: Sequence[str] | str
    ssh_port: int | None
    preflight: bool
    force_multi: bool
    native_ranks: bool
    by_hand: bool
    node_rank: int | None
    exports: Sequence[str] | str
    log_dir: str | None
    ship: str | bool | None
    ship_also: Sequence[str] | str
    ship_limit: int
    fetch: Sequence[str] | str
    heartbeat: float
    restarts: int
    restart_window: float
    attempt: int
    avoid: Sequence[str] | str
    elastic: bool
    min_nodes: int
    max_nodes: int | None
    elastic_timeout: float
    elastic_interval: float
    run_id: str
    role: str
    virtual_local_rank: bool
    local_ranks: Sequence[int]
    job_name: str
    rendezvous: str
    torchrun_args: Sequence[str] | str
    preload: Sequence[str] | str
    keep: bool
    events: str
    checkpoint_signal: str
    preempt_signal: str
    requeue: bool
    requeues: int
    stacks: str
    hang_timeout: str
    on_hang: str
