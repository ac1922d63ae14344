"""A crew without ranks: keeps an elastic job's session alive while too few nodes are available."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.agent.session import Session


class IdleCrew:
    """A crew without ranks: see :class:`bireme.agent.session.Crew`.

    Args:
        note: whom the job waits for.
        seconds: after so many it does not wait any longer.
        gave_up: what is said then, before the note.
        attach: called with the session once it runs.
    """

    killed = 0
    stuck: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    def __init__(
        self,
        session: Session,
        note: Callable[[], str],
        seconds: float,
        gave_up: str,
        attach: Callable[[Session], object],
    ) -> None:
        self._session, self._note, self._seconds, self._attach = session, note, seconds, attach
        self._gave_up = gave_up

    def start(self) -> None:
        """Wait."""
        self._session.console.say("warning", f"waiting, at most {self._seconds:.0f} s: {self._note()}")
        self._session.loop.after(self._seconds, self._give_up)
        self._attach(self._session)

    def _give_up(self) -> None:
        self._session.trouble("too few nodes", f"{self._gave_up}: {self._note()}", time.monotonic())

    def stop(self, signum: int) -> None:
        """There is nothing to stop."""
        self._session.gone()
        self._session.over()

    def urge(self) -> None:
        """There is nothing to kill."""

    def signal_ranks(self, signum: int) -> None:
        """There are none."""

    def suspend(self) -> None:
        """There is nothing to halt."""

    def resume(self) -> None:
        """There is nothing to wake."""

    def hold_output(self) -> None:
        """There is no output."""

    def release_output(self) -> None:
        """There is no output."""

    def close(self) -> None:
        """Nothing is left behind."""
