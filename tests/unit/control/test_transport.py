"""What protects a channel: data that was altered, dropped, repeated or moved is never accepted."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.cluster.agent_listener import CertificateMaker
from bireme.control.mac import MacTransport
from bireme.control.tls import TlsTransport, client_context
from bireme.control.transport import Transport
from bireme.errors import ProtocolError

SECURE = CertificateMaker(os.environ).finish()
KEYS = (b"a" * 32, b"b" * 32)
HEAD = 36


def mac_pair() -> tuple[Transport, Transport]:
    return MacTransport(*KEYS, "why"), MacTransport(*reversed(KEYS), "why")  # type: ignore[arg-type,misc]


def tls_pair() -> tuple[Transport, Transport]:
    assert SECURE.context is not None
    server, client = TlsTransport(SECURE.context, server=True), TlsTransport(client_context(), server=False)
    while not (server.established and client.established):
        server.decode(client.owed())
        client.decode(server.owed())
    assert client.fingerprint() == SECURE.fingerprint
    return server, client


PAIRS = {"mac": mac_pair, "tls": tls_pair}
both = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


@both
@given(pieces=st.lists(st.binary(min_size=1, max_size=2000), max_size=5), cut=st.integers(1, 3000))
def test_bytes_arrive(pair, pieces: list[bytes], cut: int) -> None:
    here, there = pair()
    for side, other in ((here, there), (there, here)):
        sealed = b"".join(side.encode(piece) for piece in pieces)
        got = b"".join(other.decode(sealed[at : at + cut]) for at in range(0, len(sealed), cut))
        assert got == b"".join(pieces)


@both
def test_much(pair) -> None:
    here, there = pair()
    data = os.urandom(5_000_000)
    assert there.decode(here.encode(data)) == data


@both
@given(data=st.binary(min_size=1, max_size=200), place=st.integers(0), flip=st.integers(1, 255))
def test_a_changed_byte(pair, data: bytes, place: int, flip: int) -> None:
    here, there = pair()
    sealed = bytearray(here.encode(data) + here.encode(b"more"))
    sealed[place % len(sealed)] ^= flip
    taken = b""
    try:
        for byte in bytes(sealed):
            taken += there.decode(bytes([byte]))
        assert len(taken) < len(data) + 4, "it may still wait for more"
    except ProtocolError:
        pass
    assert taken in (b"", data)


def records(here: Transport, count: int) -> list[bytes]:
    return [here.encode(b"record %d" % number) for number in range(count)]


@both
@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 2), (0, 1, 0), (2,)], ids=str)
def test_moved_repeated_or_left_out(pair, order: tuple[int, ...]) -> None:
    here, there = pair()
    sealed = records(here, 3)
    taken = b""
    with pytest.raises(ProtocolError, match="altered in transit"):
        for place in order:
            taken += there.decode(sealed[place])
    assert taken in (b"", b"record 0", b"record 0record 1")


@both
def test_nothing_can_be_sent_back_to_its_author(pair) -> None:
    here, _ = pair()
    with pytest.raises(ProtocolError):
        here.decode(here.encode(b"x"))


@both
def test_a_cut_off_record_gives_nothing(pair) -> None:
    here, there = pair()
    assert there.decode(here.encode(b"the last word")[:-1]) == b""


@both
@given(data=st.binary(min_size=1, max_size=400))
def test_whatever_comes(pair, data: bytes) -> None:
    _, there = pair()
    try:
        assert there.decode(data) == b""
    except ProtocolError:
        pass


def test_a_forged_length_keeps_little() -> None:
    """Nobody can have us gather a gigabyte before we look."""
    _, there = mac_pair()
    with pytest.raises(ProtocolError):
        there.decode((1 << 30).to_bytes(4, "big") + bytes(32))


def test_what_tls_sends_tells_nothing() -> None:
    here, _ = tls_pair()
    assert b"secret" not in here.encode(b"secret" * 100)
    assert not here.readable
