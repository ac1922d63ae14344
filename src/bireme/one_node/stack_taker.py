"""Takes the stacks of ranks on this node, by py-spy, without stopping them; other processes show only their state."""

from __future__ import annotations

import os
import sys

from bireme import jsontext
from bireme.errors import counted
from bireme.one_node.flight_recorder import FlightRecorder
from bireme.one_node.use_meter import STATES, step_of
from bireme.process import kernel
from bireme.result.stacks import MOST_FRAMES, Frame, RankStack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from subprocess import Popen
    from typing import Any

    from bireme.loop import Loop

SECONDS = 2.0
"""Seconds after which what is not known yet is left out."""

_AT_ONCE = 32
"""Processes that are asked at the same time: of a thousand at once, none would answer in time."""
_MOST_BYTES = 1 << 20
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen", "<string>", "<sent>")
_TCP_INFO = "=120x2Q"
"""Where Linux' ``struct tcp_info`` has the bytes that were sent, and received."""
_CALLS, _FILES = 4, 3
"""Functions of the kernel, and files, that are named of a process without a stack of Python."""


def find_tool(path: str, *beside: str) -> str:
    """The path of py-spy: beside one of these interpreters, or on ``path``; "": it is not there."""
    folders = [os.path.dirname(each) for each in beside if each]
    for folder in (*folders, *path.split(os.pathsep)):
        tool = os.path.join(folder, "py-spy")
        if os.access(tool, os.X_OK) and os.path.isfile(tool):
            return tool
    return ""


class StackTaker:
    """Takes the stacks once.

    Args:
        tool: the path of py-spy; "": only states are told.
        ranks: the pid of each rank that is alive.
        environ: what the ranks have been given.
        on_end: called once with what was found, at the latest after `SECONDS`.
    """

    def __init__(
        self,
        loop: Loop,
        tool: str,
        ranks: Mapping[int, int],
        environ: Mapping[str, str],
        on_end: Callable[[tuple[RankStack, ...]], object],
    ) -> None:
        self._loop, self._on_end = loop, on_end
        self._found: list[RankStack] = []
        self._running: dict[int, tuple[Popen[bytes], int, int, bytearray]] = {}  # by descriptor: … rank, pid, output
        self._main, self._environ = dict(ranks), environ
        self._before = {pid: _cpu(pid) for pid in ranks.values()}
        self._timer = loop.after(SECONDS, self._finish)
        self._recorder = FlightRecorder(loop, environ, ranks, self._maybe_finish)
        families = kernel.families(ranks.values())
        below = [(rank, each) for rank, pid in ranks.items() for each in families[pid][1:]]
        self._todo = [*ranks.items(), *below]  # the ranks first
        self._tool = tool
        self._ask_more()
        if not self._running and self._recorder.ended:
            self._timer.cancel()
            self._timer = loop.after(0, self._finish)

    def _ask_more(self) -> None:
        while self._todo and len(self._running) < _AT_ONCE:
            self._ask(self._tool, *self._todo.pop(0))

    def _ask(self, tool: str, rank: int, pid: int) -> None:
        from subprocess import DEVNULL, PIPE, Popen

        if not tool:
            if pid == self._main[rank]:
                self._found.append(RankStack(rank=rank, reason=_NO_TOOL))
            return
        me = os.getpid()
        argv = (tool, "dump", "--nonblocking", "--json", "--pid", str(pid))
        try:
            process = Popen(
                argv, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, preexec_fn=lambda: kernel.die_with_parent(me)
            )
        except OSError as error:
            self._found.append(RankStack(rank=rank, reason=f"{tool}: {error.strerror}"))
            return
        assert process.stdout is not None
        fd = process.stdout.fileno()
        self._loop.set_blocking(fd, False)
        self._running[fd] = (process, rank, pid, bytearray())
        self._loop.watch(fd, lambda: self._read(fd))

    def _read(self, fd: int) -> None:
        _, rank, pid, said = self._running[fd]
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        said += data
        if data and len(said) < _MOST_BYTES:
            return
        self._leave(fd)
        found = _stacks(bytes(said), rank, pid == self._main[rank], pid)
        self._found += found
        self._ask_more()
        self._maybe_finish()

    def _maybe_finish(self) -> None:
        if not self._running and self._recorder.ended:
            self._finish()

    def _leave(self, fd: int) -> None:
        process = self._running.pop(fd)[0]
        self._loop.unwatch(fd)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _finish(self) -> None:
        """Tell what was found, with the state of each rank."""
        silent = {rank for _, rank, _, _ in self._running.values()} | {rank for rank, _ in self._todo}
        self.close()
        nccl = self._recorder.nccl
        told = {each.rank for each in self._found if not each.thread}
        for rank in self._main.keys() - told:
            why = "its stack could not be read in time" if rank in silent else _why_none(self._main[rank])
            self._found.append(RankStack(rank=rank, reason=why))
        found, families = [], kernel.families(self._main.values())
        for each in sorted(self._found, key=lambda each: (each.rank, each.thread)):
            pid = self._main[each.rank]
            if not each.thread:
                cpu, io = sum(_cpu(one)[0] for one in families[pid]), sum(map(_io, families[pid]))
                state = _state(pid, self._before[pid])
                state = state if each.frames else _at_length(pid, state)
                groups, step = self._recorder.found.get(each.rank, ()), step_of(each.rank, self._environ)
                each, nccl = each.replace(state=state, cpu=cpu, io=io, step=step, groups=groups, nccl=nccl), ""
            found.append(each)
        self._on_end(tuple(found))

    def close(self) -> None:
        """End what still runs."""
        self._timer.cancel()
        self._recorder.close()
        for fd in list(self._running):
            self._leave(fd)


_NO_TOOL = "py-spy is needed to show its stack: pip install 'bireme[stacks]'"


def _stacks(said: bytes, rank: int, is_main: bool, pid: int) -> list[RankStack]:
    """The stacks in an answer of py-spy: the main thread, and others that run code of a script; []: not understood."""
    try:
        return _understood(jsontext.loads(said), rank, is_main, pid)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def _why_none(pid: int) -> str:
    """Why py-spy has told nothing of a process."""
    try:
        is_another = "python" not in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:  # it has ended, or may not be read
        is_another = False
    return "it is not a Python process" if is_another else "py-spy cannot read its stack"


def _understood(threads: list[dict[str, Any]], rank: int, is_main: bool, pid: int) -> list[RankStack]:
    found = []
    for thread in threads:
        frames = tuple(map(_frame, thread.get("frames", ())))[:MOST_FRAMES]
        name, number = thread.get("thread_name"), thread.get("os_thread_id")
        first = name == "MainThread" or number == thread.get("pid")
        if name is None and number is None:  # before Python 3.11: those of `threading` begin with its function
            first = bool(frames) and thread["frames"][-1].get("name") != "_bootstrap"
        if (first and is_main) or any(frame.own for frame in frames):
            parts = ([] if is_main else [f"process {pid}"]) + ([] if first else [f"thread {name or '?'}"])
            found.append(RankStack(rank=rank, thread=", ".join(parts), frames=frames))
    return found


def _frame(plain: dict[str, object]) -> Frame:
    file, line = str(plain.get("filename") or ""), plain.get("line")
    own = not any(part in file for part in _LIBRARIES) and not file.startswith(sys.base_prefix + "/lib")
    return Frame(function=str(plain.get("name")), file=file, line=line if isinstance(line, int) else 0, own=own)


def _at_length(pid: int, state: str) -> str:
    """The state of a process without a stack of Python: also who has called the kernel's function, and open files."""
    try:
        with open(f"/proc/{pid}/stack") as file:  # only root may
            calls = [
                line.split()[1].partition("+")[0] for line in file if "+" in line and "syscall" not in line.lower()
            ]
    except (OSError, IndexError):
        calls = []
    files, sockets = [], 0
    try:
        for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            path = os.readlink(f"/proc/{pid}/fd/{name}")
            sockets += path.startswith("socket:")
            if path.startswith("/") and not path.startswith("/dev/"):
                files.append(os.path.basename(path))
    except OSError:
        pass  # it has ended meanwhile
    opened = [*files[-_FILES:], *[counted(sockets, "socket")] * bool(sockets)]
    words = state + "".join(f" ← {call}" for call in calls[1:_CALLS])
    return f"{words}; open: {', '.join(opened)}" if opened else words


def _cpu(pid: int) -> tuple[float, float]:
    """(seconds of processor time of a process, now)."""
    import time

    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0, time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()


def _io(pid: int) -> int:
    """Bytes that a process has read and written: of files, pipes and terminals, and over its open TCP connections."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(file.readline().split()[1]) for _ in range(2)) + _over_tcp(pid)
    except (OSError, IndexError, ValueError):
        return 0


def _over_tcp(pid: int) -> int:
    import _socket
    import struct

    total = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            is_socket = os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
        except OSError:  # it was closed meanwhile
            continue
        fd = kernel.copy_of_descriptor(pid, int(name)) if is_socket else -1
        if fd >= 0:
            link = _socket.socket(fileno=fd)
            try:
                info = link.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, struct.calcsize(_TCP_INFO))
                total += sum(struct.unpack(_TCP_INFO, info))
            except (OSError, struct.error):
                pass  # another socket, or an old kernel
            link.close()
    return total


def _state(pid: int, before: tuple[float, float]) -> str:
    """What the kernel says of a process: asleep, running, stopped, and where in the kernel it sleeps."""
    stat = kernel.stat_of(pid)
    if stat is None:
        return ""  # it has just ended
    words = STATES.get(stat[1], stat[1])
    if stat[1] in "SD":
        try:
            with open(f"/proc/{pid}/wchan") as file:
                place = file.read().strip()
        except OSError:
            place = ""
        words += f" in {place}" if place not in ("", "0") else ""
    now = _cpu(pid)
    share = (now[0] - before[0]) / max(0.05, now[1] - before[1])
    return f"{words}, {min(share, 99):.0%} CPU" if share >= 0.5 else words
