"""``python -m bireme.agent``: one node of a job, started by hand. The agents of a runner begin with `stub` instead."""

# Nothing is imported here: `command` must first handle Ctrl+C, and protect the module search path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> "NoReturn":
    """Run the command line of this process and exit with its code."""
    from bireme.startup_interrupt import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()
    from bireme.isolated import protect_path

    protect_path()
    from bireme.cli import agent

    agent.command()


if __name__ == "__main__":
    command()
