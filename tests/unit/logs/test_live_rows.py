"""What a rank redraws on a terminal (live rows, finished lines), and the region with the rows of all ranks."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bireme.logs.live_rows import NESTED, LiveRegion, LiveRows, cut
from bireme.loop import Loop

SOON, LATER = NESTED / 10, NESTED * 2
RESET = b"\x1b[0m"


class Watched(LiveRows):
    """Feeds one chunk after another, and keeps the finished lines."""

    def __init__(self):
        super().__init__()
        self.text, self.now = b"", 100.0

    def say(self, *chunks, after=SOON):
        for chunk in chunks:
            self.now += after
            new = self.feed(chunk, self.now)
            if self.takes_back:
                self.text = self.text[: self.text.rfind(b"\n") + 1]
            self.text += new
        return self


def test_plain_text_passes_as_it_is():
    watched = Watched().say(b"one\ntw", b"o\n", "ü€\n".encode())
    assert (watched.text, watched.rows) == ("one\ntwo\nü€\n".encode(), [])


def test_line_ends_of_windows_are_no_bar():
    watched = Watched().say(b"one\r\ntwo\r", b"\n")
    assert (watched.text, watched.rows) == (b"one\ntwo\n", [])


def test_a_bar_is_one_row_and_then_a_line():
    watched = Watched().say(b"begin\n", b"\r 0%", b"\r50%", b"\r100%")
    assert (watched.text, watched.rows) == (b"begin\n", [b"100%"])
    watched.say(b"\n", b"done\n")
    assert (watched.text, watched.rows) == (b"begin\n100%\ndone\n", [])


def test_a_bar_that_begins_as_a_line_takes_its_place():
    watched = Watched().say(b"begin\n 0%", b"\r50%")
    assert (watched.text, watched.rows) == (b"begin\n", [b"50%"])


def test_a_bar_that_is_erased_leaves_nothing():
    watched = Watched().say(b"\r50%", b"\r   \r", b"done\n")
    assert watched.text + watched.end() == b"done\n"


def test_bars_one_after_another():
    watched = Watched().say(b"\r100%", b"\n", b"\r 0%", b"\r 5%", after=LATER)
    assert (watched.text, watched.rows) == (b"100%\n", [b" 5%"])


def test_nested_bars_as_tqdm_draws_them():
    watched = Watched().say(b"\repoch 0")
    for step in range(3):
        watched.say(b"\n", b"\rstep %d" % step, b"\x1b[A")
        watched.say(b"", after=LATER)
        assert (watched.text, watched.rows) == (b"", [b"epoch 0", b"step %d" % step])
    watched.say(b"\repoch 1", b"\n\r      \r\x1b[A", b"\n")
    assert watched.left
    assert watched.text + watched.end() == b"epoch 1\n"


def test_rows_as_rich_draws_them():
    watched = Watched().say(b"\x1b[?25l", b"one 1\ntwo 1", after=LATER)
    for step in (2, 3):
        watched.say(b"\r\x1b[2K\x1b[1A\x1b[2K", b"one %d\ntwo %d" % (step, step), after=LATER)
        assert (watched.text, watched.rows) == (b"", [b"one %d" % step, b"two %d" % step])
    watched.say(b"\r\x1b[2K\x1b[1A\x1b[2K", b"a line\none 4\ntwo 4", b"\r\x1b[2K\x1b[1A\x1b[2Kone 5\ntwo 5")
    assert (watched.text, watched.rows) == (b"a line\n", [b"one 5", b"two 5"])
    watched.say(b"\n\x1b[?25h")
    assert (watched.text, watched.rows) == (b"a line\none 5\ntwo 5\n", [])


def test_a_colour_ends_with_its_line():
    watched = Watched().say(b"\x1b[31mred\nplain\n\x1b[1", b"mbold\x1b[0m\n")
    assert watched.text == b"\x1b[31mred" + RESET + b"\nplain\n\x1b[1mbold" + RESET + b"\n"
    assert Watched().say(b"\r\x1b[32m50%").rows == [b"\x1b[32m50%" + RESET]


def test_a_prompt_with_a_colour_ends_it():
    watched = Watched().say(b"\x1b[31mname? ")
    assert watched.text + watched.rested() == b"\x1b[31mname? " + RESET


def test_a_prompt_after_a_bar_is_text():
    watched = Watched().say(b"\r100%", b"\n", b"name? ")
    assert watched.rested() == b"100%\nname? "
    assert watched.rows == []


def test_what_would_move_over_others_is_dropped():
    assert Watched().say(b"\x1b[10A\x1b[H\x1b[2J\x1b]0;title\x07\x1b7text\n").text == b"text\n"


def test_rows_do_not_become_many():
    watched = Watched().say(b"".join(b"\r%d\n" % number for number in range(1000)))
    assert len(watched.rows) < 50
    assert watched.text + watched.end() == b"".join(b"%d\n" % number for number in range(1000))


MOVES = (b"\r", b"\n", b"\b", b"\x1b[A", b"\x1b[2K", b"\x1b[K", b"\x1b[J", b"\x1b[?25l", b"\x1b[?25h")
pieces = st.sampled_from((*MOVES, b"\x1b[31m", RESET, b"\x1b", b"[", b"a", b"word ", b"\xff"))


@given(st.lists(st.lists(pieces, max_size=8).map(b"".join), max_size=8))
@example([b"\r\x1b[31m[\b\b"])
def test_nothing_but_text_and_colours_comes_out(chunks):
    watched = Watched().say(*chunks)
    shown = watched.text + watched.end()
    for row in (*watched.rows, shown.replace(b"\n", b"")):
        for colour in (b"\x1b[31m", RESET):
            row = row.replace(colour, b"")
        assert not set(row) & set(b"\r\n\b\x1b")
    assert not watched.rows


@pytest.mark.parametrize(
    ("row", "columns", "kept"),
    [
        (b"short", 10, "short"),
        (b"12345678", 5, "12345"),
        (b"\x1b[31m12345678\x1b[0m", 5, "\x1b[31m12345\x1b[0m"),
        ("████".encode(), 4, "████"),
        ("日本語".encode(), 4, "日本"),
    ],
)
def test_rows_are_cut_to_the_width(row, columns, kept):
    assert cut(row, columns).decode() == kept


def test_an_escape_sequence_without_an_end_does_not_keep_what_follows():
    rows = Watched()
    rows.feed(b"\r50%\n\x1b]0;" + b"title" * 1000, 0.0)
    assert rows.feed(b"\nplain\n", LATER).endswith(b"plain\n")


# --- all ranks on one terminal ------------------------------------------------------------------


@pytest.fixture
def region():
    """On a terminal of 10 columns and 4 lines; ``region.drawings`` is what was drawn when it was due."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 4, 10, 0, 0))
    loop = Loop()
    region = LiveRegion(loop, theirs, lambda: region.drawings.append(region.draw()))
    region.loop, region.drawings, region.fd = loop, [], theirs
    yield region
    loop.close()
    os.close(ours)
    os.close(theirs)


def test_in_the_order_of_ranks_and_streams(region):
    for place, row in (((1, 1), b"c"), ((0, 2), b"b"), ((0, 1), b"a")):
        region.put(place, [row])
    assert region.draw() == b"a\r\nb\r\nc"
    assert region.erase() == b"\r\x1b[2A\x1b[J"
    region.put((0, 2), [])
    assert region.draw() == b"a\r\nc"
    assert (region.leave(), region.erase()) == (b"\r\n", b"")


def test_only_what_fits_is_drawn(region):
    """A line is left for the next text, so the terminal does not scroll and the rows can be erased."""
    for rank in range(5):
        region.put((rank, 1), [b"rank %d" % rank])
    assert region.draw() == b"rank 2\r\nrank 3\r\nrank 4"
    region.put((4, 1), ["\x1b[31m長い行は切り捨て\x1b[0m".encode()])
    assert region.draw().endswith("\r\n\x1b[31m長い行は切\x1b[0m".encode())


def test_not_more_often_than_people_can_see(region):
    for step in range(20):
        region.loop.after(step / 100, lambda step=step: region.put((0, 1), [b"%d" % step]))
    region.loop.after(0.3, region.loop.stop)
    region.loop.run()
    assert region.drawings[-1] == b"19"
    assert len(region.drawings) <= 5


def test_nothing_new_is_not_drawn(region):
    region.put((0, 1), [b"same"])
    region.loop.after(0.1, lambda: region.put((0, 1), [b"same"]))
    region.loop.after(0.2, region.loop.stop)
    region.loop.run()
    assert region.drawings == [b"same"]


def test_a_window_that_was_made_narrower(region, monkeypatch):
    """It has wrapped the rows, all of whose lines are erased; the next drawing has its width."""
    monkeypatch.delenv("STY", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for rank, row in enumerate((b"0123456789", b"01", "\x1b[31m長い行\x1b[0m".encode())):
        region.put((rank, 1), [row])
    region.draw()
    fcntl.ioctl(region.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 4, 0, 0))
    assert region.erase() == b"\r\x1b[5A\x1b[J"  # 3 + 1 + 2 lines
    assert region.draw() == "0123\r\n01\r\n\x1b[31m長い\x1b[0m".encode()
    for name, value in (("TERM", "linux"), ("STY", "1"), ("XTERM_VERSION", "XTerm(390)")):
        region.draw()
        fcntl.ioctl(region.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 2, 0, 0))
        monkeypatch.setenv(name, value)
        assert region.erase() == b"\r\x1b[2A\x1b[J", f"{name} does not wrap"
        monkeypatch.setenv("TERM", "xterm")
        fcntl.ioctl(region.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 4, 0, 0))
        monkeypatch.delenv(name) if name != "TERM" else None
