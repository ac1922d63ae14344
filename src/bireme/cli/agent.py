"""The command ``python -m bireme.agent``: starts one node of a job whose nodes and slots are given as world info."""

from __future__ import annotations

import os
import sys

from bireme.cli.job_options import job_spec
from bireme.cli.main import guarded
from bireme.cli.parser import parse
from bireme.cli.run import report
from bireme.errors import OK, BadInputError
from bireme.logs.console import show
from bireme.options.table import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from bireme.cli.parser import Parsed


def command() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    guarded(main, sys.argv[1:])


def main(argv: list[str]) -> int:
    """Run ``python -m bireme.agent ARGV``; return the exit code."""
    return carry_out(parse(select("agent"), argv))


def carry_out(parsed: Parsed) -> int:
    """Run a parsed command line; return the exit code."""
    options = parsed.options
    if options["help"]:
        from bireme.cli.help import help_page

        show(help_page("agent"))
        return OK
    if not options["world_info"]:
        raise BadInputError("--world_info is missing", hint="python -m bireme.agent --help shows the options")
    from bireme.launching import by_hand
    from bireme.planning.world import decode_world_info

    world = decode_world_info(options["world_info"])
    spec = job_spec(parsed)
    if spec.elastic:  # ELASTIC_RUN_ID is a variable of DeepSpeed's launcher
        first = next(iter(world)) if len(world) > 1 else None
        spec = spec.replace(run_id=os.environ.get("ELASTIC_RUN_ID", "bireme"), master_addr=spec.master_addr or first)
    outcome = by_hand.run(spec, os.environ, world, options["node_rank"], options["save_pid"] or None)
    report(outcome)
    return outcome.exit_code
