"""An executor over ranks that stay: each call goes to one of them, or to all of them as a group."""

from __future__ import annotations

import atexit
import concurrent.futures
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from bireme.calls import rank_side
from bireme.calls.functions import (
    Results,
    StoppedError,
    TimeLimitError,
    failure,
    first_words,
    frame,
    function_spec,
    note_stopped,
    packed,
    raised,
    source_of,
)
from bireme.calls.running_job import Job, Stream
from bireme.errors import BiremeError
from bireme.logs.console import complain
from bireme.result.outcome import Outcome, RankEnd, describe, exit_code
from bireme.value import Value

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bireme.calls.job_fields import JobFields

_PATIENCE = 0.5
"""Seconds after the failure of one rank of a group in which the others may answer too."""

_all: weakref.WeakSet[Executor] = weakref.WeakSet()


class _Call:
    """A call that waits or runs, on a rank or on all of them.

    Args:
        group: whether all ranks run it together.
    """

    def __init__(self, body: bytes, source: str, *, group: bool) -> None:
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.body, self.source, self.group = body, source, group
        self.answers: dict[int, Any] = {}  # None of a rank that has failed
        self.error: BaseException | None = None
        self.stopped = 0
        self.number = 0  # it has one while it runs


class _OfEach(Value):
    """A function that one call applies to each element of its columns of arguments."""

    function: Callable[..., Any]


class Executor(concurrent.futures.Executor):
    """Ranks that stay, and run one call after another: a `concurrent.futures.Executor`.

    A call that raises an exception fails, and its rank goes on. A rank that dies fails its call, and is replaced. If
    the job ends, as by a lost node, the calls that run fail, and a new job runs those that wait; if it was stopped, or
    has reached its time limit, they fail too.

    Args:
        stdout, stderr, fields: as for `bireme.launch`.

    Raises:
        BadInputError: the job cannot be run as described.
        BiremeError: the ranks cannot be started.
    """

    def __init__(self, *, stdout: Stream = None, stderr: Stream = None, **fields: Unpack[JobFields]) -> None:
        self._spec = function_spec(fields)
        self._stdout, self._stderr = stdout, stderr
        self._lock = threading.Condition(threading.RLock())
        self._waiting: deque[_Call] = deque()
        self._running: dict[int, _Call] = {}  # by the number of the call
        self._numbers = itertools.count(1)
        self._idle: set[int] = set()
        self._hosts: dict[int, str] = {}  # of the ranks that have begun
        self._size = 0
        self._closing = False
        self._job: Job | None = None
        self._failed: BaseException | None = None
        with self._lock:
            self._start()
            try:
                while not self._idle and self._failed is None:
                    self._lock.wait()
            except KeyboardInterrupt:
                cast("Job", self._job).stop()
                raise
        if self._failed is not None:
            raise self._failed
        _all.add(self)

    # -- for users -------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._size

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Have one rank run ``fn(*args, **kwargs)``."""
        if isinstance(fn, _OfEach):
            return self._enqueue(fn.function, args[0], kwargs, rank_side.EACH).future  # type: ignore[unreachable]
        return self._enqueue(fn, args, kwargs, rank_side.ONE).future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """As of every executor. ``chunksize``: how many elements a rank gets in one call."""
        if chunksize < 1:
            raise ValueError("chunksize must be at least 1")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        rows = zip(*iterables)  # noqa: B905  (as the built-in map)
        chunks = iter(lambda: list(itertools.islice(rows, chunksize)), [])
        columns = (list(zip(*chunk, strict=True)) for chunk in chunks)
        return itertools.chain.from_iterable(super().map(_OfEach(fn), columns, timeout=timeout))  # type: ignore[arg-type]

    def launch(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Results:
        """Have all ranks run a function together, as `bireme.launch` does, and wait for what they return.

        They meet at a port of their own, or always at ``master_port``, if that is given. If one of them fails, the
        others are stopped and replaced, as they are by Ctrl+C.
        """
        how = rank_side.GROUP if self._spec.master_port is None else rank_side.ONE
        call = self._enqueue(fn, args, kwargs, how, group=True)
        try:
            return cast("Results", call.future.result())
        except KeyboardInterrupt:
            self._fail(call, KeyboardInterrupt(), 0.0)
            if not call.future.cancel():
                concurrent.futures.wait([call.future])
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the ranks when all calls have ended; ``cancel_futures``: those that wait are not run."""
        with self._lock:
            self._closing = True
            while cancel_futures and self._waiting:
                future = self._waiting.popleft().future
                future.cancel()
                future.set_running_or_notify_cancel()  # those who wait for it hear of it only now
            self._maybe_end()
            while wait and self._job is not None and threading.current_thread() is not self._job.thread:
                self._lock.wait()

    # -- calls -----------------------------------------------------------------------------------------

    def _enqueue(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], how: bytes, *, group: bool = False
    ) -> _Call:
        call = _Call(packed(fn, args, kwargs, how), source_of(fn), group=group)
        with self._lock:
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._failed is not None:
                raise self._failed
            self._waiting.append(call)
            self._dispatch()
        return call

    def _dispatch(self) -> None:
        """Send calls to idle ranks, in their order; a group waits until all are idle."""
        while self._waiting and self._idle and self._job is not None:
            if self._waiting[0].group and len(self._idle) < self._size:
                return
            call = self._waiting.popleft()
            if not call.future.set_running_or_notify_cancel():
                continue
            rank = rank_side.ALL if call.group else min(self._idle)
            call.number = next(self._numbers)
            self._running[call.number] = call
            self._idle -= set(self._hosts) if call.group else {rank}
            self._job.send(frame(rank, call.number, call.body))

    def _take(self, rank: int, number: int, kind: bytes, answer: Any) -> None:
        """In the thread of the job: a rank has begun, has answered, or has ended."""
        with self._lock:
            done = self._running.get(number)
            if kind == b"m" and self._job is not None:
                self._job.send(frame(rank_side.ALL, number, str(answer).encode()))
            if kind in (b"", b"m"):
                return
            if number == 0 and kind == b"r":
                self._size, self._hosts[rank] = answer
                self._idle.add(rank)
                self._lock.notify_all()
            if kind == b"d":
                self._died(rank, done, *answer)
            if done is not None:
                if kind == b"e":
                    self._fail(done, raised(rank, answer, source=done.source), _PATIENCE)
                done.answers[rank] = answer if kind == b"r" else None
                if len(done.answers) < (self._size if done.group else 1):
                    return
                del self._running[number]
                self._idle |= set(done.answers)
        del answer
        if done is not None:
            self._resolve(done)
        with self._lock:
            self._dispatch()
            self._maybe_end()

    def _resolve(self, done: _Call) -> None:
        """Tell the future, without the lock: whoever waits for it may call us."""
        if done.error is not None:
            note_stopped(done.error, done.stopped)
            done.future.set_exception(done.error)
        elif done.group:
            ranks = sorted(done.answers)
            done.future.set_result(Results(map(done.answers.get, ranks), [self._hosts[rank] for rank in ranks]))
        else:
            done.future.set_result(done.answers.popitem()[1])

    def _died(self, rank: int, call: _Call | None, pid: int, status: int, seconds: float) -> None:
        """The process of a rank has died, and another has its place."""
        if call is not None and call.error is not None:
            call.stopped += 1
            return
        host, code, by_signal = self._hosts[rank], exit_code(status), os.WIFSIGNALED(status)
        complain(f"rank {rank} on {host} is replaced: {describe(code, by_signal=by_signal)}")
        if call is None:
            return
        end = RankEnd(
            rank=rank, host=host, device="", pid=pid, code=code, by_signal=by_signal, seconds=seconds, stopped=False
        )
        outcome = Outcome(exit_code=code, cause="rank failed", seconds=seconds, ends=(end,), first=end)
        if not code:
            outcome = outcome.replace(cause="ok", first=None, note=f"rank {rank} on {host} ended during a call")
        self._fail(call, failure(outcome), 0.0)

    def _fail(self, call: _Call, error: BaseException, patience: float) -> None:
        """A call has failed; the ranks of a group that have not answered in so many seconds are replaced."""

        def end() -> None:
            with self._lock:
                if call.number in self._running and self._job is not None:
                    self._job.send(frame(rank_side.ALL, call.number, b""))

        with self._lock:
            if call.number in self._running and call.error is None:
                call.error = error
                if call.group:
                    timer = threading.Timer(patience, end)
                    timer.daemon = True
                    timer.start()

    def _maybe_end(self) -> None:
        if self._closing and not self._waiting and not self._running and self._job is not None:
            self._job.send(frame(rank_side.ALL, 0, b""))

    # -- ranks -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._job = Job(self._spec, stdout=self._stdout, stderr=self._stderr, on_answer=self._take)
        self._job.send(*first_words(stays=True))
        self._job.add_done_callback(self._gone)

    def _gone(self, job: Job) -> None:
        """All ranks have ended: fail the calls that ran, and start new ones unless that would fail again."""
        try:
            error: BaseException = failure(job.wait())
        except BiremeError as own:
            error = own
        with self._lock:
            lost = [call.future for call in self._running.values()]
            is_stopped = isinstance(error, (StoppedError, TimeLimitError, KeyboardInterrupt))
            again = bool(self._hosts) and not self._closing and not is_stopped
            self._running, self._idle, self._hosts, self._job = {}, set(), {}, None
            if again:
                complain(f"the ranks are replaced: {str(error).partition(chr(10))[0]}")
                self._spec = self._spec.replace(attempt=self._spec.attempt + 1)
                try:
                    self._start()
                except BiremeError as own:
                    error, again = own, False
            if not again:
                self._failed = error
                lost += [call.future for call in self._waiting if call.future.set_running_or_notify_cancel()]
                self._waiting.clear()
            self._lock.notify_all()
        for future in lost:
            if not future.done():
                future.set_exception(error)


@atexit.register
def _finish() -> None:
    """At the end of the program, as with other executors: what was submitted is done."""
    for each in list(_all):
        each.shutdown()
