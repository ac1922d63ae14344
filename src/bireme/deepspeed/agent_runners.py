"""Builds stand-alone command lines that start an agent on each node by pdsh or ssh."""

from __future__ import annotations

import os
import secrets
import sys
from shlex import join, quote

from bireme import isolated
from bireme.backends import ssh
from bireme.backends.base import HostLaunch, LaunchPlan
from bireme.deepspeed.base_runner import MultiNodeRunner
from bireme.deepspeed.constants import PDSH_MAX_FAN_OUT
from bireme.options.table import select
from bireme.process.pid_file import DIRECTORY as PID_FILE_BASEPATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from bireme.deepspeed.base_runner import Environment, Resources

_TRAVELLING = "LC_BIREME_EXPORTS"
_NOT_FOR_AGENTS = ("help", "master_addr", "master_port", "save_pid")
_AGENT_OPTIONS = tuple(
    option
    for title, options in select("agent").items()
    if title != "world"
    for option in options
    if option.dest not in _NOT_FOR_AGENTS
)
_BEYOND_REAL_PIDS = 100_000_000
_RANK_BY_PDSH = "%n"


class _AgentRunner(MultiNodeRunner):
    """Starts an agent on each node through a shell there."""

    def __init__(self, args: Namespace, world_info_base64: str) -> None:
        super().__init__(args, world_info_base64)
        own_pid = bool(getattr(args, "save_pid", False))
        # Unless the user is to find the job by our pid, the number must differ from that of any other job on the nodes.
        self._pid_number = os.getpid() if own_pid else _BEYOND_REAL_PIDS + secrets.randbelow(_BEYOND_REAL_PIDS)

    def parse_user_args(self) -> list[str]:
        """The script's arguments, quoted for the remote shell."""
        return list(map(quote, self.args.user_args))

    def _agent_words(self, first_host: str, rank: str) -> list[str]:
        """The agent's command line, quoted for the remote shell."""
        addr = self.args.master_addr or first_host.rpartition("@")[2]
        words = [sys.executable, "-u", *isolated.command("bireme.agent", f"--world_info={self.world_info_base64}")[1:]]
        words += [f"--node_rank={rank}", f"--master_addr={addr}", f"--master_port={self.args.master_port}"]
        words += [f"--save_pid={self._pid_number}", *self._options()]
        return [*map(quote, words), quote(self.user_script), *self.user_arguments]

    def _options(self) -> Iterator[str]:
        """The agent's options that the user gave."""
        for option in _AGENT_OPTIONS:
            value = getattr(self.args, option.dest, None)
            if option.kind == "flag":
                if value:
                    yield f"--{option.dest}"
            elif value not in (None, "", "None", (), option.default):
                yield f"--{option.dest}={value}"

    def _send_exports(self, environment: Environment) -> list[str]:
        """Put the exports into ssh's environment; return the beginning of the remote command line."""
        where = ["cd", quote(os.path.abspath(".")), "&&", "exec"]
        if not self.exports:
            return where
        environment[_TRAVELLING] = "; ".join(f"export {name}={quote(val)}" for name, val in self._values().items())
        what = f"${{{_TRAVELLING}:?the ssh server does not accept variables named LC_*}}"
        return ["eval", f'"{what}"', "&&", "unset", _TRAVELLING, "&&", *where]

    def _kill_line(self) -> str:
        """A shell command for each node that sends SIGTERM to this job's agent, which then ends its ranks."""
        path = os.path.join(PID_FILE_BASEPATH, f"{self._pid_number}.deepspeed")
        return f'[ ! -O {path} ] || kill -TERM "$(cat {path})"'


class PDSHRunner(_AgentRunner):
    """One agent on each node, by pdsh.

    ``get_cmd`` returns ``(command, kill_command, environment)``. When pdsh is killed it leaves everything running on
    the nodes, so the caller then has to run ``kill_command``. This does not search for processes by name: it sends
    SIGTERM to the process in this job's own pid file on each node. The file exists as long as the agent does; without
    it the command does nothing. (``bireme run`` does not need this: its agents end when their channel closes.)
    """

    _NAME = "pdsh"
    _PROGRAM = "pdsh"

    def get_cmd(
        self, environment: Environment, active_resources: Resources
    ) -> tuple[list[str], list[str], Environment]:
        """Return (command, command that ends what it started, ``environment``)."""
        environment["PDSH_RCMD_TYPE"] = "ssh"
        hosts = list(active_resources)
        pdsh = ["pdsh", "-S", "-f", str(PDSH_MAX_FAN_OUT), "-w", ",".join(hosts), *self._launcher_args()]
        shell = self._send_exports(environment)
        ssh_words = ["-p", str(self.args.ssh_port)] if self.args.ssh_port is not None else []
        ssh_words += ["-o", f"SendEnv={_TRAVELLING}"] if self.exports else []
        if ssh_words:
            before = environment.get("PDSH_SSH_ARGS_APPEND", "")
            environment["PDSH_SSH_ARGS_APPEND"] = " ".join([before, *ssh_words]).strip()
        words = [*shell, *self._agent_words(hosts[0], _RANK_BY_PDSH)]
        # pdsh would expand other % sequences too.
        words = [word if word.endswith(f"={_RANK_BY_PDSH}") else word.replace("%", "%%") for word in words]
        return [*pdsh, *words], [*pdsh, self._kill_line()], environment


class SSHRunner(_AgentRunner):
    """One agent on each node, by an ssh for each; not a class of DeepSpeed.

    ``get_cmd`` returns the same three values as :class:`PDSHRunner`. The command ends when all nodes have ended, with
    the exit code of the first failed node in their order.
    """

    _NAME = "ssh"
    _PROGRAM = "ssh"

    def get_cmd(
        self, environment: Environment, active_resources: Resources
    ) -> tuple[list[str], list[str], Environment]:
        """Return (command, command that ends what it started, ``environment``)."""
        hosts = list(active_resources)
        shell = self._send_exports(environment)
        lines = [" ".join([*shell, *self._agent_words(hosts[0], str(rank))]) for rank in range(len(hosts))]
        return self._all_at_once(hosts, lines), self._all_at_once(hosts, [self._kill_line()] * len(hosts)), environment

    def _all_at_once(self, hosts: list[str], lines: list[str]) -> list[str]:
        extra = (*(("-o", f"SendEnv={_TRAVELLING}") if self.exports else ()), *self._launcher_args())
        started, pids = [], []
        for place, (target, line) in enumerate(zip(hosts, lines, strict=True)):
            user, _, host = target.rpartition("@")
            shell = ("sh", "-c", line)
            plan = LaunchPlan(
                hosts=(HostLaunch(name=host, user=user or None),), agent=shell, extra=extra, ssh_port=self.args.ssh_port
            )
            (words,) = ssh.BACKEND.commands(plan, {})
            started.append(f"{join(words)} & p{place}=$!")
            pids.append(f"$p{place}")
        trap = f"trap 'kill {' '.join(pids)}' HUP INT TERM"
        waits = [f"wait {pid} || code=${{code:-$?}}" for pid in pids]
        return ["sh", "-c", "; ".join([*started, trap, *waits, "exit ${code:-0}"])]
