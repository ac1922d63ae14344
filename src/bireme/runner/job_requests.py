"""What a running job answers to other commands: ``bireme ps``, ``stop``, ``signal``, ``stacks``, ``attach``."""

from __future__ import annotations

import os
import time

from bireme import signal_numbers as signal
from bireme.runner import detached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from bireme.job import JobSpec
    from bireme.logs.console import Console
    from bireme.result.stacks import RankStack
    from bireme.result.verdict import Verdict
    from bireme.runner.control_socket import Client
    from bireme.runner.crew import Crew

    class Job(Protocol):
        """What is asked about: a session."""

        spec: JobSpec
        console: Console
        verdict: Verdict
        on_drain: Callable[[dict[str, Any]], dict[str, object]] | None

        @property
        def crew(self) -> Crew:
            """What runs the ranks."""

        @property
        def seconds(self) -> float:
            """How long it has been running."""

        @property
        def last_line(self) -> str:
            """What a rank has written last."""

        def measure(self, then: Callable[[dict[int, tuple[object, ...]]], object]) -> None:
            """Find out what the ranks use: state, seconds of processor time, bytes, and so on, as in `RankUses`."""

        def silence(self, rank: int) -> float:
            """How many seconds ago a rank has written."""

        def last_words(self, rank: int) -> str:
            """The last line that a rank has written."""

        def where(self) -> tuple[dict[int, str], str]:
            """The node of each rank, and their folder."""

        def hear(self, signum: int) -> None:
            """Do what this signal asks for."""

        def kill(self) -> None:
            """Kill the job."""

        def preempted(self, signum: int, why: str) -> bool:
            """Carry out a preemption."""

        def look(self, then: Callable[[dict[tuple[int, str], RankStack]], object]) -> None:
            """Find out what the ranks are doing."""


class JobRequests:
    """Answers requests about one session."""

    def __init__(self, session: Job) -> None:
        self._session = session
        self._watchers: list[Client] = []  # who gets the output

    def answer(self, request: dict[str, Any], client: Client) -> dict[str, Any] | None:
        """The answer to a request; None: the client is answered later."""
        session = self._session
        what = request.get("do")
        if "node" in request:
            drain = session.on_drain
            return {"error": "it is not an elastic job"} if drain is None else drain(request)
        if what == "look":
            return {"said": "", **self._facts()}
        if what in ("stop", "kill"):
            if what == "kill":
                session.kill()
            else:
                session.hear(signal.SIGTERM)
            return {"said": "stopping" if what == "stop" else "killing"}
        if what == "preempt":
            is_done = session.preempted(session.spec.preemption[0], "bireme preempt")
            return {"said": "preempted"} if is_done else {"error": "it has no --checkpoint_signal"}
        if what == "signal" and request.get("signum") in signal.valid_signals():
            session.crew.signal_ranks(request["signum"])
            return {"said": "sent"}
        if what == "stacks":
            session.look(lambda found: self._tell_stacks(found, client))
            return None
        if what == "top":
            session.measure(lambda uses: self._tell_uses(uses, client))
            return None
        if what == "lines":
            return {"said": "", "last": {str(rank): session.last_words(rank) for rank in session.where()[0]}}
        if what == "attach":
            if not self._watchers:
                session.console.follow(self._pass_on)
            self._watchers.append(client)
            return None
        return {"error": "this version of Bireme does not know the request"}

    def _facts(self) -> dict[str, Any]:
        from bireme.planning.masking import masked_words

        session = self._session
        hosts, _ = session.where()
        program = session.spec.program
        state = "stopping" if session.verdict.stopping else "running" if hosts else "starting"
        return {
            "id": os.getpid(),
            "name": session.spec.job_name,
            "command": " ".join(masked_words((program.target, *program.args))),
            "nodes": list(dict.fromkeys(hosts.values())),
            "ranks": len(hosts),
            "seconds": round(session.seconds, 1),
            "started": round(time.time() - session.seconds),
            "state": state,
            "last": session.last_line,
            "elastic": session.on_drain is not None,
            "log": detached.log_path(),
            "events": session.spec.events and os.path.abspath(session.spec.events),
        }

    def _tell_uses(self, uses: dict[int, tuple[object, ...]], client: Client) -> None:
        """Answer in columns, with a number for each node: all of it again for each rank would take milliseconds."""
        session, facts = self._session, self._facts()
        hosts, number_of = session.where()[0], {name: number for number, name in enumerate(facts["nodes"])}
        names = ("state", "cpu", "rss", "gpu", "gpu_memory", "step")
        used = [uses.get(rank, (None, 0.0, 0, -1.0, -1, -1.0)) for rank in hosts]
        columns = {
            "rank": list(hosts),
            "node": [number_of[node] for node in hosts.values()],
            "age": [round(session.silence(rank), 1) for rank in hosts],
            **{name: [each[place] for each in used] for place, name in enumerate(names)},
        }
        client.answer({"said": "", **facts, "at": round(time.monotonic(), 3), "columns": columns})

    def _tell_stacks(self, found: dict[tuple[int, str], RankStack], client: Client) -> None:
        from bireme.result.stacks import merged

        hosts, folder = self._session.where()
        client.answer({"said": merged(found.values(), hosts, own=folder)})

    def _pass_on(self, data: bytes) -> None:
        self._watchers = [each for each in self._watchers if each.is_open]
        for each in self._watchers:
            each.send(data)
