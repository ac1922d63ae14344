"""What the tests of whole jobs share: a program that records what it finds, and a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, bireme, clean_environ

LOOK = PROGRAMS / "look.py"


class Looks(list):
    """What each rank has found, by rank; ``done`` is how the command ended."""

    done: subprocess.CompletedProcess[str]


@pytest.fixture
def look(stage, tmp_path):
    """Run ``look.py`` (or what is given) under the command with these options and arguments."""

    def run(*options, args=(), program=(LOOK,), env=None, ranks=2, **kwargs) -> Looks:
        env = {**(clean_environ() if env is None else env), "LOOK_DIR": str(tmp_path)}
        done = stage.run("run", "--num_gpus", ranks, *options, *program, *args, env=env, **kwargs, code=0)
        looks = Looks(json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks))
        looks.done = done
        return looks

    return run


def state_of(pid: int) -> str:
    """The state of a process as one letter, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _resize(fd: int, columns: int, rows: int = 30) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Terminal:
    """The command on a terminal of its own, as a shell starts it: controlling terminal, foreground."""

    def __init__(
        self,
        *args: object,
        env: dict[str, str] | None = None,
        columns: int = 0,
        rows: int = 30,
        argv: list[str] | None = None,
        cwd: Path | str = ".",
    ) -> None:
        self.seen = b""
        self.closed = False
        self.status: int | None = None
        argv = argv or bireme(*args)
        environ = clean_environ(NO_COLOR="1") if env is None else env
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            _resize(0, columns, rows)
            os.chdir(cwd)
            os.execve(argv[0], argv, environ)
        os.set_blocking(self.fd, False)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.fd], [], [], max(seconds, 0))[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the last one who had it open has gone
            data = b""
        self.closed = self.closed or not data
        self.seen += data
        return bool(data)

    def expect(self, text: bytes | str, seconds: float = 60.0, times: int = 1, after: int = 0) -> bytes:
        """Read until the text has been seen, after so many bytes; return all that was."""
        text = text.encode() if isinstance(text, str) else text
        deadline = time.monotonic() + seconds
        while self.seen.count(text, after) < times:
            assert not self.closed and time.monotonic() < deadline, f"{text!r} was not seen in {self.seen!r}"
            self._read(deadline - time.monotonic())
        return self.seen

    def expect_all(self, pattern: bytes, count: int, seconds: float = 60.0) -> list[bytes]:
        """Read until a pattern was seen so many times; return what its group has matched."""
        deadline = time.monotonic() + seconds
        while len(found := re.findall(pattern, self.seen)) < count:
            assert not self.closed and time.monotonic() < deadline, f"{pattern!r} was not seen in {self.seen!r}"
            self._read(deadline - time.monotonic())
        return found

    def resize(self, columns: int) -> None:
        """Make the window wider or narrower."""
        _resize(self.fd, columns)

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self.fd)
        self.fd = -1
        self.closed = True

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self.fd, data)

    def modes(self) -> list:
        return termios.tcgetattr(self.fd)

    def wait(self, seconds: float = 60.0) -> int:
        """Read to the end; the exit code as Popen gives it."""
        deadline = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
            else:
                assert time.monotonic() < deadline, f"does not end: {self.seen!r}"
                self._read(0.01) if not self.closed else time.sleep(0.002)
        while not self.closed and self._read(0.0):
            pass
        return os.waitstatus_to_exitcode(self.status)

    def end(self) -> None:
        if self.status is None and os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.fd >= 0:
            os.close(self.fd)


@pytest.fixture
def terminal(stage):
    """Start commands on terminals."""
    open_ones: list[Terminal] = []

    def start(*args: object, **kwargs: object) -> Terminal:
        open_ones.append(Terminal(*args, **kwargs))
        return open_ones[-1]

    yield start
    for one in open_ones:
        one.end()
