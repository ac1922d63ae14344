"""Explains messages of launchers and login shells that start no agent and do not say what to do. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_ADVICE = (
    (
        "account is currently not available",  # /usr/sbin/nologin
        "that user's login shell runs no commands: name another user, as USER@NODE",
    ),
)


def advice(lines: Iterable[str]) -> list[str]:
    """What to do about the printed lines; nothing if they are not known, or say so themselves."""
    text = "\n".join(lines).lower()
    return [what for sign, what in _ADVICE if sign in text]
