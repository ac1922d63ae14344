"""Builds stand-alone command lines in which ``mpirun`` or ``srun`` starts every rank itself."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import pairwise
from shutil import which

from bireme import isolated
from bireme.deepspeed.accelerator import get_accelerator
from bireme.deepspeed.base_runner import MultiNodeRunner
from bireme.resources.cores import allowed_cores, parse_core_list, physical_cores, split_cores
from bireme.resources.pool import ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from typing import ClassVar

    from bireme.deepspeed.base_runner import Environment, Resources


class _EngineRunner(MultiNodeRunner):
    """``mpirun`` or ``srun`` starts every rank."""

    _PROGRAM: ClassVar[str] = "mpirun"

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64)
        self.resource_pool = resource_pool

    def validate_args(self) -> None:
        """Refuse filters.

        Raises:
            ValueError: a filter was given.
        """
        if self.args.include != "" or self.args.exclude != "":
            raise ValueError(f"{self.name} cannot include or exclude nodes or slots (bireme run can)")
        if self.args.num_nodes != -1 or self.args.num_gpus != -1:
            raise ValueError(f"{self.name} cannot limit the number of nodes or slots (bireme run can)")

    def _ranks_per_node(self) -> int:
        counts = set(self.resource_pool.values())
        if len(counts) > 1:
            raise ValueError(f"{self.name} needs the same number of slots on every node (bireme run does not)")
        return counts.pop()

    def _world_size(self) -> int:
        return sum(self.resource_pool.values())

    def _hosts(self) -> list[str]:
        return ["-hosts", ",".join(self.resource_pool)]

    def _protocol(self) -> list[str]:
        """The options by which hydra passes the rendezvous to all ranks."""
        told = {
            "MASTER_ADDR": self.args.master_addr or next(iter(self.resource_pool)).rpartition("@")[2],
            "MASTER_PORT": str(self.args.master_port),
            "WORLD_SIZE": str(self._world_size()),
            "LOCAL_SIZE": str(self._ranks_per_node()),
        }
        return [word for name, value in told.items() for word in ("-genv", name, value)]


class OpenMPIRunner(_EngineRunner):
    """Every rank by Open MPI's ``mpirun``; ranks find their numbers in ``OMPI_COMM_WORLD_RANK`` and so on.

    Args:
        args: the launcher's command line, as ``parse_args`` gives it.
        world_info_base64: host → slots, encoded.
        resource_pool: host → number of slots.
    """

    _NAME = "openmpi"
    _PROGRAM = "ompi_info"

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64, resource_pool)
        self.add_export("UCX_TLS", "tcp")

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """Return the command. TCP traffic uses ``eth0`` unless ``--launcher_args`` names interfaces."""
        extra = self._launcher_args()
        chosen = any(flag in ("-mca", "--mca") and key == "btl_tcp_if_include" for flag, key in pairwise(extra))
        interface = [] if chosen else ["--mca", "btl_tcp_if_include", "eth0"]
        environment.update(self._values())
        exported = [word for name in self.exports for word in ("-x", name)]
        head = [
            "mpirun",
            "-n",
            str(self._world_size()),
            "-hostfile",
            str(self.args.hostfile),
            "--mca",
            "btl",
            "^openib",
        ]
        return [*head, *interface, *extra, *exported, *self._program()]


class MPICHRunner(_EngineRunner):
    """Every rank by MPICH's ``mpirun``, through a helper that sets ``RANK`` and ``LOCAL_RANK``."""

    _NAME = "mpich"

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """Return the command; completes ``environment``."""
        environment.update(self._values())  # hydra passes on its whole environment
        count = ["-n", str(self._world_size()), "-ppn", str(self._ranks_per_node())]
        words = isolated.command("bireme.deepspeed.launcher_helper", "--launcher", self.name)
        helper = [sys.executable, "-u", *words[1:]]
        how = ["--no_python"] if self.args.no_python else ["--module"] if self.args.module else []
        program = [self.user_script, *self.user_arguments]
        return ["mpirun", *count, *self._launcher_args(), *self._protocol(), *self._hosts(), *helper, *how, *program]


class IMPIRunner(_EngineRunner):
    """Every rank by Intel MPI's ``mpirun``, each in its own section of the command with its own ``RANK``."""

    _NAME = "impi"

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """Return the command. With ``--bind_cores_to_rank``, numactl binds each rank on its node."""
        environment.update(self._values())  # hydra passes on its whole environment
        each = self._ranks_per_node()
        cores = self._cores(each)
        threads = ["-genv", "OMP_NUM_THREADS", str(len(cores[0]))] if cores else []
        command = ["mpirun", "-ppn", str(each), *self._launcher_args(), *threads, *self._protocol()]
        command += ["-genv", "I_MPI_PIN", "0", *self._hosts()]  # we assign the cores
        for rank in range(self._world_size()):
            local_rank = rank % each
            binding = ["numactl", "-C", ranges(cores[local_rank])] if cores else []
            numbers = ["-env", "RANK", str(rank), "-env", "LOCAL_RANK", str(local_rank)]
            command += [*([":"] if rank else []), "-n", "1", *numbers, *binding, *self._program()]
        return command

    def _cores(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Each rank's cores on its node. Without a core list, all nodes are assumed to be like this machine."""
        if not self.args.bind_cores_to_rank:
            return ()
        core_list = self.args.bind_core_list
        any_core = range(1 << 16)  # the cores of the nodes are not known here
        cores = parse_core_list(core_list, any_core) if core_list else physical_cores(allowed_cores())
        return split_cores(cores, ranks)


class SlurmRunner(_EngineRunner):
    """Every rank by ``srun``, which gets the number of ranks and the nodes."""

    _NAME = "slurm"
    _PROGRAM = "sinfo"

    def validate_args(self) -> None:
        """Accept filters; :meth:`validate_active_resources` checks that they leave whole nodes."""

    @classmethod
    def validate_active_resources(cls, active_resources: Resources) -> None:
        """Refuse chosen slots and different numbers of slots: ``srun`` only takes a number of tasks per node.

        Raises:
            ValueError: the slots of a node are not its first ones, or the numbers of slots differ.
        """
        counts = {}
        for host, slots in slots_of(active_resources).items():
            if slots != list(range(len(slots))):
                what = f"slurm cannot choose specific device ids: {slots} on {host}"
                raise ValueError(f"{what} (bireme run can; else filter whole nodes, or keep each node's first slots)")
            counts[host] = len(slots)
        if len(set(counts.values())) > 1:
            raise ValueError(f"slurm needs the same slot count on every node, not {counts} (bireme run does not)")

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """Return the command; completes ``environment``."""
        self.validate_active_resources(active_resources)
        environment.update(self._values())  # --export=ALL takes the variables from there
        slots = slots_of(active_resources)
        command = ["srun", "-n", str(sum(map(len, slots.values()))), *self._launcher_args()]
        if comment := getattr(self.args, "slurm_comment", ""):
            command += ["--comment", comment]
        if self.args.include or self.args.exclude:
            # Without --nodes, srun would choose only some nodes of the list.
            command += ["--nodelist", ",".join(slots), "--nodes", str(len(slots))]
        if self.args.num_nodes > 0:
            command += ["--nodes", str(self.args.num_nodes)]
        if self.args.num_gpus > 0:
            command += ["--gpus-per-node", str(self.args.num_gpus)]
        return [*command, "--export=ALL", *self._program()]


class MVAPICHRunner(_EngineRunner):
    """Every rank by MVAPICH2's ``mpirun``, with DeepSpeed's settings.

    Args:
        args: the launcher's command line, as ``parse_args`` gives it.
        world_info_base64: host → slots, encoded.
        resource_pool: host → number of slots.
    """

    _NAME = "mvapich"

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64, resource_pool)
        self.add_export("MV2_SMP_USE_CMA", "0")  # a kernel module that Ubuntu does not have
        self.add_export("MV2_DEBUG_SHOW_BACKTRACE", "1")
        if get_accelerator().device_name() == "cuda":
            self.add_export("MV2_USE_CUDA", "1")
        self.add_export("MV2_SUPPORT_DL", "1")
        self.add_export("MV2_ENABLE_AFFINITY", "0")  # required by MPI_THREAD_MULTIPLE
        self.add_export("MV2_INTER_ALLGATHER_TUNING", "5")
        self.add_export("MV2_CUDA_USE_NAIVE", "0")

    def backend_exists(self) -> bool:
        """Whether ``mpiname`` reports MVAPICH; warns if it does not."""
        if not which("mpiname"):
            warnings.warn("mpiname not found on PATH: MVAPICH is not installed", stacklevel=2)
            return False
        found = subprocess.check_output(["mpiname"]).decode(errors="replace").strip()
        if "MVAPICH" not in found:
            warnings.warn(f"mpiname should report MVAPICH2-GDR or another MVAPICH, but reports {found}", stacklevel=2)
        return "MVAPICH" in found

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """Return the command. It lists the hosts: DeepSpeed's hostfile in /tmp is shared by all users and jobs."""
        environment.update(self._values())  # hydra passes on its whole environment
        count = ["-np", str(self._world_size()), "-ppn", str(self._ranks_per_node())]
        return ["mpirun", *count, *self._hosts(), *self._launcher_args(), *self._program()]


def slots_of(active_resources: Resources) -> dict[str, list[int]]:
    """The slots of each host; a number N stands for the first N."""
    return {
        host: list(range(slots)) if isinstance(slots, int) else list(slots) for host, slots in active_resources.items()
    }
