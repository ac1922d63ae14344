"""What runner and agent ask of their machine: guardians, helpers, the examination. The simulation replaces it."""

from __future__ import annotations

import os
import time

from bireme import jsontext
from bireme.loop import Loop
from bireme.one_node.process_tree import ProcessTree
from bireme.process import guardian

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from bireme.job import JobSpec
    from bireme.one_node.examination import Choose, Examination
    from bireme.process.keeper import Keeper
    from bireme.resources.rendezvous_port import PortListener


class Machine:
    """The real machine; ``tests/simulation`` has a simulated one."""

    now = staticmethod(time.monotonic)
    loop: type[Loop] = Loop
    process_tree: type[ProcessTree] = ProcessTree
    start_guardian = staticmethod(guardian.start)

    def helper(self, argv: Sequence[str], environ: Mapping[str, str]) -> Helper:
        """Start a helper program, which answers with one line of JSON."""
        return Helper(argv, environ)

    def start_keeper(self) -> Keeper | None:
        """Start a keeper of templates; None if it cannot be."""
        from bireme.process.keeper import Keeper

        return Keeper.started()

    def examine(
        self, spec: JobSpec, own: Mapping[str, str], environ: Mapping[str, str], choose: Choose, cwd: str
    ) -> Examination:
        """Examine this node for a job of many nodes; see `examination.examine`."""
        from bireme.one_node.examination import examine
        from bireme.resources.addresses import own_addresses
        from bireme.resources.own_name import loopback_name

        found = examine(spec, own, environ, choose, cwd=cwd, shared=True)
        facts = found.facts.replace(addresses=own_addresses(), own_name=loopback_name(found.environ))
        return found.replace(facts=facts)

    def lease_port(self, named: int | None) -> PortListener:
        """Lease the rendezvous port and listen there until the ranks start, so that other nodes can probe it."""
        from bireme.resources import rendezvous_port

        lease = rendezvous_port.lease_named_port(named) if named else rendezvous_port.lease_port()[0]
        return rendezvous_port.PortListener(lease)

    def reachable(self, addresses: Sequence[str], port: int, seconds: float) -> list[str]:
        """Find the addresses to which a TCP connection succeeds."""
        from bireme.resources import addresses as of_machines

        return of_machines.reachable(addresses, port, seconds=seconds)

    def count_marked(self, name: str, value: str) -> int:
        """How many processes have ``name=value`` in their environment."""
        from bireme.process.kernel import marked

        return len(marked(name, value))


MACHINE = Machine()
"""This machine."""


_MOST_BYTES = 1 << 20
"""Bytes of a helper's answer."""


class Helper:
    """A helper process. It ends when its stdin closes, so it cannot outlive us. The terminal's signals do not reach it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        from subprocess import DEVNULL, PIPE, Popen

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
        import json

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
