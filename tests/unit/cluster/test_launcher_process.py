"""Launcher processes in a loop that goes on after them, as that of an elastic job does when it has asked a node."""

from __future__ import annotations

import os
import select
import socket

import pytest

from bireme.cluster import launcher_process
from bireme.loop import Loop
from bireme.process import guardian


def test_nothing_is_sent_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill that would have followed SIGTERM would reach whoever has the number of the descriptor by then."""
    monkeypatch.setattr(launcher_process, "_TERM_WAIT", 0.3)
    loop, exits = Loop(), []
    processes = launcher_process.LauncherProcess(
        loop,
        guardian.start,
        [("sleep", "60")],
        os.environ,
        on_exit=lambda index, code, signum: exits.append(code),
        on_line=lambda index, line: None,
        on_lost=lambda pid: None,
        on_over=loop.stop,
        at_once=1,
        at_start=lambda: None,
        at_loss=lambda: None,
        allocates=False,
    )
    processes.start(channels=False)
    processes.terminate()
    loop.run()
    processes.close()
    ends = [end for _ in range(8) for end in socket.socketpair()]  # they get the numbers that have become free
    loop.after(0.5, loop.stop)
    loop.run()
    assert exits == [143]
    assert select.select(ends, [], [], 0)[0] == []
    for end in ends:
        end.close()
    loop.close()
