"""The agent of one node: carries out the runner's messages and reports what happens. Decides when the runner is lost.

With ``ssh`` the channel is stdin and stdout; with other launchers the agent connects to the runner. If the channel
ends, or nothing is heard from the runner for the heartbeat's limit, the agent stops its ranks and exits.
"""

from __future__ import annotations

import sys

from bireme.control import messages
from bireme.control.channel import Channel
from bireme.control.frames import encode_output
from bireme.control.silence import LOOKS, Silence
from bireme.errors import BiremeError, ProtocolError
from bireme.logs.rankfiles import prepare
from bireme.loop import RELAYED_SIGNALS, STOP_SIGNALS
from bireme.one_node.examination import short_hostname
from bireme.one_node.part import NodePart
from bireme.planning.environment import ELASTIC_MARK, TEMPLATES, NodeFacts, elastic_mark
from bireme.resources.addresses import own_addresses
from bireme.resources.devices import usable_slots
from bireme.resources.own_name import socket_interfaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal, TypeAlias

    from bireme.agent.stack_tool import StackTool
    from bireme.control.transport import Transport
    from bireme.job import JobSpec
    from bireme.loop import Timer
    from bireme.one_node.machine import Machine
    from bireme.planning.start import NodePlan
    from bireme.process.keeper import Keeper
    from bireme.resources.devices import Devices
    from bireme.resources.rendezvous_port import PortListener
    from bireme.result.outcome import RankEnd
    from bireme.result.rank_use import RankUses
    from bireme.result.stacks import RankStack
    from bireme.ship.fetch_sender import FetchSender
    from bireme.ship.taker import TreeTaker

    State: TypeAlias = Literal["new", "asked", "started"]

_SIGNALS = (*STOP_SIGNALS, *RELAYED_SIGNALS)
_ALWAYS = frozenset(
    {messages.Ping, messages.Release, messages.KillNow, messages.SignalRanks, messages.Suspend, messages.Resume}
)
MAY_HEAR: Mapping[State, frozenset[type[messages.Frame]]] = {
    "new": frozenset({messages.Ask}),
    "asked": _ALWAYS | {messages.Probe, messages.Start, messages.Piece, messages.Ask},
    "started": _ALWAYS
    | {messages.Stop, messages.Credit, messages.Output, messages.Fetch, messages.Want, messages.Taken}
    | {messages.TakeStacks, messages.Ask, messages.Measure, messages.Tool, messages.Piece},
}
"""What the runner may send to an agent in which state; `Ask` leads to asked, `Start` to started.

An agent whose ranks have ended may be asked again: for the next epoch, or attempt, of its job."""


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
            messages.TO_AGENT,
            on_frame=self._on_frame,
            on_end=lambda _: self._cut_off(),
            on_violation=self._on_violation,
            transport=transport,
            early=early,
        )
        self._state: State = "new"
        self._handlers: Mapping[type[messages.Frame], Callable[[Any], None]] = {
            messages.Ask: self._on_ask,
            messages.Probe: self._on_probe,
            messages.Start: self._on_start,
            messages.Stop: self._on_stop,
            messages.KillNow: self._on_kill_now,
            messages.SignalRanks: self._on_signal_ranks,
            messages.TakeStacks: self._on_take_stacks,
            messages.Measure: self._on_measure,
            messages.Suspend: self._on_suspend,
            messages.Resume: self._on_resume,
            messages.Credit: self._on_credit,
            messages.Output: self._on_stdin,
            messages.Ping: self._on_ping,
            messages.Release: lambda _: self._loop.stop(),
            messages.Tool: lambda tool: self._of_tool().offered(tool),
            messages.Piece: self._on_piece,
            messages.Fetch: self._on_fetch,
            messages.Want: lambda want: self._of_fetch().want(want),
            messages.Taken: lambda taken: self._of_fetch().grant(taken.size),
        }
        self._loop.on_signals(_SIGNALS, self._on_signal)
        self._spec: JobSpec | None = None
        self._environ_for_ranks: Mapping[str, str] = {}
        self._is_lost_by_name = False  # the node's own name is a loopback address there
        self._listener: PortListener | None = None
        self._part: NodePart | None = None
        self._plan: NodePlan | None = None
        self._tree: TreeTaker | None = None
        self._sender: FetchSender | None = None
        self._keeper: Keeper | None = None
        self._tool: StackTool | None = None
        self._cut = self._is_told_to_end = False
        self._window = 0
        self._heartbeat = self._agreed = patience
        self._silence = Silence(self._loop.now())
        self._watchdog: Timer | None = None
        self._watch_runner()

    def run(self) -> None:
        """Run until the runner releases the agent, or is lost and all ranks have ended."""
        self._loop.run()

    def close(self) -> None:
        """Close everything; remove the directory for error files, and a tree that is not complete."""
        self._forget()
        for each in (self._keeper, self._tool):
            if each is not None:
                each.close()
        self._channel.close()
        self._loop.close()

    def _forget(self) -> None:
        """Close what is of one epoch."""
        for each in (self._part, self._tree, self._sender, self._listener):
            if each is not None:
                each.close()
        self._part = self._tree = self._sender = self._listener = self._plan = None

    # -- messages --------------------------------------------------------------------------------

    def _on_frame(self, frame: messages.Frame) -> None:
        self._silence.broken(self._loop.now())
        if type(frame) not in MAY_HEAR[self._state]:
            raise ProtocolError(f"it sent {type(frame).__name__} to an agent that is {self._state}")
        if isinstance(frame, (messages.Ask, messages.Start)):
            self._state = "asked" if isinstance(frame, messages.Ask) else "started"
        try:
            self._handlers[type(frame)](frame)
        except BiremeError as error:
            self._channel.send(messages.Unfit(problems=(str(error),)))

    def _on_violation(self, what: str) -> None:
        """The runner broke the protocol: treat it as lost."""
        sys.stderr.write(f"bireme: the runner broke the protocol: {what}\n")
        self._cut_off()

    def _on_ping(self, ping: messages.Ping) -> None:
        """Answer. The runner pings an agent that has told it something: its silence means nothing before."""
        self._channel.send(messages.Pong(sent=ping.sent, now=self._loop.now()))
        if self._heartbeat != self._agreed:
            self._heartbeat = self._agreed
            self._watch_runner()

    def _on_ask(self, ask: messages.Ask) -> None:
        """Get the copy of the tree, if the ranks run in one; run the preflight and answer with its result."""
        if self._part is not None and not self._part.gone:
            raise ProtocolError("it asked again while ranks were running")
        if self._is_told_to_end:
            self._loop.stop()
            return
        self._forget()
        self._agreed = ask.heartbeat
        if ask.tree is None:
            self._heartbeat = self._agreed
            self._examine(ask)
            return
        from bireme.ship.taker import TreeTaker

        self._tree = TreeTaker(self._loop, ask, self._environ, self._channel.send, self._on_tree)
        self._watch_runner()
        self._channel.widen(incoming=True)
        self._tree.start()

    def _on_piece(self, piece: messages.Piece) -> None:
        if self._state == "started":
            self._of_tool().take(piece.data)
        else:
            self._of_tree().take(piece.data)

    def _of_tool(self) -> StackTool:
        if self._tool is None:
            raise ProtocolError("it named a tool that nobody needs")
        return self._tool

    def _bring_tool(self, then: Callable[[str], object]) -> None:
        """Bring py-spy here, which the node has not."""
        if self._tool is None:
            from bireme.agent.stack_tool import StackTool

            self._tool = StackTool(self._loop, self._channel.send, self._environ_for_ranks)
        self._tool.bring(then)

    def _of_tree(self) -> TreeTaker:
        if self._tree is None:
            raise ProtocolError("it named a tree that it had not offered")
        return self._tree

    def _on_tree(self, ask: messages.Ask, problem: str) -> None:
        try:
            self._examine(ask, problem)
        except BiremeError as error:
            self._channel.send(messages.Unfit(problems=(str(error),)))

    def _examine(self, ask: messages.Ask, problem: str = "") -> None:
        spec = self._spec = ask.spec
        kept = {name: value for name, value in self._environ.items() if not name.startswith(ask.unset)}
        environ = {**kept, **ask.exports}

        def choose(found: Devices) -> tuple[tuple[str, ...], tuple[str, ...]]:
            declared = ask.slots
            if declared is None and not spec.filtered and spec.num_gpus is None:
                from bireme.resources import allocation  # a hostfile's node does without

                declared = allocation.slots_by_tasks(ask.tasks, found.accelerator, self._environ)
            return usable_slots(found, declared, num_gpus=spec.num_gpus, filtered=spec.filtered, scheduled=True)

        if problem:  # there is no tree to run it in
            facts, problems = NodeFacts(hostname=short_hostname(), addresses=own_addresses()), [problem]
        else:
            examined = self._machine.examine(spec, self._environ, environ, choose, ask.cwd)
            facts, problems, environ = examined.facts, list(map(str, examined.problems)), dict(examined.environ)
            if spec.rank_log_dir is not None and not problems:
                try:
                    prepare(spec.rank_log_dir)
                except BiremeError as error:
                    problems.append(str(error))
        self._environ_for_ranks = environ
        self._is_lost_by_name = bool(facts.own_name)
        if ask.first:
            try:
                self._listener = self._machine.lease_port(spec.master_port)
                facts = facts.replace(port=self._listener.port)
            except BiremeError as error:
                problems.append(str(error))
        earlier = self._machine.count_marked(ELASTIC_MARK, elastic_mark(spec.run_id, ask.name)) if spec.elastic else 0
        self._channel.send(messages.Hello(**vars(facts), problems=tuple(problems), earlier=earlier))
        self._silence.broken(self._loop.now())  # an environment script may have taken long
        self._watch_runner()

    def _on_probe(self, probe: messages.Probe) -> None:
        """Report which addresses of the first node can be reached from here."""
        found = self._machine.reachable(probe.addresses, probe.port, min(3.0, self._heartbeat / 3))
        self._channel.send(messages.Probed(reachable=tuple(found)))

    def _on_start(self, start: messages.Start) -> None:
        spec = self._spec
        assert spec is not None
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
        environ = {**environ, **self._templates(spec)}  # first: ranks inherit the limits of before the part
        part = NodePart(
            self._loop,
            plan,
            self,
            self._machine.process_tree(),
            accelerator=start.accelerator,
            grace=start.grace,
            rest=start.rest,
            log_dir=prepare(spec.rank_log_dir) if spec.rank_log_dir is not None else None,
            takes_stacks=spec.stacks != "never",
            bring_tool=self._bring_tool,
        )

        def stdin(rank: int, null: int) -> int:
            if not spec.gives_stdin(rank):
                return null
            answers_of = rank if spec.answers else None
            return part.add_input(lambda: self._channel.send(messages.InputTaken()), answers_of=answers_of)

        part.fork(environ, stdin, keep=keep)
        self._part = part

    def _templates(self, spec: JobSpec) -> dict[str, str]:
        """The variable with the keeper of templates, which outlive an epoch; {}: there is none."""
        if self._keeper is None and spec.preload and (spec.elastic or spec.restarts):
            self._keeper = self._machine.start_keeper()
        return {} if self._keeper is None else {TEMPLATES: self._keeper.name}

    def _on_stop(self, stop: messages.Stop) -> None:
        if self._part is not None:
            self._part.stop(stop.signum)
        else:  # it could not be started
            self._channel.send(messages.Over(killed=0, stuck=()))

    def _on_kill_now(self, _: messages.KillNow) -> None:
        if self._part is not None:
            self._part.kill_now()

    def _on_signal_ranks(self, signal_ranks: messages.SignalRanks) -> None:
        if self._part is not None:
            self._part.signal_ranks(signal_ranks.signum, later=signal_ranks.later)

    def _on_take_stacks(self, _: messages.TakeStacks) -> None:
        if self._part is not None:
            self._part.take_stacks()

    def _on_measure(self, _: messages.Measure) -> None:
        if self._part is not None:
            self._part.measure()

    def _on_stdin(self, chunk: messages.Output) -> None:
        if self._part is not None:
            self._part.write_input(chunk.data)

    def _on_suspend(self, _: messages.Suspend) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()  # the runner is suspended and will be silent
            self._watchdog = None
        if self._part is not None:
            self._part.suspend()

    def _on_resume(self, _: messages.Resume) -> None:
        if self._watchdog is None:
            self._watch_runner()
        if self._part is not None:
            self._part.resume()

    def _on_credit(self, credit: messages.Credit) -> None:
        self._window += credit.size
        if self._window > 0 and self._part is not None:
            self._part.release_output()

    def _on_fetch(self, fetch: messages.Fetch) -> None:
        """Look for files that the job brings home, now that its ranks have ended."""
        if self._plan is None or self._part is None or not self._part.gone or self._sender is not None:
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
        if self._part is None or self._part.gone:
            self._loop.stop()
            return
        self._part.release_output()  # it is discarded now, so that no rank waits
        self._part.stop()

    def _on_signal(self, signum: int) -> None:
        spec = self._spec
        if spec is not None and self._part is not None and signum == spec.preemption[0] and not spec.elastic:
            self._channel.send(messages.Signalled(signum=int(signum), when=self._loop.now()))
            return  # the runner tells the ranks of all nodes
        if signum in RELAYED_SIGNALS:
            return  # meant for the ranks, which get it from the runner; a launcher may send it to us too
        self._is_told_to_end = True
        self._channel.send(messages.Signalled(signum=int(signum), when=self._loop.now()))
        if self._part is None:
            self._loop.stop()
        else:
            self._part.stop(signum)

    # -- what the ranks do -----------------------------------------------------------------------

    def up(self, rank: int, pid: int, when: float) -> None:
        """Report that a rank was started."""
        self._channel.send(messages.Up(rank=rank, pid=pid, when=when))

    def down(self, end: RankEnd, when: float) -> None:
        """Report that a rank has ended."""
        self._channel.send(messages.Down(end=end, when=when))

    def chunk(self, rank: int, number: int, data: bytes) -> None:
        """Send output, as much as the runner has given credit for; then the ranks wait."""
        if self._cut:
            return
        self._channel.send_raw(encode_output(rank, number, data))
        self._window -= len(data)
        if self._window <= 0 and self._part is not None:
            self._part.hold_output()

    def stacks(self, found: tuple[RankStack, ...]) -> None:
        """Report what the ranks were doing."""
        self._channel.send(messages.Stacks(stacks=found))

    def measured(self, uses: RankUses) -> None:
        """Report what the ranks use."""
        self._channel.send(messages.Measured(uses=uses))

    def rested(self, rank: int, number: int) -> None:
        """Report that a rank has paused in a line."""
        self._channel.send(messages.Rested(rank=rank, number=number))

    def eof(self, rank: int, number: int) -> None:
        """Report the end of a stream."""
        self._channel.send(messages.Eof(rank=rank, number=number))

    def say(self, level: str, text: str) -> None:
        """Have a line shown."""
        self._channel.send(messages.Say(level=level, text=text))

    def guardian_lost(self, pid: int) -> None:
        """Report that the guardian was killed."""
        self._channel.send(messages.GuardianLost(pid=pid, when=self._loop.now()))

    def unfit(self, reason: str) -> None:
        """Report why a rank could not be started."""
        self._channel.send(messages.Unfit(problems=(reason,)))

    def gone(self) -> None:
        """Wait for the rest of the output."""

    def over(self) -> None:
        """Report the end, or exit if nobody is left who wants to know."""
        if self._cut or self._part is None:
            self._loop.stop()
        else:
            self._channel.send(messages.Over(killed=self._part.killed, stuck=self._part.stuck))
