"""Slurm's ``srun``: starts one agent on each node of the allocation; agents connect to the runner."""

from __future__ import annotations

from bireme.backends.base import Backend
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bireme.backends.base import HostLaunch, LaunchPlan

_LONG = 1 << 16
"""Length from which a list of nodes is folded, in characters."""


class Slurm(Backend):
    """Slurm."""

    NAME = "slurm"
    PROGRAMS = ("srun",)
    # Variables of the step and the task; those of the job (SLURM_JOB_ID, SLURM_JOB_NODELIST, …) stay.
    SETS = (
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP"),
        *("SLURM_TASKS_PER_NODE", "SLURM_TASK_PID", "SLURM_GTIDS", "SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK"),
        *("SLURM_DISTRIBUTION", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM", "SLURM_UMASK", "PMI_", "PMIX_"),
        "PMI2_",
    )
    PROGRESS = r"^salloc: (?!error)"
    QUEUED = r"^salloc: (job \d+) queued and waiting for resources"
    FAILED = (r"^srun: error: (\S+): task \d+:",)
    CANCEL = ("scancel",)
    CANCEL_NAMED = ("scancel", "--name")
    OVER = (
        r"Slurm job \d+ has expired|Expired or invalid job \d+|Invalid job id|Job/step already completing or completed"
    )

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Start every rank by ``srun``, host by host. A rank that fails ends the others: not ``srun``'s default.

        Raises:
            BadInputError: the nodes have different numbers of ranks. ``--distribution=arbitrary`` would allow that, but
                under Slurm 22.05 MPICH then hangs in ``MPI_Finalize``.
        """
        self.refuse(plan.hosts, users=True)
        if len(set(ranks)) > 1:
            what = "srun starts the same number of ranks on every node"
            raise BadInputError(what, hint="use --num_gpus N or filters to make them equal", where="--native_ranks")
        nodes, name = _listed(plan.hosts), _name(plan.allocation or plan.job_name)
        head = (plan.program or "srun", f"--nodes={len(plan.hosts)}", f"--ntasks={sum(ranks)}")
        shape = (f"--ntasks-per-node={ranks[0]}", f"--nodelist={nodes}", "--distribution=block")
        return (*head, *shape, "--export=ALL", "--kill-on-bad-exit=1", *name, *plan.extra, *plan.agent)

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start the agents by a single ``srun``: one task per node with the whole node, without binding.

        Outside an allocation, ``salloc`` is put in front. ``srun --exclusive`` is not used: for a step it means
        "exactly the CPUs of its tasks", and a task of one CPU is pinned to it whatever ``--cpu-bind`` says. Without
        it, a step has all resources of the allocation.
        """
        self.refuse(plan.hosts, users=True)
        where = _where(plan.hosts)
        step = _step(plan, plan.hosts)
        if "SLURM_JOB_ID" in environ:
            return ((*step, *plan.extra, *plan.agent),)
        salloc = ("salloc", *where, "--exclusive", "--mem=0", *_name(plan.allocation))
        return ((*salloc, *plan.extra, *step, *plan.agent),)

    def one_by_one(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start each agent in a step of its own, in an allocation that survives lost nodes (``salloc --no-kill``)."""
        self.refuse(plan.hosts, users=True)
        if "SLURM_JOB_ID" not in environ:
            hint = "use salloc --no-kill --nodes=N bireme run …, or the same with sbatch"
            what = "elastic training needs an allocation that survives the loss of a node"
            raise BadInputError(what, hint=hint, where=self.NAME)
        return tuple((*_step(plan, (host,)), "--no-kill", *plan.extra, *plan.agent, host.name) for host in plan.hosts)


BACKENDS = {"slurm": Slurm()}


def _name(name: str) -> tuple[str, ...]:
    """Before the user's own arguments, so that a name there counts."""
    return (f"--job-name={name}",) if name else ()


def _where(hosts: Sequence[HostLaunch]) -> tuple[str, ...]:
    return f"--nodes={len(hosts)}", f"--nodelist={_listed(hosts)}"


def _listed(hosts: Sequence[HostLaunch]) -> str:
    """The list of nodes; a long one is folded as ``node[1-9]``, since the length of an argument is limited."""
    names = [host.name for host in hosts]
    listed = ",".join(names)
    if len(listed) < _LONG:
        return listed
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    folded = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
    folded.fold_axis = (-1,)  # not every Slurm supports sets with several ranges
    return str(folded)


def _step(plan: LaunchPlan, hosts: Sequence[HostLaunch]) -> tuple[str, ...]:
    """One task on each of these nodes; in an allocation of the user, only the step has the job's name."""
    return (
        *(plan.program or "srun", *_where(hosts), f"--ntasks={len(hosts)}", "--ntasks-per-node=1"),
        *("--overlap", "--cpu-bind=none", "--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--input=none"),
        *("--unbuffered", *_name(plan.job_name)),
        "--chdir=/",  # agents change the directory themselves and report a missing one
    )
