"""Our stdin and its terminal: who may read it; its mode at the end; reading it for ranks."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bireme.loop import Loop

_CHUNK = 64 * 1024
_BACKGROUND_LOOK = 0.5
"""Seconds after which a command in the background checks whether it may read its terminal."""


class Terminal:
    """The terminal on our stdin, if there is one."""

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        self._is_terminal = os.isatty(0)
        if self._is_terminal and self._in_foreground():
            import termios

            self._modes = termios.tcgetattr(0)

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    def stdin_for_ranks(self, null: int) -> int:
        """The descriptor for the stdin of one rank: ours, so that a debugger works, or ``null``.

        It is ``null`` if we are in the background of a terminal (``&``): a rank has a session of its own, so job
        control would not stop it, and it would steal the shell's input.
        """
        return null if self._is_terminal and self._modes is None else 0

    def may_be_read(self) -> bool:
        """Whether we may read our stdin now."""
        return not self._is_terminal or self._in_foreground()

    def leave(self) -> None:
        """Restore the terminal's mode, which a killed debugger may have changed (no echo, raw mode)."""
        if self._modes is not None and self._in_foreground():
            import termios

            if termios.tcgetattr(0) != self._modes:
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)


class StdinReader:
    """Reads our stdin.

    Args:
        terminal: the terminal on our stdin: it is not read in the background, as that would suspend us.
        on_chunk: called with what was read, at the end with b"". Then :meth:`read_on` has to be called for more.
    """

    def __init__(self, loop: Loop, terminal: Terminal, on_chunk: Callable[[bytes], None]) -> None:
        self._loop, self._terminal, self._on_chunk = loop, terminal, on_chunk

    def read_on(self) -> None:
        """Read the next chunk when there is one."""
        try:
            self._loop.watch(0, self._read)
        except OSError:  # epoll refuses files, which can always be read
            self._loop.unwatch(0)
            self._loop.after(0, self._read)

    def _read(self) -> None:
        self._loop.unwatch(0)
        if not self._terminal.may_be_read():
            self._loop.after(_BACKGROUND_LOOK, self.read_on)
            return
        try:
            data = self._loop.read(0, _CHUNK)
        except BlockingIOError:  # somebody else has read it
            self.read_on()
            return
        except OSError:  # it is closed, or its terminal is gone
            data = b""
        self._on_chunk(data)
