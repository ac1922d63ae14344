"""The faults of a run, drawn from its seed: what goes wrong, and when."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.nodes import Node
    from tests.simulation.run import Run

LONG = 1e9
_LENGTHS = (0.05, 0.5, 0.9, 1.1, 1.4, 3.0, 8.0)


class Faults:
    """Draws faults and plans them: half of them at a time, half of them at a step, in the middle of anything."""

    def __init__(self, run: Run) -> None:
        self.run, self.world, self.random = run, run.world, run.world.random
        self.power_returns = run.elastic
        self.kinds: tuple[tuple[Callable[[], None], int], ...] = (
            (self.rank_dies, 6),
            (self.agent_killed, 2),
            (self.agent_stopped, 1),
            (self.agent_signalled, 1),
            (self.guardian_killed, 3),
            (self.watcher_killed, 2),
            (self.guardian_and_watcher_killed, 2),
            (self.ssh_killed, 2),
            (self.launcher_guardian_killed, 1),
            (self.power_lost, 3),
            (self.cut, 4),
            (self.half_open, 3),
            (self.unseen, 3),
            (self.node_frozen, 4),
            (self.runner_frozen, 2),
            (self.all_frozen, 2),
            (self.runner_killed, 2),
            (self.interrupted, 2),
            (self.suspended, 1),
        )

    def plan(self, number: int, longest: float) -> None:
        """Plan so many faults within ``longest`` seconds.

        Some come close together, since one fault during the handling of another is what is forgotten.
        """
        calls, weights = zip(*self.kinds, strict=True)
        when = 0.0
        for _ in range(number):
            call = self.random.choices(calls, weights)[0]
            if self.random.random() < 0.4:
                step = self.random.randrange(1, 200 + 250 * len(self.run.nodes))
                while step in self.world.at_step:
                    step += 1
                self.world.at_step[step] = call
                continue
            if when and self.random.random() < 0.5:
                when += self.random.choice((0.0, 1e-3, 0.1, 1.0)) * self.random.random()
            else:
                when = self.random.uniform(0.0, longest)
            self.world.at(when, call)

        if self.world.rare.random() < 0.1:
            self.world.at(self.world.rare.uniform(0.0, longest), self.node_shut_down)

    def _node(self) -> Node:
        return self.random.choice(list(self.run.nodes.values()))

    def _length(self) -> float:
        """Of a cut or a halt: short, about as long as the heartbeat, long, or for ever."""
        return self.random.choice(_LENGTHS) * self.random.uniform(0.8, 1.2) * self.run.heartbeat

    def _lost(self, node: Node, how: str, *, certain: bool = True) -> None:
        working = any(rank.status is None for rank in node.ranks)
        well = self.run.unhurt(node, seen_there=how == "guardian")
        self.run.truth.node_lost(node, how, certain=certain and working and well)

    # -- ranks ---------------------------------------------------------------------------------------

    def rank_dies(self, node: Node | None = None) -> None:
        node = node or self._node()
        ranks = [rank for rank in node.ranks if rank.status is None]
        if ranks:
            rank = self.random.choice(ranks)
            if self.random.random() < 0.3:
                self.run.training.kill(rank)
            else:
                self.run.training.fail(rank, 1 + rank.rank)

    # -- agents --------------------------------------------------------------------------------------

    def agent_killed(self) -> None:
        node = self._node()
        if node.agent is not None:
            self.world.note(f"{node.agent.name} is killed")
            self._lost(node, "channel")
            node.disturb(0.0, breaks=True)
            guardian = node.agent.guardian
            if guardian is not None and not (guardian.alive or guardian.watched):
                for stray in guardian.strays:
                    stray.deserted = True  # type: ignore[attr-defined]
            node.agent.die()

    def agent_stopped(self) -> None:
        node = self._node()
        agent = node.agent
        if agent is not None:
            seconds = self._length()
            self.world.note(f"{agent.name} is stopped for {seconds:.3f} s")
            self._lost(node, "silence", certain=False)
            node.disturb(seconds)
            agent.stop()
            self.world.after(seconds, agent.resume)

    def agent_signalled(self) -> None:
        node = self._node()
        agent = node.agent
        if agent is not None and agent.loop is not None:
            self.world.note(f"{agent.name} gets SIGTERM")
            self._lost(node, "signal", certain=False)
            node.disturb(0.0, breaks=True)
            agent.loop.signal(signal.SIGTERM)

    def node_shut_down(self) -> None:
        """Its agent and its ranks get a signal, in any order: not the ranks are at fault."""
        node = self.world.rare.choice(list(self.run.nodes.values()))
        agent, ranks = node.agent, [rank for rank in node.ranks if rank.status is None]
        loop = agent.loop if agent is not None else None
        if loop is None or not ranks:
            return
        self.world.note(f"{node.name} is shut down")

        def signalled() -> None:
            self._lost(node, "shutdown")
            loop.signal(signal.SIGTERM)

        for rank in ranks:
            fail = partial(self.run.training.fail, rank, int(signal.SIGTERM) << 8)
            self.world.after(self.world.rare.uniform(0.0, 0.1), fail)
        self.world.after(self.world.rare.uniform(0.0, 0.15), signalled)

    def guardian_killed(self, node: Node | None = None) -> None:
        node = node or self._node()
        if node.agent is not None and node.agent.guardian is not None and node.agent.guardian.alive:
            self._lost(node, "guardian")
            node.agent.guardian.kill_guardian()

    def watcher_killed(self) -> None:
        node = self._node()
        if node.agent is not None and node.agent.guardian is not None and node.agent.guardian.alive:
            self._lost(node, "guardian")
            node.agent.guardian.kill_watcher()

    def guardian_and_watcher_killed(self) -> None:
        node = self._node()
        if node.agent is not None and node.agent.guardian is not None and node.agent.guardian.alive:
            self._lost(node, "guardian")
            guardian = node.agent.guardian
            guardian.kill_watcher()
            guardian.kill_guardian()

    # -- launchers -----------------------------------------------------------------------------------

    def ssh_killed(self) -> None:
        guardian = self.run.machine.guardians[-1] if self.run.machine.guardians else None
        alive = [ssh for ssh in guardian.workers.values() if ssh.status is None] if guardian is not None else []
        if alive:
            ssh = self.random.choice(alive)
            self.world.note(f"the ssh to {ssh.node.name} is killed")  # type: ignore[attr-defined]
            self._lost(ssh.node, "launchers")  # type: ignore[attr-defined]
            ssh.node.disturb(0.0, breaks=True)  # type: ignore[attr-defined]
            ssh.signal(signal.SIGKILL)

    def launcher_guardian_killed(self) -> None:
        guardian = self.run.machine.guardians[-1] if self.run.machine.guardians else None
        if guardian is not None and guardian.alive:
            for node in self.run.nodes.values():
                self._lost(node, "launchers", certain=False)
                node.disturb(5.0, breaks=True)
            self.run.disturbed_before = True
            self.random.choice((guardian.kill_guardian, guardian.kill_watcher))()

    # -- machines ------------------------------------------------------------------------------------

    def power_lost(self) -> None:
        node = self._node()
        if node.host.up:
            self._lost(node, "power")
            node.disturb(LONG, breaks=True)
            node.host.lose_power()
            if self.random.random() < 0.5:
                soon = self.random.uniform(1.0, self.random.choice((max(1.5, self.run.heartbeat / 2), 20.0)))
                self.world.after(self.run.heartbeat / 4 + soon, node.host.start_again)

    def cut(self) -> None:
        node, seconds = self._node(), self._length()
        self._lost(node, "silence", certain=False)
        node.cut_off(seconds, (0, 1))

    def half_open(self) -> None:
        node, seconds = self._node(), self._length()
        way = self.random.randrange(2)
        self._lost(node, ("late silence", "silence")[way], certain=False)
        node.cut_off(seconds, (way,))

    def unseen(self) -> None:
        """Something happens on a node that is cut off for a moment: what follows from it elsewhere is heard first."""
        node, seconds = self._node(), self.random.uniform(0.2, 0.7) * self.run.heartbeat
        self._lost(node, "silence", certain=False)  # what was lost on the way may be sent again too late
        node.cut_off(seconds, (0, 1))
        call = self.random.choice((self.rank_dies, self.guardian_killed))
        self.world.after(seconds * self.random.uniform(0.0, 0.5), lambda: call(node))

    def node_frozen(self, node: Node | None = None, seconds: float = 0.0) -> None:
        node, seconds = node or self._node(), seconds or self._length()
        self._lost(node, "silence", certain=False)
        node.disturb(seconds)
        node.host.freeze(seconds, clock_stops=self.random.random() < 0.5)

    def runner_frozen(self, seconds: float = 0.0) -> None:
        seconds = seconds or self._length()
        for node in self.run.nodes.values():
            self._lost(node, "late silence", certain=False)  # nobody hears of the runner
        self.run.truth.runner_halts.append((self.world.now, self.world.now + seconds))
        self.run.disturbed_before = True
        self.run.host.freeze(seconds, clock_stops=self.random.random() < 0.5)

    def all_frozen(self) -> None:
        """A host of virtual machines stands still: all stop, and go on one after the other."""
        seconds = self._length()
        for node in self.run.nodes.values():
            self.node_frozen(node, seconds + self.random.uniform(0.0, 0.1) * self.run.heartbeat)
        self.runner_frozen(seconds + self.random.uniform(0.0, 0.1) * self.run.heartbeat)

    # -- the runner ----------------------------------------------------------------------------------

    def runner_killed(self) -> None:
        if self.random.random() < 0.5:
            return
        self.world.note("the runner is killed")
        self.run.process.die()

    def interrupted(self) -> None:
        loop = self.run.process.loop
        if loop is not None:
            signum = self.random.choice((signal.SIGINT, signal.SIGTERM))
            self.run.truth.signal(int(signum))
            loop.signal(signum)
            if self.random.random() < 0.3:
                self.world.after(self.random.uniform(0.0, 1.0), lambda: loop.signal(signal.SIGINT))

    def suspended(self) -> None:
        loop, process = self.run.process.loop, self.run.process
        if loop is not None:
            self.world.note("the runner gets SIGTSTP")
            self.run.truth.vague = self.run.disturbed_before = True
            seconds = self._length()
            self.run.truth.runner_halts.append((self.world.now, self.world.now + seconds))
            process.continued = False
            loop.signal(signal.SIGTSTP)
            self.world.after(seconds, process.resume)
