"""The channel over real pipes and sockets: messages in order, no blocking, and one report of its end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bireme.control.channel import Channel
from bireme.control.frames import encode_output
from bireme.control.greeting import greeting
from bireme.control.messages import FROM_AGENT, TO_AGENT, KillNow, Message, Output, Over, Ping, Release
from bireme.loop import Loop
from tests.unit.control import examples
from tests.unit.control.test_transport import mac_pair, tls_pair

OVER = Over(killed=0, stuck=())
REAL = examples.ASK.replace(exports={"ECHO": "real"})


class Side:
    """One end of a channel, and what has happened there."""

    def __init__(self, loop: Loop, read_fd: int, write_fd: int, *, agent: bool = False, **kwargs: Any) -> None:
        self.frames: list[Message | Output] = []
        self.ends: list[str] = []
        self.violations: list[str] = []
        self.until: Callable[[], bool] = lambda: False
        self.loop = loop
        self.tags: list[str] = []
        self.channel = Channel(
            loop,
            read_fd,
            write_fd,
            TO_AGENT if agent else FROM_AGENT,
            on_frame=self.on_frame,
            on_end=self.on_end,
            on_violation=self.on_violation,
            on_greeting=None if agent else self.on_greeting,
            **kwargs,
        )
        if agent:
            self.channel.send_raw(greeting("a-python"))

    def on_greeting(self, tag: str) -> None:
        self.tags.append(tag)
        self.check()

    def on_frame(self, frame: Message | Output) -> None:
        self.frames.append(frame)
        self.check()

    def on_end(self, reason: str) -> None:
        self.ends.append(reason)
        self.check()

    def on_violation(self, what: str) -> None:
        self.violations.append(what)
        self.check()

    def check(self) -> None:
        if self.until():
            self.loop.stop()

    def wait(self, until: Callable[[], bool]) -> None:
        """Run the loop until then; fails when that takes too long."""
        if until():
            return
        self.until = until
        late: list[bool] = []
        timer = self.loop.after(20, lambda: (late.append(True), self.loop.stop()))
        self.loop.run()
        timer.cancel()
        assert not late, f"{self.frames[-3:]} {self.ends}"


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["pipes", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[list[tuple[int, int]]]:
    """(read, write) of both ends."""
    if request.param == "socket":
        made = [(sock.detach(),) * 2 for sock in socket.socketpair()]
    else:
        (a, b), (c, d) = os.pipe(), os.pipe()
        made = [(a, d), (c, b)]
    yield made
    for fd in {fd for pair in made for fd in pair}:
        try:
            os.close(fd)
        except OSError:
            pass


@pytest.fixture(params=["plain", "mac", "tls"])
def both(request: pytest.FixtureRequest, loop: Loop, ends: list[tuple[int, int]]) -> tuple[Side, Side]:
    """The runner's end and the agent's."""
    ours, theirs = {"plain": lambda: (None, None), "mac": mac_pair, "tls": tls_pair}[request.param]()
    runner, agent = Side(loop, *ends[0], transport=ours), Side(loop, *ends[1], agent=True, transport=theirs)
    runner.channel.send(examples.ASK)  # before the greeting: it is dropped
    runner.wait(lambda: bool(runner.tags))
    return runner, agent


def test_both_ways(both: tuple[Side, Side]) -> None:
    runner, agent = both
    agent.channel.send(examples.HELLO)
    runner.channel.send(examples.ASK)
    runner.wait(lambda: bool(runner.frames))
    agent.wait(lambda: bool(agent.frames))
    assert runner.frames == [examples.HELLO]
    assert agent.frames == [examples.ASK]


def test_more_than_fits_is_sent_later_in_order(both: tuple[Side, Side]) -> None:
    """And who sends does not wait."""
    runner, agent = both
    sent = [Output(number % 5, 1, bytes([number]) * 100_000) for number in range(50)]
    for output in sent:
        agent.channel.send_raw(encode_output(output.rank, output.number, output.data))
    agent.channel.send(OVER)
    assert agent.channel.pending > 3_000_000
    runner.wait(lambda: len(runner.frames) == len(sent) + 1)
    assert runner.frames == [*sent, OVER]
    assert agent.channel.pending == 0
    began = time.process_time()
    runner.loop.after(0.2, runner.loop.stop)
    runner.loop.run()
    assert time.process_time() - began < 0.1, "it spins, with nothing to write"


def test_the_other_side_goes(both: tuple[Side, Side]) -> None:
    runner, agent = both
    agent.channel.send(OVER)
    agent.channel.close()
    runner.wait(lambda: bool(runner.ends))
    assert runner.frames == [OVER]
    assert runner.ends == ["closed by the other side"]
    assert not runner.channel.open
    runner.channel.send(Release())
    assert runner.ends == ["closed by the other side"]
    assert not agent.ends, "who closes knows it"


def test_a_send_that_finds_the_other_side_gone(both: tuple[Side, Side]) -> None:
    """Who sends is in the middle of something: the end is reported later, and after what has come before it."""
    runner, agent = both
    agent.channel.send(OVER)
    agent.channel.close()
    runner.channel.send(Release())
    assert not runner.ends
    runner.wait(lambda: bool(runner.ends))
    assert runner.frames == [OVER]
    assert len(runner.ends) == 1


def test_the_other_side_goes_while_much_waits(both: tuple[Side, Side]) -> None:
    runner, agent = both
    for _ in range(100):
        agent.channel.send_raw(encode_output(0, 1, b"x" * 100_000))
    runner.channel.close()
    agent.wait(lambda: bool(agent.ends))
    assert len(agent.ends) == 1
    assert not agent.channel.open


def test_nonsense_ends_it(loop: Loop, ends: list[tuple[int, int]]) -> None:
    runner = Side(loop, *ends[0])
    os.write(ends[1][1], greeting("x") + b"garbage that is none of ours")
    runner.wait(lambda: bool(runner.violations))
    assert runner.violations == ["it sent bytes that are not a frame"] and not runner.ends
    assert not runner.channel.open


def test_a_message_for_the_other_side_ends_it(both: tuple[Side, Side]) -> None:
    runner, agent = both
    agent.channel.send(Ping(sent=1.0))
    runner.wait(lambda: bool(runner.violations))
    assert runner.violations == ["it sent an unknown message: 'Ping'"] and not runner.ends
    assert not runner.channel.open


def test_what_comes_before_a_violation_is_heard(both: tuple[Side, Side]) -> None:
    runner, agent = both
    agent.channel.send(OVER)
    agent.channel.send(KillNow())
    runner.wait(lambda: bool(runner.violations))
    assert runner.frames == [OVER]


def test_noise_is_kept(loop: Loop, ends: list[tuple[int, int]]) -> None:
    runner = Side(loop, *ends[0])
    os.write(ends[1][1], b"no such file or directory\n")
    os.close(ends[1][1])
    if ends[1][0] != ends[1][1]:
        os.close(ends[1][0])
    runner.wait(lambda: bool(runner.ends))
    assert runner.channel.noise == b"no such file or directory\n"


def test_closed_in_the_middle_of_what_has_come(loop: Loop, ends: list[tuple[int, int]]) -> None:
    """Who closes it on a frame hears of none that came with it."""
    heard = []
    channel = Channel(
        loop,
        *ends[0],
        FROM_AGENT,
        on_frame=lambda frame: (heard.append(frame), channel.close(), loop.stop()),
        on_end=heard.append,
        on_violation=heard.append,
    )
    data = b"".join(encode_output(rank, 1, b"x") for rank in range(3))
    os.write(ends[1][1], data)
    loop.after(20, loop.stop)
    loop.run()
    assert heard == [Output(0, 1, b"x")]


def test_what_has_come_early(loop: Loop, ends: list[tuple[int, int]]) -> None:
    """What the transport had decoded before is taken first."""
    early = encode_output(0, 1, b"first")
    agent = Side(loop, *ends[0], agent=True, early=early[:7])
    os.write(ends[1][1], early[7:] + encode_output(0, 1, b"second"))
    agent.wait(lambda: len(agent.frames) == 2)
    assert agent.frames == [Output(0, 1, b"first"), Output(0, 1, b"second")]


# -- somebody in between ---------------------------------------------------------------------------


class Between:
    """Two channels, and a relay between them that may do what it likes with what is sent."""

    def __init__(self, loop: Loop, transports: tuple[Any, Any]) -> None:
        runner, near = socket.socketpair()
        agent, far = socket.socketpair()
        self.loop, self.ends = loop, (near, far)
        self.seen = b""
        self.alter: Callable[[bytes], bytes] = lambda data: data
        for source, sink in ((near, far), (far, near)):
            source.setblocking(False)
            loop.watch(source.fileno(), lambda source=source, sink=sink: self.carry(source, sink))
        self.runner = Side(loop, *[runner.detach()] * 2, transport=transports[0])
        self.agent = Side(loop, *[agent.detach()] * 2, agent=True, transport=transports[1])

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        data = source.recv(1 << 16)
        self.seen += data
        try:
            if data:
                sink.sendall(self.alter(data))
                return
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.loop.unwatch(source.fileno())

    def close(self) -> None:
        for side in (self.runner, self.agent):
            side.channel.close()
        for end in self.ends:
            self.loop.unwatch(end.fileno())
            end.close()


@pytest.fixture(params=["mac", "tls"])
def between(request: pytest.FixtureRequest, loop: Loop) -> Iterator[Between]:
    made = Between(loop, {"mac": mac_pair, "tls": tls_pair}[request.param]())
    made.agent.channel.send(examples.HELLO)
    made.runner.wait(lambda: bool(made.runner.frames))
    yield made
    made.close()


def test_the_relay_passes_on(between: Between) -> None:
    between.runner.channel.send(REAL)
    between.agent.wait(lambda: bool(between.agent.frames))
    assert between.agent.frames == [REAL]
    if not between.runner.channel.readable:
        assert b"real" not in between.seen and b"Hello" not in between.seen


@pytest.mark.parametrize("how", ["changed", "replayed", "cut", "reversed"])
def test_the_relay_alters(between: Between, how: str) -> None:
    """Nothing of it is taken, and the channel ends with the reason."""
    change: dict[str, Callable[[bytes], bytes]] = {
        "changed": lambda data: data.replace(b"real", b"evil") if b"real" in data else data[:-1] + b"x",
        "replayed": lambda data: data + data,
        "cut": lambda data: data[1:],
        "reversed": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
    }
    between.alter = change[how]
    between.runner.channel.send(REAL)
    size = 300_000 if how == "cut" else 100_000  # a forged length may have it wait for so much
    between.runner.channel.send_raw(encode_output(0, 1, b"x" * size))
    between.agent.wait(lambda: bool(between.agent.ends))
    assert between.agent.ends == ["its data was altered in transit"]
    assert between.agent.frames in ([], [REAL][: how == "replayed"])


def test_the_relay_ends_it(between: Between) -> None:
    """That is all that is left to it; it looks like any other end."""
    between.runner.channel.send_raw(encode_output(0, 1, b"x" * 100_000))
    between.ends[1].shutdown(socket.SHUT_RDWR)
    between.agent.wait(lambda: bool(between.agent.ends))
    assert between.agent.ends == ["closed by the other side"]
