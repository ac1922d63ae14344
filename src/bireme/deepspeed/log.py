"""The ``logger`` of DeepSpeed's modules: writes the messages of these adapters to stderr, as messages of Bireme."""

from __future__ import annotations

import logging

from bireme.logs.console import complain


class _OnStderr(logging.Handler):
    """Writes records to stderr, as messages of Bireme."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


logger = logging.getLogger("bireme.deepspeed")
"""Programs may replace its handlers or set its level; jobs have ``--log_level``."""

logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(_OnStderr())
