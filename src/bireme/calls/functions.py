"""Functions on ranks: `launch` runs one on every rank of a job and returns what each rank returned."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import marshal
import os
import pickle
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from bireme.calls import rank_side
from bireme.calls.running_job import Job, Stream, in_thread
from bireme.errors import BadInputError, BiremeError, counted
from bireme.job import JobSpec, Program
from bireme.options import python_interface
from bireme.result.report import summary
from bireme.signal_numbers import SIGINT

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Unpack

    from bireme.calls.job_fields import JobFields
    from bireme.result.outcome import Outcome

_NOT_WITH_FUNCTIONS = {"elastic", "restarts", "by_hand", "native_ranks", "stdin", "preload", "rendezvous"}


class JobError(BiremeError):
    """A job has failed. ``outcome``: how it ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(summary(outcome) or outcome.note or outcome.cause)
        self.outcome = outcome


class RankKilledError(JobError):
    """A signal has ended a rank, such as that of the kernel's out-of-memory killer."""


class NodeLostError(JobError):
    """A node was lost, or cannot run its part of the job."""


class TimeLimitError(JobError, TimeoutError):
    """The job has reached its time limit."""


class StoppedError(JobError):
    """The job was stopped before its end."""


_ERRORS = {
    "agent lost": NodeLostError,
    "unfit": NodeLostError,
    "too few nodes": NodeLostError,
    "time limit": TimeLimitError,
}
"""By the cause in the outcome."""


class RankTracebackError(Exception):
    """The traceback of an error on a rank: the cause of the error that is raised here."""


class Results(tuple[Any, ...]):
    """What each rank has returned, by rank."""

    _hosts: tuple[str, ...]

    def __new__(cls, values: Iterable[Any] = (), hosts: Iterable[str] = ()) -> Results:
        """Results of ranks on these hosts."""
        found = super().__new__(cls, values)
        found._hosts = tuple(hosts)
        return found

    def on(self, host: str) -> list[Any]:
        """What the ranks of one node have returned.

        Raises:
            KeyError: the job has no such node.
        """
        if host not in self._hosts:
            raise KeyError(f"no such node: {host!r} (the job had {', '.join(dict.fromkeys(self._hosts))})")
        return [value for value, own in zip(self, self._hosts, strict=True) if own == host]


class FunctionJob(Job):
    """A job whose ranks run a function: `results` returns what they have returned."""

    def __init__(
        self, spec: JobSpec, function: Callable[..., Any], args: Sequence[Any], *, stdout: Stream, stderr: Stream
    ) -> None:
        body, self._source = packed(function, args, {}), source_of(function)
        self._values: dict[int, Any] = {}
        self._failures: dict[int, tuple[bytes, str, str]] = {}
        super().__init__(spec, stdout=stdout, stderr=stderr, on_answer=self._take)
        # In a thread: what the ranks have not read yet must not keep the caller from waiting, or from stopping them.
        parts = (*first_words(stays=False), frame(rank_side.ALL, 1, body), frame(rank_side.ALL, 0, b""))
        in_thread(self.send, *parts)

    def _take(self, rank: int, _number: int, kind: bytes, answer: Any) -> None:
        if kind == b"r":
            self._values[rank] = answer
        elif kind == b"e":
            self._failures[rank] = answer

    def results(self, timeout: float | None = None) -> Results:
        """Wait for the end of the job; what each rank has returned.

        Raises:
            Exception: that of the rank that failed first; its traceback is the cause of the exception.
            JobError: the job has failed otherwise; see `RankKilledError`, `NodeLostError`, `TimeLimitError` and
                `StoppedError`.
            TimeoutError: it is still running after ``timeout`` seconds; it goes on.
        """
        outcome = self.wait(timeout)
        first = outcome.first.rank if outcome.first is not None else -1
        failed = first if first in self._failures else next(iter(self._failures), None)
        if failed is not None:
            raise raised(failed, self._failures[failed], outcome, self._source)
        if outcome.exit_code:
            raise failure(outcome)
        ends = sorted(outcome.ends, key=lambda end: end.rank)
        for end in ends:
            if end.rank not in self._values:
                raise JobError(outcome.replace(note=f"rank {end.rank} on {end.host} ended during the call"))
        return Results((self._values[end.rank] for end in ends), (end.host for end in ends))

    def __await__(self) -> Generator[Any, None, Results]:  # type: ignore[override]
        """In asyncio: the results. A task that is cancelled meanwhile stops the job."""
        yield from super().__await__()
        return self.results()


def launch(
    function: Callable[..., Any],
    *args: Any,
    stdout: Stream = None,
    stderr: Stream = None,
    **fields: Unpack[JobFields],
) -> Results:
    """Run ``function(*args)`` on every rank of a job, and wait for its end.

    A function of a module is imported there by its name. One of ``__main__``, of a notebook or of another function
    travels by value, which needs cloudpickle here. Ctrl+C stops the job.

    Args:
        function: what the ranks run; it and what it returns must be picklable.
        args: what it is called with, on every rank the same.
        stdout, stderr: where the output of the ranks goes: a file, a function that gets each line,
            ``subprocess.DEVNULL``; None: what is ``sys.stdout`` and ``sys.stderr`` now.
        fields: those of a `JobSpec`, such as ``num_gpus=4, hosts="node[1-2]", ship=True``.

    Returns:
        What each rank returned: ``results[0]``, ``results.on("node1")``.

    Raises:
        Exception: that of the rank that failed first; its traceback is the cause of the exception.
        JobError: the job has failed otherwise, see its subclasses in this module.
        BadInputError: the job cannot be run as described; nothing has been started.
    """
    with FunctionJob(function_spec(fields), function, args, stdout=stdout, stderr=stderr) as job:
        return job.results()


@overload
def start(
    what: Callable[..., Any],
    *args: Any,
    stdout: Stream = ...,
    stderr: Stream = ...,
    **fields: Unpack[JobFields],
) -> FunctionJob: ...


@overload
def start(
    what: str | os.PathLike[str] | Program | JobSpec,
    *args: object,
    stdout: Stream = ...,
    stderr: Stream = ...,
    **fields: Unpack[JobFields],
) -> Job: ...


def start(what: Any, *args: Any, stdout: Stream = None, stderr: Stream = None, **fields: Unpack[JobFields]) -> Any:
    """Start a job and return at once, from any thread; many may run at the same time.

    Args:
        what: a function, as for `launch`; or the path of a script, a `Program` or a whole `JobSpec`.
        args: of the function or of the script.
        stdout, stderr, fields: as for `launch`.

    Returns:
        A `Job`: of a function, with its ``results()``.

    Raises:
        BadInputError: the job cannot be described like this; what the nodes say about it is raised by ``wait()``.
        TypeError: a field has a value of another type, or there is no such field.
    """
    if callable(what) and not isinstance(what, (Program, JobSpec)):
        return FunctionJob(function_spec(fields), what, args, stdout=stdout, stderr=stderr)
    if isinstance(what, JobSpec):
        spec = what.replace(**described(fields))
    else:
        program = what if isinstance(what, Program) else Program(os.fspath(what), tuple(map(str, args)))
        spec = JobSpec(program=program, **described(fields))
    python_interface.check(spec)
    return Job(spec, stdout=stdout, stderr=stderr)


# -- what travels ----------------------------------------------------------------------------------------


def described(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `JobSpec`, where users may say it shorter: ``ship=True``, ``exports="A=1"``."""
    found = dict(fields)
    if found.get("ship") is True:
        found["ship"] = "git"
    for name, hint in JobSpec.__annotations__.items():
        if hint == "tuple[str, ...]" and isinstance(found.get(name), str):
            found[name] = (found[name],)
    return found


def function_spec(fields: Mapping[str, Any]) -> JobSpec:
    """The job whose ranks take calls of functions."""
    for name in fields.keys() & _NOT_WITH_FUNCTIONS:
        raise BadInputError(
            f"{name}: cannot be used with functions", hint="with a script it can: bireme.start('train.py', …)"
        )
    spec = JobSpec(program=Program("function", kind="module"), **described(fields))
    python_interface.check(spec)
    return spec.replace(program=Program(rank_side.BOOT, kind="function"), stdin="all")


def packed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], how: bytes = rank_side.ONE
) -> bytes:
    """A call as bytes.

    Args:
        how: `rank_side.EACH`: call the function for each element of the arguments, as `map` does; and so on.

    Raises:
        TypeError: the function or one of its arguments cannot be pickled.
    """
    cloudpickle = _cloudpickle()
    name = getattr(function, "__qualname__", "")
    if cloudpickle is None and (getattr(function, "__module__", "") == "__main__" or "<locals>" in name):
        raise BadInputError(
            f"{name} is defined in {function.__module__}, so it is sent by value",
            hint="pip install 'bireme[python]' (cloudpickle), or move it to a module of its own",
        )
    pickled: Callable[[object], bytes] = (cloudpickle or pickle).dumps
    try:
        return how + pickled((function, tuple(args), kwargs))
    except Exception as error:
        for name, part in (("function", function), *((f"argument {place}", arg) for place, arg in enumerate(args))):
            try:
                pickled(part)
            except Exception as own:
                raise TypeError(f"{name} cannot be sent to the ranks: {own}") from None
        raise TypeError(f"cannot be sent to the ranks: {error}") from None


def source_of(function: Callable[..., Any]) -> str:
    """The file in which a function is defined; "" if it is not known."""
    return getattr(getattr(function, "__code__", None), "co_filename", "")


def _cloudpickle() -> ModuleType | None:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def frame(rank: int, number: int, body: bytes) -> bytes:
    """One frame for the ranks (`bireme.calls.rank_side`)."""
    return rank_side.CALL.pack(rank, number, len(body)) + body


def first_words(*, stays: bool) -> tuple[bytes, bytes]:
    """What the ranks hear first: their program, and what all calls need.

    Args:
        stays: whether a rank goes on after a call that has failed.
    """
    from inspect import getsource

    import bireme.rank_numbers
    from bireme.agent import sent_modules

    code = getsource(rank_side)
    facade = "from bireme.rank_numbers import local_rank, node, rank, world_size\n"
    sources = {"bireme": facade, "bireme.rank_numbers": getsource(bireme.rank_numbers)}
    cloudpickle = _cloudpickle()
    if cloudpickle is not None:
        sources["cloudpickle"] = getsource(cloudpickle)
        sources["cloudpickle.cloudpickle"] = getsource(sys.modules["cloudpickle.cloudpickle"])
    sent = {name: (text, _code(name, text)) for name, text in sources.items()}
    setup = {"path": _search_path(), "sources": sent, "stays": stays, "version": sys.version_info[:2]}
    setup |= {"magic": importlib.util.MAGIC_NUMBER, "finder": getsource(sent_modules)}
    return b"%08d" % len(code.encode()) + code.encode(), frame(rank_side.ALL, 0, pickle.dumps(setup))


@functools.cache
def _code(name: str, source: str) -> bytes:
    return marshal.dumps(compile(source, f"<sent>/{name.replace('.', '/')}.py", "exec"))


def _search_path() -> list[str]:
    """The folders in which this program finds its own modules; those below the working directory as relative paths."""
    here, found = os.getcwd(), []
    for place in sys.path:
        path = os.path.abspath(place)
        if path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep)) or not os.path.isdir(path):
            continue
        inside = path == here or path.startswith(here + os.sep)
        found.append(os.path.relpath(path, here) if inside else path)
    return found


# -- what has failed ---------------------------------------------------------------------------------------


def raised(
    rank: int, failed: tuple[bytes, str, str], outcome: Outcome | None = None, source: str = ""
) -> BaseException:
    """The exception of a rank, to be raised here.

    Args:
        failed: its pickle, its traceback, and how it is called.
        source: the file of the function.
    """
    itself, text, called = failed
    try:
        error: Any = pickle.loads(itself) if itself else RuntimeError(f"rank {rank}: {called}")
    except Exception:
        error = RuntimeError(f"rank {rank}: {called}")
    BaseException.__setattr__(error, "__cause__", RankTracebackError(f"\n\n{_with_places(text, source)}"))
    end = next((end for end in outcome.ends if end.rank == rank), None) if outcome is not None else None
    _note(error, f"raised on rank {rank}" + (f" on {end.host}, after {end.seconds:.1f} s" if end is not None else ""))
    note_stopped(error, sum(end.stopped for end in outcome.ends) if outcome is not None else 0)
    return cast("BaseException", error)


def note_stopped(error: Any, count: int) -> None:
    """Say in the notes of an error how many ranks were stopped because of it."""
    if count:
        _note(error, f"{counted(count, 'other rank')} {'was' if count == 1 else 'were'} stopped because of it")


def _note(error: Any, text: str) -> None:
    BaseException.__setattr__(error, "__notes__", [*getattr(error, "__notes__", ()), text])
    if sys.version_info < (3, 11) and isinstance(error.__cause__, RankTracebackError):  # which show no notes
        error.__cause__.args = (f"{error.__cause__.args[0]}\n{text}\n",)


def _with_places(text: str, source: str) -> str:
    """A traceback in which code that has travelled by value is found where it was written."""

    def place(found: re.Match[str]) -> str:
        line = linecache.getline(source, int(found[1])).strip()
        return f'File "{source}", line {found[1]}{found[2]}' + (f"\n    {line}" if line else "")

    return re.sub(r'File "<dynamic-code>", line (\d+)(.*)', place, text) if source else text


def failure(outcome: Outcome) -> BaseException:
    """The error of a job that has failed without an exception of a rank."""
    if outcome.cause == "signal":
        return KeyboardInterrupt() if outcome.signum == SIGINT else StoppedError(outcome)
    killed = outcome.first is not None and outcome.first.by_signal
    return _ERRORS.get(outcome.cause, RankKilledError if killed else JobError)(outcome)
