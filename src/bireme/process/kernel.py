"""Wraps what the kernel offers to control processes: subreapers, parent-death signals, the process tree, limits.

Linux only. Elsewhere the functions do nothing and return ``False`` or nothing (``docs/guarantees.md`` lists the
consequences).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from itertools import pairwise

from bireme import signal_numbers as signal
from bireme.errors import UnfitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import TypeAlias

    Stat: TypeAlias = tuple[str, str, int, int, int]
    """A process: name, state, parent's pid, processor time in ticks of the clock, resident memory in pages."""

LINUX = sys.platform.startswith("linux")

STUCK_WAIT = 5.0
"""Seconds for which a process whose ancestors are dead tries to kill what is below it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_PTRACER = 0x59616D61
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PIDFD_GETFD = 438  # the number of the system call, everywhere

if LINUX:
    import _ctypes  # not ``ctypes``, which takes many times as long to import

    _prctl_address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]

    class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "i"


def _prctl(option: int, *values: object) -> None:
    _ctypes.call_cdeclfunction(_prctl_address, (option, *values))


def become_subreaper(on: bool = True) -> None:
    """Make orphans below this process its children instead of init's, if the system can."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def is_subreaper() -> bool:
    """Whether this process is a subreaper already."""
    if not LINUX:
        return False
    flag = _Int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, _ctypes.byref(flag), 0, 0, 0)
    return bool(flag.value)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the *thread* that forked it ends; call between fork and exec.

    The signal is tied to the forking thread and not inherited by children. It is not sent if the parent died before
    the call, so the parent's pid is checked afterwards.
    """
    if LINUX:
        _prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)


def allow_tracer(pid: int) -> None:
    """Let a process, and those below it, read this one, where the kernel's Yama lets only ancestors do so."""
    if LINUX:
        _prctl(_PR_SET_PTRACER, pid, 0, 0, 0)


def copy_of_descriptor(pid: int, fd: int) -> int:
    """A descriptor of ours for what another process has open, where we may trace it; -1: we may not (Linux 5.6)."""
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1
    try:
        syscall = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
        return int(_ctypes.call_cdeclfunction(syscall, (_PIDFD_GETFD, process, fd, 0)))
    finally:
        os.close(process)


def name_process(name: str) -> None:
    """Show this process as ``name`` (15 bytes) in ``top`` and ``ps -o comm``."""
    if LINUX:
        _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def stat_of(pid: int) -> Stat | None:
    """What ``/proc/PID/stat`` says of a process, or ``None`` when it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 1024)
    except OSError:  # ESRCH: died in between
        return None
    finally:
        os.close(fd)
    # the name may hold blanks and parentheses: the fields begin after the last one
    head, _, fields = text.rpartition(b")")
    state, ppid, *words = fields.split(None, 22)
    ticks, pages = int(words[9]) + int(words[10]), int(words[19])
    return head.partition(b"(")[2].decode(errors="replace"), state.decode(), int(ppid), ticks, pages


def children() -> list[int]:
    """The pids of this process's own children, zombies and adopted orphans included."""
    me = os.getpid()
    try:  # one read, where the kernel was built with CONFIG_PROC_CHILDREN
        with open(f"/proc/{me}/task/{me}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return [pid for pid, stat in stats().items() if stat[2] == me]


def descendants(roots: Collection[int]) -> list[int]:
    """Every live process below ``roots``, without these, parents before children."""
    return _beneath(_children(), roots)


def families(roots: Collection[int], known: Mapping[int, Stat] | None = None) -> dict[int, list[int]]:
    """Each of ``roots`` with every live process below it, itself first; the processes are read once for all.

    Args:
        known: what `stats` has said; None: read them.
    """
    children = _children(known)
    return {root: [root, *_beneath(children, [root])] for root in roots}


def _beneath(children: Mapping[int, Sequence[int]], roots: Collection[int]) -> list[int]:
    found: list[int] = []
    todo = list(roots)
    while todo:
        below = children.get(todo.pop(0), ())
        found += below
        todo += below
    return found


def _children(known: Mapping[int, Stat] | None = None) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, stat in (stats() if known is None else known).items():
        children.setdefault(stat[2], []).append(pid)
    return children


def stats() -> dict[int, Stat]:
    """Every process that is not a zombie, by pid."""
    table = {}
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is not None and stat[1] != "Z":
                table[int(name)] = stat
    return table


def marked(name: str, value: str) -> list[int]:
    """Every process with ``name=value`` in its initial environment, wherever it is in the process tree."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in os.listdir("/proc") if LINUX else ():
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:  # gone, or not ours
                pass
    return found


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor except these, stdout and stderr; stdin becomes the null device."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for low, high in pairwise([2, *sorted(keep), 1 << 20]):
        os.closerange(low + 1, high)


def exists(pid: int) -> bool:
    """Whether there is a process with this pid, of whatever user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        pass
    return True


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone already."""
    try:
        os.kill(pid, signum)
    except OSError:
        pass


def expects(pid: int, signum: int) -> bool:
    """Whether a process catches a signal, ignores it, or waits for it, so that it does not die of it."""
    try:
        return all(
            _is_safe(f"/proc/{pid}/task/{thread}", 1 << signum - 1) for thread in os.listdir(f"/proc/{pid}/task")
        )
    except (OSError, KeyError, ValueError):
        return True  # nobody knows, as on other systems


_LOOKS = 8


def _is_safe(thread: str, bit: int) -> bool:
    for _ in range(_LOOKS):
        try:
            with open(f"{thread}/status", "rb") as file:
                status = dict(line.split(b":", 1) for line in file.read().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            return True  # it has ended
        if bit & (int(status[b"SigCgt"], 16) | int(status[b"SigIgn"], 16) | int(status[b"SigBlk"], 16)):
            return True
        if status[b"State"].strip()[:1] == b"R":
            return False
        with open(f"{thread}/wchan") as file:  # who waits for a signal does not block it then
            place = file.read().strip()
        if place not in ("", "0"):
            return "sigtimedwait" in place
        time.sleep(0.001)  # it runs by now
    return True  # the kernel does not tell


def kill_below(spare: Collection[int], seconds: float) -> list[int]:
    """Kill and reap everything below this process, which must be a subreaper.

    Orphans become children of this process, so nothing below it is left once ``waitpid`` finds no child.
    """
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        for pid in _reap_and_list(spare):
            send(pid, signal.SIGKILL)
        left = _reap_and_list(spare)
        if not left or time.monotonic() > deadline:
            return left
        # A process dies within microseconds unless the kernel holds it. There is no event for an adopted
        # grandchild, so check again, with growing pauses.
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _reap_and_list(spare: Collection[int]) -> list[int]:
    while mine := [pid for pid in children() if pid not in spare]:
        alive, reaped = [], False
        for pid in mine:
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    alive.append(pid)
                else:
                    reaped = True
            except ChildProcessError:
                pass
        if alive:
            return alive + descendants(alive)
        if not reaped:
            break
        # Processes that ended since they were listed may have left us their children: check again.
    return []


_OURS = 64
"""Descriptors that we need in addition to those of the ranks."""


def allow_files(count: int) -> tuple[int, int] | None:
    """Raise the soft limit, if necessary, so that ``count`` more descriptors can be opened.

    Returns:
        The (soft, hard) limits as they were, for the ranks; ``None`` if nothing was changed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OURS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UnfitError(
            f"{needed} open files are needed, but only {hard} are allowed", hint="raise the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft, hard


def give_back(limits: tuple[int, int] | None) -> None:
    """In a rank: restore the limits that :func:`allow_files` returned."""
    if limits is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
