"""``pdsh``: one command that opens an ssh session to each host; agents connect to the runner."""

from __future__ import annotations

import shlex

from bireme.backends import ssh
from bireme.backends.base import Backend, in_pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan


class Pdsh(Backend):
    """pdsh."""

    NAME = "pdsh"
    PROGRAMS = ("pdsh",)
    FAILED = (r"^pdsh@\S+: (\S+): ssh exited",)
    TOKEN_VARIABLE = "LC_BIREME_TOKEN"
    """By default, sshd accepts variables named ``LC_*`` from its clients."""

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``pdsh``, with ssh's options in its environment."""
        self.refuse(plan.hosts)
        port = ("-p", str(plan.ssh_port)) if plan.ssh_port else ()
        ssh_words = (*ssh.options(plan), *port, "-o", f"SendEnv={self.TOKEN_VARIABLE}")
        appended = " ".join((environ.get("PDSH_SSH_ARGS_APPEND", ""), shlex.join(ssh_words))).strip()
        # Many hosts are given as several lists: pdsh joins them, and the kernel limits the length of an argument.
        targets = (word for piece in in_pieces([host.target for host in plan.hosts]) for word in ("-w", piece))
        fanout = str(len(plan.hosts))
        head = ("env", f"PDSH_SSH_ARGS_APPEND={appended}", plan.program or self.NAME, "-S", "-R", "ssh", "-f", fanout)
        words = shlex.join(plan.agent).replace("%", "%%")  # pdsh replaces %h and the like
        return ((*head, *plan.extra, *targets, f"exec {words}"),)


BACKEND = Pdsh()
