"""The shim of ``--native_ranks``: sets the environment of a rank that the launcher started, then executes the program.

It is for programs that call MPI themselves. Without an agent, the guarantees are those of the launcher
(``docs/backends.md``). The shim replaces itself by the program, so it costs nothing after the start.
"""

from __future__ import annotations

import json
import os
import sys

from bireme.errors import BadInputError
from bireme.isolated import keep_the_locale
from bireme.planning.environment import native_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

# (rank, local rank) as each launcher names them. The first pair wins: srun may have started the daemons of an MPI.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
)


def main(arguments: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Execute ``PROGRAM…`` of the arguments ``PLAN PROGRAM…``; the plan is JSON from `native_ranks.rank_command`."""
    keep_the_locale()
    plan = json.loads(arguments[0])
    rank, local_rank = rank_from_launcher(environ)
    world: list[tuple[str, list[str]]] = plan["world"]
    if not 0 <= rank < sum(len(slots) for _, slots in world):
        raise BadInputError(f"the launcher started rank {rank}, which is not a rank of this job")
    environ.update(plan.get("job", {}))
    environ.update(native_environment(world, rank, local_rank, plan["variables"], plan["addr"], plan["port"]))
    argv = [word.replace("{local_rank}", str(local_rank)) if place == plan["place"] else word
            for place, word in enumerate(arguments[1:])]  # fmt: skip
    try:
        os.execvpe(argv[0], argv, dict(environ))
    except OSError as error:
        sys.stderr.write(f"bireme: cannot run {argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def rank_from_launcher(environ: MutableMapping[str, str]) -> tuple[int, int]:
    """The rank and local rank of this process, from the launcher's variables."""
    for rank, local_rank in _VARIABLES:
        if rank in environ and local_rank in environ:
            return int(environ[rank]), int(environ[local_rank])
    raise BadInputError("no rank number in the environment: --native is for ranks started by mpirun or srun")
