"""Plain ``ssh``: one session per host, whose stdin and stdout are the channel to the agent."""

from __future__ import annotations

from bireme.backends.base import SessionBackend, shell_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.backends.base import HostLaunch, LaunchPlan


class Ssh(SessionBackend):
    """ssh."""

    NAME = "ssh"
    PROGRAMS = ("ssh",)

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """An ``ssh`` to the host."""
        port = host.port or plan.ssh_port
        to = ("-p", str(port)) if port else ()
        return ("ssh", *options(plan), *to, *plan.extra, "--", host.target, shell_command(plan.agent))


BACKEND = Ssh()


def options(plan: LaunchPlan) -> tuple[str, ...]:
    """Options of ssh: no questions, a time limit, no terminal, no forwarding."""
    timeout = f"ConnectTimeout={plan.connect_timeout}"
    return ("-T", "-x", "-o", "BatchMode=yes", "-o", timeout, "-o", "ClearAllForwardings=yes")
