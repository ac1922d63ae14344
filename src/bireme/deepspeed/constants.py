"""The names of ``deepspeed.launcher.constants``."""

from __future__ import annotations

PDSH_LAUNCHER = "pdsh"
"""``--launcher`` for :class:`~bireme.deepspeed.multinode_runner.PDSHRunner`; the others likewise."""
OPENMPI_LAUNCHER = "openmpi"
MPICH_LAUNCHER = "mpich"
IMPI_LAUNCHER = "impi"
SLURM_LAUNCHER = "slurm"
MVAPICH_LAUNCHER = "mvapich"
SSH_LAUNCHER = "ssh"
"""Not DeepSpeed's: see :class:`~bireme.deepspeed.multinode_runner.SSHRunner`."""

PDSH_MAX_FAN_OUT = 1024
"""Maximum number of concurrent pdsh sessions."""
