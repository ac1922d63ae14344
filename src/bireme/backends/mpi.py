"""The ``mpirun`` of four MPIs: it starts one agent on each node, and the agents connect to the runner."""

from __future__ import annotations

from bireme.backends.base import Backend, joined, ssh_options
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.backends.base import LaunchPlan


class OpenMpi(Backend):
    """Open MPI's ``mpirun`` (versions 4 and 5)."""

    NAME = "openmpi"
    PROGRAMS = ("mpirun.openmpi", "mpirun")
    ADVICE = (
        (
            "does not know how to route a message",
            "if the login shell there is csh: --launcher_args='--mca plm_rsh_assume_same_shell 0'",
        ),
    )
    SETS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_")

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by ``mpirun``, host by host."""
        exported = tuple(word for name in names for word in ("-x", name))
        return self._mpirun(plan, ranks, ("--map-by", "slot"), exported)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by one ``mpirun``, without binding: all ranks of a node would share the agent's core."""
        shape = ("--map-by", "ppr:1:node", "--bind-to", "none")
        # Agents change the directory themselves and report a missing one.
        return (self._mpirun(plan, (1,) * len(plan.hosts), shape, ("-x", self.TOKEN_VARIABLE, "--wdir", "/")),)

    def _mpirun(
        self, plan: LaunchPlan, processes: tuple[int, ...], shape: tuple[str, ...], more: tuple[str, ...]
    ) -> tuple[str, ...]:
        self.refuse(plan.hosts)
        hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, processes, strict=True))
        root = ("--allow-run-as-root",) if plan.root else ()
        head = (plan.program or "mpirun", *root, "-n", str(sum(processes)), "--host", hosts, *shape)
        return (*head, "--mca", "plm_rsh_args", " ".join(ssh_options(plan)), *more, *plan.extra, *plan.agent)


class Hydra(Backend):
    """Hydra, the process manager of MPICH and of Intel MPI."""

    SSH_ARGS: str
    """The variable with options for ssh, for which hydra has no argument."""
    BY_SSH: tuple[str, ...]
    """Its name, if it was not looked up, and the arguments that make it use ssh, even inside an allocation."""
    UNBOUND: tuple[str, ...]
    """The arguments that let an agent use the whole node."""
    SETTINGS: tuple[str, ...] = ()
    """Variables for the start of agents, as ``NAME=VALUE``."""

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``mpiexec``, without binding. It refuses the same hosts as `native`."""
        self.refuse(plan.hosts)
        hosts = ",".join(host.target for host in plan.hosts)
        # Global options come first: hydra ignores them after -n, or applies them to one executable only.
        shape = ("-hosts", hosts, "-ppn", "1", *self.UNBOUND, "-genvlist", self.TOKEN_VARIABLE)
        head = self._head(plan, environ, *self.SETTINGS)
        return ((*head, *shape, *plan.extra, "-n", str(len(plan.hosts)), *plan.agent),)

    def _head(self, plan: LaunchPlan, environ: Mapping[str, str], *settings: str) -> tuple[str, ...]:
        """The program with its settings in the environment."""
        args = f"{environ.get(self.SSH_ARGS, '')} {joined(ssh_options(plan))}".strip()
        name, *by_ssh = self.BY_SSH
        return ("env", f"{self.SSH_ARGS}={args}", *settings, plan.program or name, *by_ssh)


class Mpich(Hydra):
    """MPICH's ``mpirun``."""

    NAME = "mpich"
    # Hydra waits forever for a node that ssh could not reach.
    FAILED = (
        r"ssh: (?:connect to host|Could not resolve hostname) ([^\s:]+)",
        r"^\[proxy:[^\s@]+@([^\s\]]+)\] .*execvp error",
        r"PID \d+ RUNNING AT (\S+)",  # its agent was killed
    )
    PROGRAMS = ("mpiexec.mpich", "mpirun.mpich", "mpiexec.hydra", "mpirun")
    SETS = ("PMI_", "PMIX_", "MPIR_", "MPI_LOCAL", "HYDRA_", "HYDI_", "MPICH_INTERFACE", "GFORTRAN_")
    SSH_ARGS = "HYDRA_LAUNCHER_EXTRA_ARGS"
    BY_SSH = ("mpiexec", "-launcher", "ssh")
    # Agents change the directory themselves and report a missing one; hydra would only fail.
    UNBOUND = ("-bind-to", "none", "-wdir", "/")

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by hydra, host by host. A host with its own port or an IPv6 address is refused."""
        self.refuse(plan.hosts)
        hosts = ",".join(f"{host.target}:{count}" for host, count in zip(plan.hosts, ranks, strict=True))
        # No -genvlist: hydra 4.0 loses variables of a longer list. Without it, hydra exports its whole environment.
        return (*self._head(plan, {}), "-hosts", hosts, *plan.extra, "-n", str(sum(ranks)), *plan.agent)


class IntelMpi(Hydra):
    """Intel MPI's ``mpiexec.hydra`` (2019 and later)."""

    NAME = "impi"
    PROGRAMS = ("mpiexec.hydra", "mpirun")
    """``mpirun`` is a script around ``mpiexec.hydra``, so it is second: a signal would end only the script."""
    # Not all of I_MPI_: I_MPI_ROOT and I_MPI_FABRICS are settings of the user.
    SETS = (
        *("PMI_", "PMIX_", "MPI_LOCAL", "HYDRA_", "HYDI_", "GFORTRAN_UNBUFFERED_PRECONNECTED", "I_MPI_BIND_"),
        *("I_MPI_HYDRA_", "I_MPI_INFO_", "I_MPI_INTERNAL_", "I_MPI_MPIRUN", "I_MPI_PIN", "I_MPI_RETURN_"),
    )
    SSH_ARGS = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"
    BY_SSH = ("mpiexec.hydra", "-bootstrap", "ssh")
    # Agents change the directory themselves and report a missing one; hydra would use the home directory.
    UNBOUND = ("-wdir", "/", "-genv", "I_MPI_PIN", "0")
    # We set the number of processes per node, not the scheduler.
    SETTINGS = ("I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0",)

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by hydra, host by host, bound as Intel MPI decides. Hydra exports its whole environment."""
        self.refuse(plan.hosts)
        # Each host once per rank: Intel's hydra ignores the number in node1:2.
        hosts = ",".join(host.target for host, count in zip(plan.hosts, ranks, strict=True) for _ in range(count))
        head = self._head(plan, {})
        return (*head, "-hosts", hosts, "-ppn", "1", *plan.extra, "-n", str(sum(ranks)), *plan.agent)


_KEPT = (
    *("HOME", "KRB5CCNAME", "LANG", "LOGNAME", "PATH", "SHELL", "SSH_AUTH_SOCK", "TMPDIR", "USER"),
    Backend.TOKEN_VARIABLE,
)
_KEPT_PREFIXES = ("LC_", "LD_", "MV2_", "MPIEXEC_")


class Mvapich(Backend):
    """MVAPICH2's ``mpirun_rsh`` (to version 3).

    MVAPICH 4 has hydra instead: use ``--launcher mpich`` for it.

    ``mpirun_rsh`` puts each ``NAME=VALUE`` into the arguments of its ssh, where everybody can read it. So the token is
    sent by ``-export``, which sends the whole environment through a socket, except variables that a node already has.
    All variables that neither ssh nor ``mpirun_rsh`` needs are therefore removed first: the list of visible devices of
    this machine, for example, is wrong on the nodes.
    """

    NAME = "mvapich"
    PROGRAMS = ("mpirun_rsh",)
    # Not all of MV2_: users configure the library by these.
    SETS = (
        *("MV2_COMM_WORLD_", "MV2_NODE_ID", "MV2_NUM_NODES_IN_JOB", "MV2_XRC_FILE", "MPIRUN_", "MPISPAWN_"),
        *("MPDMAN_", "PMI_", "USE_LINEAR_SSH", "USE_TOTALVIEW", "NOT_USE_TOTALVIEW"),
    )

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by ``mpirun_rsh``, host by host; it exports the whole environment or nothing."""
        hosts = tuple(host for host, count in zip(self._hosts(plan), ranks, strict=True) for _ in range(count))
        return (*_mpirun_rsh(plan, len(hosts)), *hosts, *plan.agent)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``mpirun_rsh``, in an environment that may be exported."""
        withheld = sorted(name for name in environ if name not in _KEPT and not name.startswith(_KEPT_PREFIXES))
        unset = tuple(word for name in withheld for word in ("-u", name))
        hosts = self._hosts(plan)
        return (("env", *unset, *_mpirun_rsh(plan, len(hosts)), *hosts, *plan.agent),)

    def _hosts(self, plan: LaunchPlan) -> tuple[str, ...]:
        self.refuse(plan.hosts)
        if plan.ssh_port:
            hint = "add a Port line to ~/.ssh/config, or use --launcher ssh"
            raise BadInputError("mpirun_rsh has no option for the port of sshd", hint=hint, where="--launcher")
        return tuple(host.target for host in plan.hosts)


def _mpirun_rsh(plan: LaunchPlan, processes: int) -> tuple[str, ...]:
    # It uses ssh by default. The option for that is not given: it changed from -ssh to -launcher ssh.
    return (plan.program or "mpirun_rsh", "-np", str(processes), "-export", *plan.extra)


BACKENDS = {"openmpi": OpenMpi(), "mpich": Mpich(), "impi": IntelMpi(), "mvapich": Mvapich()}
