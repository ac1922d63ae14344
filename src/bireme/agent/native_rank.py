"""The shim of ``--native_ranks``: an engine has started this rank; set the environment protocol, and out of the way.

For programs that call MPI themselves. There is no agent then: ``docs/backends.md`` says what the engine guarantees
instead. The shim executes the program in its own place, so it costs nothing after the start.
"""

from __future__ import annotations

import json
import os
import sys

from bireme.errors import BadInputError
from bireme.planning.environment import native_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

# (rank, local rank) as each engine names them; what stands first wins, for srun may have started an MPI's own daemon.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
)


def main(arguments: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Execute the program of ``PLAN PROGRAM…``, where the plan is JSON from `native_ranks.rank_words`."""
    plan = json.loads(arguments[0])
    rank, local_rank = engine_rank(environ)
    world: list[tuple[str, list[str]]] = plan["world"]
    if not 0 <= rank < sum(len(slots) for _, slots in world):
        raise BadInputError(f"the engine has started rank {rank}, which is none of the job's")
    environ.update(native_environment(world, rank, local_rank, plan["variables"], plan["addr"], plan["port"]))
    argv = [word.replace("{local_rank}", str(local_rank)) if place == plan["place"] else word
            for place, word in enumerate(arguments[1:])]  # fmt: skip
    try:
        os.execvpe(argv[0], argv, dict(environ))
    except OSError as error:
        sys.stderr.write(f"bireme: cannot run {argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def engine_rank(environ: MutableMapping[str, str]) -> tuple[int, int]:
    """(rank, local rank) as the engine that has started this process says.

    Raises:
        BadInputError: no engine has.
    """
    for rank, local_rank in _VARIABLES:
        if rank in environ and local_rank in environ:
            return int(environ[rank]), int(environ[local_rank])
    raise BadInputError("no engine's rank is in the environment: this is for ranks that mpirun or srun has started")
