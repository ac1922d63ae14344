"""``--detach``: a job that outlives its terminal, and the folder with the logs of such jobs."""

from __future__ import annotations

import os
import sys
import time

from bireme.errors import OK, BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT, _DAYS = 100, 30
"""How many logs of jobs that have ended are kept, and for how many days."""

_announcement = -1
_log = ""


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
        os.rename(draft, _log)
        _hold(log)  # for as long as the job runs: 1 and 2 are the same open file
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        os.close(null)
        os.close(log)
        return None
    os.close(announcement)
    begun = os.read(heard, 1)
    if begun:
        sys.stdout.write(f"{pid}\n")
        sys.stderr.write(f"bireme: job {pid} runs: bireme logs -f {pid} shows its output, bireme stop {pid} ends it\n")
        return OK
    _, status = os.waitpid(pid, 0)
    with open(os.path.join(place, f"{pid}{f'-{name}' * bool(name)}.log"), errors="replace") as file:
        sys.stderr.write(file.read())
    return os.waitstatus_to_exitcode(status)


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


def find_log(job: str, environ: Mapping[str, str]) -> str:
    """The log of a detached job, by its id or its name; of several with the name the newest; "": there is none."""
    place = folder(environ)
    try:
        files = [os.path.join(place, name) for name in os.listdir(place) if not name.startswith(".")]
    except OSError:
        return ""
    named = [each for each in files if job in os.path.basename(each).removesuffix(".log").split("-", 1)]
    return max(named, key=os.path.getmtime, default="")


def _clean(place: str) -> None:
    """Remove old logs of jobs that have ended. Other commands may do the same meanwhile, or rename their drafts."""
    found = []
    for name in os.listdir(place):
        try:
            path = os.path.join(place, name)
            found.append((time.time() - os.stat(path).st_mtime, path))
        except FileNotFoundError:
            pass
    for number, (age, path) in enumerate(sorted(found)):
        if number >= _KEPT or age > _DAYS * 86400:
            try:
                fd = os.open(path, os.O_RDONLY)
                try:
                    if _hold(fd):
                        os.unlink(path)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                pass


def _hold(fd: int) -> bool:
    """Lock a log; return whether no job holds it. The kernel releases it with the last process of the job."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
