"""Decides which launcher reaches the nodes if the user names none, and loads it."""

from __future__ import annotations

import importlib

from bireme.errors import BadInputError
from bireme.job import BY_LABELS, LAUNCHERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.backends.base import Backend
    from bireme.job import JobSpec

_MODULES = {
    "pdsh": "ssh",
    **dict.fromkeys(("docker", "podman", "kubectl"), "containers"),
    **dict.fromkeys(("openmpi", "mpich", "impi", "mvapich"), "mpi"),
}
"""The module of each launcher that has none of its own name."""


def choose(spec: JobSpec, scheduler: str) -> str:
    """The launcher, with ``auto`` resolved: the one that finds the hosts, Slurm's in its allocation, else ssh."""
    if spec.launcher != "auto":
        return spec.launcher
    if spec.hosts.startswith(BY_LABELS):
        return BY_LABELS.removesuffix(":")
    return "slurm" if scheduler == "slurm" else "ssh"


def load(name: str) -> Backend:
    """Import the backend of a name."""
    if name not in LAUNCHERS:
        known = ", ".join(LAUNCHERS)
        raise BadInputError(f"unknown launcher: {name!r}", hint=f"expected auto or one of {known}", where="--launcher")
    backends: dict[str, Backend] = importlib.import_module(f"bireme.backends.{_MODULES.get(name, name)}").BACKENDS
    return backends[name]
