"""Node probe: checks beside a running job, by a preflight, whether a node can take part.

It runs in its own process: a preflight is a session of its own, and a node that hangs must not delay the job.
"""

from __future__ import annotations

import json
import os
import sys

from bireme import isolated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from bireme.cluster.node_selection import DeclaredPool
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports


def words() -> tuple[str, ...]:
    """The command that probes: reads a `request` from stdin, and prints ``{"there": true}`` or ``{"why": REASON}``."""
    return isolated.command("bireme.elastic.node_probe")


def request(spec: JobSpec, pool: DeclaredPool, name: str, accelerator: str, exports: Exports) -> dict[str, object]:
    """The request to probe one node.

    Args:
        accelerator: the kind of device that the job runs on; "": not known yet.
    """
    part = pool.replace(entries=tuple(entry for entry in pool.entries if entry.name == name))
    return {
        "spec": spec.as_dict(),
        "pool": part.as_dict(),
        "accelerator": accelerator,
        "variables": dict(exports.variables),
        "parent": os.getpid(),
    }


def main() -> None:
    """Answer one request."""
    from bireme.backends import base, choice
    from bireme.cluster import node_selection
    from bireme.cluster.preflight import preflight
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.process.kernel import die_with_parent
    from bireme.resources.hostfile import HostEntry
    from bireme.validate import build

    asked = json.loads(sys.stdin.readline())
    die_with_parent(asked["parent"])
    entries = tuple(HostEntry(**entry) for entry in asked["pool"]["entries"])
    pool = node_selection.DeclaredPool(**{**asked["pool"], "entries": entries})
    spec = node_selection.narrowed(build(JobSpec, asked["spec"]), [entry.name for entry in entries])
    found = preflight(
        spec,
        os.environ,
        node_selection.select(spec, pool),
        choice.choose(spec, pool.scheduler),
        accelerator=asked["accelerator"],
        exported=Exports(variables=asked["variables"], origins={}),
        connect_timeout=max(2, min(base.CONNECT_TIMEOUT, round(spec.elastic_interval))),  # few are probed at a time
    )
    why = "".join(answer.problems[-1] for answer in found.answers if answer.facts is None)
    print(json.dumps({"why": why} if why else {"there": True}), flush=True)


def command() -> NoReturn:
    """Answer one request, and exit."""
    from bireme.errors import BiremeError
    from bireme.isolated import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()
    try:
        main()
    except BiremeError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    os._exit(0)
