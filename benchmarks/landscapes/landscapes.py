"""The five landscapes: each is a program, its parameters, and the command line of a point."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"

Point = Mapping[str, object]


@dataclass(frozen=True)
class Parameter:
    """A parameter, as in ``bireme tune --param NAME=CHOICES``; ``default`` is what the program does without it."""

    name: str
    choices: Sequence[object]
    default: object
    ordered: bool = True
    memory: bool = False


@dataclass(frozen=True)
class Landscape:
    """A program and what varies.

    Attributes:
        program: its file in ``programs``.
        parameters: what varies.
        goal: the name of the figure; the program prints ``NAME: NUMBER``.
        options: further arguments of the program.
        command: the arguments of a point, if they are not ``--NAME CHOICE`` for each parameter.
        variables: parameters that are environment variables.
        modules: imported before a process is forked for each run.
    """

    program: str
    parameters: Sequence[Parameter]
    goal: str
    options: Sequence[str] = ()
    command: Callable[[Point], Sequence[str]] | None = None
    variables: Mapping[str, str] | None = None
    modules: Sequence[str] = ()
    direction: str = "maximize"

    def points(self) -> list[dict[str, object]]:
        names = [each.name for each in self.parameters]
        return [
            dict(zip(names, each, strict=True))
            for each in itertools.product(*(each.choices for each in self.parameters))
        ]

    def arguments(self, point: Point) -> list[str]:
        """The program and its arguments."""
        if self.command:
            words = self.command(point)
        else:
            words = [word for name, choice in point.items() for word in (f"--{name}", str(choice))]
        path = str(PROGRAMS / self.program)
        python = [sys.executable] if path.endswith(".py") else []
        return [*python, path, *self.options, *words]

    def environment(self, point: Point) -> dict[str, str]:
        return {variable: str(point[name]) for variable, name in (self.variables or {}).items()}

    def figure(self, output: str) -> float | None:
        """The figure that a run has printed."""
        found = re.search(rf"^{re.escape(self.goal)}: (\S+)$", output, re.MULTILINE)
        return float(found[1]) if found else None


def flags(point: Point) -> list[str]:
    words = [f"-O{point['optimize']}", f"-march={point['march']}", f"-f{point['math']}-math"]
    return [*words, f"-f{point['unroll']}-loops", f"-DTILE={point['tile']}"]


LANDSCAPES = {
    "pytorch": Landscape(
        "pytorch.py",
        [
            Parameter("batch", [16, 32, 64, 128, 256, 512, 1024], 32, memory=True),
            Parameter("threads", [1, 2], 1),
            Parameter("dtype", ["float32", "bfloat16"], "float32", ordered=False),
            Parameter("layout", ["contiguous", "channels_last"], "contiguous", ordered=False),
            Parameter("optimizer", ["each", "foreach", "fused"], "each", ordered=False),
        ],
        "samples/s",
        options=["--memory", "84"],
        modules=["torch._dynamo"],
    ),
    "deepspeed": Landscape(
        "deepspeed_zero.py",
        [
            Parameter("stage", [0, 1, 2, 3], 0),
            Parameter("micro", [4, 8, 16, 32, 64], 8, memory=True),
            Parameter("accumulation", [1, 2, 4], 1),
            Parameter("dtype", ["float32", "bfloat16"], "float32", ordered=False),
        ],
        "samples/s",
        options=["--threads", "1"],
        modules=["torch._dynamo", "deepspeed"],
    ),
    "zstd": Landscape(
        "compress.py",
        [
            Parameter("level", [1, 2, 3, 4, 5, 6, 8, 10, 12], 3),
            Parameter("strategy", ["level", "fast", "dfast", "lazy", "btlazy2"], "level", ordered=False),
            Parameter("window", [17, 20, 23], 20, memory=True),
            Parameter("threads", [1, 2], 1),
        ],
        "MB/s",
    ),
    "sqlite": Landscape(
        "database.py",
        [
            Parameter("journal", ["delete", "truncate", "persist", "wal"], "delete", ordered=False),
            Parameter("synchronous", ["full", "normal", "off"], "full", ordered=False),
            Parameter("page", [1024, 4096, 16384], 4096),
            Parameter("cache", [64, 2000], 2000, memory=True),
            Parameter("rows", [1, 16, 256], 1),
        ],
        "rows/s",
        options=["--folder", str(Path(__file__).parent)],
    ),
    "gcc": Landscape(
        "compile.sh",
        [
            Parameter("optimize", [1, 2, 3], 2),
            Parameter("march", ["x86-64", "native"], "x86-64", ordered=False),
            Parameter("math", ["no-fast", "fast"], "no-fast", ordered=False),
            Parameter("unroll", ["no-unroll", "unroll"], "no-unroll", ordered=False),
            Parameter("tile", [8, 16, 32, 64, 128], 32),
            Parameter("threads", [1, 2], 1),
        ],
        "GFLOP/s",
        command=flags,
        variables={"OMP_NUM_THREADS": "threads"},
    ),
}
