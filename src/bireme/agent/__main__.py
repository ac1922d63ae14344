"""``python -m bireme.agent``: an agent started by a launcher, the shim of a native rank, or a node started by hand."""

# Nothing is imported here: `command` must first handle Ctrl+C, and protect the module search path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def command() -> "NoReturn":
    """Run the command line of this process and exit with its code."""
    from bireme.interrupt import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()
    from bireme.isolated import protect_path

    protect_path()
    import os
    import sys

    if sys.argv[1:2] == ["--channel"]:
        from bireme.agent import remote

        os._exit(remote.over_stdio(os.environ))
    elif sys.argv[1:2] == ["--dial"]:
        from bireme.agent import remote

        os._exit(remote.over_dial(sys.argv[2:], os.environ))
    elif sys.argv[1:2] == ["--native"]:
        from bireme.agent import native_rank
        from bireme.errors import BiremeError

        try:
            os._exit(native_rank.main(sys.argv[2:], os.environ))
        except BiremeError as error:
            sys.stderr.write(f"bireme: {error}\n")
            sys.stderr.flush()
            os._exit(error.code)
    else:
        from bireme.cli import agent

        agent.command()


if __name__ == "__main__":
    command()
