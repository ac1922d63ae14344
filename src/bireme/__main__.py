"""``python -m bireme`` and the console script ``bireme``: the same command."""

from __future__ import annotations

from bireme.interrupt import exit_quietly_on_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    exit_quietly_on_interrupt()
    from bireme.cli import main

    main.command()


if __name__ == "__main__":
    command()
