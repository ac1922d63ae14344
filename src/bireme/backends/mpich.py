"""MPICH's ``mpirun`` (hydra) as a way to start one agent on each node; agents dial back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from bireme.backends.base import LaunchPlan

NAME = "mpich"
CANCEL: tuple[str, ...] = ()
PROGRAMS = ("mpiexec.mpich", "mpirun.mpich", "mpiexec.hydra", "mpirun")
CHANNEL: Literal["stdio", "dial"] = "dial"
TOKEN_VARIABLE = "BIREME_TOKEN"
RANK_VARIABLES = (
    "PMI_",
    "PMIX_",
    "MPIR_",
    "MPI_LOCAL",
    "HYDRA_",
    "HYDI_",
    "MPICH_INTERFACE",
    "GFORTRAN_",
    TOKEN_VARIABLE,
)


def native(plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Every rank by hydra, host by host."""
    hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, ranks, strict=True))
    exported = ("-genvlist", ",".join(names)) if names else ()
    head = (plan.program or "mpiexec", "-launcher", "ssh", "-hosts", hosts)
    return (*head, *exported, *plan.extra, "-n", str(sum(ranks)), *plan.agent)


NATIVE = native


def commands(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """A single ``mpiexec``, unbound."""
    # Global options come first: hydra overlooks them after -n.
    return (
        (
            plan.program or "mpiexec",
            "-launcher",
            "ssh",
            "-hosts",
            ",".join(host.target for host in plan.hosts),
            "-ppn",
            "1",
            "-bind-to",
            "none",
            "-genvlist",
            TOKEN_VARIABLE,
            *plan.extra,
            "-n",
            str(len(plan.hosts)),
            *plan.agent,
        ),
    )
