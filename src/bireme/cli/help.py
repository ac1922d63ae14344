"""The help pages of all commands and the manual page (``bireme help --man``), made from the table of options."""

from __future__ import annotations

from textwrap import wrap

import bireme
from bireme.errors import BadInputError, did_you_mean
from bireme.logs.live_rows import size_of
from bireme.options.table import COMMANDS, SUBCOMMANDS, select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bireme.options.option import Groups, Option

_LEFT = 30


HEADS = {
    "run": """\
usage: bireme run [options] script.py [script arguments]

Starts one process per slot with its rank, device and environment, and shows
their output. When one process fails, stops all others and reports which failed
first, and why.

  bireme run train.py --epochs 3                  on every GPU of this machine
  bireme run --num_gpus 2 train.py                on the first two GPUs
  bireme run -i localhost:1,3 train.py            on GPUs 1 and 3
  bireme run -m package.train --epochs 3          run a module
  bireme run --no_python ./solver input.dat       run any program
  bireme run --wrap 'nsys profile -o r{rank}' --wrap_ranks 0 train.py
  bireme run --dry_run train.py                   show what would be started

Put options before the script. In their names, _ and - mean the same.
""",
    "tune": """\
usage: bireme tune [options] --param NAME=VALUES … --maximize FIGURE program …
       bireme tune [options] tune.toml
       bireme tune [options] script.py … --deepspeed_config ds.json

Runs the program with different configurations, as many at a time as the slots
allow, finds the best, and says how sure that is. After an interruption, the
same command resumes the search.

  bireme tune --param batch=8..512:log2 --maximize 'samples/s: {}' \\
      train.py --batch {batch}
  bireme tune --env OMP_NUM_THREADS=1,2,4 --minimize time --no_python ./solver
  bireme tune --num_gpus 2 train.py --deepspeed_config ds.json
      tries what the lists and "auto" of ds.json say
  bireme run --autotuning run train.py --deepspeed_config ds.json
      tunes, then runs the job

--num_nodes and --num_gpus set the size of each trial. All other options are
those of bireme run.

bireme tune status [DIR] shows a running study, and bireme tune report [DIR]
writes a page about it.
""",
    "tune status": """\
usage: bireme tune status [--json] [DIR]

Shows what a study is doing, from any terminal: what runs where and since when,
the best so far, and what is left. DIR is the study's results folder (default:
tuning, autotuning_results, or the only study here).
""",
    "tune report": """\
usage: bireme tune report [--json | --csv | --html FILE] [DIR]

Writes a study as one HTML file that needs no network, while the study runs or
after: the answer with its confidence, the effect of each parameter, all trials,
and what the time went into. DIR is the results folder (default: tuning,
autotuning_results, or the only study here). With MLFLOW_TRACKING_URI set and
MLflow installed, the trials are logged there too.
""",
    "check": """\
usage: bireme check [options] [script.py]

Checks that every node of the pool can run a job: that it is reachable, and has
Python, the working directory, the script and the devices. Prints one
table of all problems. Exits with 0 if there are none, else with 1.
""",
    "drain": """\
usage: bireme drain [--back] NODE JOB

Takes a node out of an elastic job that was started on this machine: stops the
node's ranks in order, and continues the job on the other nodes. JOB is the pid
that the job prints when it starts, and stores with --save_pid.
""",
    "ps": """\
usage: bireme ps [--json]

Lists your jobs that run on this machine: id, name, nodes, number of ranks, age,
state, command and last line.
""",
    "logs": """\
usage: bireme logs [-f] [--rank K] JOB

Shows the output of a job that was started by bireme run --detach, even after
its end. JOB is its id or its name.
""",
    "attach": """\
usage: bireme attach JOB

Shows the output of a running job from now on. Ctrl+C ends only this command.
JOB is its id or its name.
""",
    "stop": """\
usage: bireme stop [--now] JOB

Stops a running job, and waits for its end. JOB is its id or its name.
""",
    "signal": """\
usage: bireme signal JOB SIGNAL

Sends a signal to every rank of a running job, such as USR1. JOB is its id or
its name.
""",
    "preempt": """\
usage: bireme preempt JOB

Rehearses a preemption of a job with --checkpoint_signal: what would happen if
the scheduler announced one now. JOB is its id or its name.
""",
    "stacks": """\
usage: bireme stacks [JOB]

Shows what the ranks of a running job are doing: their Python stacks. Ranks with
the same stack share a line, and the smallest group comes first. JOB is its id
or its name; it may be left out if only one job runs. Needs py-spy:
pip install 'bireme[stacks]'.
""",
    "top": """\
usage: bireme top [--once] [JOB]

Shows what the ranks of a running job use: a row for each node, and in it for
each rank its share of a core, its memory, and the age of its last line; the
slowest first. s shows the stacks, l the last lines, d drains the marked node of
an elastic job, q ends this command. JOB may be left out if only one job runs.
""",
    "report": """\
usage: bireme report [--html FILE] JOB|FILE

Makes a page about a job that was started with --events FILE, even while it
runs: a timeline of all ranks, hangs and failures. The page is one file, which
needs no network. Needs jinja2: pip install 'bireme[report]'.
""",
    "shim": """\
usage: bireme shim [--] COMMAND …
       bireme shim --install DIR

Runs a command in which the names torchrun, deepspeed, accelerate launch and
python -m torch.distributed.run start Bireme.

  bireme shim -- llamafactory-cli train config.yaml
""",
    "agent": """\
usage: python -m bireme.agent --world_info BASE64 [options] script.py [args]

Starts the ranks of one node of a job, without a runner. The command line gives
all nodes and slots of the job.
""",
}
"""The first part of each command's page, above its options."""


def help_page(command: str, *, everything: bool = True) -> str:
    """The help page of a command; not ``everything``: of `run` and `tune` only the most used options."""
    groups = select(command)
    if command == "tune":
        first = ("tuning any program", "tuning")
        groups = {**{title: groups.pop(title) for title in first}, **groups}
    return _page(HEADS[command], groups, "" if everything or command not in ("run", "tune") else command)


def help_on(words: list[str]) -> str:
    """What ``bireme help WORDS`` shows: a command's page, with ``--all`` all its options, with ``--man`` the manual."""
    if words == ["--man"]:
        return "\n".join(_manual()) + "\n"
    name = " ".join(word for word in words if word != "--all")
    if name not in (*COMMANDS, *SUBCOMMANDS):
        otherwise = f"bireme help {', '.join(COMMANDS)}, or --man"
        hint = did_you_mean(name, (*COMMANDS, *SUBCOMMANDS), otherwise, form="bireme help {}")
        raise BadInputError("expected the name of a command", hint=hint)
    return help_page(name, everything="--all" in words)


def _page(head: str, groups: Groups, short: str = "") -> str:
    """A help page; ``short``: the command of which only the common options are shown, "" for all options."""
    width = min(max(size_of(1).columns, 60), 100)
    lines = [head]
    for title, options in groups.items():
        shown = [
            option
            for option in options
            if not short or option.common or (short == "tune" and title.startswith("tuning"))
        ]
        if not shown:
            continue
        lines.append(f"{title}:")
        for option in shown:
            lines += _entry(option, width)
        lines.append("")
    if short:
        lines.append(f"bireme {short} --help-all shows all {sum(map(len, groups.values()))} options")
    lines.append("docs/exit-codes.md explains the exit codes")
    return "\n".join(lines) + "\n"


def _entry(option: Option, width: int) -> list[str]:
    short = [name for name in option.names if not name.startswith("--")]
    long = [name for name in option.names if name.startswith("--")]
    left = "  " + ", ".join([*short, *long]) + option.usage
    text = option.help
    if option.kind == "choice" and f"{option.choices[-1]}: " not in text:  # the text explains them one by one
        text += f": {', '.join(option.choices)}"
    rows = wrap(text, width - _LEFT, break_on_hyphens=False)
    if len(left) > _LEFT - 2:
        return [left, *(" " * _LEFT + row for row in rows)]
    return [left.ljust(_LEFT) + rows[0], *(" " * _LEFT + row for row in rows[1:])]


def _manual() -> Iterator[str]:
    """The lines of the manual page, in roff."""
    yield f'.TH BIREME 1 "" "bireme {bireme.__version__}" "User Commands"'
    yield ".SH NAME"
    yield "bireme \\- launch distributed jobs, and find the configuration in which they run fastest"
    yield ".SH SYNOPSIS"
    for command in (*COMMANDS, *SUBCOMMANDS):
        usage = HEADS[command].partition("\n")[0].removeprefix("usage: ")
        yield f".B {_roff(usage)}"
        yield ".br"
    yield ".SH COMMANDS"
    for command in (*COMMANDS, *SUBCOMMANDS):
        yield f".SS bireme {command}"
        yield from _body(HEADS[command])
    yield ".SH OPTIONS"
    yield "Each option names the commands that have it. In names, _ and \\- mean the same."
    seen: Groups = {}
    for command in (*COMMANDS, *SUBCOMMANDS):
        for title, options in select(command).items():
            seen[title] = (*seen.get(title, ()), *(option for option in options if option not in seen.get(title, ())))
    for title, options in seen.items():
        yield f".SS {title}"
        for option in options:
            yield from _roff_entry(option)
    yield ".SH EXIT STATUS"
    yield "That of the first rank that failed, or 128 + n if signal n ended it; 0 if none failed."
    yield "2: bad input, and nothing was started; 69: a node is unfit; 74: files were not fetched; 75: a node was lost;"
    yield "76: too few nodes; 124: time limit; 125: Bireme itself failed."


def _body(head: str) -> Iterator[str]:
    """The text of a help page: paragraphs as they are, examples unfilled."""
    yield ".nf"
    yield from map(_roff, head.partition("\n\n")[2].rstrip().splitlines())
    yield ".fi"


def _roff_entry(option: Option) -> Iterator[str]:
    commands = ", ".join(command for command in option.commands if command != "agent")
    choices = f" One of {', '.join(option.choices)}." if option.choices else ""
    yield ".TP"
    yield ".B " + _roff(", ".join(option.names) + option.usage)
    yield _roff(f"{option.help[0].upper()}{option.help[1:]}.{choices} ({commands})")


def _roff(text: str) -> str:
    """The text with what roff would interpret escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    escaped = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
