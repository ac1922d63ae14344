"""The port at which agents connect to the runner: which connections it accepts, and at which addresses it listens."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from bireme.agent.connect import connect
from bireme.cluster import agent_listener
from bireme.cluster.agent_listener import AgentListener
from bireme.control.channel import Channel
from bireme.control.messages import FROM_AGENT, TO_AGENT
from bireme.control.transport import Transport
from bireme.errors import UnfitError
from bireme.loop import Loop
from bireme.resources.addresses import own_addresses
from tests.unit.control import examples

VARIABLE = "BIREME_TOKEN"
LONG = 30.0


class Connection(NamedTuple):
    fd: int
    transport: Transport
    early: bytes


class Door:
    """A runner's listener, with its loop, and agents in threads."""

    def __init__(self, environ: Any = os.environ, *, only_here: bool = True) -> None:
        self.loop = Loop()
        self.listener = AgentListener(VARIABLE, environ, only_here=only_here)
        addresses, port, _ = self.listener.arguments()
        self.addresses, self.port = addresses.split(","), int(port)
        self.agents: list[tuple[dict[str, str], int, Transport]] = []
        self.made: list[Connection | UnfitError] = []
        self.threads: list[threading.Thread] = []
        self.until: Callable[[], bool] = lambda: False
        self.listener.listen(self.loop, self.take)

    def take(self, who: dict[str, str], fd: int, transport: Transport) -> None:
        self.agents.append((who, fd, transport))

    def stranger(self, words: bytes = b"") -> socket.socket:
        sock = socket.create_connection((self.addresses[0], self.port), timeout=LONG)
        sock.sendall(words)
        return sock

    def agent(self, name: str = "node1", **more: Any) -> None:
        words = {"addresses": self.addresses, "port": self.port, "environ": self.listener.environment(), **more}

        def work() -> None:
            try:
                self.made.append(Connection(*connect(variable=VARIABLE, name=name, **words)))
            except UnfitError as error:
                self.made.append(error)

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def wait(self, until: Callable[[], object]) -> None:
        """Turn the loop until then."""
        late: list[bool] = []
        timer = self.loop.after(LONG, lambda: late.append(True))

        def look() -> None:
            if until() or late:
                self.loop.stop()
            else:
                self.loop.after(0.005, look)

        look_again = self.loop.after(0, look)
        self.loop.run()
        timer.cancel()
        look_again.cancel()
        assert not late

    def close(self) -> None:
        self.listener.close()
        for thread in self.threads:
            thread.join(LONG)
        for _, fd, _ in self.agents:
            os.close(fd)
        for made in self.made:
            if isinstance(made, Connection):
                os.close(made.fd)
        self.loop.close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()


def hung_up(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_an_agent_gets_in(door: Door) -> None:
    """And what it says then is encrypted."""
    door.agent("node7")
    door.wait(lambda: door.agents and door.made)
    who, fd, transport = door.agents.pop()
    (made,) = door.made
    door.made.clear()
    assert who["name"] == "node7"
    assert isinstance(made, Connection)
    assert transport.readable == ""
    heard: list[Any] = []
    end = heard.append
    events = {"on_frame": end, "on_end": end, "on_violation": end}
    runner = Channel(door.loop, fd, fd, FROM_AGENT, **events, transport=transport)
    agent = Channel(door.loop, made.fd, made.fd, TO_AGENT, **events, transport=made.transport, early=made.early)
    agent.send(examples.HELLO)
    door.wait(lambda: heard)
    assert heard == [examples.HELLO]
    runner.close()
    agent.close()


def test_without_openssl() -> None:
    """There is a way all the same, and it says why it is not encrypted."""
    from bireme.control.runner_handshake import Security

    door = Door()
    door.listener._security = Security(why_not="there is none")
    door.agent()
    door.wait(lambda: door.agents and door.made)
    assert door.agents[0][2].readable == "there is none"
    door.close()


def test_the_wrong_token(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent gives up by itself, and says whom it has not found."""
    monkeypatch.setattr("bireme.agent.connect._TRY_FOR", 0.5)
    door.agent(environ={VARIABLE: "0" * 64})
    door.wait(lambda: door.made)
    assert isinstance(door.made[0], UnfitError) and "cannot connect to the runner" in str(door.made[0])
    assert not door.agents


def test_a_runner_that_answers_byte_by_byte(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not keep an agent from the runner's other addresses."""
    monkeypatch.setattr("bireme.agent.connect._PROOF_WAIT", 0.2)
    slow = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def answer() -> None:
        guest, _ = slow.accept()
        try:
            while not over.wait(0.02):
                guest.sendall(b"a")
        except OSError:
            pass
        guest.close()

    thread = threading.Thread(target=answer)
    thread.start()
    monkeypatch.setattr("bireme.agent.connect._TRY_FOR", 0.1)
    door.agent(addresses=["127.0.0.1"], port=slow.getsockname()[1])
    try:
        door.wait(lambda: door.made)
    finally:
        over.set()
        thread.join(LONG)
        slow.close()
    assert isinstance(door.made[0], UnfitError) and "it did not answer in time" in str(door.made[0])


def test_a_stranger_who_says_nothing_is_sent_away(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_listener, "_HANDSHAKE_WAIT", 0.2)
    monkeypatch.setattr(agent_listener, "_SWEEP", 0.05)  # the first ones find nobody who has been there for long
    strangers = [door.stranger(words) for words in (b"", b"bireme-dial 2 ")]
    door.wait(lambda: all(map(hung_up, strangers)))
    for stranger in strangers:
        stranger.close()


def test_one_who_stops_after_its_first_line_too(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from bireme.control.handshake import Agent

    monkeypatch.setattr(agent_listener, "_HANDSHAKE_WAIT", 0.2)
    known = door.stranger(Agent(door.listener.environment()[VARIABLE], {}).first())
    door.wait(lambda: door.listener._known)
    door.wait(lambda: not door.listener._known)
    known.close()


def test_only_so_many_strangers(door: Door) -> None:
    """The one that came first goes first; agents get in meanwhile, and lose no place to strangers."""
    strangers = [door.stranger() for _ in range(agent_listener._MOST_STRANGERS)]
    door.wait(lambda: len(door.listener._strangers) == len(strangers))
    assert not any(map(hung_up, strangers))
    more = [door.stranger() for _ in range(20)]
    door.wait(lambda: sum(map(hung_up, strangers)) == 20)
    assert all(map(hung_up, strangers[:20])) and not any(map(hung_up, more))
    for place in range(5):
        door.agent(f"node{place}")
    door.wait(lambda: len(door.agents) == len(door.made) == 5)
    assert all(isinstance(made, Connection) for made in door.made)
    for stranger in strangers + more:
        stranger.close()


def test_an_agent_that_was_sent_away_comes_again(door: Door) -> None:
    """As it may be when very many come at once."""
    busy = socket.create_server(("127.0.0.1", 0))

    def turn_away() -> None:
        for _ in range(3):
            busy.accept()[0].close()
        guest, _ = busy.accept()
        runner = door.stranger()
        while data := guest.recv(65536):
            runner.sendall(data)
            guest.sendall(runner.recv(65536))
            if door.agents:
                break
        guest.close()
        runner.close()

    thread = threading.Thread(target=turn_away, daemon=True)
    thread.start()
    door.agent(addresses=["127.0.0.1"], port=busy.getsockname()[1])
    door.wait(lambda: door.made)
    assert isinstance(door.made[0], Connection)
    thread.join(LONG)
    busy.close()


def test_where_it_listens() -> None:
    """At the addresses that agents are told, all on one port, and at no other."""
    here, everywhere = Door(), Door(only_here=False)
    assert {"127.0.0.1"} <= set(here.addresses) <= {"127.0.0.1", "::1"}
    assert set(everywhere.addresses) <= {*own_addresses(), "127.0.0.1"}
    for door in (here, everywhere):
        for address in door.addresses:
            socket.create_connection((address, door.port), timeout=LONG).close()
    for address in (*own_addresses(), "127.0.0.2"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, here.port), timeout=LONG)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", everywhere.port), timeout=LONG)
    everywhere.close()
    here.close()
    assert len(agent_listener._listening(["127.0.0.1", "192.0.2.1"])) == 1, "the second address is not ours"


LEAKED = """
import os, sys
from bireme.agent.connect import close_what_leaked
for fd in range(5, 9):
    os.dup2(2, fd)
close_what_leaked(dict(word.split("=") for word in sys.argv[1:]))
left = [fd for fd in range(3, 9) if os.path.exists(f"/proc/self/fd/{fd}")]
os.write(2, f"{left} {[os.get_inheritable(fd) for fd in left]}".encode())
"""


@pytest.mark.parametrize(("word", "left"), [(None, "[] []"), ("PMI_FD=7", "[7] [False]")])
def test_what_hydra_leaks_is_closed(word: str | None, left: str) -> None:
    """But stderr, and the descriptor for PMI, which no rank inherits."""
    argv = [sys.executable, "-c", LEAKED, *([word] if word else [])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.returncode) == (left, 0)


@pytest.mark.parametrize("held", [0, 5])
def test_no_descriptor_is_left(door: Door, held: int) -> None:
    """Nothing spins: a stranger's descriptor is taken, or the port is left alone for a moment. Agents get in later."""
    strangers = [door.stranger() for _ in range(held)]
    door.wait(lambda: len(door.listener._strangers) == held)
    strangers += [door.stranger() for _ in range(20)]
    calls = []
    accept = door.listener._accept
    for listening in door.listener._sockets:
        door.loop.watch(listening.fileno(), lambda listening=listening: (calls.append(1), accept(listening)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        door.loop.after(0.6, door.loop.stop)
        door.loop.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert 0 < len(calls) < 100, "it spins"
    assert len(door.listener._strangers) == held
    door.agent()
    door.wait(lambda: door.agents and door.made)
    assert isinstance(door.made[0], Connection)
    for stranger in strangers:
        stranger.close()
