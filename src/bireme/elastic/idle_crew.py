"""A crew without ranks: keeps an elastic job's session alive while too few nodes are available."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.agent.session import Session


class IdleCrew:
    """A crew without ranks: implements :class:`bireme.agent.crew_interface.Crew`.

    Args:
        session: the session to keep alive.
        note: returns a text about which nodes are missing.
        seconds: how long to wait.
        gave_up: what to report after that time, before the note.
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
        """Begin to wait."""
        self._session.console.say("warning", f"waiting up to {self._seconds:.0f} s for nodes: {self._note()}")
        self._session.loop.after(self._seconds, self._give_up)
        self._attach(self._session)

    def _give_up(self) -> None:
        self._session.trouble("too few nodes", f"{self._gave_up}: {self._note()}", self._session.loop.now())

    def stop(self, signum: int) -> None:
        """End the session; there are no ranks to stop."""
        self._session.gone()
        self._session.over()

    def urge(self) -> None:
        """Do nothing: there are no ranks."""

    def signal_ranks(self, signum: int) -> None:
        """Do nothing: there are no ranks."""

    def suspend(self) -> None:
        """Do nothing: there are no ranks."""

    def resume(self) -> None:
        """Do nothing: there are no ranks."""

    def resize(self) -> None:
        """Do nothing: ranks of other nodes write to pipes."""

    def hold_output(self) -> None:
        """Do nothing: there is no output."""

    def release_output(self) -> None:
        """Do nothing: there is no output."""

    def close(self) -> None:
        """Do nothing: there is nothing to clean up."""
