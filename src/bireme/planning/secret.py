"""Which variables and options are likely to hold a secret, by their names."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(api|access|secret|private|auth)[-_]?key|token(?!iz|s\b)|secret|passw|credential", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable or option of that name is likely to hold a secret."""
    return _SECRET.search(name) is not None
