"""The session of a job, from its start to its outcome: reacts to the ends of ranks, and passes on their output.

A *crew* runs the ranks: that of this machine (:mod:`bireme.launching.one_machine`), or the agents of many nodes
(:mod:`bireme.cluster.cluster_crew`). :mod:`bireme.runner.signals` reacts to signals.
"""

from __future__ import annotations

import os
import sys

from bireme import signal_numbers as signal
from bireme.errors import OK, BadInputError
from bireme.job import ANSWERS
from bireme.logs.console import ERR, OUT, Console, Sink
from bireme.logs.output import JobOutput, Style
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS, Loop
from bireme.options.option import seconds_of
from bireme.result.outcome import WORDS_OF, signal_name
from bireme.result.verdict import Verdict
from bireme.runner.signals import JobSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from bireme.job import JobSpec
    from bireme.planning.start import StartPlan
    from bireme.result.outcome import Cause, Outcome, RankEnd
    from bireme.result.rank_use import RankUses
    from bireme.result.stacks import RankStack
    from bireme.runner.control_socket import Client, ControlSocket
    from bireme.runner.crew import Crew
    from bireme.runner.event_log import EventLog
    from bireme.runner.hang_watch import HangWatch
    from bireme.runner.job_requests import JobRequests
    from bireme.runner.preemption import Preemption
    from bireme.runner.question import Question
    from bireme.runner.quiet_time import QuietTime


_REST_ON_TERMINAL = 0.1
_REST_ELSEWHERE = 0.5

_SOCKET_DELAY = 0.05
"""Seconds after which a job takes requests: one that ends sooner needs not."""

_LAST_LINE = 200
"""Bytes of the last line that ``bireme ps`` shows."""

_LOOK = 5.5
"""Seconds that a job goes on at most, so that it can be seen why it has to be stopped."""

_TIMED_OUT = (b"timed out", b"timeout", b"timing out")
"""What a rank says that has waited for another one in vain."""

_MEASURE = 1.0
"""Seconds that nodes may take to say what their ranks use."""

_HANG_TICK = 1.0
"""Seconds between two checks whether the job hangs (`bireme.runner.quiet_time.TICK`)."""

_TRY_AGAIN = 1.0
"""Seconds until a log that could not be written is tried again."""

_LAST_ONES = 60.0
"""Seconds after the first rank's success within which the others are expected to end."""


def run(
    spec: JobSpec,
    notes: Iterable[tuple[str, str]],
    make_crew: Callable[[Session], Crew],
    make_loop: Callable[[], Loop] = Loop,
) -> Outcome:
    """Start the crew that ``make_crew`` returns, and return the outcome when nothing is left of it.

    Installs signal handlers, and restores the previous ones at the end.
    """
    if not in_main_thread():
        raise BadInputError("a job can run only in the main thread: it handles the signals of the process")
    session = Session(spec, notes, make_loop())
    try:
        outcome = session.run(make_crew(session))
    finally:
        session.close()
    return outcome.replace(interrupted=outcome.interrupted or session.loop.late)


def limit_note(seconds: float) -> str:
    """The note of a job that exceeded its time limit."""
    return f"stopped after the time limit of {seconds:g} s"


def in_main_thread() -> bool:
    """Whether this is the main thread, the only one that can handle signals."""
    try:
        signal.signal(signal.SIGCHLD, signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL)
    except ValueError:  # only the main thread may
        return False
    return True


class Terminal:
    """The terminal on our stdin, if there is one."""

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        self._is_terminal = os.isatty(0)
        if self._is_terminal and self._in_foreground():
            import termios

            self._modes = termios.tcgetattr(0)

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    def stdin_for_ranks(self, null: int) -> int:
        """The descriptor for the stdin of one rank: ours, so that a debugger works, or ``null``.

        It is ``null`` if we are in the background of a terminal (``&``): a rank has a session of its own, so job
        control would not stop it, and it would steal the shell's input.
        """
        return null if self._is_terminal and self._modes is None else 0

    def may_be_read(self) -> bool:
        """Whether we may read our stdin now."""
        return not self._is_terminal or self._in_foreground()

    def leave(self) -> None:
        """Restore the terminal's mode, which a killed debugger may have changed (no echo, raw mode)."""
        if self._modes is not None and self._in_foreground():
            import termios

            if termios.tcgetattr(0) != self._modes:
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)


class Session:
    """The parts of a job that are the same wherever its ranks run."""

    def __init__(self, spec: JobSpec, notes: Iterable[tuple[str, str]], loop: Loop) -> None:
        self.spec, self._notes = spec, notes
        self._crew: Crew | None = None
        self._gone = self._settled = self._lost = False
        self._mask: set[int] | None = None
        # Some daemons ignore SIGCHLD. Then the kernel reaps our children before we learn how they ended.
        self._ignored_children = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if self._ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._first_done: float | None = None
        self.terminal = Terminal()
        self.loop = loop
        self._begin = loop.now()
        self.verdict = Verdict()
        self.console = Console(
            self.loop, spec.log_level, on_gone=self.caller_gone, on_lost=self._output_lost, on_room=self._go_on
        )
        if detached := sys.modules.get("bireme.runner.detached"):  # else the job is not
            self.console.follow(detached.make_room)
        self._answers: Sink | None = None  # to whom the ranks answer
        if spec.answers:
            self._answers = Sink(self.loop, 0, on_error=lambda _: self.caller_gone(), on_room=self._go_on)
        self._signals = JobSignals(
            self.loop, self.console, self.verdict, self.terminal.leave, grace=spec.grace, preempted=self.preempted
        )
        self._output: JobOutput | None = None
        self._plan: StartPlan | None = None
        self._questions: tuple[Question, Question] | None = None
        self._quiet_time: QuietTime | None = None
        self._hang_watch: HangWatch | None = None
        self._preemption: Preemption | None = None
        self._heard: set[int] = set()  # ranks that have written something
        self._events: EventLog | None = None
        log = sys.modules.get("bireme.runner.event_log")  # else nobody listens
        if spec.events or (log is not None and log.listener is not None):
            from bireme.runner import event_log

            self._events = event_log.EventLog(loop, spec.events, lambda text: self.console.say("error", text))
        self.on_drain: Callable[[dict[str, Any]], dict[str, object]] | None = None
        self._own_socket: ControlSocket | None = None
        self._requests: JobRequests | None = None
        self._socket: ControlSocket | None = None
        self._tails: dict[int, bytes] = {}  # the end of what each rank has written, the last one's at the end
        self._talked = False  # whether a rank has written something since it was last looked
        self._spoke: dict[int, float] = {}  # when each rank has written last
        self._hosts: dict[int, str] = {}

    @property
    def crew(self) -> Crew:
        """What runs the ranks. Only once the session runs."""
        assert self._crew is not None
        return self._crew

    def run(self, crew: Crew) -> Outcome:
        """Run the crew to its end; return the outcome."""
        self._crew = crew
        for level, text in self._notes:
            self.console.say(level, text)
        self._signals.watch(self.crew)
        limit = self.spec.time_limit
        if limit is not None:
            note = limit_note(limit)
            self.loop.after(limit, lambda: self.trouble("time limit", note, self.loop.now()))
        self.crew.start()
        if self.spec.checkpoint_signal:
            from bireme.runner import preemption

            self._preemption = preemption.Preemption(self)
        if self.loop.serves_others:
            self.loop.after(_SOCKET_DELAY, self.open_socket)
        # Our parent may have blocked them. The ranks are forked by now and keep the mask as we found it.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, *RELAYED_SIGNALS, signal.SIGCHLD))
        self.loop.run()
        self.console.finish_line(report_follows=self.verdict.stopping)
        outcome = self.outcome()
        self.note("finished", code=outcome.exit_code, cause=outcome.cause, seconds=round(outcome.seconds, 3))
        return outcome

    # -- events of the crew ---------------------------------------------------------------------

    def open_socket(self, theirs: ControlSocket | None = None) -> None:
        """Take requests of other commands; ``theirs``: the socket of an elastic job, which outlives this session."""
        if self._socket is not None or self.spec.answers:  # jobs of functions are their caller's
            return
        from bireme.runner import control_socket  # no rank has waited for it

        if theirs is None:
            self._own_socket = control_socket.ControlSocket()
        self._socket = theirs or self._own_socket
        assert self._socket is not None
        self._socket.listen(self.loop, self._answer)
        if detached := sys.modules.get("bireme.runner.detached"):  # else the job is not
            detached.announce()

    def _answer(self, request: dict[str, Any], client: Client) -> dict[str, Any] | None:
        if self._requests is None:
            from bireme.runner import job_requests  # few jobs are asked, and all would hold it

            self._requests = job_requests.JobRequests(self)
        return self._requests.answer(request, client)

    @property
    def seconds(self) -> float:
        """How long the job has been running."""
        return self.loop.now() - self._begin

    @property
    def last_line(self) -> str:
        """The last line that a rank has written, with its number."""
        if not self._tails:
            return ""
        rank = next(reversed(self._tails))
        return f"[{rank}] {self.last_words(rank)}"

    def planned(self, plan: StartPlan) -> JobOutput:
        """Note which ranks will run, and prepare for their output."""
        style = Style(self.spec.output, self.spec.timestamps, plan.world_size, self.spec.fold)
        self._output = JobOutput(self.loop, self.console, style)
        self._plan = plan
        self._hosts = {worker.rank: node.host for node in plan.nodes for worker in node.workers}
        hosts = [node.host for node in plan.nodes]
        self.note("planned", nodes=hosts, ranks=plan.world_size, accelerator=plan.accelerator)
        if self.spec.hang_timeout != "off":
            self.loop.after(_HANG_TICK, self._watch_hangs)
        self.verdict.planned(worker.rank for node in plan.nodes for worker in node.workers)
        for node in plan.nodes:
            for worker in node.workers:
                shown = not self.spec.local_ranks or worker.local_rank in self.spec.local_ranks
                self._output.add(worker.rank, node.host, OUT, shown=shown)
                self._output.add(worker.rank, node.host, ERR, shown=shown)
        return self._output

    def gets_stdin(self, rank: int) -> bool:
        """Whether our stdin is also the stdin of this rank (``--stdin``)."""
        return self.spec.gives_stdin(rank, self.crew.DEFAULT_STDIN)

    def up(self, rank: int, pid: int) -> None:
        """Note that a rank was started."""
        self.note("up", rank=rank, host=self._hosts.get(rank, ""), pid=pid)
        self.console.say("debug", f"rank {rank} is pid {pid}")

    def down(self, end: RankEnd, when: float) -> None:
        """Note that a rank has ended, at ``when`` on our clock; stop the job if it failed."""
        facts = {name: getattr(end, name) for name in ("rank", "host", "code", "by_signal", "stopped")}
        self.note("down", **facts, seconds=round(end.seconds, 3))
        self.console.say("debug", f"rank {end.rank} ended with exit code {end.code}")
        if self._preemption is not None:
            self._preemption.down(end)
        if end.code == OK and self._first_done is None:
            self._first_done = self.loop.now()
        if self.verdict.end(end, when):
            tail = self._output.tail(end.rank).lower() if self._output is not None else b""
            self._stop(look=any(words in tail for words in _TIMED_OUT))

    def trouble(self, cause: Cause, note: str, when: float, hosts: tuple[str, ...] = ()) -> None:
        """Stop the job for a cause other than a rank's failure."""
        if not self._settled and self.verdict.blame(cause, when, note=note, hosts=hosts):
            self.note("stopping", cause=cause, note=note, hosts=list(hosts))
            self._stop(look=cause == "time limit")

    def _stop(self, *, look: bool) -> None:
        """Stop all ranks; ``look``: not before it is known what they were doing."""
        if look and self.spec.stacks != "never":
            self.look(lambda _: self.crew.stop(signal.SIGTERM))
        else:
            self.crew.stop(signal.SIGTERM)

    def preempted(self, signum: int, why: str = "") -> bool:
        """Carry out a preemption, if that is announced by this signal; return whether it is."""
        if self._preemption is None or not self._preemption.takes(signum):
            return False
        self._preemption.begin(why or signal_name(signum))
        self._signals.received = (
            self._signals.received or signum
        )  # even if a rank has failed before: it was the last try
        return True

    def hear(self, signum: int) -> None:
        """Do what this signal asks for, also where this process ignores it (``nohup``, ``&`` in a script)."""
        self._signals.hear(signum)

    def kill(self) -> None:
        """Kill the job."""
        self._signals.kill()

    def _question(self) -> tuple[Question, Question]:
        """What the ranks are doing, and what they use."""
        if self._questions is None:
            from bireme.runner.question import Question  # few jobs are asked, and all would hold it

            stacks = Question(self.loop, self.crew.take_stacks, _LOOK)
            self._questions = stacks, Question(self.loop, self.crew.measure, _MEASURE)
        return self._questions

    def look(self, then: Callable[[dict[tuple[int, str], RankStack]], object]) -> None:
        """Find out what the ranks are doing, before ``then``; that comes after `_LOOK` at the latest."""
        stacks, _ = self._question()

        def tell(found: dict[tuple[int, str], RankStack]) -> None:
            then(found)
            if not self.verdict.stopping:
                stacks.found = {}  # somebody only wanted to know

        stacks.end()  # a look that is not over yet
        stacks.put(tell)

    def stacks(self, found: tuple[RankStack, ...]) -> None:
        """Note what ranks of a node were doing."""
        stacks, _ = self._question()
        stacks.answered({(each.rank, each.thread): each for each in found})

    def measure(self, then: Callable[[dict[int, tuple[object, ...]]], object]) -> None:
        """Find out what the ranks use, before ``then``; that comes after `_MEASURE` at the latest."""
        _, uses = self._question()
        uses.put(then)

    def measured(self, told: RankUses) -> None:
        """Note what ranks of a node use."""
        _, uses = self._question()
        each = zip(told.states, told.cpu, told.rss, told.gpu, told.gpu_memory, told.steps, strict=True)
        uses.answered(dict(zip(told.ranks, each, strict=True)))

    def silence(self, rank: int) -> float:
        """How many seconds ago a rank has written, since the start of the job at most."""
        return self.loop.now() - self._spoke.get(rank, self._begin)

    def last_words(self, rank: int) -> str:
        """The last line that a rank has written."""
        return self._tails.get(rank, b"").rstrip().rpartition(b"\n")[2].decode(errors="replace")[-_LAST_LINE:]

    def _watch_hangs(self) -> None:
        """Check from time to time whether the job hangs."""
        if self._gone or self._settled or self.verdict.stopping:
            return
        if self._quiet_time is None:
            from bireme.runner.quiet_time import QuietTime  # no rank has waited for it

            given = self.spec.hang_timeout
            self._quiet_time = QuietTime(None if given == "auto" else seconds_of(given, "--hang_timeout"))
        talked, self._talked = self._talked, False
        self._quiet_time.tick(talked=talked)
        if self._hang_watch is None and self._quiet_time.is_suspicious:
            from bireme.runner.hang_watch import HangWatch  # few jobs are suspicious, and all would hold it

            self._hang_watch = HangWatch(
                self._quiet_time,
                now=self.loop.now,
                look=self.look,
                say=self.console.say,
                on_hang=self._hangs,
                note=lambda event, seconds: self.note(event, seconds=seconds),
            )
        if self._hang_watch is not None:
            self._hang_watch.tick()
        self.loop.after(_HANG_TICK, self._watch_hangs)

    def _hangs(self, quiet: float, look: dict[tuple[int, str], RankStack]) -> None:
        """Report that the job hangs, or stop it (``--on_hang``)."""
        from bireme.runner.hang_watch import hang_text

        hosts, folder = self.where()
        note, stacks = hang_text(quiet, look, hosts, folder)
        self.note("hang", seconds=quiet, stacks=stacks)
        if self.spec.on_hang != "report":
            self.trouble("hang", note, self.loop.now())
            return
        self.console.say("warning", "\n  ".join((f"the job seems to hang: {note}", *stacks.splitlines())))

    def where(self) -> tuple[dict[int, str], str]:
        """The node of each rank, and the folder in which they run."""
        return self._hosts, self._plan.nodes[0].cwd if self._plan is not None and self._plan.nodes else ""

    def settle(self) -> None:
        """Note that all ranks have ended, and only files come home: of what happens now, just a signal is a cause."""
        self._settled = True
        self._signals.settled()

    @property
    def ending(self) -> bool:
        """Whether the job is over, or about to be, since a rank has just succeeded."""
        done = self._first_done is not None and self.loop.now() - self._first_done < _LAST_ONES
        return done or self.ended

    @property
    def ended(self) -> bool:
        """Whether no rank runs any more, or all are being stopped."""
        return self._gone or self._settled or self.verdict.stopping

    def chunk(self, rank: int, number: int, data: bytes) -> None:
        """Take a chunk of a rank's output, or of its answers."""
        if number == ANSWERS:
            assert self._answers is not None
            self._answers.write(rank.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
        else:
            assert self._output is not None
            self._output.feed(rank, number, data)
            self._talked = True
            if self._events is not None and rank not in self._heard:
                self._heard.add(rank)
                self.note("first output", rank=rank)
            self._spoke[rank] = self.loop.now()
            before = self._tails.pop(rank, b"")
            self._tails[rank] = (b"" if before.endswith(b"\n") else before[-_LAST_LINE:]) + data[-_LAST_LINE:]
        if self._is_full:
            self.crew.hold_output()

    @property
    def _is_full(self) -> bool:
        """Whether the ranks must wait for those who read from us."""
        return self.console.full or (self._answers is not None and self._answers.full)

    def _go_on(self) -> None:
        if not self._is_full:
            self.crew.release_output()

    @property
    def rest(self) -> float:
        """Seconds after which an unfinished line is shown; fewer on a terminal, where a person waits."""
        return _REST_ON_TERMINAL if self.console.is_terminal(OUT) else _REST_ELSEWHERE

    def rested(self, rank: int, number: int) -> None:
        """Show the unfinished line of a rank that has paused in it."""
        assert self._output is not None
        self._output.rested(rank, number)

    def eof(self, rank: int, number: int) -> None:
        """Note the end of a rank's stream."""
        assert self._output is not None
        if number == ANSWERS:
            self.chunk(rank, number, b"")
        else:
            self._output.eof(rank, number)

    def gone(self) -> None:
        """Note that no process of the job is left; some of its output may still be in the pipes."""
        self._gone = True
        self._signals.gone()

    def over(self) -> None:
        """Note that all output has been received; end the session once it is written."""
        if self._output is not None:
            self._output.flush()
        if self._answers is not None and self._answers.pending:
            self._answers.on_drained = lambda: self.console.when_drained(self.loop.stop)
        else:
            self.console.when_drained(self.loop.stop)

    def caller_gone(self) -> None:
        """Stop the job: nobody reads its output or answers any more."""
        self.trouble("reader gone", "", self.loop.now())

    def _output_lost(self, reason: str) -> None:
        """Note that output is lost; the log of a detached job is written again once there is room."""
        if not self._lost:
            self.note("output lost", reason=reason)
        self._lost = True
        if (detached := sys.modules.get("bireme.runner.detached")) and detached.log_path():
            self.loop.after(_TRY_AGAIN, lambda: self.console.try_again(f"output is missing here: {reason}"))

    # -- the end ---------------------------------------------------------------------------------

    def note(self, event: str, **fields: object) -> None:
        """Write an event, if somebody wants to know."""
        if self._events is not None:
            self._events.write(event, **fields)

    def outcome(self) -> Outcome:
        """How the job has ended, once its ranks have."""
        if self._output is not None:
            self._quote(self._output)
        seconds = self.loop.now() - self._begin
        crew = self.crew
        outcome = self.verdict.outcome(seconds=seconds, killed=crew.killed, stuck=crew.stuck, logs=crew.logs)
        if self._preemption is not None and outcome.cause == "preempted":
            outcome = outcome.replace(note="\n".join(filter(None, (outcome.note, self._preemption.told()))))
        if self._questions is not None and self._questions[0].found:
            from bireme.result.stacks import merged

            hosts, folder = self.where()
            outcome = outcome.replace(stacks=merged(self._questions[0].found.values(), hosts, own=folder))
        received, name = self._signals.received, self.spec.job_name
        return outcome.replace(unread=self._signals.unread, interrupted=received, job_name=name)

    def _quote(self, output: JobOutput) -> None:
        """Keep the tracebacks or last lines of the ranks that failed, and tracebacks of those that were stopped."""
        if not self.verdict.failed and not self.verdict.swept_along:
            return
        from bireme.result.failure_words import last_lines, last_traceback

        for end in self.verdict.failed[:WORDS_OF]:
            words = last_lines(output.tail(end.rank), end.recorded, by_signal=end.by_signal)
            self.verdict.detail(end.rank, words)
        if self.verdict.first is not None and not self.verdict.note:
            self.verdict.note = self._advice(self.verdict.first)
        quoted = 0
        for end in self.verdict.swept_along:
            words = last_traceback(output.tail(end.rank)) if quoted < WORDS_OF else ""
            if words:
                self.verdict.detail(end.rank, words)
                quoted += 1

    def _advice(self, end: RankEnd) -> str:
        """What to say about the way in which a failed rank was started."""
        from bireme.resources.active_environment import active_prefix
        from bireme.result import failure_words

        for node in self._plan.nodes if self._plan is not None else ():
            for worker in node.workers:
                if worker.rank == end.rank:
                    active = active_prefix(os.environ)
                    missing = failure_words.missing_module(end.detail, node.interpreter, active)
                    missing = missing or failure_words.aborted_shutdown(end.detail)
                    assert self._plan is not None
                    flag = failure_words.refused_flag(end.detail, worker.argv, self._plan.local_rank_flag)
                    has_input = self.spec.elastic or self.gets_stdin(end.rank)
                    return missing or flag or ("" if has_input else failure_words.no_input(end.detail, end.rank))
        return ""

    def close(self) -> None:
        """Clean up, at whatever point the session has ended."""
        if self._crew is not None:
            self._crew.close()
        if self._preemption is not None:
            self._preemption.close()
        self.console.close()
        if self._answers is not None:
            self._answers.close()
        if self._events is not None:
            self._events.close()
        if self._socket is not None:
            self._socket.rest()
        if self._own_socket is not None:
            self._own_socket.close()
        self.loop.close()
        self.terminal.leave()
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if self._ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
