"""The job as the user described it: the values `JobSpec` and `Program`, and the defaults of options."""

from __future__ import annotations

from bireme import signal_numbers as signal
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    ProgramKind: TypeAlias = Literal["script", "module", "exec", "function"]
    LocalRankArg: TypeAlias = Literal["auto", "always", "never"]
    OutputMode: TypeAlias = Literal["auto", "prefix", "raw", "rank0", "none"]

CHOICES = {
    "ProgramKind": ("script", "module", "exec", "function"),
    "LocalRankArg": ("auto", "always", "never"),
    "OutputMode": ("auto", "prefix", "raw", "rank0", "none"),
}
"""The values of these types at run time, for `bireme.validate`."""

LAUNCHERS = ("ssh", "pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm", "exec", "kubectl", "docker", "podman")
"""The values of ``launcher`` besides ``auto``: each is a backend in `bireme.backends`."""

CONTAINERS = ("kubectl", "docker", "podman")
"""Launchers whose hosts are containers, with files of their own."""

OWN_NAMES = ("exec", *CONTAINERS)
"""Launchers that find a host by a name of their own, such as a container's: nothing else resolves it."""

BY_LABELS = "kubectl:"
"""How a value of ``hosts`` begins that selects pods by their labels; it implies this launcher."""

ACCELERATORS = ("cuda", "rocm", "xpu", "npu", "cpu")
"""The values of ``accelerator`` besides ``auto``, in the order in which that looks for them."""

DEFAULT_GRACE = 10.0
"""Seconds between the first stop signal and SIGKILL.

Long enough for a handler that writes a small checkpoint, short enough that a hang in a collective
does not cost minutes on every node. torchrun and DeepSpeed wait 30 s.
"""

DEFAULT_HEARTBEAT = 10.0
"""Seconds of silence after which a node counts as lost."""

DEFAULT_RESTART_WINDOW = 3600.0
"""Seconds without a failure after which earlier restarts no longer count."""

DEFAULT_ELASTIC_RESTARTS = 3
"""Restarts of an elastic job after failed workers. torchrun has 0, and does not count nodes that join or leave."""

DEFAULT_ELASTIC_TIMEOUT = 600.0
"""Seconds that an elastic job waits for enough nodes; the same as in PyTorch's rendezvous."""

DEFAULT_ELASTIC_INTERVAL = 30.0
"""Longest time, in seconds, between two probes of a lost node."""

ANSWERS = 0
"""The number of the stream on which a rank answers calls (`bireme.calls`), beside 1 and 2 for stdout and stderr."""

DEFAULT_SHIP_LIMIT = 256 << 20
"""Bytes of the largest tree that is sent without asking."""

DEFAULT_PORT = 29500
"""The rendezvous port that PyTorch's and DeepSpeed's launchers use by default."""


class Program(Value):
    """The program that every rank runs.

    Attributes:
        target: the script, module or executable.
        args: its arguments.
        kind: ``script`` (run by Python), ``module`` (``python -m``) or ``exec`` (run directly, found on ``PATH``). Or
            ``function`` (`bireme.calls`): Python that gets its code and calls by its stdin, and answers there.
    """

    target: str
    args: tuple[str, ...] = ()
    kind: ProgramKind = "script"


class JobSpec(Value):
    """A job as the user described it; none of it has been checked against the nodes yet.

    Attributes:
        program: what every rank runs.
        include, exclude: filters of nodes and slots; "" if not given.
        num_gpus: the number of slots on each node; ``None``: all.
        accelerator: the kind of device, or ``auto``.
        master_addr, master_port: where the ranks meet; ``None``: chosen. In an elastic job, ``master_addr`` is used
            only while it is the first node's.
        local_rank_arg: whether the script is given ``--local_rank``.
        save_pid: keep the pid of this process in a file.
        rank_log_dir: folder on each node for the output of its ranks.
        bind_cores, bind_core_list: bind ranks to cores, of the list if it is given.
        venv_script: a file to source first.
        python: the Python that runs the ranks; ``None``: the one that ``venv_script`` selects, else that of Bireme.
            ``{host}`` is replaced by the node's name.
        python_from: what has named ``python``, for messages.
        node_python: the Python that runs the agents; "": that of Bireme where it exists, else python3.
        grace: seconds between SIGTERM and SIGKILL.
        time_limit: seconds after which the job is stopped; ``None``: never.
        output, timestamps, fold: how the output of ranks is shown.
        wrap: the words of a command to put before the program's on the ranks of ``wrap_ranks`` (all if that is empty);
            ``{rank}``, ``{local_rank}`` and ``{host}`` are replaced.
        stdin: which rank reads the command's stdin: its number, ``all`` (each gets a copy) or ``none``; "": rank 0 on
            one machine, none on nodes.
        log_level: verbosity of Bireme's own messages.
        hosts, hostfile: the declared pool.
        num_nodes: use only the first ``num_nodes`` nodes; ``None``: all.
        launcher, launcher_args, ssh_port: how nodes are reached.
        preflight: do not start the job if a node is unfit.
        force_multi: start an agent even if this machine is the only node.
        native_ranks: mpirun or srun starts every rank itself.
        by_hand: the user runs the command on every node (``--no_ssh``), with its ``node_rank``.
        exports: ``NAME``, ``PREFIX*`` or ``NAME=VALUE`` of ``--export``.
        log_dir: folder on this machine for the output of all ranks.
        ship: the files to send to the nodes: ``git`` for what git knows of the working tree, or a folder; ``None``: the
            nodes have them.
        ship_also: files of the tree to send though git ignores them.
        ship_limit: bytes of the largest tree that may be sent.
        fetch: the files to bring home when the job has ended: ``PATTERN`` or ``PATTERN:DIR``.
        heartbeat: seconds of silence after which a node counts as lost.
        restarts: how often the job is restarted after a failure.
        restart_window: seconds without a failure after which earlier restarts no longer count.
        attempt: the number of this attempt, from 0.
        avoid: nodes to leave out if the pool has others.
        elastic: nodes can join and leave.
        min_nodes, max_nodes: bounds of their number in an elastic job; ``None``: no upper bound.
        elastic_timeout: seconds that the job waits for enough nodes.
        elastic_interval: longest time, in seconds, between two probes of a lost node.
        run_id: the id of the job, the same in all attempts and in every epoch of an elastic job; "": chosen.
        role: the role of the ranks, as for torchrun.
        virtual_local_rank: show each rank only its own device, with ``LOCAL_RANK=0``.
        local_ranks: the local ranks whose output is shown; empty: all.
        job_name: what users call the job; "": it has no name.
        rendezvous: ``static`` or ``c10d`` if the command may have been typed on each node as for torchrun: with
            ``static`` it has the number of the node, with ``c10d`` PyTorch numbers the nodes; "": it was not.
        preload: modules that a template imports once for the ranks of a node; ``auto``: those that the script imports.
        keep: whether the template on this machine waits for the next job.
        hang_timeout: a duration without output, after which it is looked whether the job hangs; ``auto``: it is found
            out; ``off``: never.
        on_hang: what is done with a job that hangs: ``report``, ``stop``, or ``restart``, which stops this attempt.
        events: the file to which it is written what happens, as lines of JSON; "": none.
        checkpoint_signal: what ranks get before a preemption, so that they save and end; "": such as any stop signal.
        preempt_signal: what the scheduler announces a preemption by, and how many seconds before: ``USR1@120``; "":
            ``TERM``, and it is found out.
        requeue: ask Slurm to queue the job of this allocation again, after a preemption.
        requeues: how often that has happened.
        stacks: whether the stacks of ranks are taken that do not end: ``auto`` or ``never``.
        torchrun_args: options that only PyTorch's agent gets, if that agent starts the ranks.
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
    python: str | None = None
    python_from: str = "--python"
    node_python: str = ""
    grace: float = DEFAULT_GRACE
    time_limit: float | None = None
    output: OutputMode = "auto"
    timestamps: bool = False
    fold: bool = False
    wrap: tuple[str, ...] = ()
    wrap_ranks: tuple[int, ...] = ()
    stdin: str = ""
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
    ship: str | None = None
    ship_also: tuple[str, ...] = ()
    ship_limit: int = DEFAULT_SHIP_LIMIT
    fetch: tuple[str, ...] = ()
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
    role: str = "default"
    virtual_local_rank: bool = False
    local_ranks: tuple[int, ...] = ()
    job_name: str = ""
    rendezvous: str = ""
    torchrun_args: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    keep: bool = False
    events: str = ""
    checkpoint_signal: str = ""
    preempt_signal: str = ""
    requeue: bool = False
    requeues: int = 0
    stacks: str = "auto"
    hang_timeout: str = "auto"
    on_hang: str = "report"

    def on_node(self, name: str) -> JobSpec:
        """The job as it runs on the node of this name: ``{host}`` in ``python`` is replaced."""
        return self if self.python is None else self.replace(python=self.python.replace("{host}", name))

    @property
    def filtered(self) -> bool:
        """Whether the user selects nodes or slots (``--include``, ``--exclude``)."""
        return bool(self.include or self.exclude)

    def gives_stdin(self, rank: int, default: str = "none") -> bool:
        """Whether this rank reads the command's stdin; ``default``: who does so if ``stdin`` is empty."""
        given = self.stdin or default
        return given == "all" or (given.isdecimal() and int(given) == rank)

    @property
    def answers(self) -> bool:
        """Whether the ranks take calls of functions, and answer (`bireme.calls`)."""
        return self.program.kind == "function"

    @property
    def checkpoint_signum(self) -> int:
        """The number of ``checkpoint_signal``; 0: none."""
        return signal.named(self.checkpoint_signal)

    @property
    def preemption(self) -> tuple[int, float]:
        """The number of ``preempt_signal``, 0 if there is none, and its seconds, 0 if they are found out."""
        name, _, seconds = (self.preempt_signal or "TERM").partition("@")
        return signal.named(name) if self.checkpoint_signal else 0, float(seconds or 0)

    @property
    def has_own_names(self) -> bool:
        """Whether the hosts have names that only their launcher knows."""
        return self.launcher in OWN_NAMES or self.hosts.startswith(BY_LABELS)

    @property
    def in_containers(self) -> bool:
        """Whether the hosts are containers."""
        return self.launcher in CONTAINERS or self.hosts.startswith(BY_LABELS)
