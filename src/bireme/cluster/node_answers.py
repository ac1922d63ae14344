"""Judges the answers of the nodes: which are fit, and what is wrong with the others.

The agent's hello is the result of the preflight: there is one connection per host, and no rank starts before every node
has said that it is fit.
"""

from __future__ import annotations

from bireme.control.silence import BEATS, Silence
from bireme.errors import BadInputError, counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bireme.backends.base import Backend
    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.cluster_job import ClusterJob
    from bireme.cluster.launcher_process import LauncherProcess
    from bireme.control.messages import Hello
    from bireme.runner.session import Session

AT_ONCE = 64
"""How many launcher processes connect at a time, where each node has its own."""
_ANSWER_WAIT = 30.0
"""Seconds from the start of a launcher process to the agent's hello."""
_TICK = 0.001
_UNANSWERED = ("waiting", "connecting", "shipping")
_WORDS_WAIT = 1.0
"""Seconds to wait for more lines of a launcher process about a node that it could not reach."""
_NOISE = r"CLEANING UP REMAINING|YOU CAN IGNORE|\((pm|tools|ui)/\S+:\d+\): "
"""Lines of hydra about itself, which follow what it has to say."""
_CAUSE = (
    r"(?i)host key verification failed|permission denied(, | \()|could not resolve"
    "|connection (refused|timed out|closed|reset)|no route to host|host identification has changed"
    "|command not found|no such file"
)
"""Lines that say why a node was not reached: launchers such as ORTE print a long text about it afterwards."""
_GONE = "its agent ended before it answered"
_SHOWN = 150
"""Characters shown of each end of a long line."""
_ADVICE = {
    "account is currently not available": "that user's login shell runs no commands: name another user, as USER@NODE",
    # Not what prints the agent's whole command line: it took that for the name of a program.
    r"(?m)^(?!.*bireme\.agent --).*(python.*: (command )?not found|python.*no such file"
    r"|executable file.* not found|exec: .*: stat .*no such file)": "name an existing Python with --node_python",
    # A later one runs what we send, which says its version.
    r"unknown option: -i\nusage: [^\n]*python": "that is Python 2, or older than 3.4, and 3.10 or later is needed: name"
    " another with --node_python",
}
"""What to do about messages of launchers and login shells (this one: nologin) that do not say so themselves."""


class NodeAnswers:
    """Brings the agents from ``waiting`` to ``ready``, or reports what is wrong with which node.

    Args:
        members: the agents, in the order of the pool. An elastic job removes nodes that do not answer.
    """

    def __init__(
        self,
        session: Session,
        cluster_job: ClusterJob,
        members: list[AgentHandle],
        launcher: LauncherProcess,
        *,
        on_answers: Callable[[], None],
    ) -> None:
        self._session, self._cluster_job, self._members, self._launcher = session, cluster_job, members, launcher
        self._on_answers = on_answers
        self._one_by_one = cluster_job.one_by_one
        self._done = self._queued = False

    def start(self) -> None:
        """The launcher was started: wait for the nodes that it connects to first."""
        for member in self._members[: AT_ONCE if self._one_by_one else None]:
            self.begin(member)

    def stop(self) -> None:
        """Wait for no more answers."""
        self._done = True

    def begin(self, member: AgentHandle) -> None:
        """Wait for this node, whose launcher process was started: it has `_ANSWER_WAIT` seconds to answer."""
        member.protocol.on("begin")
        self.await_answer(member)

    def await_answer(self, member: AgentHandle) -> None:
        """Wait for the hello of an agent that has been started, or has got the tree."""
        self._await_answer(member, Silence(self._session.loop.now()), _ANSWER_WAIT / BEATS)

    def _await_answer(self, member: AgentHandle, silence: Silence, seconds: float) -> None:
        timer = self._session.loop.after(seconds, lambda: self._check_answer(member, silence, timer.due))

    def _check_answer(self, member: AgentHandle, silence: Silence, due: float) -> None:
        """Give up an agent that does not answer. Time for which we were halted, maybe with it, does not count.

        Nor does the time in which the launcher waits for nodes.
        """
        if self._queued and member.state == "connecting":
            self.await_answer(member)
            return
        left = _ANSWER_WAIT - silence.look(due, self._session.loop.now())
        if member.state == "connecting" and left > _TICK:
            self._await_answer(member, silence, min(left, _ANSWER_WAIT / BEATS))
        elif member.state == "connecting":
            self.fail(member, self._no_answer(member))

    def _no_answer(self, member: AgentHandle) -> list[str]:
        backend = self._cluster_job.backend
        said = self._said(member.index if self._one_by_one else 0)
        said += _noise(member)
        advised = advice(said, backend) if said else []
        if backend.NAME == "ssh" and member.channel is not None and not member.channel.is_greeted:
            advised.append(f"does a start-up file of the shell there wait for input? try ssh {member.name} true")
        return [f"no answer within {_ANSWER_WAIT:g} s", *map(_shortened, said[-3:]), *advised]

    def _said(self, index: int) -> list[str]:
        """The lines that a launcher process has printed on stderr, without those that only say how far it is."""
        import re

        progress = self._cluster_job.backend.PROGRESS
        return [line for line in self._launcher.stderr(index).splitlines() if not re.search(progress, line)]

    def fail(self, member: AgentHandle, problems: list[str]) -> None:
        """Record that a node is unfit. The others are still asked, so that all problems are reported at once."""
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
        """Take an agent's answer: the facts about its node, and its problems."""
        if self._cluster_job.spec.has_own_names:  # a container's hostname often says nothing
            hello = hello.replace(hostname=member.name)
        member.hello = hello
        problems = list(hello.problems)
        kind = self._cluster_job.accelerator
        if kind and hello.accelerator not in ("", kind):  # its driver may not be loaded yet
            problems.append(f"the job runs on {kind}, but the node now has {hello.accelerator}")
        if hello.earlier:  # cut off or frozen, the node may not have ended its ranks yet
            self.fail(member, [f"{hello.earlier} processes of an earlier epoch are still running there"])
            return
        if problems and not self._cluster_job.spec.preflight and hello.is_complete:
            for line in "\n".join(problems).splitlines():  # without the name it could pass for one of another node
                self._session.console.say("warning", f"{member.name}: {line.strip()}")
            problems = []
        if problems:
            self.fail(member, problems)
            return
        member.protocol.on("fit")
        self._connect_next()
        self._maybe_ready()

    def _maybe_ready(self) -> None:
        if not self._done and not any(member.state in _UNANSWERED for member in self._members):
            self._on_answers()

    def judge_by_filters(self) -> None:
        """Make the nodes unfit on which the filters leave no slots, now that all slots are known."""
        for member in self._members:
            if member.state != "ready":
                continue
            try:
                left = self._cluster_job.active({member.name: member.hello.slots})
                problem = member.hint = "" if left else "the filters leave no slots on it"
            except BadInputError as error:
                problem = str(error)
            if problem:
                member.protocol.on("fail")
                member.problems.append(problem)

    def unfit(self) -> list[AgentHandle]:
        """The nodes that failed; those that have problems of their own, if there are any."""
        failed = [member for member in self._members if member.state == "failed"]
        return [member for member in failed if member.problems] or failed

    def why(self, member: AgentHandle, index: int, code: int) -> list[str]:
        """What the launcher process printed about a node that did not answer."""
        import re

        backend = self._cluster_job.backend
        said = self._said(index)
        if member.hint:
            return [member.hint, *map(_shortened, said[-3:])]
        if not self._one_by_one:  # one process for all nodes prints much: prefer what ssh said about this node
            said = [line for line in said if "ssh: " in line and member.name in line] or said
            said = [line for line in said if not re.search(_NOISE, line)] or said
        lines = [
            line.removeprefix(f"{member.name}: ").removeprefix("bireme: ")
            for line in (*said, *_noise(member))
            if line.strip(" -=")
        ]
        if lines:
            causes = [] if self._one_by_one else [line for line in lines if re.search(_CAUSE, line)]
            others = [line for line in lines if line not in causes]
            return [*map(_shortened, (*causes[:4], *others[-8:])), *advice(lines, backend)]
        silent = [f"{backend.NAME} ended with exit code {code}", *advice((), backend)]
        if backend.NAME == "ssh" and code == 255:  # ssh would have said why it failed
            silent.append("it printed nothing: maybe the agent there was killed")
        elif backend.NAME == "ssh" and code:
            silent.append(f"the login shell there printed nothing: try ssh {member.name} true")
        return silent

    def on_launcher_line(self, index: int, line: str) -> None:
        """Look for an unreachable node in a line of stderr: one process for all nodes may keep running without it."""
        import re

        backend = self._cluster_job.backend
        if re.search(backend.PROGRESS, line):
            queued = re.search(backend.QUEUED, line)
            self._queued = queued is not None
            if queued is not None:
                words = f"waiting for nodes: {queued.group(1)} is in the queue of {backend.NAME}"
                self._session.console.say("info", words)
        for pattern in backend.FAILED:
            found = re.search(pattern, line)
            for member in self._members if found is not None else ():
                if found is not None and found.group(1) == member.name:
                    self._look_later(member, index)

    def agent_gone(self, member: AgentHandle) -> None:
        """An agent had connected, and is gone before its answer: one process for all nodes may keep running, or end."""
        follows_another = any(other.hint for other in self._members)
        member.hint = _GONE
        if follows_another:
            self.fail(member, [])  # the launcher has ended it after the other
        else:
            self._look_later(member, 0)

    def _look_later(self, member: AgentHandle, index: int) -> None:
        """Give up a node if it is still not there when its launcher process has had time to say why."""

        def look() -> None:
            if member.state == "connecting":
                self.fail(member, self.why(member, index, 0))

        self._session.loop.after(_WORDS_WAIT, look)


def complaint(bad: Sequence[AgentHandle], total: int, agents: Sequence[AgentHandle]) -> str:
    """The unfit nodes and their problems, as an error message.

    Args:
        agents: the agents of all nodes: where one lacks the ranks' Python, those that have it are named.
    """
    lines = [f"{len(bad)} of {counted(total, 'node')} cannot run the job:"]
    width = max(len(member.name) for member in bad)
    for member in bad:
        said = member.problems or [member.hint]
        if member.has_answered and member.hello.lacks_python and (found := python_versions(agents)):
            said = [*said, f"other nodes have it: {'; '.join(found)}"]
        for place, problem in enumerate(line for text in said for line in text.splitlines()):
            lines.append(f"  {member.name if not place else '':{width}}  {problem.strip()}")
    return "\n".join(lines)


def python_versions(agents: Iterable[AgentHandle]) -> tuple[str, ...]:
    """On which nodes the ranks' Python has which version; several if these differ, nothing if none is known."""
    nodes: dict[str, list[str]] = {}
    for agent in agents:
        if agent.has_answered and agent.hello.python:
            nodes.setdefault(".".join(agent.hello.python.split(".")[:2]), []).append(agent.name)
    return tuple(f"{version} on {', '.join(names[:3])}{', …' * (len(names) > 3)}" for version, names in nodes.items())


def _noise(member: AgentHandle) -> list[str]:
    """What was printed on its channel before an agent's greeting."""
    return member.channel.noise.decode(errors="replace").strip().splitlines() if member.channel is not None else []


def _shortened(line: str) -> str:
    """A line without its middle if it is long: some programs print the whole command that they could not start."""
    return line if len(line) <= 2 * _SHOWN else f"{line[:_SHOWN]} … {line[-_SHOWN:]}"


def advice(lines: Iterable[str], backend: Backend) -> list[str]:
    """What to do about the printed lines; nothing if they are not known, or say so themselves."""
    import re

    text = "\n".join(lines).lower()
    known = (*_ADVICE.items(), *backend.ADVICE)
    return [what for pattern, what in known if re.search(pattern, text)]
