"""The table of all command line options, and the parser that reads it.

``argparse`` is not used: importing it takes 10 ms of the 60 ms that a launch takes, it also reads the script's
arguments (an ambiguous prefix there would be an error here), and it knows one spelling of each name. The help page is
made from the same table (:mod:`bireme.cli.help`).
"""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["flag", "word", "count", "range", "seconds", "choice", "list"]


class Option(Value):
    """One option of the command line.

    Attributes:
        names: all spellings; the first long one is the key of the value. ``_`` and ``-`` mean the same in a name.
        help: the text on the help page.
        kind: ``flag`` takes no value; ``word`` any text; ``count`` an integer; ``range`` an integer, or a tuple of two
            from ``MIN:MAX``; ``seconds`` a number of at least 0; ``choice`` one of ``choices``; ``list`` a word, and
            may be given several times.
        metavar: what the help page calls the value.
        default: the value if the option is not given; ``False`` for a flag, ``()`` for a list.
        choices: the possible values of a ``choice``.
    """

    names: tuple[str, ...]
    help: str
    kind: Kind = "flag"
    metavar: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()

    @property
    def dest(self) -> str:
        """The option's key in the result."""
        long = next(name for name in self.names if name.startswith("--"))
        return long[2:]


class Parsed(Value):
    """A parsed command line: the value of each option by its key, and the command that follows the options."""

    options: dict[str, Any]
    command: tuple[str, ...]


_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

NODES = (
    Option(
        ("--hostfile", "-H"),
        "file that lists the nodes, one per line: worker-0 slots=4 (default: /job/hostfile)",
        "word",
        "FILE",
    ),
    Option(("--hosts",), "list of nodes, instead of a hostfile: 'node[1-4]:8,other:2'", "word", "HOSTS", ""),
    Option(("--num_nodes", "--nnodes"), "use the first N nodes; MIN:MAX turns on elastic training", "range", "N"),
    Option(
        ("--launcher",),
        "how to reach the other nodes",
        "choice",
        "NAME",
        "auto",
        ("auto", "ssh", "pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"),
    ),
    Option(("--launcher_args",), "extra arguments for the launcher, quoted as one word", "word", "ARGS", ""),
    Option(("--ssh_port",), "port of sshd on the nodes", "count", "PORT"),
    Option(("--no_ssh_check",), "start the job even if the preflight finds a node unfit"),
    Option(("--force_multi",), "start an agent even if this machine is the only node"),
    Option(("--native_ranks",), "let mpirun or srun start every rank itself, for programs that call MPI"),
    Option(("--no_ssh",), "start only this node's ranks: run the same command on each node, with its --node_rank"),
    Option(("--node_rank",), "number of this node, from 0, with --no_ssh", "count", "K"),
    Option(
        ("--export",), "also set this environment variable on the nodes: NAME, 'PREFIX*' or NAME=VALUE", "list", "WHAT"
    ),
    Option(
        ("--heartbeat",),
        "seconds of silence after which a node counts as lost (default: 10)",
        "seconds",
        "SECONDS",
        10.0,
    ),
)

RESOURCES = (
    Option(
        ("--include", "-i"),
        "use only these nodes and slots: NODE[:SLOT,…][@NODE…], e.g. localhost:0,2",
        "word",
        "FILTER",
        "",
    ),
    Option(("--exclude", "-e"), "use all nodes and slots except these", "word", "FILTER", ""),
    Option(
        ("--num_gpus", "--num_accelerators", "--nproc_per_node"),
        "slots to use on each node; without an accelerator, the number of ranks on the CPU",
        "word",
        "N",
    ),
    Option(
        ("--accelerator",),
        "kind of device to use",
        "choice",
        "KIND",
        "auto",
        ("auto", "cuda", "rocm", "xpu", "npu", "cpu"),
    ),
    Option(("--bind_cores_to_rank",), "bind each rank to its own physical cores"),
    Option(
        ("--bind_core_list",),
        "cores to divide among the ranks, e.g. 0,2-5 (implies --bind_cores_to_rank)",
        "word",
        "LIST",
    ),
)

RENDEZVOUS = (
    Option(("--master_addr",), "address where the ranks meet (default on one machine: 127.0.0.1)", "word", "ADDR"),
    Option(
        ("--master_port",),
        "port where the ranks meet (default: 29500, or a free one if that is taken)",
        "count",
        "PORT",
    ),
    Option(("--rdzv_endpoint",), "address and port in one, as for torchrun", "word", "ADDR[:PORT]"),
)

PROGRAM = (
    Option(("--module", "-m"), "run the script as a Python module, like python -m"),
    Option(("--no_python",), "run the script directly, not with Python"),
    Option(("--no_local_rank",), "never pass --local_rank to the script"),
    Option(("--local_rank_arg",), "always pass --local_rank (default: only if the script mentions it)"),
    Option(("--venv_script",), "source this file first, and run the ranks with the python it selects", "word", "FILE"),
    Option(
        ("--wrap",), "run ranks under this command; {rank}, {local_rank} and {host} are replaced", "word", "CMD", ""
    ),
    Option(("--wrap_ranks",), "use --wrap only for these ranks, e.g. 0,3", "word", "RANKS", ""),
)

OUTPUT = (
    Option(
        ("--output",),
        "prefix: label each line with [host:rank] (default for more than one rank); raw: leave lines unchanged; "
        "rank0: show only rank 0; none: show nothing",
        "choice",
        "MODE",
        "auto",
        ("auto", "prefix", "raw", "rank0", "none"),
    ),
    Option(("--timestamps",), "print the time before each line"),
    Option(("--fold",), "show a line that several ranks write only once: [host:0-5] or [*:0-5]"),
    Option(
        ("--enable_each_rank_log",), "also write each rank's output to a file in DIR, on the rank's node", "word", "DIR"
    ),
    Option(("--log_dir",), "also write each rank's output to a file in DIR, on this machine", "word", "DIR"),
    Option(("--report",), "write the result of the job to FILE, as JSON", "word", "FILE"),
    Option(("--log_level",), "verbosity of Bireme's own messages", "choice", "LEVEL", "info", _LOG_LEVELS),
    Option(("--quiet", "-q"), "same as --log_level error"),
)

CONDUCT = (
    Option(
        ("--grace",),
        "seconds between SIGTERM and SIGKILL when ranks are stopped (default: 10)",
        "seconds",
        "SECONDS",
        10.0,
    ),
    Option(("--time_limit",), "stop the job after this many seconds, with exit code 124", "seconds", "SECONDS"),
    Option(
        ("--restarts", "--max_restarts"),
        "restart the whole job after a failure, up to R times (default: 0; elastic: 3)",
        "count",
        "R",
    ),
    Option(
        ("--restart_window",),
        "seconds without a failure after which earlier restarts no longer count (default: 3600)",
        "seconds",
        "SECONDS",
        3600.0,
    ),
    Option(("--save_pid",), "keep Bireme's pid in /tmp/<pid>.deepspeed while the job runs"),
    Option(("--dry_run",), "print the plan without starting anything"),
    Option(("--json",), "with --dry_run: print the plan as JSON"),
    Option(("--help", "-h"), "show this help"),
)

ELASTIC = (
    Option(
        ("--elastic_training", "--enable_elastic_training"),
        "let nodes join and leave; the ranks resume from their checkpoint",
    ),
    Option(("--min_elastic_nodes",), "wait while fewer nodes are available (default: 1)", "count", "N"),
    Option(("--max_elastic_nodes",), "use at most this many nodes (default: all)", "count", "N"),
    Option(("--elastic_timeout",), "seconds to wait for enough nodes (default: 600)", "seconds", "SECONDS", 600.0),
    Option(
        ("--elastic_interval",),
        "longest interval between two checks whether a lost node is back (default: 30)",
        "seconds",
        "SECONDS",
        30.0,
    ),
)

TUNING = (
    Option(
        ("--autotuning",),
        "search for the fastest DeepSpeed configuration of the job; run: then run the job with it",
        "choice",
        "HOW",
        "",
        ("tune", "run"),
    ),
    Option(("--experiment_limit",), "stop an experiment after this many seconds", "seconds", "SECONDS"),
    Option(
        ("--config_as",),
        "how to pass an experiment's configuration to the script, encoded in a word or as the path of a file",
        "choice",
        "FORM",
        "word",
        ("word", "file"),
    ),
    Option(("--order",), "order in which experiments start", "choice", "ORDER", "fifo", ("fifo", "longest")),
)

RUN: dict[str, tuple[Option, ...]] = {
    "nodes": NODES,
    "resources": RESOURCES,
    "rendezvous": RENDEZVOUS,
    "program": PROGRAM,
    "output": OUTPUT,
    "conduct": CONDUCT,
    "elastic training": ELASTIC,
    "tuning": TUNING,
}
"""The options of ``bireme run``, by group, in the order of the help page."""

_NOT_BY_HAND = (
    *("include", "exclude", "num_gpus", "rdzv_endpoint", "save_pid", "dry_run", "json", "log_dir", "report"),
    *("restart_window", "elastic_timeout", "elastic_interval"),
)

AGENT: dict[str, tuple[Option, ...]] = {
    "world": (
        Option(("--world_info",), 'URL-safe base64 of {"host": [slot, …], …}: all nodes of the job', "word", "BASE64"),
        Option(("--node_rank",), "number of this node among them (default: 0)", "count", "K", 0),
        Option(("--save_pid",), "keep the agent's pid in /tmp/<PID>.deepspeed while it runs", "count", "PID", 0),
    ),
    **{
        title: tuple(option for option in options if option.dest not in _NOT_BY_HAND)
        for title, options in RUN.items()
        if options not in (NODES, TUNING)
    },
}
"""The options of ``python -m bireme.agent``, which starts one node of a known world."""


def parse(groups: dict[str, tuple[Option, ...]], argv: Sequence[str]) -> Parsed:
    """Read options up to the first word that is not one; that word and all after it are the command, unchanged.

    Raises:
        BadInputError: an option is unknown, or its value is missing or invalid.
    """
    table = {name: option for group in groups.values() for option in group for name in option.names}
    values = {option.dest: option.default for option in table.values()}
    values.update({option.dest: False for option in table.values() if option.kind == "flag"})
    values.update({option.dest: () for option in table.values() if option.kind == "list"})
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = _split(word, table)
        option = table.get(name)
        if option is None:
            raise BadInputError(f"unknown option: {word.partition('=')[0]}", hint=_nearest(name, table))
        if option.kind == "flag":
            if equals:
                raise BadInputError(f"{name} takes no value", where=word)
            values[option.dest] = True
            continue
        if not equals:
            if not words:
                raise BadInputError(f"{name} needs a value: {option.metavar}")
            value = words.pop(0)
        given = _convert(option, name, value)
        values[option.dest] = (*values[option.dest], given) if option.kind == "list" else given
    return Parsed(values, tuple(words))


def _split(word: str, table: dict[str, Option]) -> tuple[str, bool, str]:
    """Split ``--a-b=c``, ``-i`` or ``-ic`` into (name with ``_``, whether a value is attached, that value)."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return "--" + name[2:].replace("-", "_"), bool(equals), value
    if len(word) > 2 and word[:2] in table:
        return word[:2], True, word[2:].removeprefix("=")
    return word, False, ""


def _convert(option: Option, name: str, value: str) -> Any:
    if option.kind == "count":
        return whole(value, name)
    if option.kind == "range" and ":" in value:
        first, _, last = value.partition(":")
        return whole(first, name), whole(last, name)
    if option.kind == "range":
        return whole(value, name)
    if option.kind == "seconds":
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise BadInputError(f"{value!r} is not a number of seconds", where=name)
        return seconds
    if option.kind == "choice":
        if value.lower() not in option.choices:
            raise BadInputError(f"{value!r} is not one of {', '.join(option.choices)}", where=name)
        return value.lower()
    return value


def whole(text: str, where: str) -> int:
    """Read a whole number of fewer than ten digits; ``where`` is the option, for the error.

    Raises:
        BadInputError: the text is not such a number.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise BadInputError(f"{text[:40]!r} is not a whole number", where=where)
    return int(text)


def _nearest(name: str, table: dict[str, Option]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(table), n=1)
    return f"did you mean {near[0]}?" if near else "bireme run --help shows all options"
