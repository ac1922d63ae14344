"""The command ``bireme``: chooses the subcommand, and turns its errors into messages and exit codes."""

from __future__ import annotations

import codecs
import io
import os
import sys

import bireme
from bireme.errors import BAD_INPUT, INTERNAL, OK, READER_GONE, UNFIT, BadInputError, BiremeError, did_you_mean
from bireme.logs.console import complain, open_closed_streams, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

USAGE = """\
usage: bireme COMMAND …

  bireme run [options] script.py [args]    launch a distributed job
  bireme run --help                        show its main options, with examples
  bireme tune [options] script.py [args]   find its fastest configuration
  bireme check [options] [script.py]       check that the nodes can run a job
  bireme ps                                list running jobs
  bireme logs | attach | stop JOB          show the output of a job, or stop it
  bireme stacks | top JOB                  show what its ranks do and use
  bireme report JOB|FILE                   make a page of its --events
  bireme signal JOB SIG | preempt JOB      signal its ranks, or let them save
  bireme drain NODE JOB                    take a node out of an elastic job
  bireme shim -- COMMAND                   run it on Bireme instead of torchrun
  bireme help [COMMAND]                    show the options of a command
  bireme completion SHELL                  complete options in bash, zsh or fish
  bireme --version
"""
_COMMANDS = ("run", "tune", "check", "drain", "shim", "completion")
"""Each is a module of this package."""
_OF_JOBS = ("ps", "logs", "attach", "stop", "signal", "preempt", "stacks", "top", "report")
"""These are one module."""


def command() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    guarded(_dispatch, sys.argv[1:])


def guarded(carry_out: Callable[[list[str]], int], argv: list[str]) -> NoReturn:
    """Run a command and exit with its code, skipping the interpreter's shutdown, which takes 3 ms."""
    _prepare_streams()
    code = main(argv, carry_out)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or READER_GONE
    except OSError as error:
        if code == OK:  # otherwise the command has reported its own failure
            complain(f"cannot write to stdout: {error.strerror}")
            code = INTERNAL
    os._exit(code)


def _prepare_streams() -> None:
    """Let all standard streams be open, and able to write any character."""
    open_closed_streams()
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("bireme", _any_character)
        sys.stdout.reconfigure(errors="bireme")
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def _any_character(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode what an encoding lacks: bytes of an argument, which a dry run shows, as they are; the rest by number."""
    assert isinstance(error, UnicodeEncodeError)
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(error)


def main(argv: list[str], carry_out: Callable[[list[str]], int] | None = None) -> int:
    """Run one command line; return the exit code. Every error is reported, none is raised."""
    try:
        return (carry_out or _dispatch)(argv)
    except BiremeError as error:
        cause = error.__cause__ if error.code == UNFIT else None
        complain((cause and _shortage(cause)) or str(error))
        return UNFIT if error.code == INTERNAL and isinstance(error.__cause__, OSError) else error.code
    except BrokenPipeError:
        return READER_GONE
    except Exception as error:
        if short := _shortage(error):
            complain(short)
            return UNFIT
        return _our_fault(error)


def _dispatch(argv: list[str]) -> int:
    if not argv:
        sys.stderr.write(USAGE)
        return BAD_INPUT
    word, *rest = argv
    if word in _COMMANDS:
        code: int = __import__(f"bireme.cli.{word}", fromlist=["main"]).main(rest)
        return code
    if word in _OF_JOBS:
        from bireme.cli import jobs

        return jobs.main(word, rest)
    if word in ("help", "--help", "-h"):
        return _help(rest)
    if word == "--version":
        show(f"bireme {bireme.__version__}\n")
        return OK
    return _unknown(word, rest)


def _unknown(word: str, rest: list[str]) -> int:
    """Refuse an unknown command; say what to type if that can be guessed."""
    from bireme.options.switching import COMMANDS, SUBJECTS

    words = argv = [word, *rest]
    if os.path.isfile(f"{word}.py") and not (word in COMMANDS and rest):
        raise BadInputError(f"unknown command: {word!r}", hint=f"to run a job: bireme run {word}.py")
    if word in SUBJECTS and not os.path.exists(word):
        raise BadInputError(f"unknown command: {word!r}", hint=SUBJECTS[word])
    if word in COMMANDS:
        words = rest[1:] if rest[:1] == ["launch"] else rest
    elif not (word.startswith("-") or word.endswith(".py") or os.path.exists(word)):
        words = []
        if near := did_you_mean(word, (*_COMMANDS[:-1], *_OF_JOBS), form="bireme {}"):
            raise BadInputError(f"unknown command: {word!r}", hint=near)
    if not words:
        complain(f"unknown command: {word!r}")
        sys.stderr.write(USAGE)
        return BAD_INPUT
    from bireme.planning.masking import shortened

    what = f"unknown option: {word}" if argv is words and word.startswith("-") else f"unknown command: {word!r}"
    raise BadInputError(what, hint=f"to run a job: bireme run {shortened(words)}")


def _help(argv: list[str]) -> int:
    if not argv:
        show(USAGE)
        return OK
    from bireme.cli.help import help_on

    show(help_on(argv))
    return OK


def _shortage(error: BaseException) -> str:
    """What is used up here, and what raises the limit, if that is the reason for an error; else ""."""
    import errno
    import resource

    for of, what, limit, hint in (
        (errno.EMFILE, "open files", resource.RLIMIT_NOFILE, "raise the limit: ulimit -n 1024"),
        (errno.ENFILE, "open files on this machine", -1, "close some, or raise the limit: sysctl fs.file-max"),
        (errno.EAGAIN, "processes", resource.RLIMIT_NPROC, "end some, or raise the limit: ulimit -u"),
        (errno.ENOMEM, "memory", resource.RLIMIT_AS, "free some, or raise the limit: ulimit -v"),
        (errno.EFBIG, "bytes in a file", resource.RLIMIT_FSIZE, "raise the limit: ulimit -f"),
        (errno.ENOSPC, "space on the disk", -1, "free some, or set TMPDIR to a folder on another disk"),
        (errno.EDQUOT, "space in your quota", -1, "free some, or set TMPDIR to a folder on another disk"),
    ):
        used_up = isinstance(error, OSError) and error.errno == of
        used_up = used_up or (isinstance(error, MemoryError) and of == errno.ENOMEM)
        if used_up or (isinstance(error, ImportError) and os.strerror(of) in str(error)):
            soft = resource.getrlimit(limit)[0] if limit >= 0 else resource.RLIM_INFINITY
            allowed = f" (limit: {soft})" if soft != resource.RLIM_INFINITY else ""
            return f"no more {what}{allowed}\n  {hint}"
    return ""


def _our_fault(error: Exception) -> int:
    """Report a bug of Bireme: one line for the user, the traceback in a file for the bug report."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="bireme-crash-", suffix=".txt", delete=False) as file:
            file.write(text)
        place = f"the traceback is in {file.name}: please report it"
    except OSError:
        place = text
    complain(f"Bireme itself failed: {type(error).__name__}: {error}\n  {place}")
    return INTERNAL
