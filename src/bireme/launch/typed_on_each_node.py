"""Finds one node's part of a job whose command is typed on each node as for torchrun, without a list of nodes.

Either the command has the number of the node (``--nnodes 2 --node_rank 0 --master_addr A``), or PyTorch numbers the
nodes (``--nnodes 2 --rdzv_endpoint A:P``). Every node has as many slots as this one. PyTorch's agent starts the ranks
if it numbers the nodes, or if the job may be restarted: one node alone cannot restart the others.
"""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.launch import one_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec
    from bireme.resources.pool import Pool


def part(spec: JobSpec, environ: Mapping[str, str]) -> tuple[JobSpec, Pool, int]:
    """This node's part: the job as this node carries it out, the slots of all nodes, and the number of this one.

    Raises:
        BadInputError: a filter or ``--num_gpus`` asks for slots that this machine does not have, or there is no node
            of that number.
    """
    slots = one_machine.own_slots(spec, environ)
    least, most = (spec.min_nodes, spec.max_nodes) if spec.elastic else (spec.num_nodes, spec.num_nodes)
    assert least is not None
    spec = spec.replace(include="", exclude="", num_gpus=None, num_nodes=None, by_hand=True)
    if spec.rendezvous == "static" and not spec.restarts:
        number = spec.node_rank
        if number is None or not 0 <= number < least:
            raise BadInputError(f"no such node: {number}", hint=f"expected 0 to {least - 1}", where="--node_rank")
        spec = spec.replace(run_id=spec.run_id or "none")  # the same on every node, and torchrun's default
        return spec, {f"node{place}": slots for place in range(least)}, number
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
    return spec, {one_machine.HOST: slots}, 0
