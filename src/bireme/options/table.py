"""The table of all options: each with its names, group, help, kind, commands, and the field of the job that it sets.

Parser, help pages, and the commands ``run``, ``tune``, ``check``, ``drain`` and ``python -m bireme.agent`` are made
from it. :mod:`bireme.options.conflicts` says which options cannot be used together.
"""

from __future__ import annotations

from bireme import job
from bireme.options.option import Option
from bireme.options.other_launchers import ACCELERATE, TORCHRUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.options.option import Groups

_RANKS = ("run", "tune", "agent")
_NODES = ("run", "tune", "check")
_EVERYWHERE = (*_NODES, "agent")
_ALL = (*_EVERYWHERE, "drain")

COMMANDS = ("run", "tune", "check", "drain")
"""The commands of ``bireme`` that have options."""

GROUPS: Groups = {
    "world": (
        Option(
            names=("--world_info",),
            help='URL-safe base64 of {"host": [slot, …], …}: all nodes of the job',
            kind="word",
            metavar="BASE64",
            commands=("agent",),
        ),
        Option(
            names=("--node_rank",),
            help="number of this node among them (default: 0)",
            kind="count",
            metavar="K",
            default=0,
            commands=("agent",),
        ),
        Option(
            names=("--save_pid",),
            help="keep the agent's pid in /tmp/<PID>.deepspeed while it runs",
            kind="count",
            metavar="PID",
            default=0,
            commands=("agent",),
        ),
    ),
    "node": (Option(names=("--back",), help="use the node again, once it is fit", commands=("drain",)),),
    "nodes": (
        Option(
            names=("--hostfile", "-H"),
            common=True,
            help="file that lists the nodes, one per line: worker-0 slots=4 (default: /job/hostfile)",
            kind="word",
            metavar="FILE",
            commands=_NODES,
        ),
        Option(
            names=("--hosts",),
            common=True,
            help="list of nodes, instead of a hostfile: 'node[1-4]:8,other:2'",
            kind="word",
            metavar="HOSTS",
            commands=_NODES,
        ),
        Option(
            names=("--num_nodes", "--nnodes", "--num_machines"),
            common=True,
            help="use the first N nodes; MIN:MAX turns on elastic training",
            kind="range",
            metavar="N",
            commands=_NODES,
            unset=("-1",),
            least=1,
            shared=False,
        ),
        Option(
            names=("--launcher",),
            help="how to reach the other nodes",
            kind="choice",
            metavar="NAME",
            default="auto",
            choices=("auto", "ssh", "pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"),
            commands=_NODES,
        ),
        Option(
            names=("--launcher_args",),
            help="extra arguments for the launcher, quoted as one word",
            kind="word",
            metavar="ARGS",
            default="",
            commands=_NODES,
        ),
        Option(
            names=("--ssh_port",),
            help="port of sshd on the nodes",
            kind="count",
            metavar="PORT",
            commands=_NODES,
            least=1,
            most=65535,
        ),
        Option(
            names=("--no_ssh_check",),
            help="start the job even if the preflight finds a node unfit",
            field="preflight",
            sets=False,
        ),
        Option(
            names=("--force_multi",),
            help="start an agent even if this machine is the only node",
            commands=_NODES,
        ),
        Option(
            names=("--native_ranks",),
            help="let mpirun or srun start every rank itself, for programs that call MPI",
            commands=_NODES,
        ),
        Option(
            names=("--no_ssh",),
            help="start only this node's ranks: run the same command on each node, with its --node_rank",
            field="by_hand",
        ),
        Option(
            names=("--node_rank", "--machine_rank"),
            help="number of this node, from 0, where the command is typed on each node",
            kind="count",
            metavar="K",
        ),
        Option(
            names=("--export",),
            common=True,
            help="also set this environment variable on the nodes: NAME, 'PREFIX*' or NAME=VALUE",
            kind="list",
            metavar="WHAT",
            commands=_NODES,
            field="exports",
        ),
        Option(
            names=("--heartbeat",),
            help="seconds of silence after which a node counts as lost (default: 10)",
            kind="seconds",
            default=job.DEFAULT_HEARTBEAT,
            commands=_NODES,
            least=0.5,
            most=3600,
        ),
    ),
    "resources": (
        Option(
            names=("--include", "-i"),
            common=True,
            help="use only these nodes and slots: NODE[:SLOT,…][@NODE…], e.g. localhost:0,2",
            kind="word",
            metavar="FILTER",
            default="",
            commands=_NODES,
            shared=False,
        ),
        Option(
            names=("--exclude", "-e"),
            help="use all nodes and slots except these",
            kind="word",
            metavar="FILTER",
            default="",
            commands=_NODES,
            shared=False,
        ),
        Option(
            names=("--num_gpus", "--num_accelerators", "--nproc_per_node"),
            common=True,
            help="slots to use on each node; without an accelerator, the number of ranks on the CPU",
            kind="slots",
            metavar="N",
            commands=_NODES,
            unset=("-1", "auto", "gpu"),
            least=1,
            shared=False,
        ),
        Option(
            names=("--accelerator",),
            common=True,
            help="kind of device to use",
            kind="choice",
            metavar="KIND",
            default="auto",
            choices=("auto", "cuda", "rocm", "xpu", "npu", "cpu"),
            commands=_EVERYWHERE,
        ),
        Option(
            names=("--bind_cores_to_rank",),
            help="bind each rank to its own physical cores",
            commands=_RANKS,
            field="bind_cores",
        ),
        Option(
            names=("--bind_core_list",),
            help="cores to divide among the ranks, e.g. 0,2-5 (implies --bind_cores_to_rank)",
            kind="word",
            metavar="LIST",
            commands=_RANKS,
        ),
    ),
    "rendezvous": (
        Option(
            names=("--master_addr", "--main_process_ip"),
            common=True,
            help="address where the ranks meet (default on one machine: 127.0.0.1)",
            kind="word",
            metavar="ADDR",
            commands=_RANKS,
            shared=False,
        ),
        Option(
            names=("--master_port", "--main_process_port"),
            common=True,
            help="port where the ranks meet (default: 29500, or a free one if that is taken)",
            kind="count",
            metavar="PORT",
            commands=_RANKS,
            unset=("0",),
            least=1,
            most=65535,
            shared=False,
        ),
        Option(
            names=("--rdzv_endpoint",),
            help="address and port in one, as for torchrun",
            kind="word",
            metavar="ADDR[:PORT]",
            shared=False,
        ),
    ),
    "program": (
        Option(
            names=("--module", "-m"),
            common=True,
            help="run the script as a Python module, like python -m",
            commands=_RANKS,
        ),
        Option(names=("--no_python",), common=True, help="run the script directly, not with Python", commands=_RANKS),
        Option(
            names=("--no_local_rank",),
            help="never pass --local_rank to the script",
            commands=_RANKS,
            field="local_rank_arg",
            sets="never",
        ),
        Option(
            names=("--local_rank_arg",),
            help="always pass --local_rank (default: only if the script mentions it)",
            commands=_RANKS,
            sets="always",
        ),
        Option(
            names=("--venv_script",),
            help="source this file first, and run the ranks with the python it selects",
            kind="word",
            metavar="FILE",
            commands=_EVERYWHERE,
        ),
        Option(
            names=("--wrap",),
            help="run ranks under this command; {rank}, {local_rank} and {host} are replaced",
            kind="word",
            metavar="CMD",
            default="",
            commands=_RANKS,
        ),
        Option(
            names=("--wrap_ranks",),
            help="use --wrap only for these ranks, e.g. 0,3",
            kind="word",
            metavar="RANKS",
            default="",
            commands=_RANKS,
        ),
    ),
    "output": (
        Option(
            names=("--output",),
            common=True,
            help="prefix: label each line with [host:rank] (default for more than one rank); "
            "raw: leave lines unchanged; rank0: show only rank 0; none: show nothing",
            kind="choice",
            metavar="MODE",
            default="auto",
            choices=("auto", "prefix", "raw", "rank0", "none"),
            commands=_RANKS,
            shared=False,
        ),
        Option(
            names=("--timestamps",),
            help="print the time before each line",
            commands=_RANKS,
            shared=False,
        ),
        Option(
            names=("--fold",),
            help="show a line that several ranks write only once: [host:0-5] or [*:0-5]",
            commands=_RANKS,
            shared=False,
        ),
        Option(
            names=("--enable_each_rank_log",),
            help="also write each rank's output to a file in DIR, on the rank's node",
            kind="word",
            metavar="DIR",
            commands=_RANKS,
            field="rank_log_dir",
            unset=("None",),
            shared=False,
        ),
        Option(
            names=("--log_dir",),
            common=True,
            help="also write each rank's output to a file in DIR, on this machine",
            kind="word",
            metavar="DIR",
            shared=False,
        ),
        Option(
            names=("--report",),
            common=True,
            help="write the result of the job to FILE, as JSON",
            kind="word",
            metavar="FILE",
            shared=False,
        ),
        Option(
            names=("--log_level",),
            help="verbosity of Bireme's own messages",
            kind="choice",
            metavar="LEVEL",
            default="info",
            choices=("debug", "info", "warning", "error", "critical"),
            commands=_RANKS,
        ),
        Option(
            names=("--quiet", "-q"),
            common=True,
            help="same as --log_level error",
            commands=_RANKS,
            field="log_level",
            sets="error",
        ),
    ),
    "conduct": (
        Option(
            names=("--grace", "--shutdown_timeout"),
            help="seconds between SIGTERM and SIGKILL when ranks are stopped (default: 10)",
            kind="seconds",
            default=job.DEFAULT_GRACE,
            commands=_RANKS,
        ),
        Option(
            names=("--time_limit",),
            common=True,
            help="stop the job after this many seconds, with exit code 124",
            kind="seconds",
            commands=_RANKS,
            zero="would stop the job at once",
            shared=False,
        ),
        Option(
            names=("--restarts", "--max_restarts"),
            common=True,
            help="restart the whole job after a failure, up to R times (default: 0; elastic: 3)",
            kind="count",
            metavar="R",
            commands=_RANKS,
            least=0,
            shared=False,
        ),
        Option(
            names=("--restart_window",),
            help="seconds without a failure after which earlier restarts no longer count (default: 3600)",
            kind="seconds",
            default=job.DEFAULT_RESTART_WINDOW,
            zero="would let a failing job restart forever",
        ),
        Option(
            names=("--save_pid",),
            help="keep Bireme's pid in /tmp/<pid>.deepspeed while the job runs",
            shared=False,
        ),
        Option(names=("--dry_run",), common=True, help="print the plan without starting anything", shared=False),
        Option(names=("--json",), help="with --dry_run: print the plan as JSON", shared=False),
        Option(names=("--help", "-h"), common=True, help="show this help", commands=_ALL, shared=False),
        Option(names=("--help_all",), help="show all options", common=True, shared=False),
    ),
    "elastic training": (
        Option(
            names=("--elastic_training", "--enable_elastic_training"),
            common=True,
            help="let nodes join and leave; the ranks resume from their checkpoint",
            commands=_RANKS,
            field="elastic",
        ),
        Option(
            names=("--min_elastic_nodes",),
            help="wait while fewer nodes are available (default: 1)",
            kind="count",
            metavar="N",
            commands=_RANKS,
            field="min_nodes",
            unset=("-1",),
            least=1,
        ),
        Option(
            names=("--max_elastic_nodes",),
            help="use at most this many nodes (default: all)",
            kind="count",
            metavar="N",
            commands=_RANKS,
            field="max_nodes",
            unset=("-1",),
            least=1,
        ),
        Option(
            names=("--elastic_timeout",),
            help="seconds to wait for enough nodes (default: 600)",
            kind="seconds",
            default=job.DEFAULT_ELASTIC_TIMEOUT,
        ),
        Option(
            names=("--elastic_interval",),
            help="longest interval between two checks whether a lost node is back (default: 30)",
            kind="seconds",
            default=job.DEFAULT_ELASTIC_INTERVAL,
        ),
    ),
    "tuning": (
        Option(
            names=("--autotuning",),
            common=True,
            help="search for the fastest DeepSpeed configuration of the job; run: then run the job with it",
            kind="choice",
            metavar="HOW",
            default="",
            choices=("tune", "run"),
            shared=False,
        ),
        Option(
            names=("--experiment_limit",),
            help="stop an experiment after this many seconds",
            kind="seconds",
            zero="would let every experiment time out",
            shared=False,
        ),
        Option(
            names=("--config_as",),
            help="how to pass an experiment's configuration to the script, encoded in a word or as the path of a file",
            kind="choice",
            metavar="FORM",
            default="word",
            choices=("word", "file"),
            shared=False,
        ),
        Option(
            names=("--order",),
            help="order in which experiments start",
            kind="choice",
            metavar="ORDER",
            default="fifo",
            choices=("fifo", "longest"),
            shared=False,
        ),
    ),
    "as torchrun": TORCHRUN,
    "as accelerate": ACCELERATE,
}
"""All options by group, in the order of the help pages."""

OPTIONS: tuple[Option, ...] = tuple(option for options in GROUPS.values() for option in options)


def select(command: str) -> Groups:
    """The options of ``run``, ``tune``, ``check``, ``drain`` or ``agent`` (``python -m bireme.agent``), by group."""
    chosen = {
        title: tuple(option for option in options if command in option.commands) for title, options in GROUPS.items()
    }
    return {title: options for title, options in chosen.items() if options}


def fields(groups: Groups) -> list[tuple[Option, str]]:
    """Those options that set a field of the job, each with the name of that field."""
    pairs = [(option, option.field or option.dest) for options in groups.values() for option in options]
    return [(option, field) for option, field in pairs if field in job.JobSpec._fields]
