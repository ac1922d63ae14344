"""Reads our stdin for ranks that do not read it themselves; waits while its terminal belongs to another job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.runner.session import Session

_CHUNK = 64 * 1024
_BACKGROUND_LOOK = 0.5
"""Seconds after which a command in the background checks whether it may read its terminal."""


class StdinReader:
    """Reads our stdin.

    Args:
        session: a terminal is not read in the background, as that would suspend us.
        on_chunk: called with what was read, at the end with b"". Then :meth:`read_on` has to be called for more.
    """

    def __init__(self, session: Session, on_chunk: Callable[[bytes], None]) -> None:
        self._session, self._loop, self._terminal = session, session.loop, session.terminal
        self._on_chunk = on_chunk

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
        if not data and self._session.spec.answers:
            self._session.caller_gone()
        self._on_chunk(data)
