"""MVAPICH2's ``mpirun_rsh`` (to version 3): starts one agent on each node; agents connect to the runner.

MVAPICH 4 has hydra instead: use ``--launcher mpich`` for it.

``mpirun_rsh`` puts each ``NAME=VALUE`` into the arguments of its ssh, where everybody can read it. So the token is sent
by ``-export``, which sends the whole environment through a socket, except variables that a node already has. All
variables that neither ssh nor ``mpirun_rsh`` needs are therefore removed first: the list of visible devices of this
machine, for example, is wrong on the nodes.
"""

from __future__ import annotations

from bireme.backends.base import Backend
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan

_KEPT = (
    *("HOME", "KRB5CCNAME", "LANG", "LOGNAME", "PATH", "SHELL", "SSH_AUTH_SOCK", "TMPDIR", "USER"),
    Backend.TOKEN_VARIABLE,
)
_KEPT_PREFIXES = ("LC_", "LD_", "MV2_", "MPIEXEC_")


class Mvapich(Backend):
    """MVAPICH2."""

    NAME = "mvapich"
    PROGRAMS = ("mpirun_rsh",)
    # Not all of MV2_: users configure the library by these.
    SETS = (
        *("MV2_COMM_WORLD_", "MV2_NODE_ID", "MV2_NUM_NODES_IN_JOB", "MV2_XRC_FILE", "MPIRUN_", "MPISPAWN_"),
        *("MPDMAN_", "PMI_", "USE_LINEAR_SSH", "USE_TOTALVIEW", "NOT_USE_TOTALVIEW"),
    )

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by ``mpirun_rsh``, host by host; it exports the whole environment or nothing."""
        hosts = tuple(host for host, count in zip(self._hosts(plan), ranks, strict=True) for _ in range(count))
        return (*_head(plan, len(hosts)), *hosts, *plan.agent)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``mpirun_rsh``, in an environment that may be exported."""
        withheld = sorted(name for name in environ if name not in _KEPT and not name.startswith(_KEPT_PREFIXES))
        unset = tuple(word for name in withheld for word in ("-u", name))
        hosts = self._hosts(plan)
        return (("env", *unset, *_head(plan, len(hosts)), *hosts, *plan.agent),)

    def _hosts(self, plan: LaunchPlan) -> tuple[str, ...]:
        self.refuse(plan.hosts)
        if plan.ssh_port:
            hint = "add a Port line to ~/.ssh/config, or use --launcher ssh"
            raise BadInputError("mpirun_rsh has no option for the port of sshd", hint=hint, where="--launcher")
        return tuple(host.target for host in plan.hosts)


BACKEND = Mvapich()


def _head(plan: LaunchPlan, processes: int) -> tuple[str, ...]:
    # It uses ssh by default. The option for that is not given: it changed from -ssh to -launcher ssh.
    return (plan.program or "mpirun_rsh", "-np", str(processes), "-export", *plan.extra)
