"""Finding the fastest configuration of one DeepSpeed script: DeepSpeed's own autotuner and ``bireme tune``.

Two CPU ranks, ZeRO stages x micro-batches, the same script and the same configuration for everybody, one after the
other. ``seconds`` is the whole command. The engine's figure for a configuration differs from run to run; so the winner
of each is judged by the mean of what all have measured for it: ``of best`` is that mean, divided by the best mean.

DeepSpeed's autotuner wants ``pdsh`` and ssh to this machine, even where it is the only one, to clean up after each
experiment. Here a stand-in for ``pdsh`` runs the command at once, which costs less.
``python benchmarks/tune.py [--stages 0,1,2] [--micro 4,8,16,32]``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import contest

RANKS = 2
PDSH = '#!/bin/sh\n# pdsh -f FAN_OUT -w HOSTS COMMAND\nshift 4\nexec "$@"\n'
NAME = re.compile(r"z(\d)_gas\d+_tmbspg(\d+)")
Configuration = tuple[int, int]
"""ZeRO stage, micro-batch."""


@dataclass(frozen=True)
class Tuner:
    """A contestant: the beginning of its command, its ``tuner_type``, and what its environment needs."""

    name: str
    head: tuple[str, ...]
    kind: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Found:
    """What a contestant has found, in so many seconds."""

    seconds: float
    throughput: dict[Configuration, float]
    winner: Configuration | None
    launched: int


def tuners() -> dict[str, Tuner]:
    """All contestants. On the CPU the reference counts as many slots as LOCAL_SIZE says."""
    ours = (shutil.which("bireme", path=os.path.dirname(sys.executable)) or "bireme", "tune", "--num_gpus", str(RANKS))
    reference = shutil.which("deepspeed", path=os.path.dirname(sys.executable)) or "deepspeed"
    return {
        "deepspeed": Tuner(
            "deepspeed",
            (reference, "--autotuning", "tune"),
            "gridsearch",
            {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(RANKS)},
        ),
        "bireme": Tuner("bireme", ours, "gridsearch"),
        "bireme-model": Tuner("bireme-model", ours, "model_based"),
    }


def run(tuner: Tuner, folder: Path, config: Mapping[str, object], limit: float) -> Found:
    """Tune once, in a folder of its own."""
    here = folder / tuner.name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    shutil.copy(contest.program("tuned.py"), here / "train.py")
    # More steps than the default of two, for steadier figures.
    section = {"enabled": True, "tuner_type": tuner.kind, "start_profile_step": 3, "end_profile_step": 15}
    (here / "ds.json").write_text(json.dumps({**config, "autotuning": section}))
    path = f"{folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # there lies the stand-in for pdsh
    launcher = contest.Launcher(tuner.name, tuner.head, (), env={**tuner.env, "PATH": path})
    command = [*tuner.head, "train.py", "--deepspeed_config", "ds.json"]
    seconds = contest.seconds(launcher, command, limit=limit, cwd=here)
    return read(here / "autotuning_results", seconds)


def read(results: Path, seconds: float) -> Found:
    """What lies in the folder of results."""
    throughput = {}
    for metrics in results.glob("z*/metrics.json"):
        if name := NAME.match(metrics.parent.name):
            throughput[int(name[1]), int(name[2])] = float(json.loads(metrics.read_text())["throughput"])
    winner = None
    if (optimal := results / "ds_config_optimal.json").exists():
        best = json.loads(optimal.read_text())
        winner = (int(best["zero_optimization"]["stage"]), int(best["train_micro_batch_size_per_gpu"]))
    return Found(seconds, throughput, winner, sum(1 for each in results.iterdir() if (each / "cmd.txt").exists()))


def warm_up(folder: Path, config: Mapping[str, object]) -> None:
    """Fill caches and compile bytecode, so that the first does not pay for it."""
    path = folder / "warm.json"
    path.write_text(json.dumps({**config, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}))
    launcher = contest.Launcher("warming up", (), ())
    command = [sys.executable, "-m", "bireme", "run", "-q", "--accelerator", "cpu", "--num_gpus", str(RANKS)]
    contest.seconds(launcher, [*command, contest.program("tuned.py"), "--steps", "2", "--deepspeed_config", str(path)])


def show(found: Mapping[str, Found]) -> None:
    """The two tables."""
    means: dict[Configuration, float] = {}
    for each in sorted({known for one in found.values() for known in one.throughput}):
        measured = [one.throughput[each] for one in found.values() if each in one.throughput]
        means[each] = sum(measured) / len(measured)
    reference = found.get("deepspeed")
    rows = [
        (
            name,
            f"{one.seconds:.1f}",
            contest.decimals(one.seconds / reference.seconds if reference else None),
            str(one.launched),
            str(len(one.throughput)),
            "none" if one.winner is None else f"stage {one.winner[0]}, micro-batch {one.winner[1]}",
            contest.decimals(None if one.winner is None else means[one.winner] / max(means.values())),
        )
        for name, one in found.items()
    ]
    header = ("tuner", "seconds", "ratio", "launches", "measured", "winner", "of best")
    contest.table("The fastest configuration, found by each", header, rows)
    figures = [
        (
            f"stage {stage}, micro-batch {micro}",
            *(contest.decimals(one.throughput.get((stage, micro)), 0) for one in found.values()),
        )
        for stage, micro in means
    ]
    contest.table(
        "Samples per second of each configuration, as each has measured it", ("configuration", *found), figures
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stages", default="0,1,2", help="ZeRO stages (%(default)s)")
    parser.add_argument("--micro", default="4,8,16,32", help="micro-batches (%(default)s)")
    parser.add_argument("--only", default=",".join(tuners()), metavar="NAME,…", help="only these (%(default)s)")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that one may take (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write every single measurement into this file")
    options = parser.parse_args()
    if strange := [name for name in options.only.split(",") if name not in tuners()]:
        parser.error(f"--only: there is no {strange[0]!r}, only {', '.join(tuners())}")
    for module in ("deepspeed", *(("tabulate",) if "deepspeed" in options.only.split(",") else ())):
        if not _has(module):
            parser.error(f"{module} is not installed: pip install 'deepspeed[autotuning]'")
    return options


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def main() -> int:
    options = arguments()
    contest.adopt_orphans()
    config = {
        "train_micro_batch_size_per_gpu": [int(word) for word in options.micro.split(",")],
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
        "zero_optimization": {"stage": [int(word) for word in options.stages.split(",")]},
    }
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pdsh").write_text(PDSH)
        (folder / "pdsh").chmod(0o755)
        contest.progress("warming up")
        warm_up(folder, config)
        for name in options.only.split(","):
            contest.progress(name)
            found[name] = run(tuners()[name], folder, config, options.limit)
        contest.progress("")
    show(found)
    results = [
        {
            "name": name,
            "seconds": one.seconds,
            "launched": one.launched,
            "winner": one.winner,
            "throughput": [[*each, figure] for each, figure in sorted(one.throughput.items())],
        }
        for name, one in found.items()
    ]
    contest.write_json(options.json, results=results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
