"""Runs a helper program beside this process, which answers with one line of JSON."""

from __future__ import annotations

import json
import os
from subprocess import DEVNULL, PIPE, Popen

from bireme import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from bireme.loop import Loop

_MOST_BYTES = 1 << 20


class Helper:
    """A helper process. It ends when its stdin closes, so it cannot outlive us. The terminal's signals do not reach it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._name = os.path.basename(next(filter(lambda word: word.endswith(".py"), argv), argv[-1]))
        self._process = Popen(
            argv, env=dict(environ), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True, bufsize=0
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdout, False)
        self._said = b""
        self._loop: Loop | None = None

    def tell(self, **body: object) -> None:
        """Send it a line of JSON."""
        try:
            os.write(self._stdin, f"{json.dumps(body)}\n".encode())
        except OSError:
            pass  # it has ended, which shows when its answer is read

    def when_answered(self, loop: Loop, on_answer: Callable[[dict[str, Any]], None]) -> None:
        """Call back once with the object that it prints, or with ``{"error": REASON}`` if it ends without one."""
        self._loop = loop
        loop.watch(self._stdout, lambda: self._read(on_answer))

    def _read(self, on_answer: Callable[[dict[str, Any]], None]) -> None:
        assert self._loop is not None
        try:
            data = os.read(self._stdout, 65536)
        except BlockingIOError:
            return
        self._said += data
        if data and b"\n" not in self._said and len(self._said) < _MOST_BYTES:
            return
        self._loop.unwatch(self._stdout)
        self._loop = None
        on_answer(self._answer())

    def _answer(self) -> dict[str, Any]:
        try:
            answer = jsontext.loads(self._said.partition(b"\n")[0])
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        return {"error": f"{self._name} ended without an answer"}

    def close(self) -> None:
        """Kill the process."""
        if self._loop is not None:
            self._loop.unwatch(self._stdout)
            self._loop = None
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
