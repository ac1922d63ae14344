"""A worker between its fork and its program: what the guardian's child does until it executes that."""

from __future__ import annotations

import errno
import os
import signal

from bireme.process import kernel, open_files
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn


class WorkerStart(Value):
    """What is needed to fork one worker. Descriptors are the agent's; ``cores`` empty means unbound."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdin: int
    stdout: int
    stderr: int
    cores: tuple[int, ...] = ()


# What a terminal, a shell or a scheduler sends to a whole group; the agent decides about these.
DEAF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
         signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGALRM)  # fmt: skip
# Ignored by the Python interpreter itself: no program expects that.
_OURS = (signal.SIGPIPE, signal.SIGXFSZ)


class Inherited:
    """What the command found when it was started and workers find again: ignored signals (nohup, ``&``), limits."""

    def __init__(self, files_limit: tuple[int, int] | None) -> None:
        self.files_limit = files_limit
        self.ignored = [s for s in DEAF if s not in _OURS and signal.getsignal(s) is signal.SIG_IGN]

    def give_back(self) -> None:
        """In a worker, before exec: every signal as the command found it."""
        for signum in (*DEAF, *_OURS, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_IGN if signum in self.ignored else signal.SIG_DFL)


def become(worker: WorkerStart, parent: int, death: int, was: Inherited, mask: Collection[int]) -> NoReturn:
    """In the forked child: turn into the worker's program, or say why not and end with 126 or 127.

    Args:
        worker: what it is to become.
        parent: the guardian.
        death: the signal that the program gets when the guardian dies.
        was: what it shall find of what the command found.
        mask: the signals that it shall find blocked.
    """
    code = 126
    try:
        os.setsid()
        kernel.die_with_parent(parent, death)
        signal.set_wakeup_fd(-1)
        was.give_back()
        _place(worker.stdin, worker.stdout, worker.stderr)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if worker.cores:
            os.sched_setaffinity(0, worker.cores)
        os.chdir(worker.cwd)
        open_files.give_back(was.files_limit)
        _execute(worker.argv, worker.env)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        os.write(2, os.fsencode(f"bireme: cannot run {worker.argv[0]}: {error.strerror}\n"))
    except BaseException as error:
        os.write(2, f"bireme: cannot run {worker.argv[0]!a}: {error!a}\n".encode())
    finally:
        os._exit(code)


def _execute(argv: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """``os.execvpe`` without its import, for which a low limit of open files may leave no descriptor."""
    if os.sep in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(directory, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # there, but it cannot be run: an error only if no other can
            failure = error
    raise failure


def _place(*fds: int) -> None:
    """Make the given descriptors 0, 1 and 2, whatever numbers they have now."""
    high = [os.dup(fd) if fd < 3 else fd for fd in fds]
    spare = []
    while any(fd < 3 for fd in high):  # a command started with some of 0, 1, 2 closed
        spare.append(high)
        high = [os.dup(fd) if fd < 3 else fd for fd in high]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)
