"""Bytes in any pieces are decoded into frames; bytes that are not ours are refused."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bireme.control.frames import (
    MAX_FRAME,
    MAX_FROM_AGENT,
    Decoder,
    encode_code,
    encode_message,
    encode_output,
)
from bireme.control.greeting import greeting, receive_code
from bireme.control.messages import FROM_AGENT, Message, Output, Over, Say
from bireme.errors import ProtocolError
from tests.unit.control import examples

OVER = Over(killed=0, stuck=())
GREETING = greeting("a-python")
messages = st.builds(Say, level=st.just("info"), text=st.text()) | st.sampled_from(examples.FROM_AGENT)
outputs = st.builds(Output, st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=300))
frames = st.lists(messages | outputs, max_size=6)


def encoded(frame: Message | Output) -> bytes:
    if isinstance(frame, Output):
        return encode_output(frame.rank, frame.number, frame.data)
    return encode_message(frame)


def fed(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Message | Output]:
    """All frames of the data, given in pieces."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[Message | Output] = []
    for start, end in pairwise(edges):
        found += decoder.feed(data[start:end])
    return found


cuts = st.lists(st.integers(0, 10**6), max_size=12)
# What cannot be taken for the beginning of a greeting, whatever follows it.
noise = st.binary(max_size=400).filter(lambda data: b"\x01bireme-agent " not in data)


@given(frames, cuts)
def test_in_any_pieces(sent: list[Message | Output], cuts: list[int]) -> None:
    data = GREETING + b"".join(map(encoded, sent))
    assert fed(Decoder(FROM_AGENT), data, cuts) == sent


@given(frames)
def test_byte_by_byte(sent: list[Message | Output]) -> None:
    data = b"".join(map(encoded, sent))
    assert fed(Decoder(FROM_AGENT, greeted=True), data, list(range(len(data)))) == sent


@given(frames, noise, cuts)
@example([OVER], b"\n\x01bireme-channe", [3, 9])
@example([OVER], b"\n\x01bireme-channel"[:-1] * 3, [])
@example([OVER], b"J\0\0\0\x02{}", [1])
def test_noise_before_the_greeting(sent: list[Message | Output], noise: bytes, cuts: list[int]) -> None:
    """Of a shell's start-up files: it is kept, and does no harm."""
    decoder = Decoder(FROM_AGENT)
    assert fed(decoder, noise + GREETING + b"".join(map(encoded, sent)), cuts) == sent
    assert decoder.noise == noise


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 300_000), st.integers(1, 70_000))
@example(300_000, 65_536)
@example(65_536, 65_536)
def test_much_noise(size: int, piece: int) -> None:
    """Its end is kept, for that may say what is wrong; and memory stays small."""
    text = (b"%07d\n" * (size // 8)) % tuple(range(size // 8))
    data = text + GREETING + encode_message(OVER)
    decoder = Decoder(FROM_AGENT)
    assert fed(decoder, data, list(range(0, len(data), piece))) == [OVER]
    assert decoder.noise == text[-4096:]


def test_a_greeting_has_an_end() -> None:
    """What goes on for ever after its beginning is not kept."""
    with pytest.raises(ProtocolError, match="its greeting has no end"):
        fed(Decoder(FROM_AGENT), GREETING[:-2] + b"x" * 100, list(range(130)))


def test_a_frame_of_an_agent_is_shorter() -> None:
    """As JSON, a frame of 64 MiB could take gigabytes."""
    head = struct.pack("!cI", b"J", MAX_FROM_AGENT + 1)
    assert not list(Decoder(FROM_AGENT, greeted=True).feed(head))
    with pytest.raises(ProtocolError, match="bytes that are not a frame"):
        list(Decoder(FROM_AGENT, greeted=True, longest=MAX_FROM_AGENT).feed(head))


def test_noise_without_a_greeting_is_bounded() -> None:
    decoder = Decoder(FROM_AGENT)
    for _ in range(200):
        assert list(decoder.feed(b"x" * 65536)) == []
    assert decoder.noise == b"x" * 4096
    assert len(decoder._buffer) <= 2 * 65536


@given(st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True), cuts)
def test_the_python_of_the_agent(tag: str, cuts: list[int]) -> None:
    decoder = Decoder(FROM_AGENT)
    assert fed(decoder, b"hello\n" + greeting(tag) + encode_message(OVER), cuts) == [OVER]
    assert decoder.tag == tag


@given(st.binary(), st.binary(), st.integers(1, 9))
def test_the_code_and_what_follows_it(code: bytes, rest: bytes, size: int) -> None:
    data = encode_code(code) + rest
    pieces = iter([data[at : at + size] for at in range(0, len(data), size)])
    found, early = receive_code(lambda: next(pieces))
    assert found == code and early + b"".join(pieces) == rest


@pytest.mark.parametrize("data", [b"", b"C\0\0", b"J\0\0\0\1x", encode_code(b"abc")[:-1]])
def test_no_code_comes(data: bytes) -> None:
    pieces = iter([data, b""])
    with pytest.raises(EOFError):
        receive_code(lambda: next(pieces))


@given(st.binary(min_size=5, max_size=60), cuts)
def test_what_is_no_frame(data: bytes, cuts: list[int]) -> None:
    """Never another exception, and never a frame of garbage that begins wrongly."""
    decoder = Decoder(FROM_AGENT, greeted=True)
    if data[:1] in (b"J", b"O") and struct.unpack("!I", data[1:5])[0] <= MAX_FRAME:
        try:
            fed(decoder, data, cuts)
        except ProtocolError:
            pass
    else:
        with pytest.raises(ProtocolError, match="not a frame"):
            fed(decoder, data, cuts)


def frame(kind: bytes, rest: bytes) -> bytes:
    return kind + struct.pack("!I", len(rest)) + rest


BROKEN = {
    "not JSON": frame(b"J", b"{"),
    "not UTF-8": frame(b"J", b'{"type": "\xff"}'),
    "no type": frame(b"J", b"{}"),
    "a list": frame(b"J", b"[]"),
    "a word": frame(b"J", b'"hello"'),
    "too deep": frame(b"J", b"[" * 100_000),
    "nothing": frame(b"J", b""),
    "output without a head": frame(b"O", b"\0\0"),
    "too long": b"J" + struct.pack("!I", MAX_FRAME + 1),
    "unknown kind": frame(b"X", b""),
    "type is no word": frame(b"J", b'{"type": 5}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_frames(name: str) -> None:
    with pytest.raises(ProtocolError, match="it sent "):
        list(Decoder(FROM_AGENT, greeted=True).feed(BROKEN[name]))


def test_a_long_frame_in_small_pieces() -> None:
    """In time that grows with its length, not with its square."""
    data = encode_output(3, 1, bytes(range(256)) * (16 * 1024))
    decoder = Decoder(FROM_AGENT, greeted=True)
    found = []
    for start in range(0, len(data), 4096):
        found += decoder.feed(data[start : start + 4096])
    assert found == [Output(3, 1, bytes(range(256)) * (16 * 1024))]
