"""Open MPI's ``mpirun`` (versions 4 and 5) as a way to start one agent on each node; agents dial back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from bireme.backends.base import LaunchPlan

NAME = "openmpi"
CANCEL: tuple[str, ...] = ()
PROGRAMS = ("mpirun.openmpi", "mpirun")
CHANNEL: Literal["stdio", "dial"] = "dial"
TOKEN_VARIABLE = "BIREME_TOKEN"
RANK_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_", TOKEN_VARIABLE)


def commands(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """A single ``mpirun``: unbound, for else all ranks of a node would share the agent's one core."""
    hosts = ",".join(f"{host.target}:1" for host in plan.hosts)
    ssh_words = f"-o BatchMode=yes -o ConnectTimeout={plan.connect_timeout}"
    if plan.ssh_port:
        ssh_words += f" -p {plan.ssh_port}"
    return (
        (
            plan.program or "mpirun",
            *(("--allow-run-as-root",) if plan.root else ()),
            "-n",
            str(len(plan.hosts)),
            "--host",
            hosts,
            "--map-by",
            "ppr:1:node",
            "--bind-to",
            "none",
            "--mca",
            "plm_rsh_args",
            ssh_words,
            "-x",
            TOKEN_VARIABLE,
            *plan.extra,
            *plan.agent,
        ),
    )
