"""The options, as a table; and the one parser that reads it.

``argparse`` would cost 10 ms of the 60 that a launch takes, reads the script's own arguments along with
ours (an ambiguous prefix there is an error here), and knows one spelling of a name. The help page is
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
    """One option. ``names``: the first is the field's name in the result; ``_`` and ``-`` are alike in all.

    ``kind`` ``count`` is an integer, ``range`` one or a tuple of two (``MIN:MAX``), ``seconds`` a number of at least 0,
    ``choice`` one of ``choices``, ``list`` a word that may be given several times.
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
    """What stands on a command line: each option's value, and the command that follows the options."""

    options: dict[str, Any]
    command: tuple[str, ...]


_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

NODES = (
    Option(("--hostfile", "-H"), "file of the nodes, a line each: worker-0 slots=4 (/job/hostfile)", "word", "FILE"),
    Option(("--hosts",), "the nodes themselves: 'node[1-4]:8,other:2'", "word", "HOSTS", ""),
    Option(("--num_nodes", "--nnodes"), "use only the first N nodes; MIN:MAX: elastic training", "range", "N"),
    Option(
        ("--launcher",),
        "how nodes are reached",
        "choice",
        "NAME",
        "auto",
        ("auto", "ssh", "pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"),
    ),
    Option(("--launcher_args",), "more arguments for the launcher, in one word", "word", "ARGS", ""),
    Option(("--ssh_port",), "the port of the nodes' sshd", "count", "PORT"),
    Option(("--no_ssh_check",), "start although the nodes' preflight has found something wrong"),
    Option(("--force_multi",), "start an agent even where the only node is this machine"),
    Option(("--native_ranks",), "mpirun or srun starts every rank itself: for programs that call MPI"),
    Option(("--no_ssh",), "start only this node's ranks: the command is typed on each node, with its --node_rank"),
    Option(("--node_rank",), "which node this one is, with --no_ssh", "count", "K"),
    Option(("--export",), "also set this variable on the nodes: NAME, 'PREFIX*' or NAME=VALUE", "list", "WHAT"),
    Option(("--heartbeat",), "seconds of silence after which a node is lost (10)", "seconds", "SECONDS", 10.0),
)

RESOURCES = (
    Option(
        ("--include", "-i"),
        "use only these nodes and slots: NODE[:SLOT,…][@NODE…], e.g. localhost:0,2",
        "word",
        "FILTER",
        "",
    ),
    Option(("--exclude", "-e"), "use all but these nodes and slots", "word", "FILTER", ""),
    Option(
        ("--num_gpus", "--num_accelerators", "--nproc_per_node"),
        "slots to use on each node; without an accelerator, that many ranks on the CPU",
        "word",
        "N",
    ),
    Option(
        ("--accelerator",),
        "the kind of device to use",
        "choice",
        "KIND",
        "auto",
        ("auto", "cuda", "rocm", "xpu", "npu", "cpu"),
    ),
    Option(("--bind_cores_to_rank",), "give each rank its own physical cores"),
    Option(("--bind_core_list",), "the cores to share out, e.g. 0,2-5 (implies --bind_cores_to_rank)", "word", "LIST"),
)

RENDEZVOUS = (
    Option(("--master_addr",), "the address at which ranks meet (here: 127.0.0.1)", "word", "ADDR"),
    Option(("--master_port",), "the port at which ranks meet (29500, or another if that is taken)", "count", "PORT"),
    Option(("--rdzv_endpoint",), "address and port in one, as torchrun has it", "word", "ADDR[:PORT]"),
)

PROGRAM = (
    Option(("--module", "-m"), "the script is a Python module, as for python -m"),
    Option(("--no_python",), "the script is a program of its own, not run under Python"),
    Option(("--no_local_rank",), "never pass --local_rank to the script"),
    Option(("--local_rank_arg",), "always pass --local_rank (else: if the script's text names it)"),
    Option(("--venv_script",), "source this file first; its python runs the ranks", "word", "FILE"),
    Option(("--wrap",), "run ranks under this command; {rank}, {local_rank}, {host} are replaced", "word", "CMD", ""),
    Option(("--wrap_ranks",), "only these ranks, e.g. 0,3", "word", "RANKS", ""),
)

OUTPUT = (
    Option(
        ("--output",),
        "prefix: lines labelled [host:rank] (default with more than one rank); raw: as they are; "
        "rank0: only rank 0's; none",
        "choice",
        "MODE",
        "auto",
        ("auto", "prefix", "raw", "rank0", "none"),
    ),
    Option(("--timestamps",), "put the time before each line"),
    Option(("--fold",), "show lines that several ranks write alike once: [host:0-5] or [*:0-5]"),
    Option(("--enable_each_rank_log",), "also write each rank's output into a file in DIR, on its node", "word", "DIR"),
    Option(("--log_dir",), "also gather each rank's output in a file in DIR, on this machine", "word", "DIR"),
    Option(("--report",), "write how the job has ended into FILE, as JSON", "word", "FILE"),
    Option(("--log_level",), "how much Bireme itself says", "choice", "LEVEL", "info", _LOG_LEVELS),
    Option(("--quiet", "-q"), "the same as --log_level error"),
)

CONDUCT = (
    Option(("--grace",), "seconds between SIGTERM and SIGKILL when ranks are stopped (10)", "seconds", "SECONDS", 10.0),
    Option(("--time_limit",), "stop the job after so many seconds, with exit code 124", "seconds", "SECONDS"),
    Option(
        ("--restarts", "--max_restarts"),
        "after a failure, start the whole job again, up to R times (0; elastic: 3)",
        "count",
        "R",
    ),
    Option(
        ("--restart_window",),
        "restarts are forgiven after so many seconds without a failure (3600)",
        "seconds",
        "SECONDS",
        3600.0,
    ),
    Option(("--save_pid",), "keep the launcher's pid in /tmp/<pid>.deepspeed while it runs"),
    Option(("--dry_run",), "print the plan and start nothing"),
    Option(("--json",), "with --dry_run: the plan as JSON"),
    Option(("--help", "-h"), "show this page"),
)

ELASTIC = (
    Option(
        ("--elastic_training", "--enable_elastic_training"),
        "nodes may come and go, the ranks go on from their checkpoint",
    ),
    Option(("--min_elastic_nodes",), "with fewer nodes the job waits (1)", "count", "N"),
    Option(("--max_elastic_nodes",), "it uses no more (all)", "count", "N"),
    Option(("--elastic_timeout",), "it waits so many seconds for enough nodes (600)", "seconds", "SECONDS", 600.0),
    Option(
        ("--elastic_interval",),
        "seconds at most between two looks for a node that is gone (30)",
        "seconds",
        "SECONDS",
        30.0,
    ),
)

TUNING = (
    Option(
        ("--autotuning",),
        "search for the DeepSpeed configuration in which the job is fastest; run: then run the job with it",
        "choice",
        "HOW",
        "",
        ("tune", "run"),
    ),
    Option(("--experiment_limit",), "stop an experiment after so many seconds", "seconds", "SECONDS"),
    Option(
        ("--config_as",),
        "how the script is given an experiment's configuration: encoded in a word, or as a file's path",
        "choice",
        "FORM",
        "word",
        ("word", "file"),
    ),
    Option(("--order",), "which experiment starts first", "choice", "ORDER", "fifo", ("fifo", "longest")),
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

_NODES_ONLY = tuple(option.dest for option in NODES)
_NOT_BY_HAND = (
    *("include", "exclude", "num_gpus", "rdzv_endpoint", "save_pid", "dry_run", "json", "log_dir", "report"),
    *("restart_window", "elastic_timeout", "elastic_interval"),
)

AGENT: dict[str, tuple[Option, ...]] = {
    "world": (
        Option(("--world_info",), 'URL-safe base64 of {"host": [slot, …], …}: all nodes of the job', "word", "BASE64"),
        Option(("--node_rank",), "which of them this one is (0)", "count", "K", 0),
        Option(("--save_pid",), "keep our pid in /tmp/<PID>.deepspeed while we run", "count", "PID", 0),
    ),
    **{
        title: tuple(option for option in options if option.dest not in _NOT_BY_HAND)
        for title, options in RUN.items()
        if options not in (NODES, TUNING)
    },
}
"""The options of ``python -m bireme.agent``: those of one node whose world is given."""


def parse(groups: dict[str, tuple[Option, ...]], argv: Sequence[str]) -> Parsed:
    """Read options up to the first word that is none; everything from there on is the command, untouched.

    Raises:
        BadInputError: an unknown option, a missing or unfit value.
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
            raise BadInputError(f"there is no option {word.partition('=')[0]}", hint=_nearest(name, table))
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
    """(name in our spelling, whether a value is attached, the value) of ``--a-b=c``, ``-i c`` or ``-ic``."""
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
    if option.kind == "choice" and value not in option.choices:
        raise BadInputError(f"{value!r} is none of {', '.join(option.choices)}", where=name)
    return value


def whole(text: str, where: str) -> int:
    """A whole number of reasonable size, as somebody types it.

    Raises:
        BadInputError: it is none.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise BadInputError(f"{text[:40]!r} is not a whole number", where=where)
    return int(text)


def _nearest(name: str, table: dict[str, Option]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(table), n=1)
    return f"did you mean {near[0]}?" if near else "bireme run --help shows all options"
