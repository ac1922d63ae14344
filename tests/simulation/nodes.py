"""Simulated nodes: the network between runner and node, ssh, ranks, and agents, which run the real code."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bireme.agent.remote import RemoteAgent
from bireme.control.greeting import HEAD, greeting, python_tag
from bireme.errors import BadInputError
from bireme.loop import Timer
from bireme.one_node.examination import Examination
from bireme.one_node.machine import Machine
from bireme.planning.environment import NodeFacts
from bireme.process.worker import WorkerStart
from bireme.result.rank_use import RankUses
from bireme.result.stacks import RankStack
from tests.simulation.descriptors import End, Pipe, SimulatedLoop, SimulatedProcess
from tests.simulation.guardians import SimulatedGuardian, SimulatedHandle, Worker
from tests.simulation.truth import Violation
from tests.simulation.world import Host, World

if TYPE_CHECKING:
    from bireme.cluster.agent_handle import AgentHandle
    from tests.simulation.training import Training

RETRANSMIT = 3.0
"""Seconds, at most, from the end of a cut until TCP has sent again what was lost."""


class Node:
    """A node of the pool, as it is connected to the runner.

    Attributes:
        latency: seconds that bytes take to the node, at least; up to ``1 + jitter`` times as long.
        cut: whether the way (to the node, from the node) is cut.
        disturbed: when the node, or the way to it, was not well: (begin, end).
        broken: when its agent, or the connection to it, ended.
        heard: when bytes of its agent reached the runner last.
        given_up: whether the runner has declared it lost.
        handle: the runner's view of its agent.
        on_heal: called before it is connected again.
        unfit: what the preflight finds.
        preflight: seconds that it takes.
    """

    def __init__(self, world: World, name: str, slots: int, training: Training) -> None:
        random = world.random
        self.world, self.name, self.slots, self.training = world, name, slots, training
        self.host = Host(world, name)
        self.latency = random.choice((1e-4, 1e-3, 2e-2, 6e-2)) * random.uniform(0.5, 1.0)
        self.jitter = random.choice((0.0, 0.5, 2.0))
        self.cut = [False, False]
        self.heard = 0.0
        self.disturbed: list[tuple[float, float]] = []
        self.broken: list[float] = []
        self.unfit: tuple[str, ...] = ()
        self.preflight = random.choice((0.01, 0.1, 1.0))
        self.agents: list[AgentProcess] = []
        self.streams: list[Stream] = []
        self.ranks: list[Rank] = []
        self.given_up = False
        self.handle: AgentHandle | None = None
        self.on_heal: Callable[[], None] = lambda: None

    @property
    def trip(self) -> float:
        """Seconds of the longest way there and back."""
        return 2 * self.latency * (1 + self.jitter)

    @property
    def measured(self) -> float:
        """Seconds of the shortest way there and back that the runner has measured."""
        return self.handle.peer_clock._trip if self.handle is not None else float("inf")

    @property
    def reachable(self) -> bool:
        return self.host.up and not self.host.frozen and not any(self.cut)

    def disturb(self, seconds: float, *, breaks: bool = False) -> None:
        if breaks:
            self.broken.append(self.world.now)
        self.disturbed.append((self.world.now, self.world.now + seconds))

    def cut_off(self, seconds: float, ways: Sequence[int]) -> None:
        """Cut the way to the node (0), from it (1), or both."""
        self.world.note(f"{self.name} is cut off for {seconds:.3f} s, ways {list(ways)}")
        self.disturb(seconds + RETRANSMIT)
        for way in ways:
            self.cut[way] = True
        self.world.after(seconds, lambda: self._heal(ways))

    def _heal(self, ways: Sequence[int]) -> None:
        self.on_heal()
        self.world.note(f"{self.name} is connected again")
        for way in ways:
            self.cut[way] = False
        for stream in self.streams:
            if stream.way in ways:
                self.world.after(self.world.random.uniform(0.0, RETRANSMIT), stream.send_again)

    def live_ranks(self) -> list[Rank]:
        return [process for rank in self.ranks for process in (rank, *rank.left) if process.status is None]  # type: ignore[misc]

    @property
    def agent(self) -> AgentProcess | None:
        """The agent that was started last, if it lives."""
        return self.agents[-1] if self.agents and self.agents[-1].alive else None


class Stream:
    """One direction of a TCP connection: what is sent arrives in order, or not yet."""

    def __init__(self, node: Node, there: Host, way: int) -> None:
        self.node, self.there, self.way = node, there, way
        self.world = node.world
        self._last = 0.0
        self._sent: deque[Callable[[], None]] = deque()
        self._arrived: deque[Callable[[], None]] = deque()
        self._due = 0
        self._blocked = False
        self._boot = there.boots
        node.streams.append(self)

    def send(self, call: Callable[[], None]) -> None:
        """Have ``call`` made at the other end."""
        node = self.node
        latency = node.latency * (1 + node.jitter * self.world.random.random())
        self._last = max(self._last, self.world.now + latency)
        self._sent.append(call)
        self.world.at(self._last, self._arrive)

    def _arrive(self) -> None:
        self._due += 1
        if self.node.cut[self.way]:
            self._blocked = True
        elif not self._blocked:
            self._flush()

    def send_again(self) -> None:
        if not self.node.cut[self.way]:
            self._blocked = False
            self._flush()

    def _flush(self) -> None:
        while self._due:
            self._due -= 1
            call = self._sent.popleft()
            if self.there.up and self.there.boots == self._boot:
                self._arrived.append(call)
                self.there.after(0.0, self._deliver)

    def _deliver(self) -> None:
        self._arrived.popleft()()

    def close(self) -> None:
        if self in self.node.streams:
            self.node.streams.remove(self)


class Frames:
    """The frames that bytes complete: a part of one is no sign of life.

    Args:
        before: how many bytes come before the first frame.
    """

    def __init__(self, before: int = 0) -> None:
        self._before, self._buffer = before, bytearray()

    def completes(self, data: bytes) -> bool:
        """Whether these bytes complete a frame."""
        skipped = min(self._before, len(data))
        self._before -= skipped
        self._buffer += data[skipped:]
        complete = False
        while len(self._buffer) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(self._buffer)[1]
            if len(self._buffer) < end:
                break
            del self._buffer[:end]
            complete = True
        return complete


class Ssh(Worker):
    """An ``ssh`` that starts an agent on its node, and carries the agent's stdin and stdout."""

    def __init__(self, host: Host, start: WorkerStart, ends: Sequence[End], node: Node) -> None:
        super().__init__(host, start, ends)
        self.node = node
        self._stdin, self._stdout, self._stderr = (end.pipe for end in ends)
        self._patience = next(float(word.split("=")[1]) for word in start.argv if word.startswith("ConnectTimeout="))
        self._to = self._from = None
        self._agent: AgentProcess | None = None
        self._agent_ends: list[End] = []
        self._there, self._back = Frames(), Frames(len(greeting(python_tag())))
        self._boot = 0
        self._code: bytes | None = b""
        """The agent's code, as far as it has arrived; ``None``: it is complete."""

    def begin(self) -> None:
        delay = self.world.random.uniform(0.02, 0.3) + 3 * self.node.latency
        self.host.after(delay, self._connect)

    def _connect(self) -> None:
        if self.status is not None:
            return
        if not self.node.reachable:
            self.host.after(self._patience, self._time_out)
            return
        self._boot = self.node.host.boots
        self._to = Stream(self.node, self.node.host, 0)  # type: ignore[assignment]
        self._from = Stream(self.node, self.host, 1)  # type: ignore[assignment]
        self._stdin.on_ready = self._pump
        startup = self.world.random.uniform(0.1, 0.6)
        self._send(lambda: self.node.host.after(startup, self._start_agent))
        self._pending: list[Callable[[], None]] = []
        self._pump()

    def _time_out(self) -> None:
        if self.status is None:
            self._stderr.put(f"ssh: connect to host {self.node.name} port 22: Connection timed out\n".encode())
            self.end(255 << 8)

    def _send(self, call: Callable[[], None]) -> None:
        assert self._to is not None
        if self.node.host.up and self.node.host.boots != self._boot:  # it knows nothing of this connection
            self.host.after(self.node.trip, lambda: self.end(255 << 8))
        else:
            self._to.send(call)

    def _pump(self) -> None:
        if self.status is not None or self._to is None:
            return
        for data in self._pieces(self._stdin.take()):
            self._send(lambda data=data: self._to_agent(lambda: self._tell(data)))  # type: ignore[misc]
        if not self._stdin.writers:
            self._send(lambda: self._to_agent(self._end_of_input))

    def _end_of_input(self) -> None:
        if self._code is not None and self._agent is not None:
            self._agent.die()
        self._agent_ends[0].close()

    def _pieces(self, data: bytes) -> list[bytes]:
        """The packets in which these bytes travel."""
        if len(data) < 2 or self.world.random.random() > 0.05:
            return [data] if data else []
        place = self.world.random.randrange(1, len(data))
        return [data[:place], data[place:]]

    def _tell(self, data: bytes) -> None:
        assert self._agent is not None
        if self._there.completes(data):
            self._agent.before_news(self._agent)
            self._agent.told = max(self._agent.told, self.world.now, self._agent.busy_until)
        if self._code is not None:
            data = self._take_code(data)
        self._agent_ends[0].pipe.put(data)

    def _take_code(self, data: bytes) -> bytes:
        """Wait for the agent's code as `bireme.agent.stub` does, then begin the agent; return what follows the code."""
        assert self._code is not None and self._agent is not None
        self._code += data
        length = HEAD.size + HEAD.unpack_from(self._code)[1] if len(self._code) >= HEAD.size else HEAD.size
        if len(self._code) < length:
            return b""
        rest, self._code = self._code[length:], None
        self.node.host.after(self.world.random.uniform(0.001, 0.02), self._agent.begin)
        return rest

    def _to_agent(self, call: Callable[[], None]) -> None:
        """Do something with the pipes of the agent, once it was started."""
        if self._agent is None:
            self._pending.append(call)
        else:
            call()

    def _start_agent(self) -> None:
        process = AgentProcess(self.node)
        incoming, outgoing = Pipe(), Pipe()
        ends = End(incoming, reads=True), End(outgoing, reads=False)
        self._agent, self._agent_ends = process, [End(incoming, reads=False), End(outgoing, reads=True)]
        outgoing.on_ready = self._pump_back
        process.start(*(process.add(end) for end in ends))
        outgoing.put(greeting(python_tag()))
        for call in self._pending:
            call()
        self._pending.clear()
        if self._hung_up:
            self._hang_up()

    def _pump_back(self) -> None:
        assert self._from is not None
        pipe = self._agent_ends[1].pipe
        for data in self._pieces(pipe.take()):
            self._from.send(lambda data=data: self._to_runner(data))  # type: ignore[misc]
        if not pipe.writers:
            code = self._agent.exit_code if self._agent is not None else 255
            self._from.send(lambda: self.end(code << 8))

    def _to_runner(self, data: bytes) -> None:
        if self.status is None:
            if self._back.completes(data):
                self.node.heard = self.world.now
            self._stdout.put(data)

    _hung_up = False

    def _hang_up(self) -> None:
        """On the node: sshd has seen the end of the connection."""
        self._hung_up = True
        if self._code is not None and self._agent is not None:
            self._agent.die()
        for end in self._agent_ends:
            end.close()

    def signal(self, signum: int) -> None:
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self.end(signum)

    def over(self) -> None:
        if self._to is not None and self.host.up:
            self._to.send(self._hang_up)


class Rank(Worker):
    """A rank. What it does is decided by the `Training`.

    Attributes:
        stray: a process that it has started, which may outlive it.
        began: when it was started.
        written: how many bytes of output.
    """

    marked = True

    def __init__(self, host: Host, start: WorkerStart, ends: Sequence[End], node: Node) -> None:
        super().__init__(host, start, ends)
        self.node, self.rank = node, int(start.env["RANK"])
        self.job = start.env["BIREME_JOB"].partition("/")[0]
        random = self.world.random
        self.manner = random.choice(("obeys", "obeys", "slow", "ignores"))
        """What it does at SIGTERM."""
        self.stray: Stray | None = None
        if random.random() < 0.2:
            self.stray = Stray(host, start, [end.share() for end in ends])
        self.suspended = False
        self.written = 0
        self._later: list[Callable[[], None]] = []
        node.ranks.append(self)

    def begin(self) -> None:
        self.began = self.world.now
        self.node.training.begin(self)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something later, unless it has ended; once it is resumed, if it is suspended."""
        self.host.after(seconds, lambda: self._do(call))

    def _do(self, call: Callable[[], None]) -> None:
        if self.suspended:
            self._later.append(call)
        elif self.status is None:
            call()

    def write(self, data: bytes) -> None:
        self.written += len(data)
        for end in self._ends[:1]:
            end.pipe.put(data)

    def signal(self, signum: int) -> None:
        if signum == signal.SIGKILL:
            self.end(signum)
        elif signum == signal.SIGSTOP:
            self.suspended = True
        elif signum == signal.SIGCONT:
            self.suspended = False
            later, self._later = self._later, []
            for call in later:
                self._do(call)
        elif signum in (signal.SIGTERM, signal.SIGINT) and self.manner != "ignores":
            longest = 0.05 if self.manner == "obeys" else 4.0
            status = self.world.random.choice((int(signum), 1 << 8, 0))
            self.after(self.world.random.uniform(0.0, longest), lambda: self.end(status))

    def over(self) -> None:
        self.node.training.ended(self)

    @property
    def left(self) -> Iterable[Worker]:
        return () if self.stray is None else (self.stray,)


class Stray(Worker):
    """A process in a session of its own that a rank has started: it does not die with the rank."""

    def __init__(self, host: Host, start: WorkerStart, ends: Sequence[End]) -> None:
        super().__init__(host, start, ends)
        self.manner = self.world.random.choice(("obeys", "ignores"))
        self.marked = self.world.random.random() < 0.5
        """Whether it has kept the environment of its rank."""
        self.deserted = False
        """Whether all three that would end it were killed in the same instant."""

    def signal(self, signum: int) -> None:
        if signum == signal.SIGKILL or (signum == signal.SIGTERM and self.manner == "obeys"):
            self.end(signum)


class AgentProcess(SimulatedProcess):
    """An agent: the real `RemoteAgent`, turn by turn.

    Attributes:
        told: when it has heard its runner last: not while it is busy.
        before_news: called before another one does.
    """

    remote: RemoteAgent | None = None
    before_news: Callable[[AgentProcess], None] = staticmethod(lambda _: None)

    def __init__(self, node: Node) -> None:
        super().__init__(node.host, f"agent {len(node.agents)} of {node.name}")
        self.node = node
        self.latency = self.world.random.choice((1e-5, 1e-4, 2e-3))
        self.exit_code = 255
        self.guardian: SimulatedGuardian | None = None
        self.told = self.world.now
        node.agents.append(self)

    def start(self, read_fd: int, write_fd: int) -> None:
        self.world.note(f"{self.name} starts")
        self._channel = read_fd, write_fd

    def begin(self) -> None:
        """Its code has arrived."""
        if not self.alive:
            return
        self.remote = RemoteAgent(AgentMachine(self), *self._channel, {"HOME": "/"})
        assert self.loop is not None
        self.loop.begin()
        self.turn()

    def turn(self) -> None:
        loop = self.loop
        if loop is None or not self.runs:
            return
        wait = loop.turn()
        self.spend(1e-5)
        if not loop.running:
            left = (
                []
                if self.guardian is None
                else [rank for rank in self.guardian.workers.values() if rank.status is None]
            )
            if left:
                raise Violation(f"{self.name} exits before {len(left)} of its ranks: they are not asked to end")
            self.exit_code = 0
            assert self.remote is not None
            self.remote.close()
            self.do(self.exit)
            return
        if loop._poll.ready():  # type: ignore[union-attr]
            self.wake_at(self.world.now + self.latency)
        elif wait is not None:
            self.wake_at(self.world.now + wait)

    def exit(self) -> None:
        self.world.note(f"{self.name} exits")
        self.die()


class AgentMachine(Machine):
    """A node's machine, as its agent sees it."""

    def __init__(self, process: AgentProcess) -> None:
        self.process, self.node = process, process.node

    def now(self) -> float:  # type: ignore[override]
        return self.process.clock()

    def loop(self) -> SimulatedLoop:  # type: ignore[override]
        return SimulatedLoop(self.process)

    def process_tree(self) -> Any:  # type: ignore[override]
        return SimulatedTree(self.process)

    def examine(self, spec: object, own: object, environ: Mapping[str, str], *_: object) -> Examination:
        node, process = self.node, self.process
        process.spend(node.preflight * node.world.random.uniform(0.5, 1.5))
        process.told = max(process.world.now, process.busy_until)  # from now on it waits for the runner
        facts = NodeFacts(
            hostname=node.name,
            python="3.11.0",
            addresses=(node.name,),
            interpreter="/usr/bin/python3",
            accelerator="cpu",
            slots=tuple(map(str, range(node.slots))),
            cores=8,
            temporary="/nonexistent/bireme",
        )
        return Examination(facts, tuple(map(BadInputError, node.unfit)), environ)

    def lease_port(self, named: object) -> Any:
        return SimulatedPort()

    def start_keeper(self) -> Any:
        return SimulatedKeeper()

    def reachable(self, addresses: Sequence[str], port: int, seconds: float) -> list[str]:
        found = [address for address in addresses if self.node.training.reaches(self.node, address)]
        self.process.spend(2e-3 if found else seconds)
        return found

    def count_marked(self, name: str, value: str) -> int:
        return sum(rank.marked and rank.start.env.get(name) == value for rank in self.node.live_ranks())


class SimulatedPort:
    """The rendezvous port of a simulated node."""

    port = 29500

    def hand_over(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        pass


class SimulatedKeeper:
    """Keeps no templates: ranks are forked as ever."""

    name = "simulated"

    def close(self) -> None:
        pass


class SimulatedTree:
    """The processes below an agent; stands in for `bireme.one_node.process_tree.ProcessTree`."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process

    def start(self, workers: Sequence[WorkerStart], **_: object) -> SimulatedHandle:
        node = self._process.node

        def make(host: Host, start: WorkerStart, ends: Sequence[End]) -> Rank:
            return Rank(host, start, ends, node)

        guardian = SimulatedGuardian(self._process, make, workers, None, 0.0)
        guardian.on_said = lambda rank: node.training.seen(rank)  # type: ignore[arg-type]
        self._process.guardian = guardian
        return SimulatedHandle(guardian)

    def sweep(self, gone: SimulatedHandle, workers: Iterable[int]) -> tuple[str, ...]:
        gone.close()
        gone.wait()
        self._process.spend(self._process.world.random.uniform(0.0, 0.02))
        self._process.do(gone.guardian.sweep)
        return ()

    def give_up(self, guardian: SimulatedHandle) -> tuple[str, ...]:
        guardian.close()
        self._process.do(guardian.guardian.kill_guardian)
        self._process.do(guardian.guardian.sweep)
        return ()

    def kill_escaped(self, name: str, value: str) -> None:
        for rank in self._process.node.live_ranks():
            if rank.marked and rank.start.env.get(name) == value:
                self._process.do(lambda rank=rank: rank.end(int(signal.SIGKILL)))  # type: ignore[misc]

    def ran_out_of_memory(self, pid: int) -> str | None:
        return None

    def find_stack_tool(self, path: str, *beside: str) -> str:
        return "py-spy"

    def take_stacks(
        self,
        loop: SimulatedLoop,
        _: str,
        ranks: Mapping[int, int],
        _environ: Mapping[str, str],
        on_end: Callable[[tuple[RankStack, ...]], object],
    ) -> SimulatedTaker:
        found = tuple(RankStack(rank=rank) for rank in ranks)
        return SimulatedTaker(loop.after(0.7 * len(ranks), lambda: on_end(found)))  # no draw: seeds stay what they are

    def use_meter(self, *_: object) -> SimulatedMeter:
        return SimulatedMeter()

    def describe(self, pids: Sequence[int]) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass


class SimulatedMeter:
    """Measures what ranks use; stands in for `bireme.one_node.use_meter.UseMeter`."""

    def measure(self, ranks: Mapping[int, int]) -> RankUses:
        n = len(ranks)
        times, sizes = (0.0,) * n, (0,) * n
        return RankUses(tuple(ranks), ("asleep",) * n, cpu=times, rss=sizes, gpu=times, gpu_memory=sizes, steps=times)

    def close(self) -> None:
        pass


class SimulatedTaker:
    """Takes the stacks of ranks; stands in for `bireme.one_node.stack_taker.StackTaker`."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def close(self) -> None:
        self._timer.cancel()


class RunnerMachine(Machine):
    """The runner's machine."""

    def __init__(self, process: SimulatedProcess, nodes: Mapping[str, Node]) -> None:
        self.process, self.nodes = process, nodes
        self.guardians: list[SimulatedGuardian] = []
        self.make_helper: Callable[..., Any] | None = None

    def now(self) -> float:  # type: ignore[override]
        return self.process.clock()

    def loop(self) -> SimulatedLoop:  # type: ignore[override]
        return SimulatedLoop(self.process)

    def start_guardian(self, workers: Sequence[WorkerStart], **options: Any) -> SimulatedHandle:  # type: ignore[override]
        def make(host: Host, start: WorkerStart, ends: Sequence[End]) -> Ssh:
            return Ssh(host, start, ends, self.nodes[start.argv[start.argv.index("--") + 1]])

        guardian = SimulatedGuardian(self.process, make, workers, options["at_once"], options["farewell"])
        self.guardians.append(guardian)
        return SimulatedHandle(guardian)

    def helper(self, argv: Sequence[str], environ: Mapping[str, str]) -> Any:
        assert self.make_helper is not None
        return self.make_helper()


def quiet_output() -> int:
    """Send what the runner prints nowhere; return a descriptor of the real stdout."""
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    return kept
