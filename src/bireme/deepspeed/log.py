"""The ``logger`` of DeepSpeed's modules: what these adapters say, as messages of Bireme on stderr."""

from __future__ import annotations

import logging

from bireme.logs.console import complain


class _OnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


logger = logging.getLogger("bireme.deepspeed")
"""Programs may replace its handlers or set its level; jobs have ``--log_level``."""

logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(_OnStderr())
