"""Our stdin and its terminal: decides whether a rank may read it, and restores the terminal's mode at the end."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
