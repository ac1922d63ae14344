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
    from collections.abc import Sequence
    from typing import NoReturn

    from bireme.cluster.agent_handle import AgentHandle
    from bireme.cluster.node_selection import Found
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports


def words() -> tuple[str, ...]:
    """The command that probes: reads a `request` from stdin, prints ``{"there": true}`` or ``{"why": REASON}``."""
    return isolated.command("bireme.elastic.node_probe")


def request(spec: JobSpec, found: Found, name: str, accelerator: str, exports: Exports) -> dict[str, object]:
    """The request to probe one node.

    Args:
        spec: the job.
        found: the pool.
        name: of the node.
        accelerator: the kind of device that the job runs on; "": not known yet.
        exports: the exported variables.
    """
    quiet = spec.replace(log_dir=None, save_pid=False, time_limit=None)
    part = found.replace(entries=tuple(entry for entry in found.entries if entry.name == name))
    return {
        "spec": quiet.as_dict(),
        "found": part.as_dict(),
        "accelerator": accelerator,
        "variables": dict(exports.variables),
        "parent": os.getpid(),
    }


def main() -> None:
    """Answer one request."""
    from bireme.backends.base import CONNECT_TIMEOUT
    from bireme.cluster import many_nodes, node_selection
    from bireme.cluster.epoch import Epoch
    from bireme.job import JobSpec
    from bireme.planning.exports import Exports
    from bireme.process.kernel import die_with_parent
    from bireme.process.pid_file import PidFile
    from bireme.resources.hostfile import HostEntry
    from bireme.validate import build

    asked = json.loads(sys.stdin.readline())
    die_with_parent(asked["parent"])
    spec = build(JobSpec, asked["spec"])

    reasons: list[str] = []

    def there(members: Sequence[AgentHandle]) -> str:
        return json.dumps({"there": True} if members else {"why": "".join(reasons)}) + "\n"

    patience = max(2, min(CONNECT_TIMEOUT, round(spec.elastic_interval)))  # only a few nodes are probed at a time

    def nothing(*_: object) -> None:
        """Ignore the call."""

    epoch = Epoch(
        1,
        0,
        lambda _, why: reasons.append(why),
        nothing,
        nothing,
        PidFile(None),
        accelerator=asked["accelerator"],
        exports=Exports(asked["variables"], {}),
        connect_timeout=patience,
    )
    entries = tuple(HostEntry(**entry) for entry in asked["found"]["entries"])
    found = node_selection.Found(**{**asked["found"], "entries": entries})
    narrowed = node_selection.narrowed(spec, [entry.name for entry in entries])
    many_nodes.run(narrowed, os.environ, found, checked=there, epoch=epoch)


def command() -> NoReturn:
    """Answer one request, and exit."""
    from bireme.errors import BiremeError
    from bireme.interrupt import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()
    try:
        main()
    except BiremeError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    os._exit(0)
