"""Runner and agent prove to each other that they know the job's token; others are refused."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.cluster.agent_listener import CertificateMaker
from bireme.control import handshake
from bireme.control.handshake import MOST_BYTES, Agent, mac_of
from bireme.control.mac import MacTransport
from bireme.control.runner_handshake import NO_TLS_THERE, Runner, Security
from bireme.control.tls import TlsTransport, client_context

TOKEN = "0123456789abcdef" * 4
WHO = {"name": "node1", "hostname": "node1", "addresses": "10.0.0.1,fd00::1", "place": "0"}
SECURE = CertificateMaker(os.environ).finish()
CLIENT = client_context()
PLAIN = Security(why_not="there is no openssl")
MODES = {"tls": (SECURE, CLIENT), "mac": (PLAIN, CLIENT), "mac for the agent's sake": (SECURE, None)}

Alter = Callable[[bytes], bytes]


def no_change(data: bytes) -> bytes:
    return data


def converse(
    runner: Runner, agent: Agent, cut: int = 0, to_runner: Alter = no_change, to_agent: Alter = no_change
) -> tuple[bytes, bytes]:
    """Let them speak until nobody has anything to say, or hangs up; all that was said to the runner, and to the agent.

    ``cut``: everything comes in pieces of so many bytes.
    """
    said = (bytearray(), bytearray())
    sides: tuple[tuple[Callable[[bytes], bytes | None], Alter], ...]
    sides = ((runner.feed, to_runner), (agent.feed, to_agent))
    data, place = agent.first(), 0
    while data:
        feed, alter = sides[place]
        data = alter(data)
        said[place].extend(data)
        answer = b""
        size = cut or len(data)
        for start in range(0, len(data), size):
            piece = feed(data[start : start + size])
            if piece is None:
                return bytes(said[0]), bytes(said[1])
            answer += piece
        data, place = answer, 1 - place
    return bytes(said[0]), bytes(said[1])


def met(runner: Runner, agent: Agent) -> bool:
    return runner.agent is not None or agent.welcome


@pytest.mark.parametrize("mode", MODES)
@given(who=st.dictionaries(st.text(), st.text(), max_size=4), cut=st.integers(0, 300))
def test_both_know_the_token(mode: str, who: dict[str, str], cut: int) -> None:
    security, context = MODES[mode]
    runner, agent = Runner(TOKEN, security), Agent(TOKEN, who, context)
    converse(runner, agent, cut)
    assert agent.welcome
    assert runner.agent == {**who, "tls": "yes" if context else ""}
    assert runner.transport is not None
    sealed = runner.transport.encode(b"what is exported")
    assert agent.transport.decode(sealed) == b"what is exported"
    assert (b"what is exported" in sealed) == (mode != "tls")
    assert bool(runner.transport.readable) == (mode != "tls")


def test_why_there_is_no_tls() -> None:
    for mode, why in (("mac", "there is no openssl"), ("mac for the agent's sake", NO_TLS_THERE)):
        security, context = MODES[mode]
        runner = Runner(TOKEN, security)
        converse(runner, Agent(TOKEN, WHO, context))
        assert runner.transport is not None and runner.transport.readable == why


@pytest.mark.parametrize("mode", MODES)
def test_the_token_is_never_said(mode: str) -> None:
    security, context = MODES[mode]
    runner, agent = Runner(TOKEN, security), Agent(TOKEN, WHO, context)
    said = b"".join(converse(runner, agent))
    assert met(runner, agent)
    assert TOKEN.encode() not in said and bytes.fromhex(TOKEN) not in said


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0", TOKEN.upper()])
def test_agent_with_a_wrong_token(wrong: str) -> None:
    """It is told nothing at all, so that a stranger costs us nothing."""
    runner, agent = Runner(TOKEN, SECURE), Agent(wrong, WHO, CLIENT)
    assert converse(runner, agent)[1] == b""
    assert not met(runner, agent) and runner.transport is None


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0"])
@pytest.mark.parametrize("mode", MODES)
def test_runner_with_a_wrong_token(wrong: str, mode: str) -> None:
    """Somebody else at that address and port, who has seen what the agent says first: it proves nothing to him."""
    security, context = MODES[mode]
    agent = Agent(TOKEN, WHO, context)
    _, nonce, who, _ = agent.first().decode().split()
    name, fingerprint = ("tls", security.fingerprint) if mode == "tls" else ("mac", "-")
    said = ("ab" * 16, name, fingerprint, nonce, who)
    assert agent.feed(f"{' '.join(said[:3])} {mac_of(wrong, 'runner', *said)}\n".encode()) is None
    assert not agent.welcome


def test_a_server_with_another_certificate() -> None:
    """A relay that passes on the proved lines and then opens TLS itself gets no proof of the agent's."""
    other = CertificateMaker(os.environ).finish()
    assert other.context is not None and SECURE.fingerprint != other.fingerprint
    runner, agent = Runner(TOKEN, SECURE), Agent(TOKEN, WHO, CLIENT)
    answer = runner.feed(agent.first())
    assert answer
    hello = agent.feed(answer)
    assert hello
    from bireme.control.tls import TlsTransport

    false = TlsTransport(other.context, server=True)
    false.decode(hello)
    assert agent.feed(false.owed()) is None
    assert not met(runner, agent)


def test_nobody_on_the_way_can_choose_the_mode() -> None:
    """Neither by what the agent can do, nor by what the runner has chosen."""

    def without_tls(data: bytes) -> bytes:
        words = data.split()
        if words[0] == b"bireme-dial":
            who = base64.b64decode(words[2]).replace(b'"tls": "yes"', b'"tls": ""')
            return data.replace(words[2], base64.b64encode(who))
        return data

    runner, agent = Runner(TOKEN, SECURE), Agent(TOKEN, WHO, CLIENT)
    converse(runner, agent, to_runner=without_tls)
    assert not met(runner, agent) and runner.transport is None
    runner, agent = Runner(TOKEN, SECURE), Agent(TOKEN, WHO, CLIENT)
    converse(runner, agent, to_agent=lambda data: data.replace(b" tls ", b" mac "))
    assert not met(runner, agent)


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_any_change_on_the_way_ends_it_or_changes_nothing(mode: str, data: st.DataObject) -> None:
    """One bit of anything that is said, in either direction."""
    security, context = MODES[mode]
    place = [data.draw(st.integers(0, 1300)), 0]
    flip = data.draw(st.sampled_from([1 << bit for bit in range(8)]))
    changed = []

    def alter(text: bytes) -> bytes:
        at, place[1] = place[0] - place[1], place[1] + len(text)
        if not 0 <= at < len(text):
            return text
        changed.append(at)
        return text[:at] + bytes([text[at] ^ flip]) + text[at + 1 :]

    runner, agent = Runner(TOKEN, security), Agent(TOKEN, WHO, context)
    converse(runner, agent, to_runner=alter, to_agent=alter)
    assert runner.agent in (None, {**WHO, "tls": "yes" if context else ""})
    if agent.welcome and changed:  # a number in the head of TLS's first record that nobody looks at
        assert mode == "tls" and runner.transport is not None
        assert agent.transport.decode(runner.transport.encode(b"ask")) == b"ask"


def test_nothing_can_be_replayed() -> None:
    """What an agent has said to one runner, or in one connection, opens no other one."""
    for security, context in MODES.values():
        seen: set[str] = set()
        runner, agent = Runner(TOKEN, security, seen), Agent(TOKEN, WHO, context)
        said, _ = converse(runner, agent)
        assert met(runner, agent)
        first, _, rest = said.partition(b"\n")
        again = Runner(TOKEN, security, seen)
        assert again.feed(first + b"\n") is None, "not even the first line"
        other = Runner(TOKEN, security)  # another runner with this token has not seen it
        assert other.feed(first + b"\n")
        assert not other.feed(rest)
        assert other.agent is None


def test_the_runners_proof_cannot_be_replayed_either() -> None:
    answer = Runner(TOKEN, SECURE).feed(Agent(TOKEN, WHO, CLIENT).first())
    assert answer
    assert Agent(TOKEN, WHO, CLIENT).feed(answer) is None


def test_an_answer_is_no_proof_for_the_other_side() -> None:
    """The two sides' words and keys differ: nobody can prove himself with what the other one has said."""
    runner, agent = Runner(TOKEN, PLAIN), Agent(TOKEN, WHO, CLIENT)
    answer = runner.feed(agent.first())
    assert answer
    proof = answer.split()[3] + b"\n"
    assert runner.feed(MacTransport(b"x" * 32, b"x" * 32, "").encode(proof)) is None
    own_keys = handshake.keys_of(TOKEN, runner._said)
    assert own_keys[0] != own_keys[1]


WRONG_FIRST = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS at once": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
    "another word": Agent(TOKEN, WHO).first().replace(b"bireme-dial", b"bireme-dear"),
    "too few words": b"bireme-dial abc\n",
    "no MAC": Agent(TOKEN, WHO).first().rpartition(b" ")[0] + b"\n",
    "too many words": Agent(TOKEN, WHO).first().replace(b"\n", b" x\n"),
    "more than a line": Agent(TOKEN, WHO).first() + b"x",
    "an empty line": b"\n",
    "bytes": b"\xff\xfe\x00\n",
    "too long": b"x" * (MOST_BYTES + 1),
}


@pytest.mark.parametrize("name", WRONG_FIRST)
def test_what_is_no_agent(name: str) -> None:
    runner = Runner(TOKEN, SECURE)
    assert runner.feed(WRONG_FIRST[name]) is None
    assert runner.agent is None and runner.transport is None


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_whatever_comes(pieces: list[bytes]) -> None:
    """No exception, and nobody gets in."""
    runner = Runner(TOKEN, SECURE)
    for piece in pieces:
        if runner.feed(piece) is None:
            break
    assert runner.agent is None


words_like_ours = st.lists(
    st.one_of(st.sampled_from([b"bireme-dial", b"2", b"e30=", b"tls", b"mac", b"-", b"\xff"]), st.binary(max_size=70)),
    max_size=6,
).map(lambda words: b" ".join(words) + b"\n")


@given(words_like_ours)
def test_whatever_comes_in_words(line: bytes) -> None:
    assert not Runner(TOKEN, SECURE).feed(line)
    assert not Agent(TOKEN, WHO, CLIENT).feed(line)


@given(st.binary(max_size=200))
def test_whatever_answers(line: bytes) -> None:
    agent = Agent(TOKEN, WHO, CLIENT)
    assert not agent.feed(line)
    assert not agent.feed(b"\n")
    assert not agent.welcome


def test_an_answer_without_an_end() -> None:
    agent = Agent(TOKEN, WHO, CLIENT)
    fed = [agent.feed(b"x" * 1000) for _ in range(MOST_BYTES // 1000 + 1)]
    assert fed[-1] is None


@pytest.mark.parametrize("mode", MODES)
@given(proof=st.binary(min_size=1, max_size=300))
def test_whatever_is_proved(mode: str, proof: bytes) -> None:
    """By one who has sniffed an agent's first line, and was quicker."""
    security, context = MODES[mode]
    runner = Runner(TOKEN, security)
    assert runner.feed(Agent(TOKEN, WHO, context).first())
    runner.feed(proof)
    assert runner.agent is None


@pytest.mark.parametrize("proof", [b"x", b"", b"0" * 64, b"x y"])
def test_who_has_only_sniffed_proves_nothing_inside_tls(proof: bytes) -> None:
    """It says again what an agent has said first, and can finish TLS, but does not know the token."""
    runner, thief = Runner(TOKEN, SECURE), TlsTransport(CLIENT, server=False)
    runner.feed(Agent(TOKEN, WHO, CLIENT).first())
    data = thief.owed()
    while not thief.established:
        answer = runner.feed(data)
        assert answer is not None
        thief.decode(answer)
        data = thief.owed()
    assert runner.feed(data) is not None
    assert not runner.feed(thief.encode(proof + b"\n"))
    assert runner.agent is None


@pytest.mark.parametrize("mode", MODES)
@given(data=st.binary(min_size=1, max_size=300))
def test_whatever_comes_in_place_of_the_welcome(mode: str, data: bytes) -> None:
    security, context = MODES[mode]
    runner, agent = Runner(TOKEN, security), Agent(TOKEN, WHO, context)
    answer = runner.feed(agent.first())
    assert answer
    agent.feed(answer)
    agent.feed(data)
    assert not agent.welcome


def test_who_it_says_it_is_must_be_a_table_of_words() -> None:
    """Even who knows the token cannot make us stumble."""
    for who in (b"[]", b"5", b'"x"', b"{", b"\xff", b'{"name": 5}', b'{"name": null}', b"[" * 5000):
        text = base64.b64encode(who).decode()
        words = ("bireme-dial", "2", "abc", text)
        line = f"{' '.join(words)} {mac_of(TOKEN, 'first', *words)}\n"
        assert Runner(TOKEN, SECURE).feed(line.encode()) is None, who
