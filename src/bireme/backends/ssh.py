"""``ssh`` and ``pdsh``, which opens the ssh sessions itself."""

from __future__ import annotations

from bireme.backends.base import Backend, SessionBackend, in_pieces, joined, shell_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import HostLaunch, LaunchPlan


class Ssh(SessionBackend):
    """ssh: one session per host, whose stdin and stdout are the channel to the agent."""

    NAME = "ssh"
    PROGRAMS = ("ssh",)

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """An ``ssh`` to the host."""
        port = host.port or plan.ssh_port
        to = ("-p", str(port)) if port else ()
        return ("ssh", *options(plan), *to, *plan.extra, "--", host.target, shell_command(plan.agent))


class Pdsh(Backend):
    """pdsh: one command that opens an ssh session to each host; agents connect to the runner."""

    NAME = "pdsh"
    PROGRAMS = ("pdsh",)
    FAILED = (r"^pdsh@\S+: (\S+): ssh exited",)
    TOKEN_VARIABLE = "LC_BIREME_TOKEN"
    """By default, sshd accepts variables named ``LC_*`` from its clients."""

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``pdsh``, with ssh's options in its environment."""
        self.refuse(plan.hosts)
        port = ("-p", str(plan.ssh_port)) if plan.ssh_port else ()
        ssh_words = (*options(plan), *port, "-o", f"SendEnv={self.TOKEN_VARIABLE}")
        appended = " ".join((environ.get("PDSH_SSH_ARGS_APPEND", ""), joined(ssh_words))).strip()
        # Many hosts are given as several lists: pdsh joins them, and the kernel limits the length of an argument.
        targets = (word for piece in in_pieces([host.target for host in plan.hosts]) for word in ("-w", piece))
        fanout = str(len(plan.hosts))
        head = ("env", f"PDSH_SSH_ARGS_APPEND={appended}", plan.program or self.NAME, "-S", "-R", "ssh", "-f", fanout)
        command = shell_command(plan.agent).replace("%", "%%")  # pdsh replaces %h and the like
        return ((*head, *plan.extra, *targets, command),)


BACKENDS = {"ssh": Ssh(), "pdsh": Pdsh()}


def options(plan: LaunchPlan) -> tuple[str, ...]:
    """Options of ssh: no questions, a time limit, no terminal, no forwarding."""
    timeout = f"ConnectTimeout={plan.connect_timeout}"
    return ("-T", "-x", "-o", "BatchMode=yes", "-o", timeout, "-o", "ClearAllForwardings=yes")
