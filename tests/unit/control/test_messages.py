"""A received message is valid, with fields of the right types, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.control.messages import FROM_AGENT, TO_AGENT, Message, from_json, to_json
from bireme.errors import ProtocolError
from tests.unit.control import examples

EXAMPLES = [(message, TO_AGENT) for message in examples.TO_AGENT]
EXAMPLES += [(message, FROM_AGENT) for message in examples.FROM_AGENT]
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def test_every_message_has_an_example() -> None:
    for vocabulary in (TO_AGENT, FROM_AGENT):
        assert set(vocabulary.values()) == {type(message) for message, known in EXAMPLES if known is vocabulary}


@pytest.mark.parametrize(("message", "vocabulary"), EXAMPLES, ids=lambda it: type(it).__name__)
def test_there_and_back(message: Message, vocabulary: Mapping[str, type[Message]]) -> None:
    text = to_json(message)
    assert text.isascii() and b"\n" not in text, "a log of them can be read"
    assert from_json(text, vocabulary) == message
    with pytest.raises(ProtocolError, match="unknown message"):
        from_json(text, FROM_AGENT if vocabulary is TO_AGENT else TO_AGENT)


FIELDS = [(message, name, vocabulary) for message, vocabulary in EXAMPLES for name in type(message)._fields]
TYPES = {str: (str,), bool: (bool,), int: (int,), float: (int, float), tuple: (list,), dict: (dict,)}


@pytest.mark.parametrize(("message", "name", "vocabulary"), FIELDS, ids=lambda it: it if isinstance(it, str) else "")
def test_ill_typed(message: Message, name: str, vocabulary: Mapping[str, type[Message]]) -> None:
    """A field of another type, or one too many, is named in one short line."""
    kind = type(message).__name__
    fields = {"type": kind, **message.as_dict()}
    for wrong in (None, 10**5, {"a": [1]}, [[{}]], True, "x", 1.5):
        if type(wrong) in TYPES.get(type(getattr(message, name)), ()) or (wrong is None and name in ("slots", "tree")):
            continue
        with pytest.raises(ProtocolError, match=f"malformed message: {kind}.{name}") as caught:
            from_json(json.dumps({**fields, name: wrong}).encode(), vocabulary)
        assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
    huge = json.dumps({**fields, name: "HUGE"}).replace('"HUGE"', "9" * 5000).encode()
    with pytest.raises(ProtocolError):
        from_json(huge, vocabulary)
    with pytest.raises(ProtocolError, match=f"{kind} has no field 'evil'"):
        from_json(json.dumps({**fields, "evil": 1}).encode(), vocabulary)


@given(st.sampled_from(EXAMPLES), st.dictionaries(st.text(), plain, max_size=3), st.data())
def test_whatever_comes(
    example: tuple[Message, Mapping[str, type[Message]]], more: object, data: st.DataObject
) -> None:
    """Never another exception."""
    message, vocabulary = example
    fields = {"type": type(message).__name__, **message.as_dict()}
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        fields[name] = data.draw(plain)
    try:
        from_json(json.dumps({**fields, **more}).encode(), vocabulary)
    except ProtocolError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_json(text, FROM_AGENT)


@pytest.mark.parametrize(
    ("kind", "changes", "wrong"),
    [
        ("Down", {"end": {**examples.end(0).as_dict(), "code": 256}}, "the invalid exit code 256"),
        ("Down", {"end": {**examples.end(0).as_dict(), "code": -9}}, "the invalid exit code -9"),
        ("Down", {"end": {**examples.end(0).as_dict(), "host": "node1\x1b[2J"}}, "control characters in a name"),
        ("Down", {"end": {**examples.end(0).as_dict(), "device": "cpu\n"}}, "control characters in a name"),
        ("Down", {"when": float("nan")}, "expected a finite number"),
        ("Pong", {"now": float("inf")}, "expected a finite number"),
        ("Signalled", {"signum": 0}, "the invalid signal 0"),
        ("Signalled", {"signum": 1000}, "the invalid signal 1000"),
        ("Say", {"level": "__class__"}, "an unknown log level"),
        ("Hello", {"hostname": "node1\x1b[2J"}, "control characters"),
        ("Hello", {"hostname": ""}, "an empty hostname"),
        ("Hello", {"slots": ["0", "\n"]}, "control characters"),
        ("Hello", {"slots": ["0"] * (1 + (1 << 14))}, "16385 slots"),
        ("Hello", {"accelerator": ""}, "neither complete facts nor a problem"),
        ("Hello", {"cores": 0}, "neither complete facts nor a problem"),
        ("Hello", {"bound": [[0]]}, "core lists for a different number of ranks"),
        ("Hello", {"port": 65536}, "port 65536"),
        ("Hello", {"port": -1}, "port -1"),
        ("Hello", {"problems": "none"}, "Hello.problems: a string, expected a list"),
    ],
)
def test_right_types_and_wrong_values(kind: str, changes: dict[str, object], wrong: str) -> None:
    (message, *_) = [message for message in examples.FROM_AGENT if type(message).__name__ == kind]
    with pytest.raises(ProtocolError, match=wrong):
        from_json(json.dumps({"type": kind, **message.as_dict(), **changes}).encode(), FROM_AGENT)


@pytest.mark.parametrize("port", [0, 1, 65535])
def test_right_ports(port: int) -> None:
    (hello, *_) = [message for message in examples.FROM_AGENT if type(message).__name__ == "Hello"]
    text = json.dumps({"type": "Hello", **hello.as_dict(), "port": port}).encode()
    assert from_json(text, FROM_AGENT).port == port  # type: ignore[attr-defined]


def test_the_longest_exit_code_is_right() -> None:
    down = {"type": "Down", "end": {**examples.end(0).as_dict(), "code": 255}, "when": 1.0}
    assert from_json(json.dumps(down).encode(), FROM_AGENT).end.code == 255  # type: ignore[attr-defined]


@pytest.mark.parametrize("heartbeat", [0.0, -1.0])
def test_a_heartbeat_is_positive(heartbeat: float) -> None:
    ask = {"type": "Ask", **examples.ASK.as_dict(), "heartbeat": heartbeat}
    with pytest.raises(ProtocolError, match="a heartbeat that is not positive"):
        from_json(json.dumps(ask).encode(), TO_AGENT)
