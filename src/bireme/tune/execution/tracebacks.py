"""Decides by a traceback whether a rank ran out of memory, found its port taken, or found its disk full.

Only the exceptions of a traceback are examined: not the lines of source code that it shows, and not any line that
merely contains a word such as "error" or "memory", since programs also warn of both and go on.
"""

from __future__ import annotations

import re

_MOST_LINES = 12
"""Lines of an exception's message that are examined; NCCL names the reason in the fourth."""

_LONGEST = 200
_LOOKED_AT = 4096
"""Characters of a line that are examined, so that a hostile line cannot slow the patterns down."""

_HEADER = "Traceback (most recent call last):"
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::?$|:\s)")
_GROUP = "Exception Group Traceback"
_IN_GROUP = re.compile(r"^ +(?:\| ?|\+[-+ ]*)")
"""The prefix of lines in an exception group."""

_NAMES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
"""Exceptions of torch and cupy; of Python; of NumPy."""

_MEMORY = re.compile(
    "|".join(
        (
            # torch's allocators, each with its device
            r"\b(?:CUDA|HIP|XPU|NPU|MPS|MUSA|MLU|GPU)(?: backend)? out of memory",
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"c10::(?:Cuda)?OutOfMemoryError",
            # what CUDA, HIP, oneAPI, CANN and Gaudi say themselves
            r"\b(?:CUDA|HIP)(?: driver)? error: out of memory",
            r"(?i:\bcuda failure(?: \d+)?:? '?out of memory)",
            r"\b(?:cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|HIP_ERROR_OutOfMemory)\b",
            r"\b(?:CU|HIP)(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED\b|\bCUFFT_ALLOC_FAILED\b",
            r"\b(?:UR_RESULT|PI)_ERROR_OUT_OF_(?:(?:DEVICE|HOST)_MEMORY|RESOURCES)\b",
            r"\bMemory_Allocation_Failure\b",
            r"\bPT_DEVMEM Allocation failed\b",
            # XLA; TensorFlow
            r"(?i:\bresource[ _]exhausted\b.*out of memory)|\bOOM when allocating tensor\b",
            # C++; the kernel, for mmap and fork
            r"std::bad_alloc\b",
            r"\[Errno 12\]|\bCannot allocate memory\b",
            # a worker of torch's DataLoader that the kernel has killed, or that found /dev/shm full
            r"DataLoader worker .* is killed by signal: Killed|workers are out of shared memory",
        )
    )
)

_ABSURD = "more than 1EB"
"""torch's message for a wrong size: a smaller batch would not help."""

_PORT = re.compile(r"\bEADDRINUSE\b|\baddress already in use\b", re.IGNORECASE)

_DISK = re.compile(r"\[Errno (?:28|122)\]")
"""Python's form. Not "No space left on device", which torch also says of shared memory, where a smaller batch helps."""

_ANOTHER = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset|refused)|Broken pipe|ncclRemoteError|remote process exited"
    r"|[Ss]ocket [Tt]imeout|recvValue failed|Timed out (?:waiting|after)|Application timeout"
)


def exceptions(detail: str) -> tuple[str, ...]:
    """The exceptions of a traceback and of those chained to it, each with its message, in their order.

    A text without a traceback counts as one exception: from a program that is not Python, or a ``sys.exit``.
    """
    lines = detail.splitlines()
    if not is_traceback(detail):
        return (detail.strip(),) if detail.strip() else ()
    if _GROUP in detail:
        lines = [_IN_GROUP.sub("", line) for line in lines]
    found: list[list[str]] = []
    place = "outside"
    for line in lines:
        if _HEADER in line:
            place = "frames"
        elif line.startswith(_CHAIN):
            place = "outside"
        elif place == "frames" and _EXCEPTION.match(line):
            found.append([line])
            place = "message"
        elif place == "message":
            found[-1].append(line)
    return tuple("\n".join(message[:_MOST_LINES]).strip() for message in found)


def is_traceback(detail: str) -> bool:
    """Whether this text contains a traceback."""
    return _HEADER in detail


def headline(detail: str) -> str:
    """The line that says best what happened: that of the last exception, else the last line."""
    said = exceptions(detail)
    if not said:
        return ""
    return clip(said[-1].splitlines()[0 if is_traceback(detail) else -1])


def of_memory(detail: str) -> str:
    """The line that reports that memory ran out; "" if there is none."""
    return next((clip(line) for line in _lines(detail) if _is_of_memory(line)), "")


def of_port(detail: str) -> str:
    """The line that reports a port in use; "" if there is none."""
    return next((clip(line) for line in _lines(detail) if _PORT.search(line)), "")


def of_disk(detail: str) -> str:
    """The line that reports a full disk; "" if there is none."""
    return next((clip(line) for line in _lines(detail) if _DISK.search(line)), "")


def of_another(detail: str) -> bool:
    """Whether it only reports that another rank is gone."""
    return bool(_ANOTHER.search(headline(detail)))


def clip(line: str) -> str:
    """The text as one line, shortened to fit a table."""
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _lines(detail: str) -> tuple[str, ...]:
    """The lines of all exceptions, those of the last exception first, since that is the one people look at."""
    return tuple(line[:_LOOKED_AT] for said in reversed(exceptions(detail)) for line in said.splitlines())


def _is_of_memory(line: str) -> bool:
    if _ABSURD in line:
        return False
    name = line.partition(":")[0].rpartition(".")[2]
    return name in _NAMES or _MEMORY.search(line) is not None
