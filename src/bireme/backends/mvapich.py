"""MVAPICH2's ``mpirun_rsh`` (to version 3) as a way to start one agent on each node; agents dial back.

MVAPICH 4 has hydra in its place: there ``--launcher mpich`` is right.

What ``mpirun_rsh`` is given as ``NAME=VALUE`` it puts into the arguments of its ssh, where everybody can read it. So
the token goes by ``-export``, which sends the whole environment through a socket, as far as a node does not have the
variable already. All that is neither ssh's nor the engine's is therefore taken out of it before: a login's list of
visible devices is not the nodes'.
"""

from __future__ import annotations

from bireme.backends.base import refuse
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from bireme.backends.base import LaunchPlan

NAME = "mvapich"
FAILED: tuple[str, ...] = ()
CANCEL: tuple[str, ...] = ()
PROGRAMS = ("mpirun_rsh",)
CHANNEL: Literal["stdio", "dial"] = "dial"
TOKEN_VARIABLE = "BIREME_TOKEN"
# Not all of MV2_, by which users set the library up.
RANK_VARIABLES = (
    "MV2_COMM_WORLD_",
    "MV2_NODE_ID",
    "MV2_NUM_NODES_IN_JOB",
    "MV2_XRC_FILE",
    "MPIRUN_",
    "MPISPAWN_",
    "MPDMAN_",
    "PMI_",
    "USE_LINEAR_SSH",
    "USE_TOTALVIEW",
    "NOT_USE_TOTALVIEW",
    TOKEN_VARIABLE,
)
_KEPT = ("HOME", "KRB5CCNAME", "LANG", "LOGNAME", "PATH", "SHELL", "SSH_AUTH_SOCK", "TMPDIR", "USER", TOKEN_VARIABLE)
_KEPT_PREFIXES = ("LC_", "LD_", "MV2_", "MPIEXEC_")


def native(plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Every rank by ``mpirun_rsh``, host by host; it exports the whole environment or nothing.

    Raises:
        BadInputError: as :func:`commands`.
    """
    hosts = tuple(host for host, count in zip(_hosts(plan), ranks, strict=True) for _ in range(count))
    return (*_head(plan, len(hosts)), *hosts, *plan.agent)


NATIVE = native
ONE_BY_ONE = None
OVER = ""


def commands(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """A single ``mpirun_rsh``, in an environment that may be sent.

    Raises:
        BadInputError: a port of sshd is named, which ``mpirun_rsh`` cannot be told, or a host is an IPv6 address.
    """
    withheld = sorted(name for name in environ if name not in _KEPT and not name.startswith(_KEPT_PREFIXES))
    unset = tuple(word for name in withheld for word in ("-u", name))
    hosts = _hosts(plan)
    return (("env", *unset, *_head(plan, len(hosts)), *hosts, *plan.agent),)


def _head(plan: LaunchPlan, processes: int) -> tuple[str, ...]:
    # By ssh, which is its default: how to ask for it has changed, from -ssh to -launcher ssh.
    return (plan.program or "mpirun_rsh", "-np", str(processes), "-export", *plan.extra)


def _hosts(plan: LaunchPlan) -> tuple[str, ...]:
    refuse(plan, NAME)
    if plan.ssh_port:
        hint = "a Port line in ~/.ssh/config, or --launcher ssh"
        raise BadInputError("mpirun_rsh cannot be told the port of sshd", hint=hint, where="--launcher")
    return tuple(host.target for host in plan.hosts)
