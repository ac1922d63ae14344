"""The interface of a crew, which runs the ranks of a session, on this machine or on many nodes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # typing takes milliseconds to import


class Crew(Protocol):
    """Runs the ranks, on this machine or on many nodes; reports events to the session, ``gone()`` and ``over()`` last.

    A crew derived from this class inherits methods that do nothing; it has to have ``start`` and ``stop``.
    """

    DEFAULT_STDIN: str = "none"
    """Who reads our stdin without ``--stdin``."""

    @property
    def killed(self) -> int:
        """How many ranks had to be killed."""
        return 0

    @property
    def stuck(self) -> tuple[str, ...]:
        """Processes that even SIGKILL did not end."""
        return ()

    @property
    def logs(self) -> tuple[str, ...]:
        """The ranks' log files."""
        return ()

    def start(self) -> None:
        """Begin to start the ranks; return at once."""

    def stop(self, signum: int) -> None:
        """End all ranks by the stop ladder, beginning with this signal."""

    def kill_now(self) -> None:
        """Kill what is left now, without waiting for the grace time."""
        return

    def signal_ranks(self, signum: int, *, later: bool = False) -> None:
        """Send a signal to every rank; ``later``: to one that does not expect it yet, or is not up, once it does."""
        return

    def take_stacks(self) -> int:
        """Have the stacks of all ranks taken; return how many times `Session.stacks` will be called with some."""
        return 0

    def measure(self) -> int:
        """Have it measured what all ranks use; return how many times `Session.measured` will be called with some."""
        return 0

    def suspend(self) -> None:
        """Suspend every process of the job."""
        return

    def resume(self) -> None:
        """Resume them."""
        return

    def resize(self) -> None:
        """Pass the new size of our terminal to the ranks that have one of their own."""
        return

    def hold_output(self) -> None:
        """Deliver no more output until :meth:`release_output`."""
        return

    def release_output(self) -> None:
        """Deliver output again."""
        return

    def close(self) -> None:
        """Clean up, at whatever point the session has ended."""
        return
