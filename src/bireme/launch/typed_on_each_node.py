"""Runs one node's part of a job whose command is typed on each node as for torchrun, without a list of nodes.

Either the command has the number of the node (``--nnodes 2 --node_rank 0 --master_addr A``), or PyTorch numbers the
nodes (``--nnodes 2 --rdzv_endpoint A:P``). Every node has as many slots as this one. PyTorch's agent starts the ranks
if it numbers the nodes, or if the job may be restarted: one node alone cannot restart the others.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.launch import one_machine, placement
from bireme.resources.starter import find_task
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec
    from bireme.planning.start import Sketch
    from bireme.resources.pool import Pool
    from bireme.result.outcome import Outcome


class _Part(Value):
    """This node's part: the job, the slots of all nodes, and the number of this one among them."""

    spec: JobSpec
    world: Pool
    node_rank: int


def applies(spec: JobSpec, environ: Mapping[str, str]) -> bool:
    """Whether this command starts only its own node's part of the job.

    It starts the whole job if there is a pool and the command has no node number. The exception is a command that
    ``srun`` or the like has started several times, as in ``srun torchrun --nnodes 2 --rdzv_endpoint A:P``.
    """
    if spec.rendezvous != "c10d":
        return spec.rendezvous == "static"
    if find_task(environ).tasks > 1:
        return True
    return placement.declared_pool(spec.replace(num_nodes=None), environ) is None


def run(spec: JobSpec, environ: Mapping[str, str]) -> Outcome:
    """Run this node's part and wait for its end.

    Raises:
        BadInputError: the job cannot run as described; nothing was started.
    """
    part = _part(spec, environ)
    main_pid = os.getpid() if spec.save_pid else None
    return one_machine.run_by_hand(part.spec, environ, part.world, part.node_rank, main_pid)


def plan(spec: JobSpec, environ: Mapping[str, str]) -> Sketch:
    """The plan of what :func:`run` would start.

    Raises:
        BadInputError: as :func:`run`.
    """
    from bireme.planning.start import Sketch

    part = _part(spec, environ)
    return Sketch.of(one_machine.prepare_node(part.spec, environ, part.world, part.node_rank).plan)


def _part(spec: JobSpec, environ: Mapping[str, str]) -> _Part:
    slots = one_machine.own_slots(spec, environ)
    least, most = (spec.min_nodes, spec.max_nodes) if spec.elastic else (spec.num_nodes, spec.num_nodes)
    assert least is not None
    spec = spec.replace(include="", exclude="", num_gpus=None, num_nodes=None, by_hand=True)
    if spec.rendezvous == "static" and not spec.restarts:
        number = spec.node_rank
        if number is None or not 0 <= number < least:
            raise BadInputError(f"no such node: {number}", hint=f"expected 0 to {least - 1}", where="--node_rank")
        spec = spec.replace(run_id=spec.run_id or "none")  # the same on every node, and torchrun's default
        return _Part(spec, {f"node{place}": slots for place in range(least)}, number)
    words = spec.torchrun_args if spec.log_dir is None else (*spec.torchrun_args, f"--log-dir={spec.log_dir}")
    spec = spec.replace(
        elastic=True,
        min_nodes=least,
        max_nodes=most,
        run_id=spec.run_id or "bireme",
        torchrun_args=words,
        log_dir=None,
        output="auto",
        local_ranks=(),
    )
    return _Part(spec, {one_machine.HOST: slots}, 0)
