"""Reads files of /proc and /sys; a file that is missing or not readable counts as empty."""

from __future__ import annotations

import os


def read(path: str) -> str:
    """The text of the file without surrounding white space; "" if it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def listing(path: str) -> list[str]:
    """The entries of the directory, in no particular order; none if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []
