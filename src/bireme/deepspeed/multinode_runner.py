"""The public names of ``deepspeed.launcher.multinode_runner``: classes that build stand-alone command lines.

``bireme run`` does not use them, since it keeps a channel to every node. They are for programs that build a command
line for a job on many nodes and run it themselves. There are two kinds:

=====================================  ==================================================================
``PDSHRunner``, ``SSHRunner``          one agent on each node (``python -m bireme.agent``), which starts and
                                       supervises that node's ranks
``OpenMPIRunner``, ``MPICHRunner``,    ``mpirun`` or ``srun`` starts every rank itself; what DeepSpeed's
``IMPIRunner``, ``SlurmRunner``,       class cannot do, such as filtering slots, this one refuses too
``MVAPICHRunner``
=====================================  ==================================================================

A command never contains values of exported variables. They are put into the ``environment`` passed to ``get_cmd``, in
which the caller has to run the command (as DeepSpeed does). pdsh and ssh pass them to the nodes in
``LC_BIREME_EXPORTS``, since servers accept variables named ``LC_*`` by default; a server that does not is detected at
the start.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import warnings
from abc import ABC, abstractmethod
from itertools import pairwise
from shlex import join, quote, split
from shutil import which

from bireme import isolated
from bireme.backends import ssh
from bireme.backends.base import HostLaunch, LaunchPlan
from bireme.deepspeed.accelerator import get_accelerator
from bireme.deepspeed.constants import PDSH_MAX_FAN_OUT
from bireme.options.table import select
from bireme.process.pid_file import DIRECTORY as PID_FILE_BASEPATH
from bireme.resources.cores import allowed_cores, parse_core_list, physical_cores, split_cores
from bireme.resources.pool import ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, MutableMapping
    from typing import Any, ClassVar, TypeAlias

    Environment: TypeAlias = MutableMapping[str, str]
    Resources: TypeAlias = Mapping[str, Any]
    Commands: TypeAlias = tuple[list[str], list[str], Environment]

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


class MultiNodeRunner(ABC):
    """Builds the command line that runs a job on many nodes.

    Attributes:
        args: the command line, as :func:`bireme.deepspeed.runner.parse_args` gives it.
        user_arguments: the script's arguments, as the command contains them.
        world_info_base64: host → slots, encoded.
        exports: name → value of exported variables, in double quotes where a shell needs them.
    """

    _NAME: ClassVar[str] = ""
    _PROGRAM: ClassVar[str] = ""
    _EXPORTS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, args: Namespace, world_info_base64: str) -> None:
        self.args = args
        self.validate_args()
        self.user_arguments = self.parse_user_args()
        self.user_script: str = args.user_script
        self.world_info_base64 = world_info_base64
        self.exports: dict[str, str] = {}
        for name, value in self._EXPORTS.items():
            self.add_export(name, value)

    def backend_exists(self) -> object:
        """Whether the program that the command needs is installed: its path or another true value."""
        return which(self._PROGRAM)

    @abstractmethod
    def get_cmd(self, environment: Environment, active_resources: Resources) -> Any:
        """Return the command for host → slots, which has to be run in ``environment``; completes the environment."""

    def add_export(self, key: str, var: str) -> None:
        """Export a variable to all ranks."""
        var = var.strip()
        self.exports[key.strip()] = f'"{var}"' if re.search(r"[^\w@%+=:,./-]", var) else var

    def parse_user_args(self) -> list[str]:
        """The script's arguments in the form that the command needs."""
        return list(self.args.user_args)

    @property
    def name(self) -> str:
        """The backend's name, as ``--launcher`` has it."""
        return self._NAME or type(self).__name__

    def validate_args(self) -> None:  # noqa: B027
        """Refuse by a ``ValueError`` what this backend cannot do."""

    @classmethod  # noqa: B027
    def validate_active_resources(cls, active_resources: Resources) -> None:
        """Refuse by a ``ValueError`` slots that this backend cannot choose."""

    def _values(self) -> dict[str, str]:
        """The exports without the quotes that :meth:`add_export` added."""
        return {name: value[1:-1] if value.startswith('"') else value for name, value in self.exports.items()}

    def _launcher_args(self) -> list[str]:
        return split(self.args.launcher_args)


# -- one agent on each node --------------------------------------------------------------------------

_TRAVELLING = "LC_BIREME_EXPORTS"
_NOT_FOR_AGENTS = ("help", "master_addr", "master_port", "save_pid")
_AGENT_OPTIONS = tuple(
    option
    for title, options in select("agent").items()
    for option in options
    if title != "world" and option.dest not in _NOT_FOR_AGENTS
)
_BEYOND_REAL_PIDS = 100_000_000
_RANK_BY_PDSH = "%n"


class _AgentRunner(MultiNodeRunner):
    """Starts an agent on each node through a shell there."""

    def __init__(self, args: Namespace, world_info_base64: str) -> None:
        super().__init__(args, world_info_base64)
        own_pid = bool(getattr(args, "save_pid", False))
        # Unless the user is to find the job by our pid, the number must differ from that of any other job on the nodes.
        self._pid_number = os.getpid() if own_pid else _BEYOND_REAL_PIDS + secrets.randbelow(_BEYOND_REAL_PIDS)

    def parse_user_args(self) -> list[str]:
        """The script's arguments, quoted for the remote shell."""
        return list(map(quote, self.args.user_args))

    def _agent_words(self, first_host: str, rank: str) -> list[str]:
        """The agent's command line, quoted for the remote shell."""
        addr = self.args.master_addr or first_host.rpartition("@")[2]
        words = [sys.executable, "-u", *isolated.command("bireme.agent", f"--world_info={self.world_info_base64}")[1:]]
        words += [f"--node_rank={rank}", f"--master_addr={addr}", f"--master_port={self.args.master_port}"]
        words += [f"--save_pid={self._pid_number}", *self._options()]
        return [*map(quote, words), quote(self.user_script), *self.user_arguments]

    def _options(self) -> Iterator[str]:
        """The agent's options that the user gave."""
        for option in _AGENT_OPTIONS:
            value = getattr(self.args, option.dest, None)
            if option.kind == "flag":
                if value:
                    yield option.name
            elif value not in (None, "", "None", (), option.default):
                yield f"{option.name}={value}"

    def _send_exports(self, environment: Environment) -> list[str]:
        """Put the exports into ssh's environment; return the beginning of the remote command line."""
        where = ["cd", quote(os.path.abspath(".")), "&&", "exec"]
        if not self.exports:
            return where
        environment[_TRAVELLING] = "; ".join(f"export {name}={quote(val)}" for name, val in self._values().items())
        what = f"${{{_TRAVELLING}:?the ssh server does not accept variables named LC_*}}"
        return ["eval", f'"{what}"', "&&", "unset", _TRAVELLING, "&&", *where]

    def _ssh_words(self) -> list[str]:
        """The option of ssh that lets the exports through."""
        return ["-o", f"SendEnv={_TRAVELLING}"] if self.exports else []

    def _kill_line(self) -> str:
        """A shell command for each node that sends SIGTERM to this job's agent, which then ends its ranks."""
        path = os.path.join(PID_FILE_BASEPATH, f"{self._pid_number}.deepspeed")
        return f'[ ! -O {path} ] || kill -TERM "$(cat {path})"'


class PDSHRunner(_AgentRunner):
    """One agent on each node, by pdsh.

    When pdsh is killed it leaves everything running on the nodes, so the caller then has to run the second command of
    ``get_cmd``. This searches for no processes by name: it sends SIGTERM to the process in this job's own pid file on
    each node. The file exists as long as the agent does; without it the command does nothing. (``bireme run`` does not
    need this: its agents end when their channel closes.)
    """

    _NAME = _PROGRAM = "pdsh"

    def get_cmd(self, environment: Environment, active_resources: Resources) -> Commands:
        """Return (command, command that ends what it started, ``environment``)."""
        environment["PDSH_RCMD_TYPE"] = "ssh"
        hosts = list(active_resources)
        pdsh = ["pdsh", "-S", "-f", str(PDSH_MAX_FAN_OUT), "-w", ",".join(hosts), *self._launcher_args()]
        shell = self._send_exports(environment)
        port = ["-p", str(self.args.ssh_port)] if self.args.ssh_port is not None else []
        if ssh_words := [*port, *self._ssh_words()]:
            before = environment.get("PDSH_SSH_ARGS_APPEND", "")
            environment["PDSH_SSH_ARGS_APPEND"] = " ".join([before, *ssh_words]).strip()
        words = [*shell, *self._agent_words(hosts[0], _RANK_BY_PDSH)]
        # pdsh would expand other % sequences too.
        words = [word if word.endswith(f"={_RANK_BY_PDSH}") else word.replace("%", "%%") for word in words]
        return [*pdsh, *words], [*pdsh, self._kill_line()], environment


class SSHRunner(_AgentRunner):
    """One agent on each node, by an ssh for each; not a class of DeepSpeed.

    The command ends when all nodes have ended, with the exit code of the first failed node in their order.
    """

    _NAME = _PROGRAM = "ssh"

    def get_cmd(self, environment: Environment, active_resources: Resources) -> Commands:
        """Return (command, command that ends what it started, ``environment``)."""
        hosts = list(active_resources)
        shell = self._send_exports(environment)
        lines = [" ".join([*shell, *self._agent_words(hosts[0], str(rank))]) for rank in range(len(hosts))]
        return self._all_at_once(hosts, lines), self._all_at_once(hosts, [self._kill_line()] * len(hosts)), environment

    def _all_at_once(self, hosts: list[str], lines: list[str]) -> list[str]:
        extra = (*self._ssh_words(), *self._launcher_args())
        started, pids = [], []
        for place, (target, line) in enumerate(zip(hosts, lines, strict=True)):
            user, _, host = target.rpartition("@")
            to = (HostLaunch(name=host, user=user or None),)
            plan = LaunchPlan(hosts=to, agent=("sh", "-c", line), extra=extra, ssh_port=self.args.ssh_port)
            (words,) = ssh.BACKENDS["ssh"].commands(plan, {})
            started.append(f"{join(words)} & p{place}=$!")
            pids.append(f"$p{place}")
        trap = f"trap 'kill {' '.join(pids)}' HUP INT TERM"
        waits = [f"wait {pid} || code=${{code:-$?}}" for pid in pids]
        return ["sh", "-c", "; ".join([*started, trap, *waits, "exit ${code:-0}"])]


# -- mpirun or srun starts every rank ----------------------------------------------------------------


class _EngineRunner(MultiNodeRunner):
    """``mpirun`` or ``srun`` starts every rank; ``resource_pool`` is host → number of slots."""

    _PROGRAM = "mpirun"

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64)
        self.resource_pool = resource_pool

    def validate_args(self) -> None:
        """Refuse filters."""
        if self.args.include != "" or self.args.exclude != "":
            raise ValueError(f"{self.name} cannot include or exclude nodes or slots (bireme run can)")
        if self.args.num_nodes != -1 or self.args.num_gpus != -1:
            raise ValueError(f"{self.name} cannot limit the number of nodes or slots (bireme run can)")

    def get_cmd(self, environment: Environment, active_resources: Resources) -> list[str]:
        """Return the command. The engine passes its whole environment on, with the exports in it."""
        environment.update(self._values())
        return self._command(active_resources)

    @abstractmethod
    def _command(self, active_resources: Resources) -> list[str]:
        """The command, given host → slots."""

    def _ranks_per_node(self) -> int:
        each, *others = set(self.resource_pool.values())
        if others:
            raise ValueError(f"{self.name} needs the same number of slots on every node (bireme run does not)")
        return each

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

    def _program(self) -> list[str]:
        """The command line of a rank."""
        python = [] if self.args.no_python else [sys.executable, "-u", *(["-m"] if self.args.module else [])]
        return [*python, self.user_script, *self.user_arguments]


class OpenMPIRunner(_EngineRunner):
    """Every rank by Open MPI's ``mpirun``; ranks find their numbers in ``OMPI_COMM_WORLD_RANK`` and so on."""

    _NAME = "openmpi"
    _PROGRAM = "ompi_info"
    _EXPORTS: ClassVar = {"UCX_TLS": "tcp"}

    def _command(self, active_resources: Resources) -> list[str]:
        """TCP traffic uses ``eth0`` unless ``--launcher_args`` names interfaces."""
        extra = self._launcher_args()
        chosen = any(flag in ("-mca", "--mca") and key == "btl_tcp_if_include" for flag, key in pairwise(extra))
        interface = [] if chosen else ["--mca", "btl_tcp_if_include", "eth0"]
        exported = [word for name in self.exports for word in ("-x", name)]
        head = ["mpirun", "-n", str(self._world_size()), "-hostfile", str(self.args.hostfile)]
        head += ["--mca", "btl", "^openib"]
        return [*head, *interface, *extra, *exported, *self._program()]


class MPICHRunner(_EngineRunner):
    """Every rank by MPICH's ``mpirun``, through a helper that sets ``RANK`` and ``LOCAL_RANK``."""

    _NAME = "mpich"

    def _command(self, active_resources: Resources) -> list[str]:
        count = ["-n", str(self._world_size()), "-ppn", str(self._ranks_per_node())]
        words = isolated.command("bireme.deepspeed.launcher_helper", "--launcher", self.name)
        helper = [sys.executable, "-u", *words[1:]]
        how = ["--no_python"] if self.args.no_python else ["--module"] if self.args.module else []
        program = [self.user_script, *self.user_arguments]
        return ["mpirun", *count, *self._launcher_args(), *self._protocol(), *self._hosts(), *helper, *how, *program]


class IMPIRunner(_EngineRunner):
    """Every rank by Intel MPI's ``mpirun``, each in its own section of the command with its own ``RANK``."""

    _NAME = "impi"

    def _command(self, active_resources: Resources) -> list[str]:
        """With ``--bind_cores_to_rank``, numactl binds each rank on its node."""
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
        any_core = range(1 << 16)  # the cores of the nodes are not known here
        listed = self.args.bind_core_list
        return split_cores(parse_core_list(listed, any_core) if listed else physical_cores(allowed_cores()), ranks)


class SlurmRunner(_EngineRunner):
    """Every rank by ``srun``, which gets the number of ranks and the nodes."""

    _NAME = "slurm"
    _PROGRAM = "sinfo"

    def validate_args(self) -> None:
        """Accept filters; :meth:`validate_active_resources` checks that they leave whole nodes."""

    @classmethod
    def validate_active_resources(cls, active_resources: Resources) -> None:
        """Refuse chosen slots and different numbers of slots: ``srun`` only takes a number of tasks per node."""
        counts = {}
        for host, slots in _slots_of(active_resources).items():
            if slots != list(range(len(slots))):
                what = f"slurm cannot choose specific device ids: {slots} on {host}"
                raise ValueError(f"{what} (bireme run can; else filter whole nodes, or keep each node's first slots)")
            counts[host] = len(slots)
        if len(set(counts.values())) > 1:
            raise ValueError(f"slurm needs the same slot count on every node, not {counts} (bireme run does not)")

    def _command(self, active_resources: Resources) -> list[str]:
        self.validate_active_resources(active_resources)
        slots = _slots_of(active_resources)
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
    """Every rank by MVAPICH2's ``mpirun``, with DeepSpeed's settings."""

    _NAME = "mvapich"
    _EXPORTS: ClassVar = {
        "MV2_SMP_USE_CMA": "0",  # a kernel module that Ubuntu does not have
        "MV2_DEBUG_SHOW_BACKTRACE": "1",
        "MV2_SUPPORT_DL": "1",
        "MV2_ENABLE_AFFINITY": "0",  # required by MPI_THREAD_MULTIPLE
        "MV2_INTER_ALLGATHER_TUNING": "5",
        "MV2_CUDA_USE_NAIVE": "0",
    }

    def __init__(self, args: Namespace, world_info_base64: str, resource_pool: Mapping[str, int]) -> None:
        super().__init__(args, world_info_base64, resource_pool)
        if get_accelerator().device_name() == "cuda":
            self.add_export("MV2_USE_CUDA", "1")

    def backend_exists(self) -> bool:
        """Whether ``mpiname`` reports MVAPICH; warns if it does not."""
        if not which("mpiname"):
            warnings.warn("mpiname not found on PATH: MVAPICH is not installed", stacklevel=2)
            return False
        found = subprocess.check_output(["mpiname"]).decode(errors="replace").strip()
        if "MVAPICH" not in found:
            warnings.warn(f"mpiname should report MVAPICH2-GDR or another MVAPICH, but reports {found}", stacklevel=2)
        return "MVAPICH" in found

    def _command(self, active_resources: Resources) -> list[str]:
        """It lists the hosts: DeepSpeed's hostfile in /tmp is shared by all users and jobs."""
        count = ["-np", str(self._world_size()), "-ppn", str(self._ranks_per_node())]
        return ["mpirun", *count, *self._hosts(), *self._launcher_args(), *self._program()]


def _slots_of(active_resources: Resources) -> dict[str, list[int]]:
    """The slots of each host; a number N stands for the first N."""
    return {
        host: list(range(slots)) if isinstance(slots, int) else list(slots) for host, slots in active_resources.items()
    }
