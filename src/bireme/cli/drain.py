"""``bireme drain``: take a node out of an elastic job, or back in."""

from __future__ import annotations

import os

from bireme.cli.options import Option, parse, whole
from bireme.errors import LOST, OK, BadInputError
from bireme.logs.console import complain, printable, show

DRAIN: dict[str, tuple[Option, ...]] = {
    "options": (
        Option(("--back",), "use the node again, once it is found to be fit"),
        Option(("--help", "-h"), "show this page"),
    )
}
"""The options of ``bireme drain``."""


def main(argv: list[str]) -> int:
    """Carry out ``bireme drain ARGV``: 0 when the job will do it, else 2, or 75 if it does not answer."""
    parsed = parse(DRAIN, argv)
    if parsed.options["help"]:
        from bireme.cli.help import drain_help

        show(drain_help(DRAIN))
        return OK
    if len(parsed.command) != 2:
        raise BadInputError("two words are needed: a node and a job", hint="bireme drain NODE JOB")
    node, job = parsed.command
    pid = whole(job, "JOB")
    from bireme.elastic import control_socket

    try:
        answer = control_socket.ask(pid, node=node, back=parsed.options["back"])
    except ConnectionRefusedError:
        hint = "its pid is what it says at its start: elastic job PID"
        whose = "no elastic job" if os.geteuid() == 0 else "no elastic job of yours"
        raise BadInputError(f"{whose} with pid {pid} runs on this machine", hint=hint, where="JOB") from None
    except (OSError, ValueError) as error:
        complain(f"the job does not answer: {error}")
        return LOST
    if "error" in answer:
        raise BadInputError(printable(str(answer["error"])))
    show(printable(f"{answer['said']}\n"))
    return OK
