"""Open MPI's ``mpirun`` (versions 4 and 5): starts one agent on each node; agents connect to the runner."""

from __future__ import annotations

from bireme.backends.base import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from bireme.backends.base import LaunchPlan

NAME = "openmpi"
FAILED: tuple[str, ...] = ()
CANCEL: tuple[str, ...] = ()
PROGRAMS = ("mpirun.openmpi", "mpirun")
CHANNEL: Literal["stdio", "dial"] = "dial"
TOKEN_VARIABLE = "BIREME_TOKEN"
RANK_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_", TOKEN_VARIABLE)


def native(plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Start every rank by ``mpirun``, host by host."""
    refuse(plan, NAME)
    hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, ranks, strict=True))
    exported = tuple(word for name in names for word in ("-x", name))
    root = ("--allow-run-as-root",) if plan.root else ()
    head = (plan.program or "mpirun", *root, "-n", str(sum(ranks)), "--host", hosts, "--map-by", "slot")
    return (*head, "--mca", "plm_rsh_args", _ssh_words(plan), *exported, *plan.extra, *plan.agent)


NATIVE = native
ONE_BY_ONE = None
OVER = ""


def _ssh_words(plan: LaunchPlan) -> str:
    port = f" -p {plan.ssh_port}" if plan.ssh_port else ""
    return f"-o BatchMode=yes -o ConnectTimeout={plan.connect_timeout}{port}"


def commands(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Start the agents by a single ``mpirun``, without binding: all ranks of a node would share the agent's core."""
    refuse(plan, NAME)
    hosts = ",".join(f"{host.target}:1" for host in plan.hosts)
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
            _ssh_words(plan),
            "-x",
            TOKEN_VARIABLE,
            "--wdir",
            "/",  # agents change the directory themselves and report a missing one
            *plan.extra,
            *plan.agent,
        ),
    )
