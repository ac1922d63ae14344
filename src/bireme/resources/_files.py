"""Reading what the kernel publishes; what is missing or denied reads as nothing."""

from __future__ import annotations

import os


def read(path: str) -> str:
    """The file's text without the white space around it."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def listing(path: str) -> list[str]:
    """The directory's entries, in no particular order."""
    try:
        return os.listdir(path)
    except OSError:
        return []
