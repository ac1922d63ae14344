"""Runs one node's part of a job whose command is typed on each node: with ``--no_ssh``, or as for torchrun.

Under torchrun there is no list of nodes. Either the command has the number of the node (``--nnodes 2 --node_rank 0
--master_addr A``), or PyTorch numbers the nodes (``--nnodes 2 --rdzv_endpoint A:P``). Every node has as many slots as
this one. PyTorch's agent starts the ranks if it numbers the nodes, or if the job may be restarted: one node alone
cannot restart the others.
"""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.launching import one_machine
from bireme.one_node.examination import short_hostname
from bireme.resources import devices
from bireme.resources.own_name import loopback_name, socket_interfaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec
    from bireme.launching.one_machine import Note
    from bireme.one_node.examination import Examination
    from bireme.planning.start import StartPlan
    from bireme.resources.pool import Pool
    from bireme.result.outcome import Outcome


def as_for_torchrun(spec: JobSpec, environ: Mapping[str, str]) -> tuple[JobSpec, Pool, int]:
    """This node's part: the job as this node carries it out, the slots of all nodes, and the number of this one."""
    slots, _ = one_machine.slots_left(spec, devices.discover(spec.accelerator, environ), one_machine.HOST)
    least, most = (spec.min_nodes, spec.max_nodes) if spec.elastic else (spec.num_nodes, spec.num_nodes)
    assert least is not None
    spec = spec.replace(include="", exclude="", num_gpus=None, num_nodes=None, by_hand=True)
    if spec.rendezvous == "static" and not spec.restarts:
        number = spec.node_rank
        if number is None or not 0 <= number < least:
            raise BadInputError(f"no such node: {number}", hint=f"expected 0 to {least - 1}", where="--node_rank")
        spec = spec.replace(run_id=spec.run_id or "none")  # the same on every node, and torchrun's default
        return spec, {f"node{place}": slots for place in range(least)}, number
    if spec.stdin not in ("", "none"):
        raise BadInputError("PyTorch's agent starts the ranks, and gives them no input", where="--stdin")
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


def run(spec: JobSpec, environ: Mapping[str, str], world: Pool, node_rank: int, main_pid: int | None) -> Outcome:
    """Run one node's part of a job and wait for its end."""
    _check_number(world, node_rank)

    def begin() -> Outcome:
        plan, inherited, notes = _plan(spec, environ, world, node_rank)
        return one_machine.run_part(spec, plan, inherited, notes, main_pid)

    return one_machine.blamed(list(world)[node_rank], begin)


def preview(spec: JobSpec, environ: Mapping[str, str], world: Pool, node_rank: int) -> StartPlan:
    """The plan of one node. That of an elastic job starts PyTorch's agent, which starts the ranks."""
    _check_number(world, node_rank)
    return _plan(spec, environ, world, node_rank)[0]


def _check_number(world: Pool, node_rank: int) -> None:
    if not 0 <= node_rank < len(world):
        raise BadInputError(
            f"no such node: {node_rank} (the job has {len(world)})",
            hint=f"expected 0 to {len(world) - 1}",
            where="--node_rank",
        )


def _plan(
    spec: JobSpec, environ: Mapping[str, str], world: Pool, node_rank: int
) -> tuple[StartPlan, Mapping[str, str], list[Note]]:
    """The plan, what its ranks inherit, and messages."""
    host = list(world)[node_rank]
    spec = spec.on_node(short_hostname() if spec.rendezvous else host)  # as under torchrun, the nodes have no names
    notes: list[Note] = []
    if spec.by_hand:
        first = node_rank == 0 and spec.rendezvous != "c10d"
        one_machine.check_address(spec.master_addr, notes, first=first, refuse=False)
    found = one_machine.examine_here(spec, environ, lambda _: (world[host], ()), notes)
    plan = one_machine.plan_part(spec, found, world, host, notes, declared=not spec.rendezvous)
    (node,) = plan.nodes
    if len(world) > 1 and loopback_name(found.environ):
        named = socket_interfaces(found.environ, plan.master_addr)
        plan = plan.replace(nodes=(node.replace(env={**node.env, **named}),))
    if spec.elastic:
        from bireme.planning.torchrun import by_torchrun

        _check_torch(found)
        notes.append(("info", "PyTorch's agent starts the ranks of this node, as under torchrun"))
        plan = by_torchrun(plan, spec, found.facts.interpreter, len(world))
    return plan, found.environ, notes


# Does not import torch, which takes seconds, nor look in the working directory.
_HAS_TORCH = (
    "import sys; sys.path[:] = filter(None, sys.path); import importlib.util as u; sys.exit(not u.find_spec('torch'))"
)


def _check_torch(found: Examination) -> None:
    """Refuse an interpreter that cannot be started, or does not have PyTorch."""
    import subprocess

    interpreter, null = found.facts.interpreter, subprocess.DEVNULL
    try:
        status = subprocess.call(
            (interpreter, "-c", _HAS_TORCH), env=dict(found.environ), stdin=null, stdout=null, stderr=null
        )
    except OSError as error:
        raise BadInputError(f"cannot start {interpreter}: {error.strerror}") from None
    if status:
        what = f"elastic training with --no_ssh requires PyTorch, which {interpreter} does not have"
        raise BadInputError(what, hint="install torch, or leave out --no_ssh")
