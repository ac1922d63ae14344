"""Decides which words of a failed rank are quoted: its last traceback, what it recorded, or its last lines. Pure.

Also explains errors that come from how a rank was started (no module, a refused option, no input), or from how it ends.
"""

from __future__ import annotations

from bireme import jsontext

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
    return f"{ran}, but the active environment is {active}: choose it with --python {active}"


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


def last_lines(stderr: bytes, error_file: str, *, by_signal: bool, lines: int = 10) -> str:
    """What to quote of a failed rank: its traceback if there is one, else the last lines of its stderr.

    Args:
        error_file: the content (JSON) of the file that torch's ``record`` decorator writes; "": none. A traceback on
            stderr is preferred: it is the user's own exception, where it happened.
        by_signal: whether it died by a signal, so that an older traceback is not the reason.
    """
    traceback = "" if by_signal else last_traceback(stderr)
    if traceback:
        return traceback
    if error_file:
        recorded = _recorded(error_file)
        if recorded:
            return _clip(recorded)
    return "\n".join([line for line in _text(stderr).splitlines() if line.strip()][-lines:])


def last_traceback(stderr: bytes) -> str:
    """The last traceback in a rank's stderr, and what follows it; "" if there is none."""
    text = _text(stderr)
    start = _last_traceback(text)
    return _clip(text[start:]) if start >= 0 else ""


def _text(stderr: bytes) -> str:
    text = stderr.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text:
        import re

        text = re.sub(r"\x1b\[[0-9;:]*m", "", text)  # colours; the console shows other escapes by their numbers
    if "[rank" not in text:
        return text
    return "".join(map(_without_rank, text.splitlines(keepends=True)))


def _without_rank(line: str) -> str:
    """Remove the ``[rank1]: `` that torch puts before each line of a traceback once its process group exists."""
    rank, colon, rest = line.partition("]: ")
    return rest if colon and rank.startswith("[rank") and rank[5:].isdecimal() else line


HEADER = "Traceback (most recent call last):"
GROUP = "Exception Group Traceback"
CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
"""How Python begins a traceback, one of a group of exceptions, and the line between two that are chained."""


def _last_traceback(text: str) -> int:
    """The offset of the last traceback, including those that it is chained to; -1: there is none.

    An indented traceback belongs to an exception group, which begins earlier.
    """
    starts = _line_starts(text)
    while len(starts) > 1:
        before = text[: starts[-1]].rstrip().rpartition("\n")[2]
        if not any(phrase in before for phrase in CHAIN):
            break
        starts.pop()
    return starts[-1] if starts else -1


def _line_starts(text: str) -> list[int]:
    """The offsets of the lines that begin a traceback."""
    starts = []
    place = 0
    for line in text.splitlines(keepends=True):
        if line.startswith((HEADER, f"  + {GROUP}")):
            starts.append(place)
        place += len(line)
    return starts


def _recorded(text: str) -> str:
    try:
        message = jsontext.loads(text)["message"]
        if isinstance(message, dict):
            stack = message.get("extraInfo", {}).get("py_callstack", "")
            return str(stack or message.get("message", ""))
        return str(message)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _clip(text: str, most: int = 60) -> str:
    """Shorten to ``most`` lines: a quarter from the beginning, the rest from the end."""
    lines = text.rstrip().splitlines()
    if len(lines) <= most:
        return "\n".join(lines)
    left_out = len(lines) - most
    return "\n".join([*lines[: most // 4], f"  … {left_out} lines …", *lines[-(most - most // 4) :]])
