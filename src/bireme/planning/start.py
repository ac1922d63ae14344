"""Makes the start plan: which rank runs where, with which command and environment.

Pure: the immutable :class:`StartPlan` follows from the job, its slots and the facts about the nodes. Making it starts
no process and reads no files.
"""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.planning.environment import is_mig, node_environment, rank_environment, visible_devices
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bireme.job import JobSpec, Program
    from bireme.planning.environment import JobFacts, NodeFacts
    from bireme.resources.pool import Pool


class WorkerPlan(Value):
    """The plan of one rank.

    Attributes:
        env: the variables that are set for it, in addition to those of its node.
        cores: the cores that it is bound to; empty: it is not bound.
    """

    rank: int
    local_rank: int
    slot: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cores: tuple[int, ...] = ()


class NodePlan(Value):
    """The plan of one node.

    Attributes:
        env: the variables that are set for all of its ranks, in addition to the inherited ones.
        error_dir: the folder of the ranks' error files; "": they have none.
        preload: the modules that a template imports for them.
    """

    host: str
    node_rank: int
    cwd: str
    env: Mapping[str, str]
    error_dir: str
    workers: tuple[WorkerPlan, ...]
    interpreter: str = ""
    preload: tuple[str, ...] = ()


class StartPlan(Value):
    """The plan of the whole job.

    Attributes:
        job_id: the id of the job, in the marks of its processes.
        nodes: the plans of the nodes, in the order of the pool, by which the ranks are numbered.
        local_rank_flag: the option that was added to the script's arguments; "": none.
    """

    job_id: str
    accelerator: str
    world_size: int
    master_addr: str
    master_port: int
    nodes: tuple[NodePlan, ...]
    local_rank_flag: str = ""


class Sketch(Value):
    """A plan that makes its nodes on demand: 100,000 nodes at once would take a gigabyte.

    Attributes:
        head: the plan without its nodes.
        part: makes the nodes from a first number up to, but not including, a second.
    """

    head: StartPlan
    ranks: tuple[int, ...]
    part: Callable[[int, int], Iterator[NodePlan]]

    @classmethod
    def of(cls, plan: StartPlan) -> Sketch:
        """The sketch of a complete plan."""
        ranks = tuple(len(node.workers) for node in plan.nodes)
        return cls(plan.replace(nodes=()), ranks, lambda first, end: iter(plan.nodes[first:end]))

    def whole(self) -> StartPlan:
        """The plan with all its nodes."""
        return self.head.replace(nodes=tuple(self.part(0, len(self.ranks))))


def start_plan(spec: JobSpec, active: Pool, job: JobFacts, nodes: Mapping[str, NodeFacts]) -> StartPlan:
    """Number the ranks and give each its command and environment.

    Args:
        active: host → slot ids, after the filters, in the order of the pool.
        nodes: the facts about the hosts in ``active``; a node that plans for itself has only its own.
    """
    return sketch(spec, active, job, nodes.get).whole()


def sketch(spec: JobSpec, active: Pool, job: JobFacts, facts: Callable[[str], NodeFacts | None]) -> Sketch:
    """Make a plan whose nodes are made on demand; a node without facts has no plan."""
    head = StartPlan(
        job_id=job.job_id,
        accelerator=job.accelerator,
        world_size=_world_size(spec, active),
        master_addr=job.master_addr,
        master_port=job.master_port,
        nodes=(),
        local_rank_flag=job.local_rank_flag,
    )

    def part(first: int, end: int) -> Iterator[NodePlan]:
        first_rank = 0
        for node_rank, (host, slots) in enumerate(active.items()):
            known = facts(host) if first <= node_rank < end else None
            if known is not None:
                place = {"node_rank": node_rank, "nodes": len(active), "world_size": head.world_size}
                env = node_environment(spec, job, known, slots, host=host, **place)
                yield _node_plan(spec, job, known, slots, node_rank, first_rank, env)
            first_rank += len(slots)

    return Sketch(head, tuple(map(len, active.values())), part)


def _world_size(spec: JobSpec, active: Pool) -> int:
    """The number of ranks; raises BadInputError if ``--wrap_ranks`` or ``--stdin`` names another rank."""
    world_size = sum(len(slots) for slots in active.values())
    named = [("--wrap_ranks", rank) for rank in spec.wrap_ranks if not spec.elastic]  # a later epoch may have it
    if spec.stdin not in ("", "all", "none"):
        named.append(("--stdin", int(spec.stdin)))
    for option, rank in named:
        if not 0 <= rank < world_size:
            what = f"no such rank: {rank} (the job has {world_size})"
            raise BadInputError(what, hint=f"use 0 to {world_size - 1}", where=option)
    return world_size


def _node_plan(
    spec: JobSpec,
    job: JobFacts,
    facts: NodeFacts,
    slots: tuple[str, ...],
    node_rank: int,
    first_rank: int,
    env: Mapping[str, str],
) -> NodePlan:
    error_dir = f"{facts.temporary}-{job.job_id}"
    workers = []
    for local_rank, slot in enumerate(slots):
        rank, seen_rank = first_rank + local_rank, 0 if spec.virtual_local_rank else local_rank
        wrapped = spec.wrap and (not spec.wrap_ranks or rank in spec.wrap_ranks)
        argv = worker_argv(
            spec.program,
            facts.interpreter,
            local_rank=f"{job.local_rank_flag}={seen_rank}" if job.local_rank_flag else "",
            wrap=_fill(spec.wrap, rank, local_rank, facts.hostname) if wrapped else (),
        )
        rank_env = rank_environment(rank, local_rank, error_dir=error_dir)
        if is_mig(slot) or spec.virtual_local_rank:
            rank_env.update(visible_devices(job, (slot,)))
        if spec.virtual_local_rank:
            rank_env["LOCAL_RANK"] = "0"
        cores = facts.bound[local_rank] if facts.bound else ()
        workers.append(WorkerPlan(rank=rank, local_rank=local_rank, slot=slot, argv=argv, env=rank_env, cores=cores))
    return NodePlan(
        host=facts.hostname,
        node_rank=node_rank,
        cwd=job.cwd,
        env=env,
        error_dir=error_dir,
        workers=tuple(workers),
        interpreter="" if spec.program.kind == "exec" else facts.interpreter,
        preload=spec.preload,
    )


def _fill(words: tuple[str, ...], rank: int, local_rank: int, host: str) -> tuple[str, ...]:
    """The wrapper's words with ``{rank}``, ``{local_rank}`` and ``{host}`` replaced; other braces stay."""
    names = {"{rank}": str(rank), "{local_rank}": str(local_rank), "{host}": host}
    filled = []
    for word in words:
        for name, text in names.items():
            word = word.replace(name, text)
        filled.append(word)
    return tuple(filled)


def worker_argv(
    program: Program, interpreter: str, *, local_rank: str = "", wrap: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The command line of one rank, as a list of words; no shell reads it.

    Python runs unbuffered (``-u``), as under DeepSpeed, so that the output of a rank appears at once although its
    stdout is a pipe.

    Args:
        local_rank: ``--local_rank=K``, put before the script's own arguments; "": leave it out.
        wrap: words to put in front (a profiler, a container, a debugger).
    """
    start: tuple[str, ...]
    if program.kind == "exec":
        start = (program.target,)
    elif program.kind == "function":
        start = (interpreter, "-u", "-c", program.target)
    elif program.kind == "module":
        start = (interpreter, "-u", "-m", program.target)
    else:
        # Python would take a name with a leading dash for an option
        target = f"./{program.target}" if program.target.startswith("-") else program.target
        start = (interpreter, "-u", target)
    rank_words = (local_rank,) if local_rank else ()
    return (*wrap, *start, *rank_words, *program.args)
