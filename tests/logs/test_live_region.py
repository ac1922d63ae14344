"""The live rows of all ranks on one terminal: their order, what fits, and how often they are drawn."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

import pytest

from bireme.logs.live_rows import LiveRegion
from bireme.loop import Loop


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
