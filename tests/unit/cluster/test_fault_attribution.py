"""Which node is at fault when several agents are lost, by real connections to loopback addresses."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

from bireme.cluster.node_loss import NodeLoss
from bireme.job import JobSpec, Program
from bireme.loop import Loop
from bireme.runner.session import Session

WELL, DYING = "127.0.0.1", "127.0.0.2"


def test_a_node_that_still_answers_while_it_dies_is_at_fault():
    """The launcher ended the agent of the other node too, whose loss was noticed first."""
    well, dying = socket.create_server((WELL, 0)), None
    port = well.getsockname()[1]
    dying = socket.create_server((DYING, port))
    spec = JobSpec(program=Program("train.py", (), "script"), ssh_port=port)
    session = Session(spec, (), Loop())
    session._crew = SimpleNamespace(stop=lambda signum: None, close=lambda: None)  # type: ignore[assignment]  # nothing runs
    try:
        session.trouble("agent lost", f"agent lost on {WELL}", time.monotonic(), (WELL,))
        lost = [SimpleNamespace(name=name, state="lost") for name in (WELL, DYING)]
        job = SimpleNamespace(one_by_one=False, spec=spec)
        soon = threading.Timer(0.2, dying.close)
        soon.start()
        nothing = SimpleNamespace()
        NodeLoss(session, job, lost, nothing, nothing, print, print).attribute()  # type: ignore[arg-type]  # all that it looks at
        soon.join()
        assert session.verdict.hosts == (DYING,)
    finally:
        session.close()
        well.close()
        dying.close()
