"""Where Bireme keeps what it can make again."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environ: Mapping[str, str], home: str = "") -> str:
    """Bireme's folder in the user's cache.

    Args:
        environ: the environment.
        home: the value of ``XDG_CACHE_HOME`` to use instead of that in the environment; "": none.
    """
    cache = home or environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "bireme")
