"""``python -m bireme.agent``: one node of a job, started by hand. The agents of a runner begin with `stub` instead."""

# Nothing is imported here: `command` must first handle Ctrl+C, and protect the module search path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> "NoReturn":
    """Run the command line of this process and exit with its code."""
    from bireme.isolated import exit_quietly_on_interrupt, protect_path

    exit_quietly_on_interrupt()
    protect_path()
    from bireme.cli import agent

    agent.command()


if __name__ == "__main__":
    command()
