"""Open MPI's ``mpirun`` (versions 4 and 5): starts one agent on each node; agents connect to the runner."""

from __future__ import annotations

from bireme.backends.base import Backend, ssh_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan


class OpenMpi(Backend):
    """Open MPI."""

    NAME = "openmpi"
    PROGRAMS = ("mpirun.openmpi", "mpirun")
    ADVICE = (
        (
            "does not know how to route a message",
            "if the login shell there is csh: --launcher_args='--mca plm_rsh_assume_same_shell 0'",
        ),
    )
    SETS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_")

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by ``mpirun``, host by host."""
        self.refuse(plan.hosts)
        hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, ranks, strict=True))
        exported = tuple(word for name in names for word in ("-x", name))
        head = (*_head(plan, sum(ranks)), "--host", hosts, "--map-by", "slot")
        return (*head, "--mca", "plm_rsh_args", " ".join(ssh_options(plan)), *exported, *plan.extra, *plan.agent)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by one ``mpirun``, without binding: all ranks of a node would share the agent's core."""
        self.refuse(plan.hosts)
        hosts = ",".join(f"{host.target}:1" for host in plan.hosts)
        shape = (*_head(plan, len(plan.hosts)), "--host", hosts, "--map-by", "ppr:1:node", "--bind-to", "none")
        # Agents change the directory themselves and report a missing one.
        token = ("-x", self.TOKEN_VARIABLE, "--wdir", "/")
        return ((*shape, "--mca", "plm_rsh_args", " ".join(ssh_options(plan)), *token, *plan.extra, *plan.agent),)


BACKEND = OpenMpi()


def _head(plan: LaunchPlan, processes: int) -> tuple[str, ...]:
    return (plan.program or "mpirun", *(("--allow-run-as-root",) if plan.root else ()), "-n", str(processes))
