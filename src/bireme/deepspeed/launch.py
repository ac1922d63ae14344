"""The names of ``deepspeed.launcher.launch``: one node's launcher."""

from __future__ import annotations

import sys
from argparse import Namespace

from bireme.cli import agent
from bireme.cli.options import AGENT, parse
from bireme.errors import BadInputError
from bireme.runner.pidfile import DIRECTORY as PID_FILE_BASEPATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PID_FILE_BASEPATH", "main", "parse_args"]

_DEFAULTS = {"master_addr": "127.0.0.1", "master_port": 29500, "enable_each_rank_log": "None", "world_info": "None"}


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """The command line as a namespace, with ``training_script`` and ``training_script_args``.

    Raises:
        SystemExit: with code 2, for a command line that cannot be read.
    """
    try:
        parsed = parse(AGENT, sys.argv[1:] if args is None else args)
        if not parsed.command:
            raise BadInputError("no script is named")
    except BadInputError as error:
        sys.stderr.write(f"bireme: {error}\n")
        raise SystemExit(error.code) from None
    options = dict(parsed.options)
    options.update({name: value for name, value in _DEFAULTS.items() if options[name] is None})
    return Namespace(**options, training_script=parsed.command[0], training_script_args=list(parsed.command[1:]))


def main() -> None:
    """Run this process's command line as one node of a job.

    Raises:
        ValueError: bad input; nothing was started.
        SystemExit: with the node's exit code, when it is not 0.
    """
    code = agent.main(sys.argv[1:])
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    agent.command()
