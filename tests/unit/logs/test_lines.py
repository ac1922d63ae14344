"""The line cutter: labelled output contains exactly its input, and no line of up to 64 KiB is split."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.logs.lines import MAX_LINE, SINCE, Label, LineCutter

FIRST, MORE = b"[host:3] ", b"[host:3+] "
FLUSH = object()


def cutter(**kwargs):
    return LineCutter(Label.of("host", 3), **kwargs)


def shown(pieces, made=None):
    """All that a cutter gives for these chunks, as a console writes it that shows nothing else, to the end."""
    made = made or cutter()
    out = []
    for piece in [*pieces, FLUSH]:
        block = made.flush() if piece is FLUSH else made.feed(piece)
        if block is not None:
            assert block.open == (not block.data.endswith(b"\n"))
            out.append(block.data)
    return b"".join(out)


def unlabelled(output):
    """The bytes that a labelled output stands for: a piece marked ``+`` goes on with the line before it."""
    text = b""
    for number, line in enumerate(output.split(b"\n")) if output else ():
        if line.startswith(MORE):
            text += line[len(MORE) :]
        elif line.startswith(FIRST):
            text += (b"\n" if number else b"") + line[len(FIRST) :]
        else:
            assert line == b"", line[:100]
            text += b"\n"
    return text


short = st.binary(max_size=40) | st.text("ab\n\r", max_size=40).map(str.encode) | st.just(MORE) | st.just(FIRST)
long = st.builds(
    lambda size, end: (b"x" * size + end)[:MAX_LINE],
    st.integers(MAX_LINE - 50, MAX_LINE),
    st.sampled_from([b"", b"\n"]),
)
chunks = st.lists(short | long | st.just(FLUSH), max_size=12)


@settings(max_examples=100, deadline=None)
@given(chunks)
def test_nothing_is_lost_or_added_however_it_is_cut(pieces):
    given_bytes = b"".join(piece for piece in pieces if piece is not FLUSH)
    assert unlabelled(shown(pieces)) == given_bytes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, MAX_LINE), min_size=1, max_size=6), st.data())
def test_lines_up_to_the_limit_are_never_torn(lengths, data):
    text = b"".join(b"%d" % (number % 10) * length + b"\n" for number, length in enumerate(lengths))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    edges = [0, *cuts, *range(0, len(text), MAX_LINE), len(text)]
    edges.sort()
    pieces = [text[low:high] for low, high in pairwise(edges) if low < high]
    out = shown(pieces)
    assert MORE not in out
    assert out == b"".join(FIRST + line + b"\n" for line in text.splitlines())


@settings(max_examples=100, deadline=None)
@given(st.integers(MAX_LINE + 1, 5 * MAX_LINE), st.integers(2000, MAX_LINE))
def test_a_longer_line_comes_in_marked_pieces(length, chunk):
    text = b"x" * length + b"\nnext\n"
    first, *rest, last, end = shown(text[i : i + chunk] for i in range(0, len(text), chunk)).split(b"\n")
    assert first.startswith(FIRST)
    pieces = [first.removeprefix(FIRST)]
    for piece in rest:
        assert piece.startswith(MORE)
        pieces.append(piece.removeprefix(MORE))
    assert all(len(piece) == MAX_LINE for piece in pieces[:-1])
    assert b"".join(pieces) == b"x" * length
    assert (last, end) == (FIRST + b"next", b"")


def test_what_has_no_newline_waits_until_it_is_asked_for():
    made = cutter()
    assert made.feed(b"50%") is None
    block = made.flush()
    assert (block.data, block.open, block.resumes) == (FIRST + b"50%", True, False)
    assert made.flush() is None
    block = made.feed(b"|60%\nnext\nlast")
    assert (block.data, block.open, block.resumes) == (b"|60%\n" + FIRST + b"next\n", False, True)
    assert block.more == MORE
    assert made.flush().data == FIRST + b"last"


@pytest.mark.parametrize(
    "text", [b"\r10%\r20%", b"10%\r20%\n", b"dos\r\nlines\r\n"], ids=["bar", "its end", "line ends"]
)
def test_carriage_returns_are_kept(text):
    assert unlabelled(shown([text])) == text


def test_without_a_label_nothing_is_added():
    text = b"a\rb\n\n\xff\0c\n" + b"x" * 1000
    assert shown([text, FLUSH, text], LineCutter(Label.empty)) == text + text


def test_the_tuner_gets_seconds_of_the_monotonic_clock(monkeypatch):
    """Whatever sets the clock of the machine while a trial runs."""
    monkeypatch.setenv(SINCE, repr(time.monotonic() - 100_000.25))
    label = Label.of("host", 3, timestamps=True)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    first, second = label(), label()
    assert re.fullmatch(rb"\[10000\d\.\d{3} host:3\] ", first.first) and first.first <= second.first
    assert first.more == first.first.replace(b"] ", b"+] ")


def test_timestamps():
    out = shown([b"a\nb"], LineCutter(Label.of("host", 3, timestamps=True)))
    assert re.fullmatch(rb"(\[\d\d:\d\d:\d\d\.\d\d\d host:3\] [ab]\n?){2}", out)
