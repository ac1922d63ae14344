"""The commands about running jobs: ``bireme ps``, ``logs``, ``attach``, ``stop``, ``signal`` and ``stacks``."""

from __future__ import annotations

import os
import shutil
import sys
import time

from bireme import drafts, signal_numbers
from bireme.cli.parser import Parsed, parse
from bireme.errors import LOST, OK, BadInputError
from bireme.logs.console import complain, printable, show
from bireme.options.table import select
from bireme.runner import detached, job_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

_FOLLOW = 0.1
"""Seconds between two looks at a log that grows."""


def main(word: str, argv: list[str]) -> int:
    """Run ``bireme WORD ARGV``; return the exit code."""
    groups = select(word)
    parsed = parse(groups, argv)
    if parsed.command[1:]:  # options may stand behind the job
        after = parse(groups, parsed.command[1:], parsed.options)
        parsed = after.replace(command=(parsed.command[0], *after.command))
    if parsed.options["help"]:
        from bireme.cli.help import help_page

        show(help_page(word))
        return OK
    return _COMMANDS[word](parsed)


def _ps(parsed: Parsed) -> int:
    _take_words(parsed, "ps", 0)
    found = list(_all())
    if parsed.options["json"]:
        import json

        show(json.dumps(found, indent=1) + "\n")
        return OK
    if not found:
        complain("no job of yours runs on this machine")
        return OK
    from bireme.result.report import duration

    rows = [("ID", "NAME", "NODES", "RANKS", "AGE", "STATE", "COMMAND", "LAST LINE")]
    for job in found:
        nodes, age = job["nodes"], duration(job["seconds"])
        where = f"{nodes[0]} … {nodes[-1]} ({len(nodes)})" if len(nodes) > 2 else ",".join(nodes)
        about = (str(job["id"]), job["name"] or "-", where, str(job["ranks"]), age, job["state"])
        rows.append((*about, job["command"], job["last"]))
    limits = (10, 20, 30, 6, 12, 9, 40, 60)
    cells = [[printable(cell)[:limit] for cell, limit in zip(row, limits, strict=True)] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(limits))]
    for row in cells:
        show("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    return OK


def _logs(parsed: Parsed) -> int:
    (job,) = _take_words(parsed, "logs", 1)
    path = detached.find_log(job, os.environ)
    if not path:
        running = any(job in (str(each["id"]), each["name"]) for each in _all())
        hint = "only jobs of bireme run --detach have one"
        hint = f"its output goes to its terminal: bireme attach {job} shows it from now on" if running else hint
        raise BadInputError(f"no log of a job {job}", hint=hint)
    rank, follow = parsed.options["rank"], parsed.options["follow"]
    number, rest, shown = -1, b"", False
    file: BinaryIO | None = None
    while True:
        runs, later = follow and detached.is_running(path), detached.next_part(path, number)
        for line in file or ():
            rest += line
            if rank is None or rest.endswith(b"\n"):
                shown = _write(rest, rank) or shown
                rest = b""
        if later is not None:
            if later[0] > number + 1:
                _write(rest, rank)
                missing = (later[0] - number - 1) * detached.PART >> 20
                show(f"bireme: {missing} MiB of output that came here are not kept\n")
                rest = b""
            number, file = later
        elif runs:
            time.sleep(_FOLLOW)
        else:
            if not _write(rest, rank) and not shown:
                complain(f"no line of rank {rank}: without --rank, lines without a label are shown too")
            return OK


def _write(line: bytes, rank: int | None) -> bool:
    """Show a line, if it is one of this rank: it is labelled ``[host:rank]``, ``[host:rank+]`` or ``[host:0-3,7]``."""
    if rank is not None:
        label = line.partition(b"]")[0]
        ranks = label.rpartition(b":")[2].removesuffix(b"+").split(b",") if label.startswith(b"[") else ()
        pairs = [(low, high or low) for low, _, high in (each.partition(b"-") for each in ranks)]
        if not any(low.isdigit() and high.isdigit() and int(low) <= rank <= int(high) for low, high in pairs):
            return False
    os.write(1, line)
    return True


def _attach(parsed: Parsed) -> int:
    pid = _pid_of(_take_words(parsed, "attach", 1)[0])
    _hear_ctrl_c()
    try:
        with job_client.connect(pid) as client:
            client.setblocking(True)
            client.send(b'{"do": "attach"}')
            while data := client.recv(1 << 16):
                os.write(1, data)
    except ConnectionRefusedError:
        raise _no_job(pid) from None
    except ConnectionError:
        pass
    except KeyboardInterrupt:
        complain(f"detached: job {pid} goes on")
        return OK
    if _goes_on(pid):
        complain(f"job {pid} goes on, but sends nothing more: its output was not read, or goes to many others")
    else:
        complain(f"job {pid} has ended")
    return OK


def _goes_on(pid: int) -> bool:
    """Whether a job still answers: one that ends leaves its clients first, and is listed a moment longer."""
    try:
        return "said" in job_client.ask(pid, do="look")
    except TimeoutError:  # it is suspended, or has no time
        return True
    except (OSError, ValueError):
        return False


def _hear_ctrl_c() -> None:
    """Let Ctrl+C be an exception again: the job goes on, and the user is told."""
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(parsed: Parsed) -> int:
    pid = _pid_of(_take_words(parsed, "stop", 1)[0])
    asked = _ask(pid, do="kill" if parsed.options["now"] else "stop")
    show(f"{asked['said']} job {pid}\n")
    _hear_ctrl_c()
    try:
        while any(each == pid for each in job_client.jobs()):
            time.sleep(_FOLLOW)
    except KeyboardInterrupt:
        complain("the job is still being stopped; only this command ended")
    return OK


def _signal(parsed: Parsed) -> int:
    job, name = _take_words(parsed, "signal", 2)
    signum = signal_numbers.named(name)
    if not signum:
        raise BadInputError(f"no such signal: {name!r}", hint="e.g. USR1, SIGUSR1 or 10")
    _ask(_pid_of(job), do="signal", signum=signum)
    return OK


def _preempt(parsed: Parsed) -> int:
    pid = _pid_of(_take_words(parsed, "preempt", 1)[0])
    show(f"{_ask(pid, do='preempt')['said']} job {pid}\n")
    return OK


def _one_job(parsed: Parsed, word: str) -> int:
    """The id of the job that is named, or of the only one."""
    words = parsed.command or tuple(str(job["id"]) for job in _all())
    if not parsed.command and len(words) != 1:
        many = f"{len(words)} jobs are running: name one"
        raise BadInputError(many if words else "no job of yours runs on this machine")
    return _pid_of(_take_words(parsed.replace(command=words), word, 1)[0])


def _stacks(parsed: Parsed) -> int:
    pid = _one_job(parsed, "stacks")
    show(printable(f"{_ask(pid, do='stacks')['said']}\n"))
    return OK


def _top(parsed: Parsed) -> int:
    from bireme.cli import top

    pid = _one_job(parsed, "top")
    if parsed.options["once"] or not (os.isatty(0) and os.isatty(1)):
        show(top.once(lambda **request: _ask(pid, **request), shutil.get_terminal_size((120, 24)).columns))
        return OK
    try:
        import curses
    except ImportError:
        raise BadInputError("this Python has no curses", hint=f"bireme top --once {pid}") from None
    try:
        curses.wrapper(top.Screen(lambda **request: _ask(pid, **request)).run)
    except BadInputError:
        complain(f"job {pid} has ended")
    except KeyboardInterrupt:
        pass
    return OK


def _report(parsed: Parsed) -> int:
    from bireme.cli import job_page

    (word,) = _take_words(parsed, "report", 1)
    path = word
    if not os.path.exists(word):
        found = [each for each in _all() if word in (str(each["id"]), each["name"])]
        if len(found) != 1:
            raise BadInputError(f"no file and no job of yours: {word}", hint="bireme report FILE, of --events")
        path = str(found[0]["events"])
        if not path:
            raise BadInputError(f"job {word} writes no events", hint="start it with --events FILE")
    place = parsed.options["html"] or f"{path}.html"
    text = job_page.page(job_page.read(path), path)
    try:
        drafts.write(place, text.encode(errors="replace"))
    except OSError as error:
        raise BadInputError(f"cannot write {place}: {error.strerror}", where="--html") from None
    show(f"{place}\n")
    return OK


def _take_words(parsed: Parsed, word: str, count: int) -> tuple[str, ...]:
    if len(parsed.command) != count:
        from bireme.cli.help import HEADS

        usage = HEADS[word].partition("\n")[0].removeprefix("usage: ")
        raise BadInputError(f"expected {('nothing', 'a job', 'a job and a signal')[count]}", hint=usage)
    return parsed.command


def _all() -> list[dict[str, Any]]:
    """What each job of this user says of itself, the oldest first."""
    found = []
    for pid in job_client.jobs():
        try:
            answer = job_client.ask(pid, do="look")
        except TimeoutError:
            answer = _seen(pid)
        except (OSError, ValueError):
            continue  # it is about to end
        if "id" in answer:
            answer.pop("said", None)
            found.append(answer)
    return sorted(found, key=lambda job: job["started"])


def _seen(pid: int) -> dict[str, Any]:
    """What can be seen of a job that does not answer; {}: it has ended."""
    from bireme.planning.masking import masked_words

    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file, open(f"/proc/{pid}/stat") as stat, open("/proc/uptime") as up:
            words = os.fsdecode(file.read()).split("\0")[:-1]
            state, *fields = stat.read().rpartition(")")[2].split()
            age = float(up.read().split()[0]) - int(fields[18]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return {}
    return {
        "id": pid,
        "name": "",
        "command": " ".join(masked_words(words)),
        "nodes": [],
        "ranks": 0,
        "seconds": round(age, 1),
        "started": round(time.time() - age),
        "state": "suspended" if state == "T" else "silent",
        "last": "",
        "log": "",
        "events": "",
    }


def _pid_of(job: str) -> int:
    """The id of a job, which is given by its id or its name."""
    if job.isdecimal():
        return int(job)
    named = [each["id"] for each in _all() if each["name"] == job]
    if len(named) != 1:
        what = f"{len(named)} jobs have the name {job!r}" if named else f"no job of yours has the name {job!r}"
        raise BadInputError(what, hint="bireme ps lists them")
    return int(named[0])


def _ask(pid: int, **request: object) -> dict[str, Any]:
    try:
        answer = job_client.ask(pid, **request)
    except ConnectionRefusedError:
        raise _no_job(pid) from None
    except (OSError, ValueError) as error:
        complain(f"the job does not answer: {error}")
        sys.exit(LOST)
    if "error" in answer:
        raise BadInputError(printable(str(answer["error"])))
    return answer


def _no_job(pid: int) -> BadInputError:
    return BadInputError(f"no job of yours with id {pid} runs on this machine", hint="bireme ps lists them")


_COMMANDS = {
    **{"ps": _ps, "logs": _logs, "attach": _attach, "stop": _stop, "signal": _signal, "preempt": _preempt},
    **{"stacks": _stacks, "top": _top, "report": _report},
}
