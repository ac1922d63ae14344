"""The command ``bireme drain``: take a node out of a running elastic job, or put it back."""

from __future__ import annotations

import os

from bireme.cli.parser import parse
from bireme.errors import LOST, OK, BadInputError
from bireme.logs.console import complain, printable, show
from bireme.options.option import whole
from bireme.options.table import select


def main(argv: list[str]) -> int:
    """Run ``bireme drain ARGV``; return 0 if the job accepts, 75 if it does not answer."""
    parsed = parse(select("drain"), argv)
    if parsed.options["help"]:
        from bireme.cli.help import help_page

        show(help_page("drain"))
        return OK
    if len(parsed.command) != 2:
        raise BadInputError("expected a node and a job", hint="bireme drain NODE JOB")
    node, job = parsed.command
    pid = whole(job, "JOB")
    from bireme.runner import job_client

    try:
        answer = job_client.ask(pid, node=node, back=parsed.options["back"])
    except ConnectionRefusedError:
        hint = "the job prints its pid when it starts: elastic job PID"
        whose = "no elastic job" if os.geteuid() == 0 else "no elastic job of yours"
        raise BadInputError(f"{whose} with pid {pid} runs on this machine", hint=hint, where="JOB") from None
    except (OSError, ValueError) as error:
        complain(f"the job does not answer: {error}")
        return LOST
    if "error" in answer:
        raise BadInputError(printable(str(answer["error"])))
    show(printable(f"{answer['said']}\n"))
    return OK
