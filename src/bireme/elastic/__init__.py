"""Elastic training: who takes part, who is looked for, how often the job may be started again.

``roster.py`` and ``budget.py`` are pure. ``store.py`` and ``participant.py`` are programs of their own, run by the
interpreter that runs the ranks: they alone import torch.
"""

from __future__ import annotations

import os

_HERE = os.path.dirname(os.path.abspath(__file__))

STORE = os.path.join(_HERE, "store.py")
PARTICIPANT = os.path.join(_HERE, "participant.py")
