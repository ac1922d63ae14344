"""``--detach``: a job that outlives its terminal, and the folder with the logs of such jobs.

The log of a job is in parts: ``PID-NAME.log``, ``PID-NAME.log.1`` and so on. Only the first part and the last two are
kept, so that a log has a bound.
"""

from __future__ import annotations

import os
import sys
import time

from bireme import drafts
from bireme.errors import OK, BadInputError
from bireme.logs.console import ERR, OUT, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

_KEPT, _DAYS = 100, 30
"""How many logs of jobs that have ended are kept, and for how many days."""
PART = 16 << 20
"""Bytes of a part of a log, and at most one write more."""

_announcement = -1
_log = ""
_number, _size = 0, 0
"""The part of our log that is written, and its bytes."""


def log_path() -> str:
    """The path of this job's log; "": it is not detached."""
    return _log


def folder(environ: Mapping[str, str]) -> str:
    """The folder of the logs (XDG Base Directory Specification)."""
    base = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "bireme")


def detach(name: str, environ: Mapping[str, str]) -> int | None:
    """Go on as a process without a terminal, whose output is a log; None in that process.

    Returns:
        In the one that was typed: its exit code, once the job has begun or could not.
    """
    global _announcement, _log
    from bireme.resources.ownership import make_owned

    place = folder(environ)
    try:
        make_owned(place)
        _clean(place)
        draft = os.path.join(place, f".{os.getpid()}.log")
        log = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    except OSError as error:
        hint = "set XDG_STATE_HOME to a folder that you can write to"
        raise BadInputError(f"cannot write below {place}: {error.strerror}", hint=hint, where="--detach") from None
    sys.stdout.flush()
    sys.stderr.flush()
    heard, announcement = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        os.setsid()
        _announcement, _log = announcement, os.path.join(place, f"{os.getpid()}{f'-{name}' * bool(name)}.log")
        _hold(log)  # it stays open for as long as the job runs; 1 and 2 may become another part
        os.rename(draft, _log)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        os.close(null)
        return None
    os.close(announcement)
    begun = os.read(heard, 1)
    if begun:
        sys.stdout.write(f"{pid}\n")
        sys.stderr.write(f"bireme: job {pid} runs: bireme logs -f {pid} shows its output, bireme stop {pid} ends it\n")
        return OK
    _, status = os.waitpid(pid, 0)
    try:
        with open(os.path.join(place, f"{pid}{f'-{name}' * bool(name)}.log"), errors="replace") as file:
            sys.stderr.write(file.read())
    except FileNotFoundError:
        drafts.remove(draft)  # it was killed before it had named its log
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        from bireme.result.outcome import signal_name

        complain(f"the job was ended by {signal_name(-code)} before it began")
    return code if code >= 0 else 128 - code


def announce() -> None:
    """Tell the process that was typed that the job has begun."""
    global _announcement
    if _announcement >= 0:
        try:
            os.write(_announcement, b"1")
        except BrokenPipeError:  # it was killed, or its terminal was closed
            pass
        os.close(_announcement)
        _announcement = -1


def make_room(data: bytes) -> None:
    """Before output is written to our log: begin the next part if this one is full."""
    global _number, _size
    if _log and _size >= PART:
        from bireme.resources.ownership import make_owned

        try:
            make_owned(os.path.dirname(_log))  # somebody may have removed it
            part = os.open(f"{_log}.{_number + 1}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except (OSError, BadInputError):
            os.ftruncate(OUT, 0)
        else:
            _number += 1
            for target in (OUT, ERR):
                os.dup2(part, target)
            os.close(part)
            if _number > 2:
                drafts.remove(f"{_log}.{_number - 2}")
        _size = 0
    _size += len(data)


def find_log(job: str, environ: Mapping[str, str]) -> str:
    """The log of a detached job, by its id or its name; of several with the name the newest; "": there is none."""
    try:
        found = _logs(folder(environ))
    except OSError:
        return ""
    named = {log: parts for log, parts in found.items() if job in os.path.basename(log)[:-4].split("-", 1)}
    return max(named, key=lambda log: _written(named[log]), default="")


def next_part(log: str, number: int) -> tuple[int, BinaryIO] | None:
    """The first part of a log after this one, and its number; None: there is none yet."""
    while later := {at: path for at, path in _logs(os.path.dirname(log)).get(log, {}).items() if at > number}:
        try:
            return min(later), open(later[min(later)], "rb")
        except FileNotFoundError:  # the job has removed it meanwhile
            pass
    return None


def is_running(log: str) -> bool:
    """Whether there is a process of the job that writes this log."""
    import fcntl

    try:
        with open(log, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _logs(place: str) -> dict[str, dict[int, str]]:
    """The parts of the logs in a folder, by the path of the first part and the number of the part."""
    found: dict[str, dict[int, str]] = {}
    for name in os.listdir(place):
        log, _, number = name.rpartition(".log")
        if log and (not number or number[1:].isdecimal()):
            found.setdefault(os.path.join(place, f"{log}.log"), {})[int(number[1:] or 0)] = os.path.join(place, name)
    return found


def _written(parts: Mapping[int, str]) -> float:
    """When a log was last written."""
    last = 0.0
    for path in parts.values():
        try:
            last = max(last, os.stat(path).st_mtime)
        except FileNotFoundError:
            pass
    return last


def _clean(place: str) -> None:
    """Remove old logs of jobs that have ended. Other commands may do the same meanwhile, or rename their drafts."""
    logs = _logs(place)
    written = {log: _written(parts) for log, parts in logs.items()}
    for number, log in enumerate(sorted(logs, key=lambda log: -written[log])):
        if number >= _KEPT or time.time() - written[log] > _DAYS * 86400:
            fd = os.open(log, os.O_RDWR | os.O_CREAT, 0o600)  # it may be gone, and later parts not
            try:
                if _hold(fd):
                    for part in (log, *logs[log].values()):
                        drafts.remove(part)
            finally:
                os.close(fd)


def _hold(fd: int) -> bool:
    """Lock a log; return whether no job holds it. The kernel releases it with the last process of the job."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
