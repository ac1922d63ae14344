"""Raises the limit of open files: often 1024, while every rank needs four descriptors when it is started."""

from __future__ import annotations

import resource

from bireme.errors import UnfitError

_OURS = 64
"""Descriptors that we need in addition to those of the ranks."""


def allow_files(count: int) -> tuple[int, int] | None:
    """Raise the soft limit, if necessary, so that ``count`` more descriptors can be opened.

    Returns:
        The (soft, hard) limits as they were, for the ranks; ``None`` if nothing was changed.

    Raises:
        UnfitError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OURS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UnfitError(
            f"{needed} open files are needed, but only {hard} are allowed", hint="raise the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft, hard


def give_back(limits: tuple[int, int] | None) -> None:
    """In a rank: restore the limits that :func:`allow_files` returned."""
    if limits is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
