"""Collects the facts that only the node itself knows (hostname, cores, directories), once, for the plan."""

from __future__ import annotations

import os

from bireme.planning.start_facts import NodeFacts
from bireme.resources import cores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec


def short_hostname() -> str:
    """This machine's name, as shown before every line of output."""
    return os.uname().nodename.partition(".")[0]


def node_facts(spec: JobSpec, environ: Mapping[str, str], interpreter: str, ranks: int, job_id: str) -> NodeFacts:
    """The facts that the plan of this node needs.

    Args:
        job_id: names the directory for error files.

    Raises:
        BadInputError: cores cannot be bound as requested.
    """
    return NodeFacts(
        hostname=short_hostname(),
        interpreter=interpreter,
        cwd=os.getcwd(),
        cores=cores.usable(),
        error_dir=os.path.join(temporary_directory(environ), f"bireme-{job_id}"),
        bound=cores.bound(spec.bind_core_list, physical=spec.bind_cores, ranks=ranks),
        omp_threads_set="OMP_NUM_THREADS" in environ,
    )


def temporary_directory(environ: Mapping[str, str]) -> str:
    """The directory for temporary files, without importing ``tempfile``, which is slow."""
    for path in (environ.get("TMPDIR", ""), "/tmp", os.getcwd()):
        if path and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return os.path.abspath(path)
    return "/tmp"
