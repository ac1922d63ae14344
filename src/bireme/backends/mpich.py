"""MPICH's ``mpirun`` (hydra): starts one agent on each node; agents connect to the runner."""

from __future__ import annotations

import shlex

from bireme.backends.base import Backend, ssh_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan


class Hydra(Backend):
    """Hydra, the process manager of MPICH and of Intel MPI."""

    SSH_ARGS: str
    """The variable with options for ssh, for which hydra has no argument."""
    BY_SSH: tuple[str, ...]
    """Its name, if it was not looked up, and the arguments that make it use ssh, even inside an allocation."""
    UNBOUND: tuple[str, ...]
    """The arguments that let an agent use the whole node."""
    SETTINGS: tuple[str, ...] = ()
    """Variables for the start of agents, as ``NAME=VALUE``."""

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``mpiexec``, without binding. It refuses the same hosts as `native`."""
        self.refuse(plan.hosts)
        hosts = ",".join(host.target for host in plan.hosts)
        # Global options come first: hydra ignores them after -n, or applies them to one executable only.
        shape = ("-hosts", hosts, "-ppn", "1", *self.UNBOUND, "-genvlist", self.TOKEN_VARIABLE)
        head = self._head(plan, environ, *self.SETTINGS)
        return ((*head, *shape, *plan.extra, "-n", str(len(plan.hosts)), *plan.agent),)

    def _head(self, plan: LaunchPlan, environ: Mapping[str, str], *settings: str) -> tuple[str, ...]:
        """The program with its settings in the environment."""
        args = f"{environ.get(self.SSH_ARGS, '')} {shlex.join(ssh_options(plan))}".strip()
        name, *by_ssh = self.BY_SSH
        return ("env", f"{self.SSH_ARGS}={args}", *settings, plan.program or name, *by_ssh)


class Mpich(Hydra):
    """MPICH."""

    NAME = "mpich"
    # Hydra waits forever for a node that ssh could not reach.
    FAILED = (
        r"ssh: (?:connect to host|Could not resolve hostname) ([^\s:]+)",
        r"^\[proxy:[^\s@]+@([^\s\]]+)\] .*execvp error",
        r"PID \d+ RUNNING AT (\S+)",  # its agent was killed
    )
    PROGRAMS = ("mpiexec.mpich", "mpirun.mpich", "mpiexec.hydra", "mpirun")
    SETS = ("PMI_", "PMIX_", "MPIR_", "MPI_LOCAL", "HYDRA_", "HYDI_", "MPICH_INTERFACE", "GFORTRAN_")
    SSH_ARGS = "HYDRA_LAUNCHER_EXTRA_ARGS"
    BY_SSH = ("mpiexec", "-launcher", "ssh")
    # Agents change the directory themselves and report a missing one; hydra would only fail.
    UNBOUND = ("-bind-to", "none", "-wdir", "/")

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by hydra, host by host. A host with its own port or an IPv6 address is refused."""
        self.refuse(plan.hosts)
        hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, ranks, strict=True))
        # No -genvlist: hydra 4.0 loses variables of a longer list. Without it, hydra exports its whole environment.
        return (*self._head(plan, {}), "-hosts", hosts, *plan.extra, "-n", str(sum(ranks)), *plan.agent)


BACKEND = Mpich()
