"""Intel MPI's ``mpiexec.hydra`` (2019 and later): starts one agent on each node; agents connect to the runner."""

from __future__ import annotations

from bireme.backends.mpich import Hydra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.backends.base import LaunchPlan


class IntelMpi(Hydra):
    """Intel MPI."""

    NAME = "impi"
    PROGRAMS = ("mpiexec.hydra", "mpirun")
    """``mpirun`` is a script around ``mpiexec.hydra``, so it is second: a signal would end only the script."""
    # Not all of I_MPI_: I_MPI_ROOT and I_MPI_FABRICS are settings of the user.
    SETS = (
        *("PMI_", "PMIX_", "MPI_LOCAL", "HYDRA_", "HYDI_", "GFORTRAN_UNBUFFERED_PRECONNECTED", "I_MPI_BIND_"),
        *("I_MPI_HYDRA_", "I_MPI_INFO_", "I_MPI_INTERNAL_", "I_MPI_MPIRUN", "I_MPI_PIN", "I_MPI_RETURN_"),
    )
    SSH_ARGS = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"
    BY_SSH = ("mpiexec.hydra", "-bootstrap", "ssh")
    # Agents change the directory themselves and report a missing one; hydra would use the home directory.
    UNBOUND = ("-wdir", "/", "-genv", "I_MPI_PIN", "0")
    # We set the number of processes per node, not the scheduler.
    SETTINGS = ("I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0",)

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by hydra, host by host, bound as Intel MPI decides. Hydra exports its whole environment."""
        self.refuse(plan.hosts)
        # Each host once per rank: Intel's hydra ignores the number in node1:2.
        hosts = ",".join(host.target for host, count in zip(plan.hosts, ranks, strict=True) for _ in range(count))
        head = self._head(plan, {})
        return (*head, "-hosts", hosts, "-ppn", "1", *plan.extra, "-n", str(sum(ranks)), *plan.agent)


BACKEND = IntelMpi()
