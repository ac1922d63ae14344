"""How far behind the true best Kernel Tuner's own searches are on its own space: a row for the table of `search.py`.

    python benchmarks/kernel_tuner_search.py DIR [--seeds 20] [--runs 40] [STRATEGY …]

``DIR`` is that of ``search.py --public``. Needs ``kernel-tuner``, in an environment of its own; it replays the
recording, and nothing runs.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDING = "benchmark_hub/cachefiles/convolution_milo/A100.json.gz"
STRATEGIES = (
    *("random_sample", "genetic_algorithm", "greedy_ils", "dual_annealing", "simulated_annealing"),
    *("pso", "diff_evo", "basinhopping", "bayes_opt"),
)


def behind(data: Mapping[str, Any], path: str, strategy: str, seed: int, runs: int) -> float:
    """The part of the best speed that the best of so many runs lacks."""
    import kernel_tuner
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    names, known = data["tune_params_keys"], data["cache"]

    def is_known(point: Mapping[str, Any]) -> bool:
        return ",".join(str(point[name]) for name in names) in known

    with contextlib.redirect_stdout(io.StringIO()):
        found, _ = kernel_tuner.tune_kernel(
            *(data["kernel_name"], "__global__ void convolution_kernel(){}", tuple(data["problem_size"]), []),
            data["tune_params"],
            restrictions=is_known,
            strategy=strategy,
            strategy_options={"max_fevals": runs},
            cache=path,
            simulation_mode=True,
            lang="CUDA",
            block_size_names=["block_size_x", "block_size_y"],
        )
    times = [each["time"] for each in found if isinstance(each["time"], float)]
    return 1 - min(each["time"] for each in known.values() if isinstance(each["time"], float)) / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("strategies", nargs="*", default=STRATEGIES, metavar="STRATEGY")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    with gzip.open(Path(options.folder, RECORDING), "rt", encoding="utf-8") as file:
        text = file.read()
    print("| search | behind, % (median / nine in ten) |\n|---|---|")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as cache:
        cache.write(text)
        cache.flush()
        for strategy in options.strategies:
            found: Sequence[float] = sorted(
                behind(json.loads(text), cache.name, strategy, seed, options.runs) for seed in range(options.seeds)
            )
            nine = found[round(0.9 * len(found)) - 1]
            print(f"| {strategy} | {100 * statistics.median(found):.3g} / {100 * nine:.3g} |", flush=True)


if __name__ == "__main__":
    main()
