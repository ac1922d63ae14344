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
        asked: whether it takes jobs that are asked.
    """

    name: str
    put_in: Callable[[], object]
    seed: int
    elastic: bool = False
    asked: bool = False


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


def _rewritten(name: str, seed: int, where: str, old: str, new: str, **kind: bool) -> Mutation:
    return Mutation(name, _rewrite(where, old, new), seed=seed, **kind)


def _without_row(state: str, event: str) -> Callable[[], object]:
    """Take a row out of the table of the stop ladder."""

    def put_in() -> None:
        from bireme.process import stop_ladder

        del stop_ladder.TABLE[state, event]  # type: ignore[arg-type]

    return put_in


_AGENT, _CREW = "bireme.agent.remote:RemoteAgent", "bireme.cluster.cluster_crew:ClusterCrew"
_NODE = _PART = "bireme.one_node.part:NodePart"
_OURS, _BLAME = "bireme.cluster.agent_handle:PeerClock.to_ours", "bireme.result.verdict:Verdict.blame"
_LOSS, _NODES = "bireme.cluster.node_loss:NodeLoss", "bireme.cluster.connections:NodeConnections"
_LAUNCHER, _CREDIT = "bireme.cluster.launcher_process:LauncherProcess", "bireme.cluster.cluster_crew:OutputCredit"
_ANSWERS, _CHANNEL = "bireme.cluster.node_answers:NodeAnswers", "bireme.control.channel:Channel"

MUTATIONS = (
    # Faults that were in the program.
    _rewritten(
        "end-in-send", 208, f"{_CHANNEL}._try", "self._loop.after(0, lambda: self._drain(reason))", "self._end(reason)"
    ),
    _rewritten(
        "loss-by-arrival", 356, f"{_CREW}._on_guardian_lost", "member.our_time(lost.when)", "self._session.loop.now()"
    ),
    _rewritten("answer-halted", 33, f"{_ANSWERS}._check_answer", "silence.look(due, ", "-silence.since + max(due, "),
    _rewritten(
        "silent-before-its-end", 1230, "bireme.cluster.node_loss:end_of_channel", "> heartbeat / BEATS + NEWS", "> 1e9"
    ),
    _rewritten("start-after-the-end", 2003727, f"{_AGENT}._on_start", "self._channel.is_ending", "False", elastic=True),
    _rewritten(
        "unfit-not-asked",
        304038,
        f"{_LOSS}._beat",
        'member.state in ("over", "failed")',
        'member.state == "over"',
        elastic=True,
    ),
    # Silence.
    _rewritten(
        "runner-waits-five-times",
        3,
        f"{_LOSS}._is_silent",
        "> self._heartbeat",
        "> 5 * self._heartbeat",
    ),
    _rewritten("runner-waits-half", 3, f"{_LOSS}._is_silent", "> self._heartbeat", "> self._heartbeat / 2"),
    _rewritten("agent-waits-five-times", 29, f"{_AGENT}._beat", ">= self._heartbeat", ">= 5 * self._heartbeat"),
    _rewritten("agent-waits-less", 29, f"{_AGENT}._beat", ">= self._heartbeat", ">= 0.8 * self._heartbeat"),
    _rewritten("agent-waits-for-ever", 29, f"{_AGENT}._beat", ">= self._heartbeat", ">= 1e9"),
    _rewritten("unasked-agent-waits-less", 1046, f"{_AGENT}.__init__", "= patience", "= min(3.0, patience)"),
    _rewritten("halts-not-forgiven", 101, "bireme.control.silence:Silence.look", "self._away +=", "_ ="),
    _rewritten("no-pings", 3, f"{_LOSS}._beat", "self._ask(member)", "pass"),
    _rewritten("no-pongs", 3, f"{_AGENT}._on_ping", "self._channel.send(messages.Pong", "bool(messages.Pong"),
    _rewritten("watch-while-suspended", 87, f"{_AGENT}._on_suspend", "if self._watchdog is not None:", "if False:"),
    _rewritten("no-watch-after-resume", 2218, f"{_AGENT}._on_resume", "self._watchdog is None", "False"),
    _rewritten("silence-never-noticed", 9, f"{_AGENT}._beat", "is not watchdog", "is watchdog"),
    # The first failure.
    _rewritten("clock-sign", 12, _OURS, "theirs - self.offset", "theirs + self.offset"),
    _rewritten("clock-ignored", 12, _OURS, "min(theirs - self.offset, now)", "now"),
    _rewritten("blame-the-last", 12, _BLAME, "when < self._when", "when > self._when or news"),
    _rewritten("blame-the-first-news", 12, _BLAME, "when < self._when", "news"),
    _rewritten("end-not-dated-back", 925, "bireme.cluster.node_loss:end_of_channel", "now - NEWS", "now"),
    _rewritten("silence-by-arrival", 40, f"{_LOSS}._beat", "member.silence.since", "now"),
    _rewritten("shutdown-by-arrival", 199, f"{_LOSS}.agent_signalled", "self.started", "False"),
    # The end of all processes.
    _rewritten(
        "no-sweep",
        1242,
        f"{_NODE}._guardian_gone",
        "self._tree.sweep(gone, [pid for pid, _ in self._up.values()])",
        "()",
    ),
    _rewritten("no-over", 1, f"{_AGENT}.over", "self._channel.send", "bool"),
    _rewritten("stop-ignored-at-start", 303, f"{_AGENT}._on_stop", "self._part is not None", "self._part._up"),
    _rewritten("others-not-stopped", 54, "bireme.runner.session:Session.down", "self._stop(", "dict("),
    _rewritten("cut-off-not-stopped", 24, f"{_AGENT}._cut_off", "self._part.stop()", "pass"),
    Mutation("ladder-never-kills", _without_row("stopping", "deadline"), seed=8),
    Mutation("strays-spared", _without_row("running", "deserted"), seed=1),
    _rewritten("lost-is-alive", 3, f"{_LOSS}._declare", 'member.protocol.on("lose")', "pass"),
    _rewritten("connection-kept", 298, f"{_LAUNCHER}.end", "self._handle is not None", "False"),
    _rewritten("not-released", 1, f"{_NODES}.leave", "member.send(messages.Release())", "pass"),
    # Output.
    _rewritten("no-credit", 5, f"{_CREDIT}.__init__", "self._held = False", "self._held = True"),
    _rewritten("over-before-its-output", 331, f"{_PART}._maybe_over", "and self._pipes.ended", ""),
    _rewritten("output-kept-when-cut-off", 396, f"{_AGENT}._cut_off", "self._part.release_output()", "pass"),
    _rewritten(
        "rest-after-the-end",
        17,
        "bireme.one_node.pipes:Pipes._rested",
        "or pipe.read_fd not in self._open:\n        return",
        ":\n        return",
    ),
    _rewritten(
        "later-ones-not-asked",
        85,
        f"{_LOSS}._beat",
        '"connecting":\n            continue',
        '"connecting":\n            break',
    ),
    # Questions and preemptions.
    _rewritten("asked-for-ever", 17, "bireme.runner.question:Question.put", "self._patience if", "1e9 if", asked=True),
    _rewritten(
        "told-twice",
        5,
        "bireme.runner.question:Question.end",
        "self._waiting, []",
        "self._waiting, self._waiting",
        asked=True,
    ),
    _rewritten(
        "preempted-for-ever",
        283,
        "bireme.runner.preemption:Preemption.begin",
        "self._left(self._given[1])",
        "pass",
        asked=True,
    ),
    # Epochs.
    _rewritten(
        "unfit-ends-it",
        888,
        "bireme.launching.elastic:ElasticJob._unfit",
        "self._epoch == 1 and there",
        "there",
        elastic=True,
    ),
    _rewritten("old-epoch-let-back", 91, f"{_ANSWERS}.hello", "if hello.earlier:", "if False:", elastic=True),
    _rewritten("lost-stays-present", 7, "bireme.elastic.roster:Roster.lose", "in self._names", "in ()", elastic=True),
    _rewritten(
        "too-few-begin",
        563,
        "bireme.launching.elastic:ElasticJob.unfit",
        ">= self._spec.min_nodes",
        ">= 1",
        elastic=True,
    ),
)


def by_name(name: str) -> Mutation:
    found = [mutation for mutation in MUTATIONS if mutation.name == name]
    if not found:
        sys.exit(f"no such mutation: {name} (there are {', '.join(mutation.name for mutation in MUTATIONS)})")
    return found[0]
