"""Intel MPI's ``mpiexec.hydra`` (2019 and later): starts one agent on each node; agents connect to the runner."""

from __future__ import annotations

import shlex

from bireme.backends.base import Backend, ssh_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan

_SSH_ARGS = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"


class IntelMpi(Backend):
    """Intel MPI."""

    NAME = "impi"
    PROGRAMS = ("mpiexec.hydra", "mpirun")
    """``mpirun`` is a script around ``mpiexec.hydra``, so it is second: a signal would end only the script."""
    # Not all of I_MPI_: I_MPI_ROOT and I_MPI_FABRICS are settings of the user.
    SETS = (
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
    )

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by hydra, host by host, bound as Intel MPI decides. Hydra exports its whole environment."""
        self.refuse(plan.hosts)
        # Each host once per rank: Intel's hydra ignores the number in node1:2.
        hosts = ",".join(host.target for host, count in zip(plan.hosts, ranks, strict=True) for _ in range(count))
        return (*_head(plan, {}), "-hosts", hosts, "-ppn", "1", *plan.extra, "-n", str(sum(ranks)), *plan.agent)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``mpiexec.hydra``, without binding. It refuses the same hosts as `native`."""
        self.refuse(plan.hosts)
        hosts = ",".join(host.target for host in plan.hosts)
        # Global options come first: hydra applies those after -n to one executable only.
        # We set the number of processes per node, not the scheduler.
        head = _head(plan, environ, "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0")
        # Agents change the directory themselves and report a missing one; hydra would use the home directory.
        shape = ("-hosts", hosts, "-ppn", "1", "-wdir", "/", "-genv", "I_MPI_PIN", "0")
        return (
            (*head, *shape, "-genvlist", self.TOKEN_VARIABLE, *plan.extra, "-n", str(len(plan.hosts)), *plan.agent),
        )


BACKEND = IntelMpi()


def _head(plan: LaunchPlan, environ: Mapping[str, str], *settings: str) -> tuple[str, ...]:
    """The program with its settings in the environment; it uses ssh even inside an allocation."""
    ssh_args = f"{environ.get(_SSH_ARGS, '')} {shlex.join(ssh_options(plan))}".strip()
    return ("env", f"{_SSH_ARGS}={ssh_args}", *settings, plan.program or "mpiexec.hydra", "-bootstrap", "ssh")
