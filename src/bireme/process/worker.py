"""A worker between fork and exec: what the guardian's child does until it executes its program."""

from __future__ import annotations

import errno
import os

from bireme import signal_numbers as signal
from bireme.process import kernel
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn


class WorkerStart(Value):
    """What is needed to fork one worker.

    Attributes:
        env: its whole environment.
        stdin, stdout, stderr: the agent's descriptors that become its standard ones.
        cores: the cores that it is bound to; empty: it is not bound.
        passed: further descriptors of the guardian that it inherits.
        preload: the modules that a template imports for it (``--preload``); empty: it is executed.
        tracer: the process that may take its stacks, by what it starts; 0: none.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdin: int
    stdout: int
    stderr: int
    cores: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    preload: tuple[str, ...] = ()
    tracer: int = 0


# Signals that a terminal, shell or scheduler sends to a whole process group: guardian and watcher ignore them.
DEAF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
         signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGALRM)  # fmt: skip
# The Python interpreter ignores these, which no program expects to inherit.
_OURS = (signal.SIGPIPE, signal.SIGXFSZ)


class Inherited:
    """What workers inherit as the command found it: ignored signals (nohup, ``&``) and the limit of open files."""

    def __init__(self, files_limit: tuple[int, int] | None) -> None:
        self.files_limit = files_limit
        self.ignored = [s for s in DEAF if s not in _OURS and signal.getsignal(s) is signal.SIG_IGN]

    def give_back(self) -> None:
        """In a worker, before exec: restore every signal as the command found it."""
        for signum in (*DEAF, *_OURS, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_IGN if signum in self.ignored else signal.SIG_DFL)


def become(worker: WorkerStart, parent: int, death: int, was: Inherited, mask: Collection[int]) -> NoReturn:
    """In the forked child: execute the worker's program, or report the error and exit with 126 or 127.

    Args:
        death: the signal that the program gets when the guardian dies.
        mask: the signals to block in the program.
    """
    code = 126
    try:
        os.setsid()
        kernel.die_with_parent(parent, death)
        if worker.tracer:
            kernel.allow_tracer(worker.tracer)
        signal.set_wakeup_fd(-1)
        was.give_back()
        _place(worker.stdin, worker.stdout, worker.stderr)
        for fd in worker.passed:
            os.set_inheritable(fd, True)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if worker.cores:
            os.sched_setaffinity(0, worker.cores)
        os.chdir(worker.cwd)
        kernel.give_back(was.files_limit)
        _execute(worker.argv, worker.env)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        os.write(2, os.fsencode(f"bireme: cannot run {worker.argv[0]}: {error.strerror}\n"))
    except BaseException as error:
        os.write(2, f"bireme: cannot run {worker.argv[0]!a}: {error!a}\n".encode())
    finally:
        os._exit(code)


def _execute(argv: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """Like ``os.execvpe``, which imports a module and fails if no descriptor is left for that."""
    if os.sep in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(directory, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # found but not executable: an error only if no other is
            failure = error
    raise failure


def _place(*fds: int) -> None:
    """Make the given descriptors 0, 1 and 2, whatever numbers they have now."""
    high = [os.dup(fd) if fd < 3 else fd for fd in fds]
    spare = []
    while any(fd < 3 for fd in high):  # the command was started with some of 0, 1, 2 closed
        spare.append(high)
        high = [os.dup(fd) if fd < 3 else fd for fd in high]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)
