"""The interface of a crew, which runs the ranks of a session, on this machine or on many nodes.

For type checkers only: nothing imports it when the program runs.
"""

from __future__ import annotations

from typing import Protocol


class Crew(Protocol):
    """Runs the ranks, and reports events by calling the session's methods, ``gone()`` and ``over()`` last."""

    @property
    def killed(self) -> int:
        """How many ranks had to be killed."""

    @property
    def stuck(self) -> tuple[str, ...]:
        """Processes that even SIGKILL did not end."""

    @property
    def logs(self) -> tuple[str, ...]:
        """The ranks' log files."""

    def start(self) -> None:
        """Begin to start the ranks; return at once."""

    def stop(self, signum: int) -> None:
        """End all ranks by the stop ladder, beginning with this signal."""

    def urge(self) -> None:
        """Kill what is left now, without waiting for the grace time."""

    def signal_ranks(self, signum: int) -> None:
        """Send a signal to every rank."""

    def suspend(self) -> None:
        """Suspend every process of the job."""

    def resume(self) -> None:
        """Resume them."""

    def resize(self) -> None:
        """Pass the new size of our terminal to the ranks that have one of their own."""

    def hold_output(self) -> None:
        """Deliver no more output until :meth:`release_output`."""

    def release_output(self) -> None:
        """Deliver output again."""

    def close(self) -> None:
        """Clean up, at whatever point the session has ended."""
