"""The place of a rank in its job, as other launchers say it."""

import os

import pytest

import bireme

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (0, 1, 0, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 4, 1, 1)),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_NODE_RANK": "1"}, (5, 8, 1, 1)),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (5, 8, 1, 2)),
        ({**SLURM, "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "2"}, (5, 8, 0, 2)),
        ({"PMIX_RANK": "3"}, (3, 1, 0, 0)),  # of prterun, which says no more
        (SLURM, (0, 1, 0, 0)),  # in a script of sbatch
    ],
)
def test_the_place_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], place: tuple[int, int, int, int]
) -> None:
    for name in os.environ:
        if name.startswith(("RANK", "WORLD", "LOCAL", "GROUP_RANK", "CROSS", "OMPI", "PMI", "MPI_", "SLURM")):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert (bireme.rank(), bireme.world_size(), bireme.local_rank(), bireme.node()) == place
