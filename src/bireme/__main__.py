"""``python -m bireme`` and the console script ``bireme``: the same command."""

# nothing is imported here: `command` has to see to Ctrl+C first, and to where modules are looked for
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> "NoReturn":
    """Run the command line of this process and exit with its code."""
    from bireme.interrupt import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()
    from bireme.isolated import protect_path

    protect_path()
    from bireme.cli import main

    main.command()


if __name__ == "__main__":
    command()
