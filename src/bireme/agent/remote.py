"""The agent of one node of a job on many: it does what the runner says over the channel, and says what happens.

Over ``ssh`` the channel is the session's own stdin and stdout; elsewhere the agent has dialled back. A lost channel,
or a runner that is not heard within the heartbeat's bound, is a lifeline cut: the agent stops its ranks and goes.
"""

from __future__ import annotations

import os
import sys
import time

from bireme.agent.examination import Examination
from bireme.agent.facts import short_hostname
from bireme.agent.node import Listener, Node, remove_flat_directory
from bireme.agent.pipes import Pipes
from bireme.control.channel import Channel
from bireme.control.frames import Message, encode_output
from bireme.control.silence import LOOKS, Silence
from bireme.errors import BiremeError
from bireme.job import JobSpec, tuples
from bireme.logs.rankfiles import RankFiles, prepare
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS, Loop
from bireme.planning.environment import ELASTIC_MARK, elastic_mark
from bireme.planning.start import NodePlan, WorkerPlan
from bireme.resources import reach
from bireme.supervise import limits
from bireme.supervise.process import marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from typing import Any

    from bireme.control.frames import Output
    from bireme.loop import Timer
    from bireme.resources import ports
    from bireme.supervise.helper import Helper
    from bireme.supervise.outcome import RankEnd

_SIGNALS = (*STOP_SIGNALS, *RELAYED_SIGNALS)


def over_stdio(environ: Mapping[str, str]) -> int:
    """Serve a runner over stdin and stdout; both are the channel's alone from now on."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return serve(read_fd, write_fd, environ)


def over_dial(arguments: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Dial the runner that ``ADDRESSES PORT VARIABLE [NAME]`` describes, and serve it."""
    from bireme.agent.dial import dial

    _close_what_leaked(environ)
    addresses, port, variable, *name = arguments
    try:
        fd = dial(addresses.split(","), int(port), variable, environ, "".join(name))
    except BiremeError as error:
        sys.stderr.write(f"bireme: {error}\n")
        return error.code
    return serve(fd, fd, environ)


def _close_what_leaked(environ: Mapping[str, str]) -> None:
    """Hydra leaks its own descriptors into us, and whoever holds them keeps ``mpiexec`` from ending.

    All but the one by which MPI would speak to it: once that is closed, hydra's proxy reads its end over and over, and
    takes a whole core from the ranks.
    """
    kept = environ.get("PMI_FD", "")
    spared = int(kept) if kept.isdigit() and int(kept) >= 3 else 2
    os.closerange(3, spared)
    os.closerange(spared + 1, 1 << 16)
    if spared > 2 and os.path.exists(f"/proc/self/fd/{spared}"):  # else the variable is an older launcher's
        os.set_inheritable(spared, False)


def serve(read_fd: int, write_fd: int, environ: Mapping[str, str]) -> int:
    """Serve one runner over these descriptors until it lets go; return 0 (codes travel by the channel)."""
    agent = RemoteAgent(read_fd, write_fd, environ)
    try:
        agent.run()
    finally:
        agent.close()
    return 0


class RemoteAgent:
    """One node's part of a job, driven by messages."""

    def __init__(self, read_fd: int, write_fd: int, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._loop = Loop()
        self._channel = Channel(
            self._loop, read_fd, write_fd, on_frame=self._on_frame, on_end=self._cut_off, greet=True, greeted=True
        )
        self._loop.on_signals(_SIGNALS, self._on_signal)
        self._spec: JobSpec | None = None
        self._environ_for_ranks: Mapping[str, str] = {}
        self._listener: ports.Listener | None = None
        self._participant: Helper | None = None
        self._node: Node | None = None
        self._pipes: Pipes | None = None
        self._files: RankFiles | None = None
        self._plan: NodePlan | None = None
        self._over = self._cut = False
        self._window = 0
        self._heartbeat = 0.0
        self._silence = Silence(time.monotonic())
        self._watchdog: Timer | None = None

    def run(self) -> None:
        """Until the runner lets go, or is lost and everything here has ended."""
        self._loop.run()

    def close(self) -> None:
        """Leave nothing behind."""
        if self._participant is not None:
            self._participant.close()
        if self._node is not None:
            self._node.close()
        if self._files is not None:
            self._files.close()
        if self._plan is not None:
            remove_flat_directory(self._plan.error_dir)
        self._channel.close()
        self._loop.close()

    # -- messages --------------------------------------------------------------------------------

    def _on_frame(self, frame: Message | Output) -> None:
        self._silence.broken(time.monotonic())
        if not isinstance(frame, Message):
            return
        handler = getattr(self, f"_on_{frame.type}", None)
        if handler is None:
            self._channel.send("say", level="error", text=f"{short_hostname()}: unknown message {frame.type}")
            return
        try:
            handler(**frame.body)
        except BiremeError as error:
            self._channel.send("unfit", problems=[str(error)])

    def _on_ask(
        self,
        spec: dict[str, Any],
        cwd: str,
        heartbeat: float,
        first: bool,
        name: str,
        slots: list[str] | None,
        exports: dict[str, str],
        unset: list[str],
    ) -> None:
        """The preflight: can this node carry its part? All that is wrong is said at once."""
        self._spec = JobSpec.from_dict(spec)
        self._heartbeat = heartbeat
        kept = {name: value for name, value in self._environ.items() if not name.startswith(tuple(unset))}
        examination = Examination(self._spec, self._environ, {**kept, **exports})
        examination.examine(cwd, slots)
        self._environ_for_ranks = examination.environ
        if first:
            self._listener = examination.listen()
        if self._spec.elastic and examination.interpreter:
            examination.found["earlier"] = len(marked(ELASTIC_MARK, elastic_mark(self._spec.run_id, name)))
            self._prepare_to_join(examination.interpreter, examination.problems)
        self._channel.send("hello", problems=examination.problems, **examination.found)
        self._silence.broken(time.monotonic())  # an environment script may have taken its time
        self._watch_runner()

    def _on_probe(self, addresses: list[str], port: int) -> None:
        """Which of node 0's addresses can be reached from here?"""
        reachable = reach.reachable(addresses, port, seconds=min(3.0, self._heartbeat / 3))
        self._channel.send("probed", reachable=reachable)

    def _prepare_to_join(self, interpreter: str, problems: list[str]) -> None:
        """Let torch be imported while the other nodes are still being asked."""
        from bireme.elastic import PARTICIPANT, has_torch
        from bireme.supervise.helper import Helper

        try:
            if not has_torch(interpreter, self._environ_for_ranks):
                problems.append(f"elastic training needs PyTorch, and {interpreter} has none")
            self._participant = Helper((interpreter, PARTICIPANT), self._environ_for_ranks)
        except OSError as error:
            problems.append(f"cannot start {interpreter}: {error.strerror}")

    def _on_join(self, **invitation: Any) -> None:
        """Take part in a rendezvous of PyTorch's."""
        if self._participant is None:
            self._channel.send("joined", answer={"error": "its interpreter could not be started"})
            return
        self._participant.tell(**invitation)
        self._participant.when_answered(self._loop, self._joined, lambda: self._channel.send("arrived"))

    def _joined(self, answer: dict[str, Any]) -> None:
        if self._participant is not None:
            self._participant.close()
            self._participant = None
        self._channel.send("joined", answer=answer)

    def _on_start(
        self,
        node: dict[str, Any],
        accelerator: str,
        grace: float,
        window: int,
        rest: float,
    ) -> None:
        assert self._spec is not None
        plan = self._plan = _node_plan(node)
        self._window = window
        # First: a rank of another node may be quick, and is to find nobody at the port but the first rank.
        keep = self._listener.hand_over() if self._listener is not None else ()
        self._pipes = Pipes(self._loop, self._chunk, self._rested, self._eof, self._maybe_over, rest=rest)
        if self._spec.rank_log_dir is not None:
            ranks = [worker.rank for worker in plan.workers]
            directory = prepare(self._spec.rank_log_dir)
            self._files = RankFiles(directory, ranks, lambda text: self._channel.send("say", level="error", text=text))
        listener = Listener(self._up, self._down, self._guardian_lost, self._unfit, self._node_over)
        self._node = Node(self._loop, plan, accelerator=accelerator, grace=grace, listener=listener)
        files_limit = limits.allow_files(4 * len(plan.workers))
        null = os.open(os.devnull, os.O_RDWR)
        pipes = [(null, self._pipes.add(w.rank, 1), self._pipes.add(w.rank, 2)) for w in plan.workers]
        self._node.start(self._environ_for_ranks, pipes, keep=keep, files_limit=files_limit)
        os.close(null)
        self._pipes.begin()

    def _on_stop(self, signum: int) -> None:
        if self._node is not None:
            self._node.stop(signum)
        else:  # it could not be started
            self._channel.send("over", killed=0, stuck=[])

    def _on_urge(self) -> None:
        if self._node is not None:
            self._node.urge()

    def _on_signal_ranks(self, signum: int) -> None:
        if self._node is not None:
            self._node.signal_ranks(signum)

    def _on_suspend(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()  # the runner will be silent, and that is right
            self._watchdog = None
        if self._node is not None:
            self._node.suspend()

    def _on_resume(self) -> None:
        if self._watchdog is None:
            self._watch_runner()
        if self._node is not None:
            self._node.resume()

    def _on_credit(self, size: int) -> None:
        self._window += size
        if self._window > 0 and self._pipes is not None:
            self._pipes.resume()

    def _on_ping(self, sent: float) -> None:
        self._channel.send("pong", sent=sent, now=time.monotonic())

    def _on_release(self) -> None:
        self._loop.stop()

    # -- the runner's silence --------------------------------------------------------------------

    def _watch_runner(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        left = self._heartbeat - self._silence.lasted(time.monotonic())
        self._watchdog = self._loop.after(max(0.001, min(left, self._heartbeat / LOOKS)), self._beat)

    def _beat(self) -> None:
        watchdog = self._watchdog
        assert watchdog is not None
        now = time.monotonic()
        if self._silence.look(watchdog.due, now) >= self._heartbeat:
            self._channel.look()  # which may tell that it is gone, or has us suspend
        if self._watchdog is not watchdog or self._cut:
            return
        if self._silence.lasted(now) >= self._heartbeat:
            self._channel.close()
            self._cut_off("the runner is silent")
        else:
            self._watch_runner()

    def _cut_off(self, reason: str) -> None:
        """The lifeline is cut: end everything here, by the ladder, then go."""
        self._cut = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._node is None or self._over:
            self._loop.stop()
            return
        if self._pipes is not None:
            self._pipes.resume()  # nobody takes the output any more, and nobody shall wait for that
        self._node.stop()

    def _on_signal(self, signum: int) -> None:
        if signum in RELAYED_SIGNALS:
            return  # for the ranks, which get it from the runner; an engine may send it to us as well
        self._channel.send("signalled", signum=int(signum), when=time.monotonic())
        if self._node is None:
            self._loop.stop()
        else:
            self._node.stop(signum)

    # -- the ranks -------------------------------------------------------------------------------

    def _chunk(self, rank: int, number: int, chunk: bytes) -> None:
        if self._files is not None:
            self._files.write(rank, chunk)
        if self._cut:
            return
        self._channel.send_raw(encode_output(rank, number, chunk))
        self._window -= len(chunk)
        if self._window <= 0 and self._pipes is not None:
            self._pipes.pause()

    def _rested(self, rank: int, number: int) -> None:
        self._channel.send("rested", rank=rank, number=number)

    def _eof(self, rank: int, number: int) -> None:
        self._channel.send("eof", rank=rank, number=number)

    def _up(self, rank: int, pid: int, when: float) -> None:
        self._channel.send("up", rank=rank, pid=pid, when=when)

    def _down(self, end: RankEnd, when: float) -> None:
        self._channel.send("down", end=end.as_dict(), when=when)

    def _guardian_lost(self, pid: int) -> None:
        self._channel.send("guardian_lost", pid=pid)

    def _unfit(self, reason: str) -> None:
        self._channel.send("unfit", problems=[reason])

    def _node_over(self) -> None:
        self._over = True
        if self._node is not None and self._pipes is not None and self._node.stuck:
            self._pipes.abandon()
        self._maybe_over()

    def _maybe_over(self) -> None:
        """All processes gone and all pipes at their end."""
        if not self._over or self._pipes is None or not self._pipes.ended or self._node is None:
            return
        if self._cut:
            self._loop.stop()
            return
        self._channel.send("over", killed=self._node.killed, stuck=list(self._node.stuck))


def _node_plan(node: dict[str, Any]) -> NodePlan:
    workers = tuple(WorkerPlan(**tuples(worker)) for worker in node["workers"])
    return NodePlan(**{**node, "workers": workers})
