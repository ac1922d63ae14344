"""The public names of ``deepspeed.launcher.launch``: the launcher of one node."""

from __future__ import annotations

if __name__ == "__main__":
    from bireme.interrupt import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before anything else is imported
    from bireme.isolated import protect_path

    protect_path()

import sys

from bireme.cli import agent
from bireme.deepspeed.arguments import launch_namespace
from bireme.process.pid_file import DIRECTORY as PID_FILE_BASEPATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["PID_FILE_BASEPATH", "main", "parse_args"]


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """Parse the command line into a namespace, with ``training_script`` and ``training_script_args``.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    return launch_namespace(sys.argv[1:] if args is None else args)


def main() -> None:
    """Run this process's command line as one node of a job.

    Raises:
        ValueError: bad input; nothing was started.
        SystemExit: with the node's exit code, if it is not 0.
    """
    code = agent.main(sys.argv[1:])
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    agent.command()
