"""The command line of a rank, as a list of words: no shell ever reads it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.job import Program


def worker_argv(
    program: Program, interpreter: str, *, local_rank: str = "", wrap: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """What one rank executes.

    Python runs unbuffered (``-u``), as under DeepSpeed: what a rank prints is seen at once although
    its stdout is a pipe.

    Args:
        local_rank: ``--local_rank=K``, given to the script before its own arguments; empty: not given.
        wrap: words that stand before everything else (a profiler, a container, a debugger).
    """
    start: tuple[str, ...]
    if program.kind == "exec":
        start = (program.target,)
    elif program.kind == "module":
        start = (interpreter, "-u", "-m", program.target)
    else:
        # a name that begins with a dash would be taken for an option of Python's
        target = f"./{program.target}" if program.target.startswith("-") else program.target
        start = (interpreter, "-u", target)
    rank_words = (local_rank,) if local_rank else ()
    return (*wrap, *start, *rank_words, *program.args)
