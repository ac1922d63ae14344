"""Explains errors of ranks that come from how they were started (no module, a refused option, no input) or end."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_REFUSALS = ("unrecognized arg", "no such option", "unknown", "not used by", "unexpected", "not recognized")
"""How argparse, click, absl, Hugging Face's parser and others refuse an option."""


def missing_module(detail: str, interpreter: str, active: str) -> str:
    """Name the Python of a rank that did not find a module, and the active environment; "" for other errors.

    Args:
        active: the folder of the environment that is active where the command was typed; "": none.
    """
    if not interpreter or not any(_misses_module(line) for line in detail.splitlines()):
        return ""
    ran = f"it was run by {interpreter}"
    if not active:
        return f"{ran}; --python PATH chooses another Python"
    if interpreter.startswith(f"{active.rstrip('/')}/"):
        return f"{ran}, of the active environment; --python PATH chooses another Python"
    return f"{ran}, but the active environment is {active}: choose it by --python {active}"


def _misses_module(line: str) -> bool:
    return line.startswith("ModuleNotFoundError: ") or ": No module named " in line


def refused_flag(detail: str, argv: Sequence[str], flag: str) -> str:
    """Explain an option that we have added and the script refuses; "" for other errors.

    Args:
        flag: the option; "": we have added none.
    """
    added = next((word for word in argv if flag and word.startswith(f"{flag}=")), "")
    if not added:
        return ""
    refused = any(flag in line and any(word in line.lower() for word in _REFUSALS) for line in detail.splitlines())
    what = f"Bireme has added {added} to the arguments, and the script refuses it"
    return f"{what}: leave it out with --no_local_rank" if refused else ""


def no_input(detail: str, rank: int) -> str:
    """Explain the end of a rank that wanted to read its stdin, which is empty; "" for other errors."""
    if not any(line.startswith(("bdb.BdbQuit", "EOFError: EOF when reading a line")) for line in detail.splitlines()):
        return ""
    hint = f"to read yours there, as for breakpoint(), type --stdin {rank}, or --stdin all if each rank reads"
    return f"the stdin of rank {rank} is /dev/null: {hint}"


def aborted_shutdown(detail: str) -> str:
    """Explain a thread of gloo that wants the GIL while Python shuts down; "" for other errors."""
    if not detail.endswith("terminate called without an active exception"):
        return ""
    return "gloo does this when some scripts end: call gc.collect(), then torch.distributed.destroy_process_group()"
