"""Intel MPI's ``mpiexec.hydra`` (2019 and later) as a way to start one agent on each node; agents dial back."""

from __future__ import annotations

import shlex

from bireme.backends.base import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from bireme.backends.base import LaunchPlan

NAME = "impi"
FAILED: tuple[str, ...] = ()
CANCEL: tuple[str, ...] = ()
PROGRAMS = ("mpiexec.hydra", "mpirun")
"""``mpirun`` is a script around the other: it comes second, for a signal would end the script alone."""
CHANNEL: Literal["stdio", "dial"] = "dial"
TOKEN_VARIABLE = "BIREME_TOKEN"
# Not all of I_MPI_: where a login sets I_MPI_ROOT or I_MPI_FABRICS, that is the user's.
RANK_VARIABLES = (
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "HYDRA_",
    "HYDI_",
    "GFORTRAN_UNBUFFERED_PRECONNECTED",
    "I_MPI_BIND_",
    "I_MPI_HYDRA_",
    "I_MPI_INFO_",
    "I_MPI_INTERNAL_",
    "I_MPI_MPIRUN",
    "I_MPI_PIN",
    "I_MPI_RETURN_",
    TOKEN_VARIABLE,
)
_SSH_ARGS = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"


def native(plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Every rank by hydra, host by host, bound as Intel MPI sees fit; all of hydra's environment travels.

    Raises:
        BadInputError: as :func:`commands`.
    """
    refuse(plan, NAME)
    # A host once for each of its ranks: of node1:2, Intel's hydra overlooks the number.
    hosts = ",".join(host.target for host, count in zip(plan.hosts, ranks, strict=True) for _ in range(count))
    return (*_head(plan, {}), "-hosts", hosts, "-ppn", "1", *plan.extra, "-n", str(sum(ranks)), *plan.agent)


NATIVE = native
ONE_BY_ONE = None
OVER = ""


def commands(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """A single ``mpiexec.hydra``, unbound.

    Raises:
        BadInputError: a host has a port of its own, or is an IPv6 address: hydra's list of hosts has neither.
    """
    refuse(plan, NAME)
    hosts = ",".join(host.target for host in plan.hosts)
    # Global options come first: hydra takes what follows -n for one executable's own.
    # The number of processes on a node is ours to say, not a scheduler's.
    head = _head(plan, environ, "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0")
    # Agents change the directory by themselves, and say where it is missing: hydra takes the home directory then.
    shape = ("-hosts", hosts, "-ppn", "1", "-wdir", "/", "-genv", "I_MPI_PIN", "0", "-genvlist", TOKEN_VARIABLE)
    return ((*head, *shape, *plan.extra, "-n", str(len(plan.hosts)), *plan.agent),)


def _head(plan: LaunchPlan, environ: Mapping[str, str], *settings: str) -> tuple[str, ...]:
    """The program, by ssh even inside an allocation; its settings are in its environment."""
    words = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={plan.connect_timeout}"]
    if plan.ssh_port:
        words += ["-p", str(plan.ssh_port)]
    ssh_args = f"{environ.get(_SSH_ARGS, '')} {shlex.join(words)}".strip()
    return ("env", f"{_SSH_ARGS}={ssh_args}", *settings, plan.program or "mpiexec.hydra", "-bootstrap", "ssh")
