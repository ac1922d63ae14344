"""The agent of one node: carries out the runner's messages and reports what happens. Decides when the runner is lost.

With ``ssh`` the channel is stdin and stdout; with other launchers the agent connects to the runner. If the channel
ends, or nothing is heard from the runner for the heartbeat's limit, the agent stops its ranks and exits.
"""

from __future__ import annotations

import os
import sys

from bireme.agent.node import NodeEvents, NodeProcesses, remove_flat_directory
from bireme.agent.pipes import Pipes
from bireme.control.channel import Channel
from bireme.control.frames import encode_output
from bireme.control.messages import (
    TO_AGENT,
    Ask,
    Credit,
    Down,
    Eof,
    Fetch,
    GuardianLost,
    InputTaken,
    Message,
    Output,
    Over,
    Piece,
    Ping,
    Pong,
    Probe,
    Probed,
    Release,
    Rested,
    Resume,
    Say,
    Signalled,
    SignalRanks,
    Start,
    Stop,
    Suspend,
    Taken,
    Unfit,
    Up,
    Urge,
    Want,
)
from bireme.control.silence import LOOKS, Silence
from bireme.errors import BiremeError, ProtocolError
from bireme.logs.rankfiles import RankFiles, prepare
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS
from bireme.planning.environment import ELASTIC_MARK, elastic_mark
from bireme.resources import extension_locks
from bireme.resources.own_name import socket_interfaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal, TypeAlias

    from bireme.agent.machine import Machine
    from bireme.agent.rank_input import RankPipes
    from bireme.control.transport import Transport
    from bireme.job import JobSpec
    from bireme.loop import Timer
    from bireme.planning.start import NodePlan
    from bireme.resources import rendezvous_port
    from bireme.result.outcome import RankEnd
    from bireme.ship.fetch_sender import FetchSender
    from bireme.ship.taker import TreeTaker

    State: TypeAlias = Literal["new", "asked", "started"]

_SIGNALS = (*STOP_SIGNALS, *RELAYED_SIGNALS)
_ALWAYS = frozenset({Ping, Release, Urge, SignalRanks, Suspend, Resume})
MAY_HEAR: Mapping[State, frozenset[type[Message | Output | Piece]]] = {
    "new": frozenset({Ask}),
    "asked": _ALWAYS | {Probe, Start, Piece},
    "started": _ALWAYS | {Stop, Credit, Output, Fetch, Want, Taken},
}
"""What the runner may send to an agent in which state; `Ask` leads to asked, `Start` to started."""


class RemoteAgent:
    """The agent: one node's part of a job, driven by the runner's messages.

    Args:
        transport: protects the channel; ``None``: the descriptors are protected already.
        early: bytes of the channel that were received already, decoded.
        patience: seconds of silence after which a runner is lost that has not yet said what it regards as silence.
    """

    def __init__(
        self,
        machine: Machine,
        read_fd: int,
        write_fd: int,
        environ: Mapping[str, str],
        transport: Transport | None = None,
        early: bytes = b"",
        patience: float = 60.0,
    ) -> None:
        self._machine, self._environ = machine, environ
        self._loop = machine.loop()
        self._channel = Channel(
            self._loop,
            read_fd,
            write_fd,
            TO_AGENT,
            on_frame=self._on_frame,
            on_end=lambda _: self._cut_off(),
            on_violation=self._on_violation,
            transport=transport,
            early=early,
        )
        self._state: State = "new"
        self._handlers: Mapping[type[Message | Output | Piece], Callable[[Any], None]] = {
            Ask: self._on_ask,
            Probe: self._on_probe,
            Start: self._on_start,
            Stop: self._on_stop,
            Urge: self._on_urge,
            SignalRanks: self._on_signal_ranks,
            Suspend: self._on_suspend,
            Resume: self._on_resume,
            Credit: self._on_credit,
            Output: self._on_stdin,
            Ping: self._on_ping,
            Release: lambda _: self._loop.stop(),
            Piece: lambda piece: self._of_tree().take(piece.data),
            Fetch: self._on_fetch,
            Want: lambda want: self._of_fetch().want(want),
            Taken: lambda taken: self._of_fetch().grant(taken.size),
        }
        self._loop.on_signals(_SIGNALS, self._on_signal)
        self._spec: JobSpec | None = None
        self._environ_for_ranks: Mapping[str, str] = {}
        self._is_lost_by_name = False  # the node's own name is a loopback address there
        self._listener: rendezvous_port.PortListener | None = None
        self._node: NodeProcesses | None = None
        self._pipes: Pipes | None = None
        self._files: RankFiles | None = None
        self._input: RankPipes | None = None
        self._plan: NodePlan | None = None
        self._tree: TreeTaker | None = None
        self._sender: FetchSender | None = None
        self._over = self._cut = False
        self._window = 0
        self._heartbeat = patience
        self._silence = Silence(self._loop.now())
        self._watchdog: Timer | None = None
        self._watch_runner()

    def run(self) -> None:
        """Run until the runner releases the agent, or is lost and all ranks have ended."""
        self._loop.run()

    def close(self) -> None:
        """Close everything; remove the directory for error files, and a tree that is not complete."""
        if self._node is not None:
            self._node.close()
        if self._tree is not None:
            self._tree.close()
        if self._input is not None:
            self._input.close()
        if self._files is not None:
            self._files.close()
        if self._sender is not None:
            self._sender.close()
        if self._plan is not None:
            remove_flat_directory(self._plan.error_dir)
        self._channel.close()
        self._loop.close()

    # -- messages --------------------------------------------------------------------------------

    def _on_frame(self, frame: Message | Output | Piece) -> None:
        self._silence.broken(self._loop.now())
        if type(frame) not in MAY_HEAR[self._state]:
            raise ProtocolError(f"it sent {type(frame).__name__} to an agent that is {self._state}")
        if isinstance(frame, (Ask, Start)):
            self._state = "asked" if isinstance(frame, Ask) else "started"
        try:
            self._handlers[type(frame)](frame)
        except BiremeError as error:
            self._channel.send(Unfit(problems=(str(error),)))

    def _on_violation(self, what: str) -> None:
        """The runner broke the protocol: treat it as lost."""
        sys.stderr.write(f"bireme: the runner broke the protocol: {what}\n")
        self._cut_off()

    def _on_ask(self, ask: Ask) -> None:
        """Get the copy of the tree, if the ranks run in one; run the preflight and answer with its result."""
        self._heartbeat = ask.heartbeat
        if ask.tree is None:
            self._examine(ask)
            return
        from bireme.ship.taker import TreeTaker

        self._tree = TreeTaker(self._loop, ask, self._environ, self._channel.send, self._on_tree)
        self._watch_runner()
        self._tree.start()

    def _of_tree(self) -> TreeTaker:
        if self._tree is None:
            raise ProtocolError("it spoke of a tree that it has not offered")
        return self._tree

    def _on_tree(self, ask: Ask, problem: str) -> None:
        try:
            self._examine(ask, problem)
        except BiremeError as error:
            self._channel.send(Unfit(problems=(str(error),)))

    def _examine(self, ask: Ask, problem: str = "") -> None:
        spec = self._spec = ask.spec
        kept = {name: value for name, value in self._environ.items() if not name.startswith(ask.unset)}
        preflight = self._machine.preflight(spec, self._environ, {**kept, **ask.exports})
        if problem:
            preflight.problems.append(problem)
        else:
            preflight.examine(ask.cwd, ask.slots, ask.tasks)
        self._environ_for_ranks = preflight.environ
        self._is_lost_by_name = bool(preflight.found.get("own_name"))
        if ask.first:
            self._listener = preflight.listen()
        if spec.elastic:
            mark = elastic_mark(spec.run_id, ask.name)
            preflight.found["earlier"] = self._machine.count_marked(ELASTIC_MARK, mark)
        self._channel.send(preflight.hello())
        self._silence.broken(self._loop.now())  # an environment script may have taken long
        self._watch_runner()

    def _on_probe(self, probe: Probe) -> None:
        """Report which addresses of the first node can be reached from here."""
        found = self._machine.reachable(probe.addresses, probe.port, min(3.0, self._heartbeat / 3))
        self._channel.send(Probed(reachable=tuple(found)))

    def _on_start(self, start: Start) -> None:
        assert self._spec is not None
        if self._channel.is_ending:
            return  # this process was halted, and lost long ago: the job goes on without it, maybe on this node
        plan = self._plan = start.node if self._tree is None else self._tree.moved_plan(start.node)
        environ = self._environ_for_ranks
        if self._is_lost_by_name and int(plan.env["CROSS_SIZE"]) > 1:
            environ = {**environ, **socket_interfaces(environ, plan.env["MASTER_ADDR"])}
        self._window = start.window
        # First free the port: a fast rank of another node must find nothing there but the first rank.
        keep = self._listener.hand_over() if self._listener is not None else ()
        keep = (*keep, *self._tree.keep) if self._tree is not None else keep
        self._pipes = Pipes(self._loop, self._chunk, self._rested, self._eof, self._maybe_over, rest=start.rest)
        if self._spec.rank_log_dir is not None:
            ranks = [worker.rank for worker in plan.workers]
            directory = prepare(self._spec.rank_log_dir)
            self._files = RankFiles(directory, ranks, self._complain, self._spec.job_name)
        listener = NodeEvents(
            up=self._up, down=self._down, guardian_lost=self._guardian_lost, unfit=self._unfit, over=self._node_over
        )
        self._node = NodeProcesses(
            self._loop,
            plan,
            accelerator=start.accelerator,
            grace=start.grace,
            listener=listener,
            tree=self._machine.process_tree(),
        )
        null = os.open(os.devnull, os.O_RDWR)
        add = self._pipes.add
        pipes = [(self._stdin(w.rank, null), add(w.rank, 1), add(w.rank, 2)) for w in plan.workers]
        for text in extension_locks.warnings(self._environ_for_ranks):
            self._channel.send(Say(level="warning", text=text))
        self._node.start(environ, pipes, keep=keep)
        os.close(null)
        self._pipes.begin()
        if self._input is not None:
            self._input.begin()

    def _stdin(self, rank: int, null: int) -> int:
        """What a rank reads from: a pipe for the runner's stdin, or nothing."""
        assert self._spec is not None
        if not self._spec.gives_stdin(rank):
            return null
        if self._input is None:
            from bireme.agent.rank_input import RankPipes

            self._input = RankPipes(self._loop, lambda: self._channel.send(InputTaken()))
        return self._input.add()

    def _on_stdin(self, chunk: Output) -> None:
        if self._input is not None:  # else the ranks could not be started
            self._input.write(chunk.data)

    def _on_stop(self, stop: Stop) -> None:
        if self._node is not None:
            self._node.stop(stop.signum)
        else:  # it could not be started
            self._channel.send(Over(killed=0, stuck=()))

    def _on_urge(self, _: Urge) -> None:
        if self._node is not None:
            self._node.urge()

    def _on_signal_ranks(self, signal_ranks: SignalRanks) -> None:
        if self._node is not None:
            self._node.signal_ranks(signal_ranks.signum)

    def _on_suspend(self, _: Suspend) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()  # the runner is suspended and will be silent
            self._watchdog = None
        if self._node is not None:
            self._node.suspend()

    def _on_resume(self, _: Resume) -> None:
        if self._watchdog is None:
            self._watch_runner()
        if self._node is not None:
            self._node.resume()

    def _on_credit(self, credit: Credit) -> None:
        self._window += credit.size
        if self._window > 0 and self._pipes is not None:
            self._pipes.resume()

    def _on_ping(self, ping: Ping) -> None:
        self._channel.send(Pong(sent=ping.sent, now=self._loop.now()))

    def _on_fetch(self, fetch: Fetch) -> None:
        """Look for files that the job brings home, now that its ranks have ended."""
        if not self._over or self._plan is None or self._sender is not None:
            raise ProtocolError("it asked for files while ranks were running, or twice")
        from bireme.ship.fetch_sender import FetchSender

        sent = {} if self._tree is None else self._tree.sent
        self._sender = FetchSender(self._loop, self._channel, self._plan.cwd, sent)
        self._sender.find(fetch)

    def _of_fetch(self) -> FetchSender:
        if self._sender is None:
            raise ProtocolError("it wants files that were not found")
        return self._sender

    # -- silence of the runner --------------------------------------------------------------------

    def _watch_runner(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        left = self._heartbeat - self._silence.lasted(self._loop.now())
        self._watchdog = self._loop.after(max(0.001, min(left, self._heartbeat / LOOKS)), self._beat)

    def _beat(self) -> None:
        watchdog = self._watchdog
        assert watchdog is not None
        now = self._loop.now()
        if self._silence.look(watchdog.due, now) >= self._heartbeat:
            self._channel.look()  # it may hold an end of file, or Suspend
        if self._watchdog is not watchdog or self._cut:
            return
        if self._silence.lasted(now) >= self._heartbeat:
            self._channel.close()
            self._cut_off()
        else:
            self._watch_runner()

    def _cut_off(self) -> None:
        """The runner is lost: end all ranks by the stop ladder, then exit."""
        self._cut = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._node is None or self._over:
            self._loop.stop()
            return
        if self._pipes is not None:
            self._pipes.resume()  # output is discarded now, so that no rank waits
        self._node.stop()

    def _on_signal(self, signum: int) -> None:
        if signum in RELAYED_SIGNALS:
            return  # meant for the ranks, which get it from the runner; a launcher may send it to us too
        self._channel.send(Signalled(signum=int(signum), when=self._loop.now()))
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

    def _complain(self, text: str) -> None:
        self._channel.send(Say(level="error", text=text))

    def _rested(self, rank: int, number: int) -> None:
        self._channel.send(Rested(rank=rank, number=number))

    def _eof(self, rank: int, number: int) -> None:
        self._channel.send(Eof(rank=rank, number=number))

    def _up(self, rank: int, pid: int, when: float) -> None:
        self._channel.send(Up(rank=rank, pid=pid, when=when))

    def _down(self, end: RankEnd, when: float) -> None:
        self._channel.send(Down(end=end, when=when))

    def _guardian_lost(self, pid: int) -> None:
        self._channel.send(GuardianLost(pid=pid, when=self._loop.now()))

    def _unfit(self, reason: str) -> None:
        self._channel.send(Unfit(problems=(reason,)))

    def _node_over(self) -> None:
        self._over = True
        if self._node is not None and self._pipes is not None and self._node.stuck:
            self._pipes.abandon()
        self._maybe_over()

    def _maybe_over(self) -> None:
        """Finish once all processes are gone and all pipes are closed."""
        if not self._over or self._pipes is None or not self._pipes.ended or self._node is None:
            return
        if self._cut:
            self._loop.stop()
            return
        self._channel.send(Over(killed=self._node.killed, stuck=self._node.stuck))
