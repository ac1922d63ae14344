"""``--native_ranks``: the launcher (mpirun, srun) starts every rank itself, for programs that call MPI.

There are no agents and no channels. The launcher is the only process that Bireme watches, and its exit code is the
job's. A shim (:mod:`bireme.agent.native_rank`) sets the environment of each rank.
"""

from __future__ import annotations

import json
import os

from bireme.agent import sent_code
from bireme.backends import base, choice
from bireme.cluster import cluster_job
from bireme.cluster.cluster_job import LauncherCommands
from bireme.cluster.launcher_process import cancel
from bireme.errors import BadInputError
from bireme.job import DEFAULT_PORT
from bireme.launching import many_nodes
from bireme.launching.one_machine import LocalCrew
from bireme.one_node.examination import interpreter
from bireme.planning.start import NodePlan, StartPlan, WorkerPlan, worker_argv
from bireme.resources import devices, program
from bireme.runner import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.cluster.node_selection import Nodes
    from bireme.job import JobSpec
    from bireme.planning.start import Sketch
    from bireme.resources.pool import Pool
    from bireme.result.outcome import Outcome

_FAREWELL = 15.0
"""Seconds between SIGTERM and SIGKILL for a launcher whose runner was killed: it has to end ranks on other machines."""


def run(spec: JobSpec, environ: Mapping[str, str], nodes: Nodes, launcher: str) -> Outcome:
    """Run the launcher to its end."""
    backend = choice.load(launcher)
    executable = backend.find_program(environ, spec.launcher_args)
    found_exports = cluster_job.what_travels(spec, environ)
    exported = found_exports.variables
    allocation = cluster_job.new_allocation(backend, environ, spec.job_name)
    argv = command(spec, environ, nodes, launcher, executable, allocation)
    worker = WorkerPlan(rank=0, local_rank=0, slot=launcher, argv=argv, env={"TORCHELASTIC_ERROR_FILE": os.devnull})
    job_id, runner = f"bireme-{os.urandom(6).hex()}", os.getpid()
    node = NodePlan(
        host=launcher,
        node_rank=0,
        cwd=os.getcwd(),
        env={"BIREME_JOB": job_id},
        error_dir="",
        workers=(worker,),
    )
    plan = StartPlan(
        job_id=job_id,
        accelerator="cpu",
        world_size=1,
        master_addr="",
        master_port=0,
        nodes=(node,),
    )
    # exported variables first: see the note on hydra in bireme.cluster.cluster_job
    inherited = {**exported, **environ, **exported}

    def give_back() -> None:
        if allocation:
            cancel((*backend.CANCEL_NAMED, allocation))

    outcome = session.run(
        spec.replace(output="raw", fold=False),
        found_exports.notes(),
        lambda crew_session: LocalCrew(
            crew_session,
            plan,
            node,
            inherited,
            at_loss=lambda: give_back() if os.getpid() != runner else None,
            farewell=_FAREWELL if backend.CANCEL_NAMED else 0.0,
        ),
    )
    if any(end.by_signal for end in outcome.ends):  # it could not give its allocation back
        give_back()
    return outcome


def preview(
    spec: JobSpec, environ: Mapping[str, str], nodes: Nodes, launcher: str
) -> tuple[Sketch, LauncherCommands | None]:
    """The plan as far as it is known before the launcher runs, and its command line."""
    sketch = many_nodes.plan(spec, nodes)
    return sketch, LauncherCommands.of((command(spec, environ, nodes, launcher),))


def command(
    spec: JobSpec,
    environ: Mapping[str, str],
    nodes: Nodes,
    launcher: str,
    executable: str = "",
    allocation: str | None = None,
) -> tuple[str, ...]:
    """The launcher's command line.

    Args:
        allocation: the name for the allocation that it makes; ``None``: the command line is only shown.
    """
    backend = choice.load(launcher)
    if not backend.starts_ranks:
        hint = "use --launcher openmpi, mpich, impi, mvapich or slurm"
        raise BadInputError(f"{launcher} cannot start ranks itself", hint=hint, where="--native_ranks")
    world = nodes.world(spec, "--native_ranks")
    names = cluster_job.what_travels(spec, environ).variables
    if allocation is None:
        allocation = cluster_job.new_allocation(backend, environ, spec.job_name, dry=True)
    hosts = tuple(base.HostLaunch(name=entry.name, user=entry.user, port=entry.port) for entry in nodes.entries)
    shim = rank_command(spec, environ, world)
    launch = cluster_job.launch_plan(spec, hosts, shim, allocation, program=executable)
    argv = backend.native(launch, tuple(len(slots) for slots in world.values()), tuple(names))
    base.check_length(launcher, (argv,), environ)
    return argv


def rank_command(spec: JobSpec, environ: Mapping[str, str], world: Pool) -> tuple[str, ...]:
    """What the launcher executes for every rank: the shim, its plan as JSON, and the program's command line."""
    if spec.python is not None and "{host}" in spec.python:
        what, hint = "one command starts the ranks of all nodes", "name a path that is the same on every node"
        raise BadInputError(f"with --native_ranks {{host}} is not replaced: {what}", hint=hint, where=spec.python_from)
    python, _, _ = interpreter(spec, environ)
    flag = program.check(spec, environ)
    argv = worker_argv(spec.program, python, local_rank=f"{flag}={{local_rank}}" if flag else "", wrap=spec.wrap)
    kind = spec.accelerator if spec.accelerator not in ("auto", "cpu") else "cuda"
    plan = {
        "world": list(world.items()),
        "variables": [] if spec.accelerator == "cpu" else devices.visible_variables(kind),
        "job": {
            "ROLE_NAME": spec.role,
            "TORCHELASTIC_RUN_ID": spec.run_id or "none",  # torchrun's default
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        },
        "addr": spec.master_addr or next(iter(world)),
        "port": spec.master_port or DEFAULT_PORT,
        "place": argv.index(f"{flag}={{local_rank}}") if flag else -1,
    }
    text = json.dumps(plan, separators=(",", ":"))
    return sent_code.command("native", text, *argv, python=sent_code.python_words(spec))
