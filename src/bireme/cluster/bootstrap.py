"""Bootstrap: reaches every node, asks whether it can carry its part, and finds where the ranks will meet.

The agent's hello is the preflight: one connection a host, and no rank starts before every node has said that it can.
"""

from __future__ import annotations

import re
import time
from functools import partial

import bireme
from bireme.cluster import preflight_report
from bireme.cluster.agent_handle import addresses_of
from bireme.control.messages import Probe
from bireme.errors import BadInputError
from bireme.logs.console import OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bireme.agent.session import Session
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.cluster.launcher_process import LauncherProcess
    from bireme.control.messages import Hello

AT_ONCE = 64
"""How many sessions connect at a time."""
_ANSWER_WAIT = 30.0
"""Seconds that a session may take from its start to the agent's hello."""
_WORDS_WAIT = 1.0
"""Seconds in which an engine may say more about a node that it could not reach."""


class Bootstrap:
    """Brings the members from ``waiting`` to ``probed``, or says what is wrong with which.

    Args:
        on_fit: called when every node is fit.
        on_address: called with the address at which the ranks can meet, once that was asked for.
        on_checked: called instead of either when only the check was asked for.
    """

    def __init__(
        self,
        session: Session,
        cluster_job: ClusterJob,
        members: list[AgentHandle],
        engine: LauncherProcess,
        *,
        on_fit: Callable[[], None],
        on_address: Callable[[str], None],
        on_checked: Callable[[], None],
    ) -> None:
        self._session, self._cluster_job, self._members, self._launcher = session, cluster_job, members, engine
        self._on_fit, self._on_address, self._on_checked = on_fit, on_address, on_checked
        self._one_by_one = cluster_job.one_by_one
        self._total = len(members)
        self._done = self._fit = False

    def start(self) -> None:
        """The engine was started: so many nodes are being connected to."""
        for member in self._members[: AT_ONCE if self._one_by_one else None]:
            self.begin(member)

    @property
    def all_fit(self) -> bool:
        """Whether every node that takes part has answered, and can carry its part."""
        return self._fit

    def stop(self) -> None:
        """Nobody waits for the answers any more."""
        self._done = True

    def begin(self, member: AgentHandle) -> None:
        """This node's session was started; it has a bounded time to answer."""
        member.protocol.on("begin")
        self._session.loop.after(_ANSWER_WAIT, lambda: self._no_answer(member))

    def _no_answer(self, member: AgentHandle) -> None:
        if member.state == "connecting":
            said = self._launcher.words(member.index if self._one_by_one else 0)
            self.fail(member, [f"no answer within {_ANSWER_WAIT:g} s", *said.splitlines()[-3:]])

    def fail(self, member: AgentHandle, problems: list[str]) -> None:
        """A node cannot carry its part; the others are still asked, so that all that is wrong is said at once."""
        member.problems += problems
        member.protocol.on("fail")
        self._connect_next()
        self._maybe_ready()

    def _connect_next(self) -> None:
        for member in self._members:
            if member.state == "waiting":
                self.begin(member)
                self._launcher.fork(member.index)
                return

    def hello(self, member: AgentHandle, hello: Hello) -> None:
        """An agent has answered: what its node is, and what is wrong with it."""
        member.hello = hello
        problems = list(hello.problems)
        if hello.version != bireme.__version__:
            problems.append(f"Bireme {hello.version} is installed there, {bireme.__version__} here")
        kind = self._cluster_job.epoch.accelerator if self._cluster_job.epoch is not None else ""
        if kind and hello.accelerator not in ("", kind):  # its driver may yet have to be loaded
            problems.append(f"the job runs on {kind}, and there is {hello.accelerator} now")
        if hello.earlier:  # cut off or frozen, it may not yet have ended what it ran
            self.fail(member, [f"{hello.earlier} processes of an earlier epoch still run there"])
            return
        if problems and not self._cluster_job.spec.preflight and hello.is_complete:
            for problem in problems:
                self._session.console.say("warning", f"{member.name}: {problem}")
            problems = []
        if problems:
            self.fail(member, problems)
            return
        member.protocol.on("fit")
        self._connect_next()
        self._maybe_ready()

    def _maybe_ready(self) -> None:
        """Once every node has answered: go on, or say what is wrong with which."""
        if self._done or any(member.state in ("waiting", "connecting") for member in self._members):
            return
        self._judge_by_filters()
        failed = [member for member in self._members if member.state == "failed"]
        bad = self._without_the_absent([member for member in failed if member.problems] or failed)
        if bad:
            note = preflight_report.complaint(bad, self._total)
            self._session.trouble("unfit", note, time.monotonic(), tuple(member.name for member in bad))
        elif self._cluster_job.checked is not None:
            if said := self._cluster_job.checked(self._members):
                self._session.console.write_lines(said, OUT)
            self._on_checked()
        elif not self._fit:
            self._fit = True
            self._on_fit()

    def _judge_by_filters(self) -> None:
        """Nodes may go: what the filters leave of each is known now, where it had to be asked."""
        if self._cluster_job.epoch is None or self._fit:
            return
        for member in self._members:
            if member.state != "ready":
                continue
            try:
                left = self._cluster_job.resolve({member.name: member.hello.slots})
                problem = member.hint = "" if left else "the filters leave no slot of it"
            except BadInputError as error:
                problem = str(error)
            if problem:
                member.protocol.on("fail")
                member.problems.append(problem)

    def _without_the_absent(self, bad: list[AgentHandle]) -> list[AgentHandle]:
        """An elastic job begins without those who are not there; return those who keep it from that.

        A node that is there and not fit is a mistake to be mended, at the first time; later it has come back too early.
        """
        epoch = self._cluster_job.epoch
        if epoch is None or not bad:
            return bad
        mistakes = [member for member in bad if member.has_answered and not member.hint]
        if epoch.number == 0 and mistakes:
            return mistakes
        for member in bad:
            self._members.remove(member)
            if member.channel is not None:
                member.channel.close()
            self._launcher.end(member.index)
            epoch.left_out(member.name, (member.problems or [member.hint or "it is not there"])[-1])
        return bad if len(self._members) < epoch.min_nodes else []

    def find_address(self) -> None:
        """Node 0's addresses are tried from every other node, all at once."""
        first, *others = self._members
        named = self._cluster_job.spec.master_addr
        if named and self._cluster_job.epoch is not None and not _has_address(first, named):
            named = None  # it was an earlier epoch's first node that has this address
        if named or not others:
            self._on_address(named or "127.0.0.1")
            return
        first.protocol.on("probed")
        for member in others:
            member.send(Probe(addresses=first.hello.addresses, port=first.hello.port))

    def probed(self, member: AgentHandle, reachable: tuple[str, ...]) -> None:
        """A node has tried the first node's addresses."""
        member.reachable = set(reachable)
        member.protocol.on("probed")
        if any(other.state != "probed" for other in self._members):
            return
        first, *others = self._members
        for address in first.hello.addresses:
            if all(address in other.reachable for other in others):
                self._on_address(address)
                return
        cut = tuple(other.name for other in others if not other.reachable)
        who = f"{', '.join(cut)} reach none" if cut else "there is none that all nodes reach"
        addresses = ", ".join(first.hello.addresses) or "none"
        note = f"no common address of {first.name} for the rendezvous: {who} of {addresses}"
        if self._cluster_job.epoch is None:
            self._session.trouble("unfit", f"{note}\n--master_addr names one", time.monotonic(), cut)
            return
        # Nodes may go: those that reach nothing, but the first if it is reached by nobody, or only in parts.
        at_fault = cut if 0 < len(cut) < len(others) or len(others) == 1 else (first.name,)
        self._session.trouble("unfit", note, time.monotonic(), at_fault)

    def why(self, member: AgentHandle, index: int, code: int) -> list[str]:
        """The engine's own words for a node that did not answer."""
        said = self._launcher.words(index).splitlines()
        noise = member.channel.noise.decode(errors="replace").strip().splitlines() if member.channel else []
        if not self._one_by_one:  # an engine of all nodes says much: prefer what ssh said about this one
            said = [line for line in said if "ssh: " in line and member.name in line] or said
        lines = [line.removeprefix(f"{member.name}: ") for line in said or noise if line.strip(" -=")]
        return lines[-8:] or [f"{self._cluster_job.backend.NAME} has ended with exit code {code}"]

    def engine_says(self, index: int, line: str) -> None:
        """An engine of all nodes may go on although it could not reach one of them."""
        for pattern in self._cluster_job.backend.FAILED:
            found = re.search(pattern, line)
            for member in self._members if found is not None else ():
                if found is not None and found.group(1) == member.name:
                    self._session.loop.after(_WORDS_WAIT, partial(self._unreachable, member, index))

    def _unreachable(self, member: AgentHandle, index: int) -> None:
        if member.state == "connecting":
            self.fail(member, self.why(member, index, 0))


def _has_address(member: AgentHandle, named: str) -> bool:
    """Whether an address or name that the user has given is this node's."""
    return named == member.name or not {named, *addresses_of(named)}.isdisjoint(member.hello.addresses)
