"""Ways to reach the hosts by a command of the user's own: ``--launcher exec`` with the stand-in for ``kubectl exec``.

What it starts gets no signals, and outlives it. With ``BIREME_TEST_OVER=exec``, every test that is about ssh runs over
this instead; a few then fail, because they are about what only ssh does.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.testbed import Testbed

FAKE = Path(__file__).parents[1] / "kit" / "fake"
KUBECTL = FAKE / "kubectl"
PROGRAM_OF = {"exec": "sh", "kubectl": "sh"}
"""What a machine must have for them, besides the stand-ins."""
_OVER = os.environ.get("BIREME_TEST_OVER", "ssh")


def instead_of(backend: str) -> str:
    """The launcher that the tests use for this one."""
    return _OVER if backend == "ssh" else backend


def launcher(backend: str) -> list[str]:
    """The options that choose a launcher."""
    backend = instead_of(backend)
    if backend != "exec":
        return ["--launcher", backend]
    return ["--launcher", "exec", "--launcher_args", f"{shlex.quote(str(KUBECTL))} exec -i {{host}} --"]


def prepared(testbed: Testbed, backend: str) -> Testbed:
    """The cluster, whose hosts run what this launcher speaks to."""
    if instead_of(backend) in PROGRAM_OF:
        for host in testbed.hosts.values():
            host.start_kubelet()
    return testbed
