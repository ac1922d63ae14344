"""Runs the winners of several studies again, to see by the clock which of them are the fastest.

All winners run once in each round, in random order, so what drifts is in all of them. They are compared round by round.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import contest

from bireme.logs.lines import SINCE
from bireme.tune.deepspeed.results import samples_per_second
from bireme.tune.study.comparison import interval

FIRST = 3
"""The step at whose end timing begins."""


def clock(folder: Path, script: str, config: Mapping[str, object], *, ranks: int, threads: str, steps: int) -> float:
    """Samples per second of wall time of one run.

    Args:
        folder: where to write; emptied before.
        script: what is run.
        config: the DeepSpeed configuration, with ``train_batch_size``.
        ranks: the number of ranks.
        threads: of each rank.
        steps: the step at whose end timing ends.

    Raises:
        SystemExit: it failed, or logged no steps.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    section: dict[str, object] = {"enabled": True, "start_profile_step": FIRST, "end_profile_step": steps}
    section["metric_path"] = str(folder / "metrics.json")  # so that the engine logs its steps and ends after the last
    path, output = folder / "ds.json", folder / "stdout.log"
    path.write_text(json.dumps({**config, "steps_per_print": 1, "autotuning": section}))
    env = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": threads, SINCE: "0"}  # the labels that the tuner reads
    launcher = contest.Launcher("winner", (), (), env=env)
    command = [shutil.which("bireme", path=os.path.dirname(sys.executable)) or "bireme", "run", "--accelerator", "cpu"]
    command += ["--num_gpus", str(ranks), "--timestamps", "--output", "prefix", script, "--deepspeed_config", str(path)]
    with output.open("wb") as stdout:
        contest.seconds(launcher, command, stdout=stdout, cwd=folder)
    samples = samples_per_second(str(output), int(str(config["train_batch_size"])), FIRST)
    if samples is None:
        raise SystemExit(f"{script} logged no steps")
    return samples


def ties(results: Path) -> list[str]:
    """What a study's summary names as not distinguishable from its winner."""
    path = results / "summary.txt"
    text = path.read_text().replace("\n  ", " ") if path.exists() else ""
    found = re.findall(r"^not distinguishable from it: (\S+)", text, re.MULTILINE)
    return found


def measure(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """The figures of each run by name, one of each round."""
    figures: dict[str, list[float]] = {name: [] for name in runs}
    luck = random.Random(0)
    for number in range(repeats):
        for name in luck.sample(list(runs), len(runs)):
            contest.progress(f"repeat {number + 1} of {repeats}: {name}")
            figures[name].append(runs[name]())
    contest.progress("")
    return figures


def show(figures: Mapping[str, Sequence[float]], picked: Mapping[str, Sequence[str]]) -> None:
    """Print how often each tuner has picked each winner, and how fast the winners are.

    Args:
        figures: of each winner, one of each round.
        picked: of each tuner, the winner of each study.
    """
    counts = {tuner: Counter(names) for tuner, names in picked.items()}
    middle = {name: statistics.median(mine) if mine else 0.0 for name, mine in figures.items()}
    best = max(middle, key=lambda name: middle[name])
    rows = []
    for name in sorted(figures, key=lambda each: -middle[each]):
        logs = [math.log(one / other) for one, other in zip(figures[name], figures[best], strict=True)]
        versus = interval(logs, 0.05)
        known = name != best and math.isfinite(versus.high)
        rows.append(
            (
                name,
                *(str(counts[tuner][name] or "") for tuner in picked),
                contest.decimals(middle[name] or None, 0),
                contest.decimals(math.exp(versus.mean), 3) if figures[name] else "",
                f"{math.exp(versus.low):.3f} to {math.exp(versus.high):.3f}" if known else "",
            )
        )
    repeats = len(figures[best])
    title = f"The winners by the clock, median of {repeats} runs of each"
    contest.table(title, ("winner", *picked, "samples/s", "of best", "95 %"), rows)
    for tuner, names in counts.items():
        worst = min((middle[name] for name in names), default=0.0) / (middle[best] or 1.0)
        print(
            f"{tuner}: {len(names)} different winners in {sum(names.values())} studies, the worst {worst:.3f} of best"
        )
