"""Where Bireme keeps what it can make again."""

from __future__ import annotations

import os
import time

from bireme import drafts
from bireme.errors import BadInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


_KEPT = 30 * 86400
"""Seconds for which a file is kept that is not written again."""


def cache_folder(environ: Mapping[str, str], home: str = "") -> str:
    """Bireme's folder in the user's cache.

    Args:
        home: the value of ``XDG_CACHE_HOME`` to use instead of that in the environment; "": none.
    """
    cache = home or environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "bireme")


def keep(path: str, data: bytes) -> None:
    """Write a file of the cache, and remove old ones from its folder. Errors are ignored: it can be made again."""
    from bireme.resources.owned_folder import check_owned

    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        drafts.write(path, data, mode=0o600, sync=True)
        check_owned(folder)  # else somebody could lead us to files of another kind by a link
        for name in os.listdir(folder):
            other = os.path.join(folder, name)
            if os.lstat(other).st_mtime < time.time() - _KEPT:
                drafts.remove(other)
    except (OSError, BadInputError):
        pass
