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
        where: the function, as ``module:Class.name``.
        old, new: the text to replace in its source.
        seed: from which on the simulation finds it.
        elastic: whether it takes elastic jobs.
        apply: puts the fault in, where a replaced text does not.
    """

    name: str
    where: str
    old: str
    new: str
    seed: int = 1
    elastic: bool = False
    apply: Callable[[], object] | None = None

    def put_in(self) -> None:
        """Put the fault into the program.

        Raises:
            LookupError: the program has changed, and the text is not there.
        """
        if self.apply is not None:
            self.apply()
        else:
            _rewrite(self.where, self.old, self.new)


def _rewrite(where: str, old: str, new: str) -> None:
    module_name, _, path = where.partition(":")
    module = import_module(module_name)
    owner: Any = module
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    function = inspect.unwrap(getattr(owner, name))
    source = textwrap.dedent(inspect.getsource(function))
    if old not in source:
        raise LookupError(f"{where} has no {old!r}")
    scope: dict[str, Any] = {}
    filename = inspect.getsourcefile(function) or "?"
    exec(
        compile("from __future__ import annotations\n" + source.replace(old, new), filename, "exec"),
        vars(module),
        scope,
    )
    setattr(owner, name, scope[name])


def _without_row(state: str, event: str) -> Callable[[], object]:
    """Take a row out of the table of the stop ladder."""

    def apply() -> None:
        from bireme.process import stop_ladder

        del stop_ladder.TABLE[state, event]  # type: ignore[arg-type]

    return apply


_AGENT, _CREW = "bireme.agent.remote:RemoteAgent", "bireme.cluster.cluster_crew:ClusterCrew"
_NODE, _HEARTBEAT = "bireme.agent.node:NodeProcesses", "bireme.cluster.heartbeat:Heartbeat"
_PREFLIGHT = "bireme.cluster.preflight:PreflightCrew"
_BOOTSTRAP, _CHANNEL = "bireme.cluster.bootstrap:Bootstrap", "bireme.control.channel:Channel"

MUTATIONS = (
    # Faults that were in the program.
    Mutation(
        "end-in-send", f"{_CHANNEL}._try", "self._loop.after(0, lambda: self._drain(reason))", "self._end(reason)"
    ),
    Mutation("loss-by-arrival", f"{_CREW}._on_guardian_lost", "member.our_time(lost.when)", "self._session.loop.now()"),
    Mutation("answer-halted", f"{_BOOTSTRAP}._check_answer", "silence.look(due, ", "-silence.since + max(due, "),
    Mutation("silent-before-its-end", f"{_PREFLIGHT}._last_heard", "> owed", "> 1e9"),
    # Silence.
    Mutation("runner-waits-five-times", f"{_HEARTBEAT}._is_silent", "> self._seconds", "> 5 * self._seconds"),
    Mutation("runner-waits-half", f"{_HEARTBEAT}._is_silent", "> self._seconds", "> self._seconds / 2"),
    Mutation("agent-waits-five-times", f"{_AGENT}._beat", ">= self._heartbeat", ">= 5 * self._heartbeat"),
    Mutation("halts-not-forgiven", "bireme.control.silence:Silence.look", "self._away +=", "_ ="),
    Mutation("no-pings", f"{_HEARTBEAT}._beat", "self._ask(member)", "pass"),
    Mutation("no-pongs", f"{_AGENT}._on_ping", "self._channel.send", "bool"),
    Mutation("watch-while-suspended", f"{_AGENT}._on_suspend", "if self._watchdog is not None:", "if False:"),
    # The first failure.
    Mutation(
        "clock-sign", "bireme.cluster.peer_clock:PeerClock.to_ours", "theirs - self.offset", "theirs + self.offset"
    ),
    Mutation("clock-ignored", "bireme.cluster.peer_clock:PeerClock.to_ours", "min(theirs - self.offset, now)", "now"),
    Mutation(
        "blame-the-last", "bireme.result.verdict:Verdict._blame", "when < self._when", "when > self._when or news"
    ),
    Mutation("blame-the-first-news", "bireme.result.verdict:Verdict._blame", "when < self._when", "news"),
    Mutation("end-not-dated-back", f"{_PREFLIGHT}._last_heard", "now - _NEWS", "now"),
    Mutation("silence-by-arrival", f"{_HEARTBEAT}._beat", "member.silence.since", "now"),
    # The end of all processes.
    Mutation(
        "no-sweep", f"{_NODE}._guardian_gone", "self._tree.sweep(gone, [pid for pid, _ in self._up.values()])", "()"
    ),
    Mutation("no-over", f"{_AGENT}._maybe_over", "self._channel.send", "bool"),
    Mutation("stop-ignored-at-start", f"{_AGENT}._on_stop", "self._node is not None", "self._node._up"),
    Mutation("others-not-stopped", "bireme.agent.session:Session.down", "self.crew.stop(", "bool("),
    Mutation("cut-off-not-stopped", f"{_AGENT}._cut_off", "self._node.stop()", "pass"),
    Mutation("ladder-never-kills", "", "", "", apply=_without_row("stopping", "deadline")),
    Mutation("strays-spared", "", "", "", apply=_without_row("running", "deserted")),
    Mutation("lost-is-alive", f"{_PREFLIGHT}._declare_lost", 'member.protocol.on("lose")', "pass"),
    # Epochs.
    Mutation("old-epoch-let-back", f"{_BOOTSTRAP}.hello", "if hello.earlier:", "if False:", elastic=True),
    Mutation("lost-stays-present", "bireme.elastic.roster:Roster.lose", "in self._names", "in ()", elastic=True),
    Mutation(
        "too-few-begin",
        "bireme.elastic.epoch_crew:EpochCrew._unfit",
        ">= self._job.spec.min_nodes",
        ">= 1",
        elastic=True,
    ),
)


def by_name(name: str) -> Mutation:
    found = [mutation for mutation in MUTATIONS if mutation.name == name]
    if not found:
        sys.exit(f"no such mutation: {name} (there are {', '.join(mutation.name for mutation in MUTATIONS)})")
    return found[0]
