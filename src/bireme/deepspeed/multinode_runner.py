"""The names of ``deepspeed.launcher.multinode_runner``: command lines that run a job on many nodes by themselves.

``bireme run`` does not use them: what it starts has a channel to every node. They are for programs that ask for a
command line and run it on their own account. There are two kinds:

=====================================  ==================================================================
``PDSHRunner``, ``SSHRunner``          one agent on each node (``python -m bireme.agent``), which starts and
                                       supervises that node's ranks
``OpenMPIRunner``, ``MPICHRunner``,    the engine starts every rank itself; what the reference's class
``IMPIRunner``, ``SlurmRunner``,       cannot do, such as filters down to slots, this one refuses, too
``MVAPICHRunner``
=====================================  ==================================================================

Values of exported variables never stand in a command: they are put into the ``environment`` that ``get_cmd`` is given,
which has to be the one in which the command is run (as the reference does it). To the nodes of pdsh and ssh they go in
``LC_BIREME_EXPORTS``, since stock servers accept variables named ``LC_*``; one that does not is found at the start.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import warnings
from abc import ABC, abstractmethod
from itertools import pairwise
from shlex import split

from bireme.backends import ssh
from bireme.backends.base import HostLaunch, LaunchPlan
from bireme.cli.options import AGENT
from bireme.deepspeed.accelerator import get_accelerator
from bireme.deepspeed.constants import PDSH_MAX_FAN_OUT
from bireme.resources.cores import allowed_cores, parse_core_list, physical_cores, split_cores
from bireme.runner.pidfile import DIRECTORY as PID_FILE_BASEPATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence
    from typing import Any, TypeAlias

    Environment: TypeAlias = MutableMapping[str, str]
    Resources: TypeAlias = Mapping[str, Any]

__all__ = [
    "IMPIRunner",
    "MPICHRunner",
    "MVAPICHRunner",
    "MultiNodeRunner",
    "OpenMPIRunner",
    "PDSHRunner",
    "SSHRunner",
    "SlurmRunner",
]

_TRAVELLING = "LC_BIREME_EXPORTS"
_NOT_FOR_AGENTS = ("help", "master_addr", "master_port", "save_pid")
_AGENT_OPTIONS = tuple(
    option
    for title, options in AGENT.items()
    if title != "world"
    for option in options
    if option.dest not in _NOT_FOR_AGENTS
)
_BEYOND_REAL_PIDS = 100_000_000
_RANK_BY_PDSH = "%n"


class MultiNodeRunner(ABC):
    """A way to run a job on many nodes.

    Attributes:
        args: the command line, as :func:`bireme.deepspeed.runner.parse_args` gives it.
        user_arguments: the script's arguments, as they stand in the command.
        user_script: the script.
        world_info_base64: host → slots, encoded.
        exports: name → value of the variables that travel, in double quotes where a shell needs them.
    """

    def __init__(self, args: Namespace, world_info_base64: str) -> None:
        self.args = args
        self.validate_args()
        self.user_arguments = self.parse_user_args()
        self.user_script: str = args.user_script
        self.world_info_base64 = world_info_base64
        self.exports: dict[str, str] = {}

    @abstractmethod
    def backend_exists(self) -> object:
        """Whether what the command needs is installed here: its path, or something else that is true."""

    @abstractmethod
    def get_cmd(self, environment: Environment, active_resources: Resources) -> Any:
        """The command, to be run in ``environment``, which is completed for it.

        Args:
            environment: what the command inherits.
            active_resources: host → slots, in the order of the nodes.
        """

    def add_export(self, key: str, var: str) -> None:
        """Let a variable travel to all ranks."""
        var = var.strip()
        self.exports[key.strip()] = f'"{var}"' if re.search(r"[^\w@%+=:,./-]", var) else var

    def parse_user_args(self) -> list[str]:
        """The script's arguments, as they have to stand in the command."""
        return list(self.args.user_args)

    @property
    def name(self) -> str:
        """The backend's name, as ``--launcher`` has it."""
        return type(self).__name__

    def validate_args(self) -> None:  # noqa: B027
        """Refuse what this backend cannot do.

        Raises:
            ValueError: there is such a thing among the arguments.
        """

    @classmethod  # noqa: B027
    def validate_active_resources(cls, active_resources: Resources) -> None:
        """Refuse slots that this backend cannot choose.

        Raises:
            ValueError: there are such.
        """

    def _values(self) -> dict[str, str]:
        """The exports without the quotes that :meth:`add_export` has put around them."""
        return {name: value[1:-1] if value.startswith('"') else value for name, value in self.exports.items()}

    def _launcher_args(self) -> list[str]:
        return split(self.args.launcher_args)

    def _program(self) -> list[str]:
        """What the engine starts for a rank."""
        python = [] if self.args.no_python else [sys.executable, "-u", *(["-m"] if self.args.module else [])]
        return [*python, self.user_script, *self.user_arguments]


class _AgentRunner(MultiNodeRunner):
    """One agent on each node, which a shell over there starts."""

    def __init__(self, args: Namespace, world_info_base64: str) -> None:
        super().__init__(args, world_info_base64)
        own_pid = bool(getattr(args, "save_pid", False))
        # Unless the user is to find it by our pid, no other job on the nodes may have the same.
        self._pid_number = os.getpid() if own_pid else _BEYOND_REAL_PIDS + secrets.randbelow(_BEYOND_REAL_PIDS)

    def _agent_words(self, first_host: str, rank: str) -> list[str]:
        """What the shell executes; every word is quoted for it."""
        addr = self.args.master_addr or first_host.rpartition("@")[2]
        words = [sys.executable, "-u", "-m", "bireme.agent", f"--world_info={self.world_info_base64}"]
        words += [f"--node_rank={rank}", f"--master_addr={addr}", f"--master_port={self.args.master_port}"]
        words += [f"--save_pid={self._pid_number}", *self._options()]
        return [*map(_quoted, words), _quoted(self.user_script), *self.user_arguments]

    def _options(self) -> Iterator[str]:
        """The options of one node's launcher, as far as they were given."""
        for option in _AGENT_OPTIONS:
            value = getattr(self.args, option.dest, None)
            if option.kind == "flag":
                if value:
                    yield f"--{option.dest}"
            elif value not in (None, "", "None", (), option.default):
                yield f"--{option.dest}={value}"

    def _send_exports(self, environment: Environment) -> list[str]:
        """Put the exports into the environment of ssh; return the words with which the shell over there begins."""
        where = ["cd", _quoted(os.path.abspath(".")), "&&", "exec"]
        if not self.exports:
            return where
        environment[_TRAVELLING] = "; ".join(f"export {name}={_quoted(val)}" for name, val in self._values().items())
        what = f"${{{_TRAVELLING}:?the ssh server does not accept variables named LC_*}}"
        return ["eval", f'"{what}"', "&&", "unset", _TRAVELLING, "&&", *where]

    def _kill_line(self) -> str:
        """For the shell on a node: SIGTERM to the agent of this job, which then ends its ranks in order."""
        path = os.path.join(PID_FILE_BASEPATH, f"{self._pid_number}.deepspeed")
        return f'[ ! -O {path} ] || kill -TERM "$(cat {path})"'


class PDSHRunner(_AgentRunner):
    """One agent on each node, by pdsh.

    ``get_cmd`` returns ``(command, kill_command, environment)``. pdsh leaves everything running on the nodes when it
    is killed, so whoever ends it runs ``kill_command`` then. That one looks for no pattern: it sends SIGTERM to the
    process whose number stands in this job's own pid file on each node. The file is there as long as the agent is;
    without it the command does nothing. (Under ``bireme run`` nothing of this is needed: there, agents end when their
    channel does.)
    """

    @property
    def name(self) -> str:
        """``pdsh``."""
        return "pdsh"

    def backend_exists(self) -> str | None:
        """The path of ``pdsh``."""
        return shutil.which("pdsh")

    def parse_user_args(self) -> list[str]:
        """The script's arguments, quoted for the shell over there."""
        return list(map(_quoted, self.args.user_args))

    def get_cmd(
        self, environment: Environment, active_resources: Resources
    ) -> tuple[list[str], list[str], Environment]:
        """(command, the command that ends what it has started, ``environment``)."""
        environment["PDSH_RCMD_TYPE"] = "ssh"
        hosts = list(active_resources)
        pdsh = ["pdsh", "-S", "-f", str(PDSH_MAX_FAN_OUT), "-w", ",".join(hosts), *self._launcher_args()]
        shell = self._send_exports(environment)
        ssh_words = ["-p", str(self.args.ssh_port)] if self.args.ssh_port is not None else []
        ssh_words += ["-o", f"SendEnv={_TRAVELLING}"] if self.exports else []
        if ssh_words:
            before = environment.get("PDSH_SSH_ARGS_APPEND", "")
            environment["PDSH_SSH_ARGS_APPEND"] = " ".join([before, *ssh_words]).strip()
        words = [*shell, *self._agent_words(hosts[0], _RANK_BY_PDSH)]
        # pdsh would replace other signs after a % too.
        words = [word if word.endswith(f"={_RANK_BY_PDSH}") else word.replace("%", "%%") for word in words]
        return [*pdsh, *words], [*pdsh, self._kill_line()], environment


class SSHRunner(_AgentRunner):
    """One agent on each node, by an ssh for each; not a class of the reference.

    ``get_cmd`` returns the same three as :class:`PDSHRunner`. The command ends when all nodes have, with the code of
    the first one, in their order, that failed.
    """

    @property
    def name(self) -> str:
        """``ssh``."""
        return "ssh"

    def backend_exists(self) -> str | None:
        """The path of ``ssh``."""
        return shutil.which("ssh")

    def parse_user_args(self) -> list[str]:
        """The script's arguments, quoted for the shell over there."""
        return list(map(_quoted, self.args.user_args))

    def get_cmd(
        self, environment: Environment, active_resources: Resources
    ) -> tuple[list[str], list[str], Environment]:
        """(command, the command that ends what it has started, ``environment``)."""
        hosts = list(active_resources)
        shell = self._send_exports(environment)
        lines = [" ".join([*shell, *self._agent_words(hosts[0], str(rank))]) for rank in range(len(hosts))]
        return self._all_at_once(hosts, lines), self._all_at_once(hosts, [self._kill_line()] * len(hosts)), environment

    def _all_at_once(self, hosts: list[str], lines: list[str]) -> list[str]:
        extra = (*(("-o", f"SendEnv={_TRAVELLING}") if self.exports else ()), *self._launcher_args())
        started, pids = [], []
        for place, (target, line) in enumerate(zip(hosts, lines, strict=True)):
            user, _, host = target.rpartition("@")
            shell = ("sh", "-c", line)
            plan = LaunchPlan((HostLaunch(host, user or None),), shell, extra=extra, ssh_port=self.args.ssh_port)
            (words,) = ssh.commands(plan, {})
            started.append(f"{shlex.join(words)} & p{place}=$!")
            pids.append(f"$p{place}")
        trap = f"trap 'kill {' '.join(pids)}' HUP INT TERM"
        waits = [f"wait {pid} || code=${{code:-$?}}" for pid in pids]
        return ["sh", "-c", "; ".join([*started, trap, *waits, "exit ${code:-0}"])]


class _EngineRunner(MultiNodeRunner):
    """The engine starts every rank."""

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64)
        self.resource_pool = resource_pool

    def _refuse_filters(self) -> None:
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
        """What all ranks are told of the job, by hydra."""
        told = {
            "MASTER_ADDR": self.args.master_addr or next(iter(self.resource_pool)).rpartition("@")[2],
            "MASTER_PORT": str(self.args.master_port),
            "WORLD_SIZE": str(self._world_size()),
            "LOCAL_SIZE": str(self._ranks_per_node()),
        }
        return [word for name, value in told.items() for word in ("-genv", name, value)]


class OpenMPIRunner(_EngineRunner):
    """Every rank by Open MPI's ``mpirun``; ranks find their numbers in ``OMPI_COMM_WORLD_RANK`` and its kin."""

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64, resource_pool)
        self.add_export("UCX_TLS", "tcp")

    @property
    def name(self) -> str:
        """``openmpi``."""
        return "openmpi"

    def backend_exists(self) -> str | None:
        """The path of ``ompi_info``."""
        return shutil.which("ompi_info")

    def validate_args(self) -> None:
        """Refuse filters.

        Raises:
            ValueError: there are some.
        """
        self._refuse_filters()

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """The command. Its TCP traffic keeps to ``eth0``, unless ``--launcher_args`` names interfaces."""
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
    """Every rank by MPICH's ``mpirun``, through a helper that tells it ``RANK`` and ``LOCAL_RANK``."""

    @property
    def name(self) -> str:
        """``mpich``."""
        return "mpich"

    def backend_exists(self) -> str | None:
        """The path of ``mpirun``."""
        return shutil.which("mpirun")

    def validate_args(self) -> None:
        """Refuse filters.

        Raises:
            ValueError: there are some.
        """
        self._refuse_filters()

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """The command."""
        environment.update(self._values())  # hydra passes on its whole environment
        count = ["-n", str(self._world_size()), "-ppn", str(self._ranks_per_node())]
        helper = [sys.executable, "-u", "-m", "bireme.deepspeed.launcher_helper", "--launcher", self.name]
        how = ["--no_python"] if self.args.no_python else ["--module"] if self.args.module else []
        program = [self.user_script, *self.user_arguments]
        return ["mpirun", *count, *self._launcher_args(), *self._protocol(), *self._hosts(), *helper, *how, *program]


class IMPIRunner(_EngineRunner):
    """Every rank by Intel MPI's ``mpirun``, each as an executable of its own with its numbers."""

    @property
    def name(self) -> str:
        """``impi``."""
        return "impi"

    def backend_exists(self) -> str | None:
        """The path of ``mpirun``."""
        return shutil.which("mpirun")

    def validate_args(self) -> None:
        """Refuse filters.

        Raises:
            ValueError: there are some.
        """
        self._refuse_filters()

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """The command. With ``--bind_cores_to_rank``, numactl binds each rank over there."""
        environment.update(self._values())  # hydra passes on its whole environment
        each = self._ranks_per_node()
        cores = self._cores(each)
        threads = ["-genv", "OMP_NUM_THREADS", str(len(cores[0]))] if cores else []
        command = ["mpirun", "-ppn", str(each), *self._launcher_args(), *threads, *self._protocol()]
        command += ["-genv", "I_MPI_PIN", "0", *self._hosts()]  # the cores are given out by us
        for rank in range(self._world_size()):
            local_rank = rank % each
            binding = ["numactl", "-C", _core_list(cores[local_rank])] if cores else []
            numbers = ["-env", "RANK", str(rank), "-env", "LOCAL_RANK", str(local_rank)]
            command += [*([":"] if rank else []), "-n", "1", *numbers, *binding, *self._program()]
        return command

    def _cores(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Each rank's cores on its node; the nodes are taken to be like this machine where no list is given."""
        if not self.args.bind_cores_to_rank:
            return ()
        core_list = self.args.bind_core_list
        any_core = range(1 << 16)  # which there are over there is not known here
        cores = parse_core_list(core_list, any_core) if core_list else physical_cores(allowed_cores())
        return split_cores(cores, ranks)


class SlurmRunner(_EngineRunner):
    """Every rank by ``srun``, which is told how many there are, and on which nodes."""

    @property
    def name(self) -> str:
        """``slurm``."""
        return "slurm"

    def backend_exists(self) -> str | None:
        """The path of ``sinfo``."""
        return shutil.which("sinfo")

    @classmethod
    def validate_active_resources(cls, active_resources: Resources) -> None:
        """Refuse chosen slots and uneven nodes: ``srun`` knows only how many tasks a node has.

        Raises:
            ValueError: the slots of a node are not the first ones, or their numbers differ.
        """
        counts = {}
        for host, slots in _slots(active_resources).items():
            if slots != list(range(len(slots))):
                what = f"slurm cannot choose specific device ids: {slots} on {host}"
                raise ValueError(f"{what} (bireme run can; else filter whole nodes, or keep each node's first slots)")
            counts[host] = len(slots)
        if len(set(counts.values())) > 1:
            raise ValueError(f"slurm needs the same slot count on every node, not {counts} (bireme run does not)")

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """The command."""
        self.validate_active_resources(active_resources)
        environment.update(self._values())  # --export=ALL takes it from there
        slots = _slots(active_resources)
        command = ["srun", "-n", str(sum(map(len, slots.values()))), *self._launcher_args()]
        if comment := getattr(self.args, "slurm_comment", ""):
            command += ["--comment", comment]
        if self.args.include or self.args.exclude:
            # Without --nodes, the list would only be where srun may choose from.
            command += ["--nodelist", ",".join(slots), "--nodes", str(len(slots))]
        if self.args.num_nodes > 0:
            command += ["--nodes", str(self.args.num_nodes)]
        if self.args.num_gpus > 0:
            command += ["--gpus-per-node", str(self.args.num_gpus)]
        return [*command, "--export=ALL", *self._program()]


class MVAPICHRunner(_EngineRunner):
    """Every rank by MVAPICH2's ``mpirun``, with the settings that the reference found good for it."""

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64, resource_pool)
        self.add_export("MV2_SMP_USE_CMA", "0")  # a kernel module that Ubuntu does not have
        self.add_export("MV2_DEBUG_SHOW_BACKTRACE", "1")
        if get_accelerator().device_name() == "cuda":
            self.add_export("MV2_USE_CUDA", "1")
        self.add_export("MV2_SUPPORT_DL", "1")
        self.add_export("MV2_ENABLE_AFFINITY", "0")  # MPI_THREAD_MULTIPLE needs that
        self.add_export("MV2_INTER_ALLGATHER_TUNING", "5")
        self.add_export("MV2_CUDA_USE_NAIVE", "0")

    @property
    def name(self) -> str:
        """``mvapich``."""
        return "mvapich"

    def backend_exists(self) -> bool:
        """Whether ``mpiname`` says that the MPI here is MVAPICH; warns of what is there instead."""
        if not shutil.which("mpiname"):
            warnings.warn("there is no mpiname on PATH: MVAPICH is not installed", stacklevel=2)
            return False
        found = subprocess.check_output(["mpiname"]).decode(errors="replace").strip()
        if "MVAPICH" not in found:
            warnings.warn(f"mpiname should say MVAPICH2-GDR or another MVAPICH, but says {found}", stacklevel=2)
        return "MVAPICH" in found

    def validate_args(self) -> None:
        """Refuse filters.

        Raises:
            ValueError: there are some.
        """
        self._refuse_filters()

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """The command. It names the hosts itself: a hostfile in /tmp would be the same for all users and jobs."""
        environment.update(self._values())  # hydra passes on its whole environment
        count = ["-np", str(self._world_size()), "-ppn", str(self._ranks_per_node())]
        return ["mpirun", *count, *self._hosts(), *self._launcher_args(), *self._program()]


def _quoted(word: str) -> str:
    return shlex.quote(word)


def _slots(active_resources: Resources) -> dict[str, list[int]]:
    """The slots of each host, also where only their number is given."""
    return {
        host: list(range(slots)) if isinstance(slots, int) else list(slots) for host, slots in active_resources.items()
    }


def _core_list(cores: Sequence[int]) -> str:
    """``(0, 1, 2, 8)`` as numactl reads it: ``0-2,8``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and runs[-1][1] == core - 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)
