"""Files named like Python's modules, for a working directory: each records which process executes it, except ranks."""

from __future__ import annotations

from pathlib import Path

NAMES = (
    *("json", "re", "signal", "select", "struct", "heapq", "functools", "bireme"),
    *("__future__", "_signal", "fcntl", "hmac", "importlib", "runpy", "shlex", "shutil", "sitecustomize", "socket"),
    *("subprocess", "tempfile", "time", "typing", "usercustomize", "warnings"),
)
TRAP = """
import os
OURS = True
if "RANK" not in os.environ:
    with open("/proc/self/cmdline") as file:
        words = file.read().split(chr(0))
    with open({log!r}, "a") as file:
        print(__name__, os.getpid(), *words, file=file)
"""


class Traps:
    """Directories full of such files.

    Args:
        directory: the first of them; its log lies there.
        but: names that are left out.
    """

    def __init__(self, directory: Path, but: tuple[str, ...] = ()) -> None:
        self.log = directory / "sprung"
        self.names = [name for name in NAMES if name not in but]
        self.set(directory)

    def set(self, directory: Path) -> None:
        """Into another directory."""
        directory.mkdir(exist_ok=True)
        for name in self.names:
            (directory / f"{name}.py").write_text(TRAP.format(log=str(self.log)))

    def sprung(self) -> list[str]:
        """Name, process and command line of each that was executed by something else than a rank."""
        return self.log.read_text().splitlines() if self.log.exists() else []
