"""The entry point of ``python -m bireme`` and of the console script ``bireme``."""

# Nothing is imported here: `command` must first handle Ctrl+C, and protect the module search path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> "NoReturn":
    """Run the command line of this process and exit with its code."""
    from bireme.isolated import exit_quietly_on_interrupt, protect_path

    exit_quietly_on_interrupt()
    protect_path()
    import gc

    gc.set_threshold(20_000)  # while modules are loaded, there is no garbage to look for
    from bireme.cli import main

    main.command()


if __name__ == "__main__":
    command()
