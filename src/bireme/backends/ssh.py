"""Plain ``ssh``: one session per host, whose stdin and stdout are the channel to the agent."""

from __future__ import annotations

import shlex

from bireme.backends.base import Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from bireme.backends.base import LaunchPlan


class Ssh(Backend):
    """ssh."""

    NAME = "ssh"
    PROGRAMS = ("ssh",)
    CHANNEL: Literal["stdio", "dial"] = "stdio"
    TOKEN_VARIABLE = ""

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start each agent by an ``ssh`` of its own, and the agent of this machine directly."""
        lines = []
        for host in plan.hosts:
            if host.local:
                lines.append(plan.agent)
                continue
            port = host.port or plan.ssh_port
            lines.append(
                (
                    "ssh",
                    *options(plan),
                    *(("-p", str(port)) if port else ()),
                    *plan.extra,
                    "--",
                    host.target,
                    f"exec {shlex.join(plan.agent)}",
                )
            )
        return tuple(lines)

    one_by_one = commands


BACKEND = Ssh()


def options(plan: LaunchPlan) -> tuple[str, ...]:
    """Options of ssh: no questions, a time limit, no terminal, no forwarding."""
    return (
        "-T",
        "-x",
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={plan.connect_timeout}",
        "-o",
        "ClearAllForwardings=yes",
    )
