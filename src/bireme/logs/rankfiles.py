"""Writes a log file for each rank: ``DIR/YYYYmmddHHMMSS_rankN.log``, with stdout and stderr.

Name and content are those of DeepSpeed's launcher (``--enable_each_rank_log``). Unlike there, the output is shown on
the console too, and a full disk is reported and does not end the job.
"""

from __future__ import annotations

import os
import time

from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def prepare(directory: str, where: str = "--enable_each_rank_log") -> str:
    """Create the directory for the log files if it does not exist; return its absolute path.

    Args:
        where: the option that named it, for messages.
    """
    path = os.path.abspath(os.path.expanduser(directory))
    if os.path.exists(path) and not os.path.isdir(path):
        raise BadInputError(f"{directory} is a file, not a directory", hint="name a directory", where=where)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"cannot create the directory {directory}: {error.strerror}", where=where) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise BadInputError(f"cannot write to the directory {directory}", where=where)
    return path


class RankFiles:
    """The log files of the ranks of one node.

    Args:
        directory: as returned by :func:`prepare`.
        ranks: global ranks, which name the files.
        on_trouble: called with a message, once for each file that cannot be written.
    """

    def __init__(
        self, directory: str, ranks: Sequence[int], on_trouble: Callable[[str], None], job_name: str = ""
    ) -> None:
        prefix = f"{job_name}_" * bool(job_name) + time.strftime("%Y%m%d%H%M%S", time.localtime())
        self.paths: dict[int, str] = {}
        """The path of each rank's file."""
        self._on_trouble = on_trouble
        self._fds: dict[int, int] = {}
        for rank in ranks:
            try:
                self._create(rank, os.path.join(directory, f"{prefix}_rank{rank}"))
            except OSError as error:
                self._lose(rank, error)

    def _create(self, rank: int, stem: str) -> None:
        """Create a new file, with another name if an attempt in the same second has left one."""
        for number in range(1000):
            path = self.paths[rank] = f"{stem}.{number}.log" if number else f"{stem}.log"
            try:
                self._fds[rank] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
                return
            except FileExistsError as error:
                taken = error
        raise taken

    def write(self, rank: int, data: bytes) -> None:
        """Append a chunk of a rank's output, unchanged."""
        fd = self._fds.get(rank)
        if fd is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            self._lose(rank, error)

    def _lose(self, rank: int, error: OSError) -> None:
        fd = self._fds.pop(rank, None)
        if fd is not None:
            os.close(fd)
        self._on_trouble(f"cannot write the log {self.paths[rank]}: {error.strerror}; rank {rank} continues without it")

    def close(self) -> None:
        """Close the files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
