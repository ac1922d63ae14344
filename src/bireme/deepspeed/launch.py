"""The public names of ``deepspeed.launcher.launch``: the launcher of one node."""

from __future__ import annotations

if __name__ == "__main__":
    from bireme.startup_interrupt import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before anything else is imported
    from bireme.isolated import protect_path

    protect_path()

import sys

from bireme.cli import agent
from bireme.cli.main import guarded
from bireme.deepspeed.arguments import launch_namespace, parse_launch
from bireme.deepspeed.log import logger
from bireme.deepspeed.process_tree import terminate_process_tree
from bireme.process.pid_file import DIRECTORY as PID_FILE_BASEPATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["PID_FILE_BASEPATH", "logger", "main", "parse_args", "terminate_process_tree"]


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """Parse the command line into a namespace, with ``training_script`` and ``training_script_args``.

    Raises:
        SystemExit: with code 2 if the command line is invalid; with 0 for ``--help``.
    """
    return launch_namespace(sys.argv[1:] if args is None else args)


def main() -> None:
    """Run this process's command line as one node of a job; its script gets ``--local_rank``.

    Raises:
        ValueError: bad input; nothing was started.
        SystemExit: with the node's exit code, if it is not 0.
    """
    code = _carry_out(sys.argv[1:])
    if code:
        raise SystemExit(code)


def _carry_out(words: Sequence[str]) -> int:
    return agent.carry_out(parse_launch(words))


if __name__ == "__main__":
    guarded(_carry_out, sys.argv[1:])
