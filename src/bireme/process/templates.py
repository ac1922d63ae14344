"""The guardian's side of a template (:mod:`bireme.warm.template`): starts it, and has it fork ranks."""

from __future__ import annotations

import _socket
import os
import zipfile
from io import BytesIO

from bireme.process.worker import WorkerStart
from bireme.warm import identity, template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Python 2 must be able to read it. Whatever goes wrong, the script must not run here.
_BEGIN = b"""\
import os, sys
own = sys.modules[__name__]
try:
    import _bireme_template
    _bireme_template.hold()
except BaseException:
    sys.excepthook(*sys.exc_info())
    os._exit(70)
if __name__ not in sys.modules:
    sys.modules[__name__] = own
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
"""


class Template:
    """A template, and the ranks that wait for it.

    Args:
        first: one of the ranks that it is for: they all have its identity.
        fork: forks the program of a worker below this process; returns its pid.

    Attributes:
        fd: becomes readable when `read` has something to return; -1: it has ended.
        err: what its stderr is written to.
        waiting: the indices of the ranks that were not forked yet.
    """

    def __init__(self, first: WorkerStart, waiting: Sequence[int], fork: Callable[[WorkerStart], int]) -> None:
        self.waiting = list(waiting)
        self.pid, self.is_ready, self.is_asked = 0, False, False
        self._ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.fd = self._ours.fileno()
        archive, out, self.err = (os.memfd_create(name) for name in ("template", "stdout", "stderr"))
        os.write(archive, _archive())
        of_ranks = frozenset(filter(identity.differs_between_ranks, first.env))
        path = first.env.get("PYTHONPATH")
        setup = {
            "modules": list(first.preload),
            "program": list(identity.program(first.argv)),
            "of_ranks": of_ranks,
            "restore": {} if path is None else {"PYTHONPATH": path},
        }
        template.send(self._ours, setup)
        null = os.open(os.devnull, os.O_RDONLY)
        env = {
            **{name: value for name, value in first.env.items() if name not in of_ranks},
            **identity.DURING_IMPORTS,
            "BIREME_TEMPLATE": f"{theirs.fileno()},{archive}",
            "PYTHONPATH": f"/proc/self/fd/{archive}" + (f"{os.pathsep}{path}" if path else ""),
        }
        start = first.replace(
            env=env, stdin=null, stdout=out, stderr=self.err, passed=(theirs.fileno(), archive), preload=()
        )
        self._is_program = _is_program(first.argv[0])
        if self._is_program:
            self.pid = fork(start)
        theirs.close()
        for fd in (archive, out, null):
            os.close(fd)

    def read(self) -> list[list[str]]:
        """What it has said, as lists of words: ``ready``, ``up INDEX PID``, ``unborn INDEX ERRNO``, or ``cold REASON``,
        with which it ends."""
        said = []
        while self.fd >= 0:
            try:
                data = self._ours.recv(4096)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            said.append((data or self._why_it_ended()).decode(errors="replace").split())
            self.is_ready, self.is_asked = True, False
            if not data:
                self.close()
        return said

    def _why_it_ended(self) -> bytes:
        if not self._is_program:
            return b"cold --python names a script that starts Python, not a Python itself"
        last = os.pread(self.err, 1 << 16, 0).strip().rpartition(b"\n")[2]
        return b"cold the template has ended" + (b": " + last if last else b"")

    def ask(self, index: int, worker: WorkerStart, death: int) -> None:
        """Have it fork a rank; ``death``: the signal that the rank gets when this process dies."""
        self.is_asked = True
        request = {
            "index": index,
            "argv": list(worker.argv),
            "words": len(worker.argv) - 2 - len(identity.program(worker.argv)),
            "env": worker.env,
            "cores": list(worker.cores),
            "parent": os.getpid(),
            "death": int(death),
            "tracer": worker.tracer,
        }
        try:
            template.send(self._ours, request, (worker.stdin, worker.stdout, worker.stderr))
        except OSError:
            pass  # it has ended, which `read` shows

    def close(self) -> None:
        """Let it end."""
        if self.fd >= 0:
            self._ours.close()
            os.close(self.err)
            self.fd = -1


def start(
    workers: Sequence[WorkerStart], fork: Callable[[WorkerStart], int], kept: dict[identity.Identity, Template] | None
) -> list[Template]:
    """The templates of these workers: one for each group that may be forked from the same one.

    Args:
        kept: those of an earlier job by the identity of their ranks. Afterwards it has those of this job.
    """
    alike: dict[identity.Identity, list[int]] = {}
    for index, worker in enumerate(workers):
        if worker.preload:
            key = identity.identity(worker.argv, worker.env, worker.cwd, worker.cores)
            alike.setdefault(key, []).append(index)
    started: dict[identity.Identity, Template] = {}
    try:
        for key, indices in alike.items():
            earlier = kept.pop(key, None) if kept else None
            if earlier is not None:
                earlier.read()  # it may have ended meanwhile
            if earlier is None or earlier.fd < 0:
                started[key] = Template(workers[indices[0]], indices, fork)
            else:
                started[key], earlier.waiting = earlier, indices
    except OSError:
        pass  # there may be no more processes or files: those that are executed will tell
    if kept is not None:
        for other in kept.values():
            other.close()
        kept.clear()
        kept.update(started)
    return list(started.values())


def _archive() -> bytes:
    """The archive from which the ranks' Python imports the template."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("sitecustomize.py", _BEGIN)
        archive.writestr("_bireme_template.py", _source())
    return file.getvalue()


def _source() -> str:
    get_source = getattr(template.__loader__, "get_source", None)
    if get_source is not None:
        return str(get_source(template.__name__))
    with open(template.__file__, encoding="utf-8") as file:  # pytest imports it in a way of its own
        return file.read()


def _is_program(path: str) -> bool:
    """Whether it is a program of the machine, not a script that may start another Python without what we pass."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False
