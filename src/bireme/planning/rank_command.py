"""The command line of a rank, as a list of words; no shell reads it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import Program


def worker_argv(
    program: Program, interpreter: str, *, local_rank: str = "", wrap: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The command line of one rank.

    Python runs unbuffered (``-u``), as under DeepSpeed, so that the output of a rank appears at once although its
    stdout is a pipe.

    Args:
        local_rank: ``--local_rank=K``, put before the script's own arguments; "": leave it out.
        wrap: words to put in front (a profiler, a container, a debugger).
    """
    start: tuple[str, ...]
    if program.kind == "exec":
        start = (program.target,)
    elif program.kind == "module":
        start = (interpreter, "-u", "-m", program.target)
    else:
        # Python would take a name with a leading dash for an option
        target = f"./{program.target}" if program.target.startswith("-") else program.target
        start = (interpreter, "-u", target)
    rank_words = (local_rank,) if local_rank else ()
    return (*wrap, *start, *rank_words, *program.args)
