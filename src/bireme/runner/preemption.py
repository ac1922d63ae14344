"""Preemption: the scheduler is about to take the nodes away, so all ranks are told to save, and get the time left."""

from __future__ import annotations

import os
import time

from bireme import signal_numbers as signal
from bireme.errors import counted
from bireme.result.outcome import signal_name
from bireme.result.report import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen
    from typing import Protocol

    from bireme.job import JobSpec
    from bireme.logs.console import Console
    from bireme.loop import Loop, Timer
    from bireme.result.outcome import RankEnd
    from bireme.result.verdict import Verdict
    from bireme.runner.crew import Crew

    class Job(Protocol):
        """What is preempted: a session."""

        spec: JobSpec
        loop: Loop
        console: Console
        verdict: Verdict

        @property
        def crew(self) -> Crew:
            """What runs the ranks."""

        @property
        def ended(self) -> bool:
            """Whether no rank runs any more, or all are being stopped."""

        def where(self) -> tuple[dict[int, str], str]:
            """The node of each rank, and their folder."""

        def note(self, event: str, **fields: object) -> None:
            """Write an event."""


_BEFORE_END = 60.0
"""Seconds before the end of an allocation at which we begin without a signal, as ``sbatch --signal`` does."""
_LONGEST = 3600.0
"""An allocation that ends later than in this many seconds was signalled for another reason: the end says nothing."""
_ANSWER = 2.0
"""Seconds that Slurm may take to say when the allocation ends."""
_MOST_NAMED = 16


class Preemption:
    """Watches for a preemption of one job, and carries it out once.

    The ranks get ``--checkpoint_signal`` at once. Those that are there shortly before the end of the time get SIGTERM,
    and SIGKILL at its end. Nothing else stops a rank: the others may wait for it while they save.
    """

    def __init__(self, session: Job) -> None:
        self._session = session
        self._given = session.spec.preemption
        self._since: float | None = None
        self._saved: dict[int, tuple[float, RankEnd]] = {}  # rank → seconds that it took, and its end
        self._timers: list[Timer] = []
        self._asking: Popen[bytes] | None = None
        self._patience: Timer | None = None  # with Slurm
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        if end.isdecimal():
            self._await_end(int(end) - time.time())
        else:  # older versions of Slurm do not set it
            self._ask_slurm(lambda left: self._await_end(left or 0.0))

    def _await_end(self, left: float) -> None:
        """Begin shortly before the end of the allocation, which comes in so many seconds unless it is moved."""
        if left > 0:
            after = max(0.0, left - (self._given[1] or _BEFORE_END))
            self._timers.append(self._session.loop.after(after, lambda: self._ask_slurm(self._near_end)))

    def _near_end(self, left: float | None) -> None:
        if left is not None and left > (self._given[1] or _BEFORE_END) + _ANSWER:
            self._await_end(left)
        else:
            self.begin("the end of the allocation")

    def takes(self, signum: int) -> bool:
        """Whether the scheduler announces a preemption by this signal."""
        return signum == self._given[0]

    def begin(self, why: str) -> None:
        """Tell all ranks to save; ``why``: what announces the preemption."""
        session, now = self._session, self._session.loop.now()
        if session.ended or not session.verdict.blame("preempted", now, note=f"preempted: {why}"):
            return
        self._since = now
        session.note("stopping", cause="preempted", note=why, hosts=[])
        if not session.where()[0]:  # there is no rank yet
            session.crew.stop(signal.SIGTERM)
            return
        signum = session.spec.checkpoint_signum
        session.crew.signal_ranks(signum, later=True)
        session.console.say("warning", f"preempted: {why}; the ranks get {signal_name(signum)} and time to save")
        if self._given[1]:
            self._left(self._given[1])
        else:
            self._ask_slurm(lambda left: self._left(left if left is not None and left <= _LONGEST else None))

    def _ask_slurm(self, then: Callable[[float | None], object]) -> None:
        """Find out how much time is left: what the environment says was true at the start of the allocation."""
        from subprocess import DEVNULL, PIPE, Popen

        job, loop = os.environ.get("SLURM_JOB_ID", ""), self._session.loop
        self._leave_slurm()
        if not job:
            then(None)
            return
        command = ("scontrol", "show", "job", "--oneliner", job)
        try:
            env = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
            self._asking = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=env)
        except OSError:
            then(None)
            return
        assert self._asking.stdout is not None
        fd = self._asking.stdout.fileno()
        said = bytearray()

        def answered() -> None:
            self._leave_slurm()
            end = said.partition(b" EndTime=")[2].partition(b" ")[0]
            left = int(end) - time.time() if end.isdigit() else 0.0
            then(left if left > 0 else None)

        def hear() -> None:
            data = os.read(fd, 65536)
            said.extend(data)
            if not data:
                answered()

        loop.watch(fd, hear)
        self._patience = loop.after(_ANSWER, answered)

    def _leave_slurm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._asking is not None:
            asking, self._asking = self._asking, None
            assert asking.stdout is not None
            self._session.loop.unwatch(asking.stdout.fileno())
            asking.stdout.close()
            asking.kill()
            asking.wait()

    def _left(self, seconds: float | None) -> None:
        """The ranks have this long; None: it is not known."""
        session, grace = self._session, self._session.spec.grace
        hint = ""
        if seconds is None:
            seconds = grace
            hint = f", as --grace says; if it is more, type --preempt_signal {signal_name(self._given[0])}@SECONDS"
        session.console.say("info", f"{duration(seconds)} are left{hint}")
        after = session.loop.after
        self._timers += (
            after(seconds - min(grace, seconds / 5), lambda: session.crew.stop(signal.SIGTERM)),
            after(seconds, session.crew.kill_now),
        )

    def down(self, end: RankEnd) -> None:
        """Note the end of a rank."""
        if self._since is not None:
            self._saved[end.rank] = self._session.loop.now() - self._since, end

    def told(self) -> str:
        """Which ranks have ended by themselves after the signal, and how long each took; "": there was none."""
        if self._since is None:
            return ""
        alone = {rank: each for rank, each in sorted(self._saved.items()) if not each[1].stopped}
        slowest = sorted(alone, key=lambda rank: -alone[rank][0])
        named = slowest[:_MOST_NAMED] if len(slowest) > _MOST_NAMED else list(alone)
        each = [f"rank {rank} after {duration(alone[rank][0])}{_how(alone[rank][1])}" for rank in named]
        more = f"; the others took less: {', '.join(each)}" if len(slowest) > len(named) else f": {', '.join(each)}"
        return f"  {counted(len(alone), 'rank')} ended without being stopped{more if each else ''}"

    def close(self) -> None:
        """End what still runs."""
        self._leave_slurm()
        for timer in self._timers:
            timer.cancel()


def _how(end: RankEnd) -> str:
    if not end.code:
        return ""
    return f" ({signal_name(end.code - 128) if end.by_signal else f'exit code {end.code}'})"


def requeue() -> str:
    """Ask Slurm to queue the job of this allocation again, which ends it; return an error, "": there is none."""
    from subprocess import PIPE, STDOUT, run

    try:
        done = run(("scontrol", "requeue", os.environ.get("SLURM_JOB_ID", "")), stdout=PIPE, stderr=STDOUT, check=False)
    except OSError as error:
        return f"scontrol: {error.strerror}"
    return done.stdout.decode(errors="replace").strip() or "scontrol failed" if done.returncode else ""
