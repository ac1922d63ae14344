"""Faults that are put into the program, each with a seed from which the simulation finds it.

Some were in the program, and the simulation found them: their seeds are kept here. A mutation rewrites the source of
one function, so it fails when that function no longer has the text.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bireme.value import Value


class Mutation(Value):
    """A fault to put into the program.

    Attributes:
        name: of the fault.
        put_in: puts it into the program.
        seed: from which on the simulation finds it.
        elastic: whether it takes elastic jobs.
    """

    name: str
    put_in: Callable[[], object]
    seed: int
    elastic: bool = False


def _rewrite(where: str, old: str, new: str) -> Callable[[], object]:
    """Replace a text in the source of a function, named as ``module:Class.name``."""

    def put_in() -> None:
        module_name, _, path = where.partition(":")
        module = import_module(module_name)
        owner: Any = module
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        if old not in source:
            raise LookupError(f"{where} has no {old!r}: adapt the mutation to the program")
        scope: dict[str, Any] = {}
        text = "from __future__ import annotations\n" + source.replace(old, new)
        exec(compile(text, inspect.getsourcefile(function) or "?", "exec"), vars(module), scope)
        setattr(owner, name, scope[name])

    return put_in


def _without_row(state: str, event: str) -> Callable[[], object]:
    """Take a row out of the table of the stop ladder."""

    def put_in() -> None:
        from bireme.process import stop_ladder

        del stop_ladder.TABLE[state, event]  # type: ignore[arg-type]

    return put_in


_AGENT, _CREW = "bireme.agent.remote:RemoteAgent", "bireme.cluster.cluster_crew:ClusterCrew"
_NODE, _HEARTBEAT = "bireme.node.part:NodePart", "bireme.cluster.node_loss:Heartbeat"
_PART = "bireme.node.part:NodePart"
_OURS, _BLAME = "bireme.cluster.agent_handle:PeerClock.to_ours", "bireme.result.verdict:Verdict.blame"
_LOSS, _NODES = "bireme.cluster.node_loss:NodeLoss", "bireme.cluster.connections:NodeConnections"
_LAUNCHER, _CREDIT = "bireme.cluster.launcher_process:LauncherProcess", "bireme.cluster.cluster_crew:OutputCredit"
_ANSWERS, _CHANNEL = "bireme.cluster.node_answers:NodeAnswers", "bireme.control.channel:Channel"

MUTATIONS = (
    # Faults that were in the program.
    Mutation(
        "end-in-send",
        _rewrite(f"{_CHANNEL}._try", "self._loop.after(0, lambda: self._drain(reason))", "self._end(reason)"),
        seed=208,
    ),
    Mutation(
        "loss-by-arrival",
        _rewrite(f"{_CREW}._on_guardian_lost", "member.our_time(lost.when)", "self._session.loop.now()"),
        seed=356,
    ),
    Mutation(
        "answer-halted",
        _rewrite(f"{_ANSWERS}._check_answer", "silence.look(due, ", "-silence.since + max(due, "),
        seed=33,
    ),
    Mutation(
        "silent-before-its-end",
        _rewrite("bireme.cluster.node_loss:end_of_channel", "> heartbeat / BEATS + NEWS", "> 1e9"),
        seed=1230,
    ),
    Mutation(
        "start-after-the-end",
        _rewrite(f"{_AGENT}._on_start", "self._channel.is_ending", "False"),
        seed=701984,
        elastic=True,
    ),
    Mutation(
        "unfit-not-asked",
        _rewrite(f"{_HEARTBEAT}._beat", 'member.state in ("over", "failed")', 'member.state == "over"'),
        seed=304038,
        elastic=True,
    ),
    # Silence.
    Mutation(
        "runner-waits-five-times",
        _rewrite(f"{_HEARTBEAT}._is_silent", "> self._seconds", "> 5 * self._seconds"),
        seed=3,
    ),
    Mutation(
        "runner-waits-half", _rewrite(f"{_HEARTBEAT}._is_silent", "> self._seconds", "> self._seconds / 2"), seed=3
    ),
    Mutation(
        "agent-waits-five-times", _rewrite(f"{_AGENT}._beat", ">= self._heartbeat", ">= 5 * self._heartbeat"), seed=29
    ),
    Mutation(
        "agent-waits-less", _rewrite(f"{_AGENT}._beat", ">= self._heartbeat", ">= 0.8 * self._heartbeat"), seed=29
    ),
    Mutation("agent-waits-for-ever", _rewrite(f"{_AGENT}._beat", ">= self._heartbeat", ">= 1e9"), seed=29),
    Mutation(
        "unasked-agent-waits-less", _rewrite(f"{_AGENT}.__init__", "= patience", "= min(3.0, patience)"), seed=1046
    ),
    Mutation("halts-not-forgiven", _rewrite("bireme.control.silence:Silence.look", "self._away +=", "_ ="), seed=74),
    Mutation("no-pings", _rewrite(f"{_HEARTBEAT}._beat", "self._ask(member)", "pass"), seed=3),
    Mutation("no-pongs", _rewrite(f"{_AGENT}.__init__", "self._channel.send(Pong", "bool(Pong"), seed=3),
    Mutation(
        "watch-while-suspended",
        _rewrite(f"{_AGENT}._on_suspend", "if self._watchdog is not None:", "if False:"),
        seed=30,
    ),
    Mutation("no-watch-after-resume", _rewrite(f"{_AGENT}._on_resume", "self._watchdog is None", "False"), seed=2218),
    Mutation("silence-never-noticed", _rewrite(f"{_AGENT}._beat", "is not watchdog", "is watchdog"), seed=8),
    # The first failure.
    Mutation("clock-sign", _rewrite(_OURS, "theirs - self.offset", "theirs + self.offset"), seed=12),
    Mutation("clock-ignored", _rewrite(_OURS, "min(theirs - self.offset, now)", "now"), seed=12),
    Mutation("blame-the-last", _rewrite(_BLAME, "when < self._when", "when > self._when or news"), seed=12),
    Mutation("blame-the-first-news", _rewrite(_BLAME, "when < self._when", "news"), seed=12),
    Mutation("end-not-dated-back", _rewrite("bireme.cluster.node_loss:end_of_channel", "now - NEWS", "now"), seed=909),
    Mutation("silence-by-arrival", _rewrite(f"{_HEARTBEAT}._beat", "member.silence.since", "now"), seed=40),
    Mutation("shutdown-by-arrival", _rewrite(f"{_LOSS}.agent_signalled", "self.started", "False"), seed=199),
    # The end of all processes.
    Mutation(
        "no-sweep",
        _rewrite(f"{_NODE}._guardian_gone", "self._tree.sweep(gone, [pid for pid, _ in self._up.values()])", "()"),
        seed=1131,
    ),
    Mutation("no-over", _rewrite(f"{_AGENT}.over", "self._channel.send", "bool"), seed=1),
    Mutation(
        "stop-ignored-at-start",
        _rewrite(f"{_AGENT}._on_stop", "self._part is not None", "self._part._up"),
        seed=299,
    ),
    Mutation("others-not-stopped", _rewrite("bireme.runner.session:Session.down", "self.crew.stop(", "bool("), seed=54),
    Mutation("cut-off-not-stopped", _rewrite(f"{_AGENT}._cut_off", "self._part.stop()", "pass"), seed=14),
    Mutation("ladder-never-kills", _without_row("stopping", "deadline"), seed=5),
    Mutation("strays-spared", _without_row("running", "deserted"), seed=1),
    Mutation("lost-is-alive", _rewrite(f"{_LOSS}._declare", 'member.protocol.on("lose")', "pass"), seed=3),
    Mutation("connection-kept", _rewrite(f"{_LAUNCHER}.end", "self._handle is not None", "False"), seed=177),
    Mutation("not-released", _rewrite(f"{_NODES}.leave", "member.send(Release())", "pass"), seed=1),
    # Output.
    Mutation("no-credit", _rewrite(f"{_CREDIT}.__init__", "self._held = False", "self._held = True"), seed=5),
    Mutation("over-before-its-output", _rewrite(f"{_PART}._maybe_over", "and self._pipes.ended", ""), seed=331),
    Mutation(
        "output-kept-when-cut-off", _rewrite(f"{_AGENT}._cut_off", "self._part.release_output()", "pass"), seed=396
    ),
    Mutation(
        "rest-after-the-end",
        _rewrite(
            "bireme.node.pipes:Pipes._rested",
            "or pipe.read_fd not in self._open:\n        return",
            ":\n        return",
        ),
        seed=8,
    ),
    Mutation(
        "later-ones-not-asked",
        _rewrite(f"{_HEARTBEAT}._beat", '"connecting":\n            continue', '"connecting":\n            break'),
        seed=21,
    ),
    # Epochs.
    Mutation(
        "unfit-ends-it",
        _rewrite("bireme.launch.elastic:ElasticJob._unfit", "self._epoch == 1 and there", "there"),
        seed=888,
        elastic=True,
    ),
    Mutation(
        "old-epoch-let-back", _rewrite(f"{_ANSWERS}.hello", "if hello.earlier:", "if False:"), seed=71, elastic=True
    ),
    Mutation(
        "lost-stays-present",
        _rewrite("bireme.elastic.roster:Roster.lose", "in self._names", "in ()"),
        seed=1,
        elastic=True,
    ),
    Mutation(
        "too-few-begin",
        _rewrite("bireme.launch.elastic:ElasticJob.unfit", ">= self._spec.min_nodes", ">= 1"),
        seed=551,
        elastic=True,
    ),
)


def by_name(name: str) -> Mutation:
    found = [mutation for mutation in MUTATIONS if mutation.name == name]
    if not found:
        sys.exit(f"no such mutation: {name} (there are {', '.join(mutation.name for mutation in MUTATIONS)})")
    return found[0]
