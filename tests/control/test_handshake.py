"""Runner and agent prove to each other that they know the job's token; whoever does not is sent away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.control.handshake import MOST_BYTES, Agent, Runner

TOKEN = "0123456789abcdef" * 4
WHO = {"name": "node1", "hostname": "node1", "addresses": "10.0.0.1,fd00::1", "place": "0"}


def conversation(runner: Runner, agent: Agent, cut: int = 0) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The runner's answer, the agent's, the runner's last word. ``cut``: what the agent says comes in two pieces."""

    def feed(data: bytes) -> bytes | None:
        first = runner.feed(data[: cut % len(data)]) if cut % len(data) else b""
        assert first == b"", "half a line gets no answer"
        return runner.feed(data[cut % len(data) :])

    answer = feed(agent.first())
    if answer is None:
        return None, None, None
    proof = agent.answer(answer.rstrip(b"\n"))
    return answer, proof, None if proof is None else feed(proof)


@given(st.dictionaries(st.text(), st.text(), max_size=4), st.integers(0, 1000))
def test_both_know_the_token(who: dict[str, str], cut: int) -> None:
    runner = Runner(TOKEN)
    *_, last = conversation(runner, Agent(TOKEN, who), cut)
    assert last == b"welcome\n"
    assert runner.agent == who


def test_the_token_is_never_said() -> None:
    runner, agent = Runner(TOKEN), Agent(TOKEN, WHO)
    said = b"".join((agent.first(), *(words or b"" for words in conversation(runner, agent))))
    assert TOKEN.encode() not in said


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0", TOKEN.upper()])
def test_agent_with_a_wrong_token(wrong: str) -> None:
    """It is told nothing by which it could be welcomed, even if it does not check us."""
    runner, agent = Runner(TOKEN), Agent(wrong, WHO)
    answer, proof, _ = conversation(runner, agent)
    assert answer is not None and proof is None
    # an impostor goes on all the same, with a proof by the token that it has
    nonce = answer.split()[0]
    impostor = Agent(wrong, WHO)
    impostor.__dict__.update(agent.__dict__)
    from bireme.control import handshake

    mac = handshake._mac(wrong, "agent", nonce.decode(), agent._nonce, agent._who)
    assert runner.feed(f"{mac}\n".encode()) is None
    assert runner.agent is None


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0"])
def test_runner_with_a_wrong_token(wrong: str) -> None:
    """Somebody else at that address and port learns nothing of us, and we do not serve it."""
    answer, proof, _ = conversation(Runner(wrong), Agent(TOKEN, WHO))
    assert answer is not None and proof is None


def test_nothing_can_be_replayed() -> None:
    """What an agent has said to one runner, or in one connection, opens no other one."""
    runner, agent = Runner(TOKEN), Agent(TOKEN, WHO)
    first = agent.first()
    answer = runner.feed(first)
    assert answer
    proof = agent.answer(answer.rstrip(b"\n"))
    assert proof and runner.feed(proof) == b"welcome\n"
    again = Runner(TOKEN)
    assert again.feed(first) not in (None, answer)
    assert again.feed(proof) is None
    assert again.agent is None


def test_the_runners_proof_cannot_be_replayed_either() -> None:
    runner, agent = Runner(TOKEN), Agent(TOKEN, WHO)
    answer = runner.feed(agent.first())
    assert answer
    assert Agent(TOKEN, WHO).answer(answer.rstrip(b"\n")) is None


def test_an_answer_is_no_proof_for_the_other_side() -> None:
    """The two sides' words differ, so that nobody can prove himself with what the other one has said."""
    runner, agent = Runner(TOKEN), Agent(TOKEN, WHO)
    answer = runner.feed(agent.first())
    assert answer
    assert runner.feed(answer.split()[1] + b"\n") is None


def test_who_it_is_cannot_be_changed_on_the_way() -> None:
    runner, agent = Runner(TOKEN), Agent(TOKEN, WHO)
    head, _, who = agent.first().rstrip(b"\n").rpartition(b" ")
    other = Agent(TOKEN, {**WHO, "name": "node2"}).first().rstrip(b"\n").rpartition(b" ")[2]
    assert other != who
    answer = runner.feed(head + b" " + other + b"\n")
    assert answer
    proof = agent.answer(answer.rstrip(b"\n"))
    assert proof and runner.feed(proof) is None


WRONG_FIRST = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "another version": Agent(TOKEN, WHO).first().replace(b"bireme-dial 2", b"bireme-dial 3"),
    "too few words": b"bireme-dial 2 abc\n",
    "too many words": b"bireme-dial 2 abc def ghi\n",
    "an empty line": b"\n",
    "bytes": b"\xff\xfe\x00\n",
    "too long": b"x" * (MOST_BYTES + 1),
}


@pytest.mark.parametrize("name", WRONG_FIRST)
def test_what_is_no_agent(name: str) -> None:
    runner = Runner(TOKEN)
    assert runner.feed(WRONG_FIRST[name]) is None
    assert runner.agent is None


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_whatever_comes(pieces: list[bytes]) -> None:
    """No exception, and nobody gets in."""
    runner = Runner(TOKEN)
    for piece in pieces:
        if runner.feed(piece) is None:
            break
    assert runner.agent is None


@given(st.binary(max_size=200))
def test_whatever_answers(line: bytes) -> None:
    assert Agent(TOKEN, WHO).answer(line) is None


@given(st.binary(max_size=100))
def test_whatever_is_proved(proof: bytes) -> None:
    runner = Runner(TOKEN)
    assert runner.feed(Agent(TOKEN, WHO).first())
    assert not runner.feed(proof + b"\n")
    assert runner.agent is None


def test_who_it_says_it_is_must_be_a_table_of_words() -> None:
    """Even who knows the token cannot make us stumble."""
    import base64

    from bireme.control.handshake import _mac

    for who in (b"[]", b"5", b'"x"', b"{", b"\xff", b'{"name": 5}', b'{"name": null}', b"[" * 5000):
        text = base64.b64encode(who).decode()
        runner = Runner(TOKEN)
        answer = runner.feed(f"bireme-dial 2 abc {text}\n".encode())
        assert answer
        nonce = answer.split()[0].decode()
        assert runner.feed(f"{_mac(TOKEN, 'agent', nonce, 'abc', text)}\n".encode()) is None, who
        assert runner.agent is None
