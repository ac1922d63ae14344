"""The plan as data: which rank runs where, with which command and environment.

A pure function from the job, the active resources and the facts about the nodes to an immutable
:class:`StartPlan`; no process is started and nothing is looked up to make one.
"""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.planning.environment import is_mig, node_environment, rank_environment, visible_devices
from bireme.planning.rank_command import worker_argv
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


class NodeFacts(Value):
    """What only the node itself can tell, and what was decided from it.

    ``cores``: how many this process may use. ``bound``: the cores of each local rank, by local rank,
    or empty. ``omp_threads_set``: the user has chosen ``OMP_NUM_THREADS``. ``interpreter``: the Python that
    runs the ranks. ``error_dir``: where ranks leave their traceback.
    """

    hostname: str
    interpreter: str
    cwd: str
    cores: int
    error_dir: str
    bound: tuple[tuple[int, ...], ...] = ()
    omp_threads_set: bool = False


class JobFacts(Value):
    """What was found out once for the whole job.

    ``visible_variables``: the environment variables that bind devices. ``explicit_accelerator``: the user named
    it. ``local_rank_flag``: the flag by which the script wants its local rank, or empty.
    """

    job_id: str
    accelerator: str
    visible_variables: tuple[str, ...]
    explicit_accelerator: bool
    local_rank_flag: str
    master_addr: str
    master_port: int


class WorkerPlan(Value):
    """One rank: ``env`` holds what is set for it beyond its node's environment; ``cores`` empty: unbound."""

    rank: int
    local_rank: int
    slot: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cores: tuple[int, ...] = ()


class NodePlan(Value):
    """The ranks of one node. ``env`` is set on top of the inherited environment, for all of them."""

    host: str
    node_rank: int
    cwd: str
    env: Mapping[str, str]
    error_dir: str
    workers: tuple[WorkerPlan, ...]


class StartPlan(Value):
    """The whole job; ``nodes`` are in hostfile order, ranks count through them."""

    job_id: str
    accelerator: str
    world_size: int
    master_addr: str
    master_port: int
    nodes: tuple[NodePlan, ...]


class Sketch(Value):
    """A plan whose nodes are made when they are looked at: all of 100,000 would take a gigabyte.

    ``head``: the plan without its nodes. ``ranks``: how many each node has. ``part``: the nodes from one on, up to
    another.
    """

    head: StartPlan
    ranks: tuple[int, ...]
    part: Callable[[int, int], Iterator[NodePlan]]

    @classmethod
    def of(cls, plan: StartPlan) -> Sketch:
        """That of a plan which is there."""
        ranks = tuple(len(node.workers) for node in plan.nodes)
        return cls(plan.replace(nodes=()), ranks, lambda first, end: iter(plan.nodes[first:end]))

    def whole(self) -> StartPlan:
        """The plan with all its nodes."""
        return self.head.replace(nodes=tuple(self.part(0, len(self.ranks))))


def start_plan(spec: JobSpec, active: Pool, job: JobFacts, nodes: Mapping[str, NodeFacts]) -> StartPlan:
    """Number the ranks and give each its command and environment.

    Args:
        active: host → slot ids, after the filters, in hostfile order.
        nodes: the facts of the hosts in ``active`` (of one host only, when it plans for itself).

    Raises:
        BadInputError: ``--wrap_ranks`` names a rank that there is not.
    """
    world_size = _world_size(spec, active)
    made = tuple(_node_plans(spec, active, job, lambda _, host: nodes.get(host)))
    return StartPlan(job.job_id, job.accelerator, world_size, job.master_addr, job.master_port, made)


def sketch(spec: JobSpec, active: Pool, job: JobFacts, facts: Callable[[str], NodeFacts]) -> Sketch:
    """The same, as far as somebody looks at it; ``facts``: those of a host.

    Raises:
        BadInputError: as :func:`start_plan`.
    """

    def part(first: int, end: int) -> Iterator[NodePlan]:
        return _node_plans(spec, active, job, lambda number, host: facts(host) if first <= number < end else None)

    world_size = _world_size(spec, active)
    head = StartPlan(job.job_id, job.accelerator, world_size, job.master_addr, job.master_port, ())
    return Sketch(head, tuple(map(len, active.values())), part)


def _world_size(spec: JobSpec, active: Pool) -> int:
    """How many ranks there are; raises BadInputError where ``--wrap_ranks`` names another."""
    world_size = sum(len(slots) for slots in active.values())
    for rank in spec.wrap_ranks if not spec.elastic else ():  # there it may come yet
        if not 0 <= rank < world_size:
            raise BadInputError(
                f"there is no rank {rank}: the job has {world_size}",
                hint=f"0 to {world_size - 1}",
                where="--wrap_ranks",
            )
    return world_size


def _node_plans(
    spec: JobSpec, active: Pool, job: JobFacts, facts: Callable[[int, str], NodeFacts | None]
) -> Iterator[NodePlan]:
    """The nodes whose facts are known, by their number and name."""
    world_size = sum(map(len, active.values()))
    first_rank = 0
    for node_rank, (host, slots) in enumerate(active.items()):
        known = facts(node_rank, host)
        if known is not None:
            yield _node_plan(spec, job, known, slots, node_rank, len(active), first_rank, world_size, host)
        first_rank += len(slots)


def _node_plan(
    spec: JobSpec,
    job: JobFacts,
    facts: NodeFacts,
    slots: tuple[str, ...],
    node_rank: int,
    nodes: int,
    first_rank: int,
    world_size: int,
    host: str,
) -> NodePlan:
    env = node_environment(spec, job, facts, slots, node_rank=node_rank, nodes=nodes, world_size=world_size, host=host)
    workers = []
    for local_rank, slot in enumerate(slots):
        rank = first_rank + local_rank
        wrapped = spec.wrap and (not spec.wrap_ranks or rank in spec.wrap_ranks)
        argv = worker_argv(
            spec.program,
            facts.interpreter,
            local_rank=f"{job.local_rank_flag}={local_rank}" if job.local_rank_flag else "",
            wrap=_fill(spec.wrap, rank, local_rank, facts.hostname) if wrapped else (),
        )
        rank_env = rank_environment(rank, local_rank, error_dir=facts.error_dir)
        if is_mig(slot):
            rank_env.update(visible_devices(job, (slot,)))
        cores = facts.bound[local_rank] if facts.bound else ()
        workers.append(WorkerPlan(rank, local_rank, slot, argv, rank_env, cores))
    return NodePlan(facts.hostname, node_rank, facts.cwd, env, facts.error_dir, tuple(workers))


def _fill(words: tuple[str, ...], rank: int, local_rank: int, host: str) -> tuple[str, ...]:
    """The wrapper's words with ``{rank}``, ``{local_rank}`` and ``{host}`` replaced; other braces are its own."""
    names = {"{rank}": str(rank), "{local_rank}": str(local_rank), "{host}": host}
    filled = []
    for word in words:
        for name, text in names.items():
            word = word.replace(name, text)
        filled.append(word)
    return tuple(filled)
