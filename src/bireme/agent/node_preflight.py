"""The preflight of one node, run by its agent: decides whether the node can run its part, and finds all problems."""

from __future__ import annotations

import os

from bireme.agent.facts import node_facts, short_hostname
from bireme.control.messages import Hello
from bireme.errors import BiremeError
from bireme.logs.rankfiles import prepare
from bireme.process import activation
from bireme.resources import devices, program, rendezvous_port
from bireme.resources.own_addresses import own_addresses
from bireme.resources.own_name import loopback_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from bireme.job import JobSpec


class NodePreflight:
    """Collects the facts about this node, and the problems that keep it from running its part.

    Args:
        own: the agent's environment.
        environ: what the ranks are to inherit.

    Attributes:
        found: fields of the message `Hello`.
        problems: messages; none if the node is fit.
        environ: what the ranks inherit, after ``--venv_script``.
        interpreter: the Python of the ranks; "": not known.
    """

    def __init__(self, spec: JobSpec, own: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._spec, self._own = spec, own
        self.environ = environ
        self.interpreter = ""
        self.problems: list[str] = []
        self.found: dict[str, Any] = {
            "hostname": short_hostname(),
            "addresses": own_addresses(),
        }

    def examine(self, cwd: str, slots: Sequence[str] | None, tasks: int) -> None:
        """Check everything but the port, and change to the working directory.

        Args:
            slots: those that the pool declares; ``None``: all that are found.
            tasks: the number of slots if none are declared and no device is shown; 0: the default.
        """
        try:
            os.chdir(cwd)
        except OSError as error:
            hint = (
                f"\n  {program.MISSING_THERE}" if isinstance(error, FileNotFoundError) and not self._spec.ship else ""
            )
            self.problems.append(f"cannot change to the working directory {cwd}: {error.strerror}{hint}")
        else:
            self._program()
        self._devices(slots, tasks)
        self.found["own_name"] = loopback_name(self.environ)

    def _program(self) -> None:
        spec, flag = self._spec, ""
        try:
            self.interpreter, self.environ = activation.interpreter(spec, self.environ)
        except BiremeError as error:
            self.problems.append(str(error))
            self.found["lacks_python"] = True
            return
        try:
            if spec.program.target:  # `bireme check` may have none
                flag = program.check(spec, self.environ, own_interpreter=activation.own_interpreter(spec), shared=True)
            if spec.rank_log_dir is not None:
                prepare(spec.rank_log_dir)
        except BiremeError as error:
            self.problems.append(str(error))
        version = activation.version_of(self.interpreter)
        self.found.update(interpreter=self.interpreter, python=version, local_rank_flag=flag)

    def _devices(self, slots: Sequence[str] | None, tasks: int) -> None:
        spec = self._spec
        try:
            there = devices.discover(spec.accelerator, self._own)
            filtered = bool(spec.include or spec.exclude)
            if slots is None and not filtered and spec.num_gpus is None:
                from bireme.resources import allocation  # a hostfile's node does without

                slots = allocation.slots_by_tasks(tasks, there.accelerator, self._own)
            mine = devices.remote_slots(there, slots, num_gpus=spec.num_gpus, filtered=filtered)
            facts = node_facts(spec, self._own, "", len(mine), "")
        except BiremeError as error:
            self.problems.append(str(error))
            return
        self.found.update(
            accelerator=there.accelerator,
            slots=tuple(mine),
            cores=facts.cores,
            bound=facts.bound,
            omp_threads_set=facts.omp_threads_set,
            temporary=os.path.dirname(facts.error_dir),
        )

    def listen(self) -> rendezvous_port.PortListener | None:
        """Lease the rendezvous port and listen there until the ranks start, so that other nodes can probe it."""
        try:
            named = self._spec.master_port
            lease = rendezvous_port.lease_named_port(named) if named else rendezvous_port.lease_port()[0]
            listener = rendezvous_port.PortListener(lease)
        except BiremeError as error:
            self.problems.append(str(error))
            self.found["port"] = 0
            return None
        self.found["port"] = lease.port
        return listener

    def hello(self) -> Hello:
        """The facts and problems as the answer to the runner."""
        return Hello(problems=tuple(self.problems), **self.found)
