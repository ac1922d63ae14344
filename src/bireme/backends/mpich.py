"""MPICH's ``mpirun`` (hydra): starts one agent on each node; agents connect to the runner."""

from __future__ import annotations

import shlex

from bireme.backends.base import Backend, ssh_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan

_SSH_ARGS = "HYDRA_LAUNCHER_EXTRA_ARGS"


class Mpich(Backend):
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

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by hydra, host by host. A host with its own port or an IPv6 address is refused."""
        self.refuse(plan.hosts)
        hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, ranks, strict=True))
        # No -genvlist: hydra 4.0 loses variables of a longer list. Without it, hydra exports its whole environment.
        return (*_head(plan, {}), "-hosts", hosts, *plan.extra, "-n", str(sum(ranks)), *plan.agent)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``mpiexec``, without binding. It refuses the same hosts as `native`."""
        self.refuse(plan.hosts)
        hosts = ",".join(host.target for host in plan.hosts)
        # Global options come first: hydra ignores them after -n.
        # Agents change the directory themselves and report a missing one; hydra would only fail.
        shape = ("-hosts", hosts, "-ppn", "1", "-bind-to", "none", "-wdir", "/", "-genvlist", self.TOKEN_VARIABLE)
        return ((*_head(plan, environ), *shape, *plan.extra, "-n", str(len(plan.hosts)), *plan.agent),)


BACKEND = Mpich()


def _head(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The program with ssh's options in its environment: hydra has no argument for them."""
    args = f"{environ.get(_SSH_ARGS, '')} {shlex.join(ssh_options(plan))}".strip()
    return "env", f"{_SSH_ARGS}={args}", plan.program or "mpiexec", "-launcher", "ssh"
