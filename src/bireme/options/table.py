"""The table of all options: each with its names, group, help, kind, commands, and the field of the job that it sets.

Parser, help pages, and the commands ``run``, ``tune``, ``check``, ``drain`` and ``python -m bireme.agent`` are made
from it. :mod:`bireme.options.conflicts` says which options cannot be used together.
"""

from __future__ import annotations

from bireme import job
from bireme.options.node_options import NODE_OPTIONS
from bireme.options.option import EVERYWHERE, RANKS, Option
from bireme.options.other_launchers import ACCELERATE, TORCHRUN
from bireme.options.study_options import STUDY_OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.options.option import Groups

_REPORT = ("tune status", "tune report")
_ALL = (*EVERYWHERE, "drain", *_REPORT)

COMMANDS = ("run", "tune", "check", "drain")
"""The commands of ``bireme`` that have options."""

SUBCOMMANDS = _REPORT
"""Commands of two words, with options of their own."""

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
            help="number of this node in the world info (default: 0)",
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
    "report": (
        Option(names=("--json",), help="print JSON instead", commands=_REPORT, shared=False),
        Option(names=("--csv",), help="print the trials as CSV instead", commands=("tune report",), shared=False),
        Option(
            names=("--html",),
            help="write the report to this file (default: report.html in the study's folder)",
            kind="word",
            metavar="FILE",
            default="",
            commands=("tune report",),
            shared=False,
        ),
    ),
    "node": (Option(names=("--back",), help="use the node again, once it is fit", commands=("drain",)),),
    **NODE_OPTIONS,
    "program": (
        Option(
            names=("--module", "-m"),
            common=True,
            help="run the script as a Python module, like python -m",
            commands=RANKS,
        ),
        Option(names=("--no_python",), common=True, help="run the script directly, not with Python", commands=RANKS),
        Option(
            names=("--no_local_rank",),
            help="never pass --local_rank to the script",
            commands=RANKS,
            field="local_rank_arg",
            sets="never",
        ),
        Option(
            names=("--local_rank_arg",),
            help="always pass --local_rank (default: only if the script names it in its code)",
            commands=RANKS,
            sets="always",
        ),
        Option(
            names=("--venv_script",),
            help="source this file first, and run the ranks with the python it selects",
            kind="word",
            metavar="FILE",
            commands=EVERYWHERE,
        ),
        Option(
            names=("--python",),
            help="Python that runs the ranks, or the folder of its environment (default: the active one); {host} is"
            " replaced",
            kind="word",
            metavar="PATH",
            commands=EVERYWHERE,
        ),
        Option(
            names=("--wrap",),
            help="run ranks under this command; {rank}, {local_rank} and {host} are replaced",
            kind="word",
            metavar="CMD",
            default="",
            commands=RANKS,
        ),
        Option(
            names=("--wrap_ranks",),
            help="use --wrap only for these ranks, e.g. 0,3",
            kind="word",
            metavar="RANKS",
            default="",
            commands=RANKS,
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
            choices=job.CHOICES["OutputMode"],
            commands=RANKS,
            shared=False,
        ),
        Option(
            names=("--timestamps",),
            help="print the time before each line",
            commands=RANKS,
            shared=False,
        ),
        Option(
            names=("--fold",),
            help="show a line only once if several ranks write it: [host:0-5] or [*:0-5]",
            commands=RANKS,
            shared=False,
        ),
        Option(
            names=("--enable_each_rank_log",),
            help="also write each rank's output to a file in DIR, on the rank's node",
            kind="word",
            metavar="DIR",
            commands=RANKS,
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
            commands=RANKS,
        ),
        Option(
            names=("--quiet", "-q"),
            common=True,
            help="same as --log_level error",
            commands=RANKS,
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
            commands=RANKS,
        ),
        Option(
            names=("--time_limit",),
            common=True,
            help="stop the job after this many seconds, with exit code 124",
            kind="seconds",
            commands=RANKS,
            zero="would stop the job at once",
            shared=False,
        ),
        Option(
            names=("--restarts", "--max_restarts"),
            common=True,
            help="restart the whole job after a failure, up to R times (default: 0; elastic: 3)",
            kind="count",
            metavar="R",
            commands=RANKS,
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
            commands=RANKS,
            field="elastic",
        ),
        Option(
            names=("--min_elastic_nodes",),
            help="wait while fewer nodes are available (default: 1)",
            kind="count",
            metavar="N",
            commands=RANKS,
            field="min_nodes",
            unset=("-1",),
            least=1,
        ),
        Option(
            names=("--max_elastic_nodes",),
            help="use at most this many nodes (default: all)",
            kind="count",
            metavar="N",
            commands=RANKS,
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
            help="longest time between two probes of a lost node (default: 30)",
            kind="seconds",
            default=job.DEFAULT_ELASTIC_INTERVAL,
        ),
    ),
    "tuning any program": STUDY_OPTIONS,
    "tuning": (
        Option(
            names=("--autotuning",),
            common=True,
            help="tune: find the fastest DeepSpeed configuration of the job; run: find it, then run the job with it",
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
            help="how the script gets an experiment's configuration: as an encoded word, or as the path of a file",
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
    """The options of a command, by group; ``agent`` is ``python -m bireme.agent``."""
    chosen = {
        title: tuple(option for option in options if command in option.commands) for title, options in GROUPS.items()
    }
    return {title: options for title, options in chosen.items() if options}


def fields() -> list[tuple[Option, str]]:
    """The options that set a field of the job, each with the name of that field."""
    pairs = [(option, option.field or option.dest) for options in GROUPS.values() for option in options]
    return [(option, field) for option, field in pairs if field in job.JobSpec._fields]
