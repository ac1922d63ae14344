"""Valid and invalid configuration files, and the errors for them."""

from __future__ import annotations

import base64

import pytest

from bireme.errors import BadInputError
from bireme.tune.deepspeed.config import read_document


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "ds.json") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_json_with_lines(write):
    document = read_document(
        write('{\n "a": 1,\n "zero": {"stage": [0,\n  1]},\n "l": [{"x": "}{,:\\""}, {"x": 2}]\n}')
    )
    assert document.data == {"a": 1, "zero": {"stage": [0, 1]}, "l": [{"x": '}{,:"'}, {"x": 2}]}
    assert document.lines == {
        ("a",): 2, ("zero",): 3, ("zero", "stage"): 3, ("l",): 5, ("l", "0", "x"): 5, ("l", "1", "x"): 5
    }  # fmt: skip
    assert document.where("zero", "unknown") == f"{document.path}:3"
    assert document.where("unknown") == document.path


def test_hjson(write):
    text = "{\n  # a comment\n  train_batch_size: 8\n  zero_optimization: {\n stage: all\n}\n}"
    assert read_document(write(text)).data == {"train_batch_size": 8, "zero_optimization": {"stage": "all"}}


def test_base64_in_the_place_of_a_path(tmp_path, monkeypatch):
    word = base64.urlsafe_b64encode(b'{"a": "\xc3\xbf>?"}').decode()
    document = read_document(word)
    assert (document.data, document.where("a")) == ({"a": "\xff>?"}, "the configuration in base64:1")
    with pytest.raises(BadInputError) as caught:
        read_document(base64.urlsafe_b64encode(b'{"a": }').decode())
    assert caught.value.where.startswith("the configuration in base64")
    monkeypatch.chdir(tmp_path)
    (tmp_path / word).write_text('{"b": 1}')
    assert read_document(word).data == {"b": 1}  # a file goes first, as in the engine


@pytest.mark.parametrize("word", ["ds.json", "abcd", base64.b64encode(b"[1]").decode(), "x" * 5000])
def test_no_file_and_no_base64_either(word):
    with pytest.raises(BadInputError, match="cannot be read"):
        read_document(word)


def test_a_byte_order_mark(write):
    assert read_document(write(b'\xef\xbb\xbf{"a": 1}')).data == {"a": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1,\n  "b": [1, 2\n}', r"ds.json:4:1: invalid JSON"),
        ('{"a": }', r"ds.json:1:7: invalid JSON: expecting value"),
        ('{\n "a": {\n', r"ds.json:3:1: invalid JSON"),
        ("", r"ds.json: is empty"),
        (" \n", r"ds.json: is empty"),
        ('{"a": 1} {"b": 2}', r"ds.json:1:10: invalid JSON: extra data"),
        ("[1, 2]", r"ds.json: not an object: a configuration is"),
        ("7", r"ds.json: not an object: a configuration is"),
        ('{"a": 1,\n\n\n   "a": 3}', r"ds.json:4:4: duplicate key: 'a'\n  it is first set on line 1"),
        ('{"z": {"s": 1,\n"s": 2}}', r"ds.json:2:1: duplicate key: 'z.s'"),
        ('{"l": [{"s": 1}, {"s": 1, "s": 2}]}', r"duplicate key: 'l.1.s'"),
        ("{\n# hjson\na: 1\nb: 2\na: 3\n}", r"ds.json:5: duplicate key: 'a'"),
        ("{\n# hjson\na: {\n", r"ds.json:\d+:\d+: invalid HJSON"),
        (b'{"a": "\xff"}', r"ds.json:1: is not UTF-8 text"),
    ],
)  # fmt: skip
def test_broken(write, text, said):
    with pytest.raises(BadInputError, match=said) as caught:
        read_document(write(text))
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_python_writes_for_no_number(write, word):
    """HJSON would take it for a string."""
    with pytest.raises(BadInputError, match=f"{word} is not a number in JSON\n") as caught:
        read_document(write(f'{{\n "note": "a NaN",\n "x": [1, {word}]\n}}'))
    assert caught.value.where.endswith("ds.json:3:11")


def test_equal_keys_in_different_objects(write):
    assert read_document(write('{"l": [{"s": 1}, {"s": 2}], "z": {"s": 3}, "y": {"s": 4}}')).data["y"] == {"s": 4}


@pytest.mark.parametrize(("name", "said"), [("missing.json", "No such file"), (".", "Is a directory")])
def test_no_file(tmp_path, name, said):
    with pytest.raises(BadInputError, match=f"cannot be read: {said}"):
        read_document(str(tmp_path / name))
