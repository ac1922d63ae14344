"""Elastic training: who takes part, who is looked for, how often the job may be started again.

``roster.py`` and ``budget.py`` are pure. ``store.py`` and ``participant.py`` are programs of their own, run by the
interpreter that runs the ranks: they alone import torch.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = os.path.dirname(os.path.abspath(__file__))

STORE = os.path.join(_HERE, "store.py")
PARTICIPANT = os.path.join(_HERE, "participant.py")


def has_torch(interpreter: str, environ: Mapping[str, str]) -> bool:
    """Whether this Python has PyTorch, without the seconds that importing it takes.

    Raises:
        OSError: it cannot be started.
    """
    import subprocess

    test = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    null = subprocess.DEVNULL
    return subprocess.call((interpreter, "-c", test), env=dict(environ), stdin=null, stdout=null, stderr=null) == 0
