"""The bound on open files: often 1024 by default, and every rank takes four descriptors while it is started."""

from __future__ import annotations

import resource

from bireme.errors import UnfitError

_OURS = 64
"""Descriptors that we need besides those of the ranks."""


def allow_files(count: int) -> tuple[int, int] | None:
    """Raise the soft limit, if need be, so that ``count`` more descriptors can be opened.

    Returns:
        The limits as they were, for the ranks; ``None`` when nothing was changed.

    Raises:
        UnfitError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OURS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UnfitError(
            f"{needed} open files are needed, {hard} are allowed", hint="raise the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft, hard


def give_back(limits: tuple[int, int] | None) -> None:
    """In a rank: the limits as the command found them."""
    if limits is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
