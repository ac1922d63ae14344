"""The public names of ``deepspeed.launcher.launcher_helper``: sets a rank's numbers when MPICH starts it.

``python -m bireme.deepspeed.launcher_helper --launcher mpich [--module | --no_python] SCRIPT …`` sets ``RANK`` and
``LOCAL_RANK`` and replaces itself by the program, so that signals and exit codes are those of the program.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bireme.isolated import exit_quietly_on_interrupt, protect_path

    exit_quietly_on_interrupt()  # before anything else is imported
    protect_path()

import os
import sys
from argparse import Namespace

from bireme.cli.main import guarded
from bireme.cli.parser import parse
from bireme.errors import CANNOT_RUN, NOT_FOUND, BadInputError
from bireme.job import Program
from bireme.logs.console import complain
from bireme.options.option import Option
from bireme.planning.start import worker_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from typing import NoReturn

    from bireme.job import ProgramKind
    from bireme.options.option import Groups

__all__ = ["env_mapping", "main", "parse_args"]

_OPTIONS: Groups = {
    "helper": (
        Option("choice", "--launcher NAME", "the MPI that started this rank", default="mpich", choices=("mpich",)),
        Option("flag", "--module", "the script is a Python module"),
        Option("flag", "--no_python", "the script is a program of its own"),
    )
}
_RANKS = ("PMIX_RANK", "PMI_RANK")
_LOCAL_RANKS = ("PALS_LOCAL_RANKID", "MPI_LOCALRANKID")


def parse_args(args: Sequence[str] | None = None) -> Namespace:
    """Parse the command line; adds ``user_script`` and ``user_args``.

    Raises:
        ValueError: the command line is invalid.
    """
    parsed = parse(_OPTIONS, sys.argv[1:] if args is None else args)
    if not parsed.command:
        raise BadInputError("no script given")
    return Namespace(**parsed.options, user_script=parsed.command[0], user_args=list(parsed.command[1:]))


def env_mapping(
    env: MutableMapping[str, str],
    rank_name_list: Sequence[str] = _RANKS,
    local_rank_name_list: Sequence[str] = _LOCAL_RANKS,
) -> MutableMapping[str, str]:
    """Set ``RANK`` and ``LOCAL_RANK`` from the variables of the MPI, in place; return the environment.

    Args:
        env: the environment, which is changed.
        rank_name_list: variables that may contain the rank.
        local_rank_name_list: variables that may contain the local rank.

    Raises:
        OSError: none of the variables is set, or they differ.
    """
    for ours, names in (("RANK", rank_name_list), ("LOCAL_RANK", local_rank_name_list)):
        values = {env[name] for name in names if name in env}
        if len(values) != 1:
            what = "differ" if values else "are not in the environment"
            raise OSError(f"cannot determine {ours}: {' and '.join(names)} {what}")
        env[ours] = values.pop()
    return env


def main(args: Sequence[str] | None = None) -> int:
    """Replace this process by the program; returns an exit code only if that fails.

    Raises:
        BadInputError: the environment does not tell the rank, so no MPI has started this process.
    """
    parsed = parse_args(args)
    try:
        environ = dict(env_mapping(os.environ.copy()))
    except OSError as error:
        raise BadInputError(str(error), hint="this helper is for ranks that mpirun started") from None
    kind: ProgramKind = "exec" if parsed.no_python else "module" if parsed.module else "script"
    program = Program(parsed.user_script, tuple(parsed.user_args), kind)
    argv = worker_argv(program, sys.executable)
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        complain(f"cannot run {argv[0]}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


def command() -> NoReturn:
    """Execute the program of this process's command line."""
    guarded(main, sys.argv[1:])


if __name__ == "__main__":
    command()
