"""Compares ``bireme tune`` with DeepSpeed's own autotuner: time, and the configuration that each finds.

All contestants tune the same script, one after the other, with two CPU ranks over the same ZeRO stages and
micro-batches.

- ``seconds`` is the time of the whole command, ``ratio`` that time divided by the time of DeepSpeed's autotuner in the
  same round.
- ``figure`` is what a contestant has measured for its winner.
- ``in NAME`` is what NAME has measured for that winner, divided by the best figure that NAME has measured.
- ``of best`` is the mean of all measurements of the winner, divided by the best such mean. DeepSpeed's figure differs
  from run to run; the line below the tables says by how much.

Every rank has as many threads as its share of the cores, as under ``bireme``. DeepSpeed's launcher would give every
rank as many threads as there are cores, and the figures could not be compared.

DeepSpeed's autotuner needs ``pdsh`` and ssh to this machine, even without other nodes, to clean up after each
experiment by ``pkill -f NAME``. That ends every process with the name in its command line. Here a stand-in for ``pdsh``
does the same without ssh, which costs less, and only in the session of the benchmarked command.
Run it as ``python benchmarks/tune.py [--stages 0,1,2] [--micro 4,8,16,32] [--end 5] [--rounds 1] [--repeats 0]``.

With ``--rounds 10 --repeats 20 --only deepspeed,bireme`` it shows how many different winners ten studies of each tuner
pick, and how fast these are by the clock of 20 runs of each. With 12 configurations that takes about an hour; or run
some rounds with ``--json FILE``, and the rest later with ``--earlier FILE``. The winners of all of them run at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import contest
from tune_tables import DEEPSPEED, Configuration, Found, Round, as_json, read_json, show
from winners import clock, measure, ties
from winners import show as show_winners

RANKS = 2
WARM = ("--preload", "torch,deepspeed")
"""Trials fork their ranks from templates. With ``--confidence 0`` nothing is confirmed, as with DeepSpeed."""
PDSH = '#!/bin/sh\n# pdsh -f FAN_OUT -w HOSTS pkill -f NAME\nexec pkill -s 0 -f "$7"\n'
NAME = re.compile(r"z(\d)_gas(\d+)_tmbspg(\d+)$")


@dataclass(frozen=True)
class Tuner:
    """A contestant: the beginning of its command, its ``tuner_type``, and additional environment variables."""

    head: tuple[str, ...]
    kind: str
    env: dict[str, str] = field(default_factory=dict)


Repeats = Mapping[str, list[float]]
"""Samples per second by the clock of the runs of each winner."""


# -- contestants -------------------------------------------------------------------------------------------------------


def executable(name: str) -> str:
    return shutil.which(name, path=os.path.dirname(sys.executable)) or name


def tuners() -> dict[str, Tuner]:
    """All contestants. On the CPU, DeepSpeed takes the number of slots from LOCAL_SIZE."""
    ours = (executable("bireme"), "tune", "--accelerator", "cpu", "--num_gpus", str(RANKS))
    # DeepSpeed never checks whether a port is free; each experiment takes the next one.
    deepspeed = (executable("deepspeed"), "--autotuning", "tune", "--master_port", str(free_ports(64)))
    return {
        DEEPSPEED: Tuner(deepspeed, "gridsearch", {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(RANKS)}),
        "bireme": Tuner(ours, "gridsearch"),
        "bireme-model": Tuner(ours, "model_based"),
        "bireme-warm": Tuner((*ours, *WARM), "gridsearch"),
        "bireme-warm-once": Tuner((*ours, *WARM, "--confidence", "0"), "gridsearch"),
    }


def free_ports(number: int) -> int:
    """The first of ``number`` consecutive free ports below the kernel's ephemeral range."""
    while True:
        first = random.randrange(20_000, 30_000)
        if all(is_free(port) for port in range(first, first + number)):
            return first


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def threads() -> str:
    """The number of threads of each rank."""
    return str(max(1, len(os.sched_getaffinity(0)) // RANKS))


def run(name: str, folder: Path, config: Mapping[str, object], options: argparse.Namespace) -> Found:
    """Tune once, in a new folder.

    Args:
        name: the contestant.
        folder: where to create the folder.
        config: the DeepSpeed configuration, without the section ``autotuning``.
        options: the options of the benchmark.
    """
    tuner = tuners()[name]
    here = folder / name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    shutil.copy(options.script, here / "train.py")
    section = {"enabled": True, "tuner_type": tuner.kind, "end_profile_step": options.end}
    (here / "ds.json").write_text(json.dumps({**config, "autotuning": section}))
    path = f"{folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # the stand-in for pdsh is there
    env = {**tuner.env, "OMP_NUM_THREADS": threads(), "PATH": path, "PYTHONPATH": without_mlflow(folder)}
    launcher = contest.Launcher(name, tuner.head, (), env=env)
    command = [*tuner.head, "train.py", "--deepspeed_config", "ds.json"]
    seconds = contest.seconds(launcher, command, limit=options.limit, cwd=here)
    return read(here / "autotuning_results", seconds)


def without_mlflow(folder: Path) -> str:
    """A folder for PYTHONPATH that hides MLflow: where it is installed, DeepSpeed's tuner demands MLFLOW_RUN_ID."""
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "mlflow.py").write_text("raise ImportError('hidden')\n")
    return str(hidden)


def read(results: Path, seconds: float) -> Found:
    """Read the folder of results."""
    throughput = {}
    for metrics in results.glob("z*/metrics.json"):
        if name := NAME.match(metrics.parent.name):
            stage, accumulation, micro = map(int, name.groups())
            figure = float(json.loads(metrics.read_text())["throughput"])
            throughput[Configuration(stage, micro, accumulation)] = figure
    winner = None
    if (optimal := results / "ds_config_optimal.json").exists():
        best = json.loads(optimal.read_text())
        stage, accumulation = best["zero_optimization"]["stage"], best["gradient_accumulation_steps"]
        winner = Configuration(stage, best["train_micro_batch_size_per_gpu"], accumulation)
    return Found(
        seconds,
        throughput,
        winner,
        len([*results.glob("*/cmd.txt"), *results.glob("confirmation/*/cmd.txt")]),
        ties(results),
    )


def warm_up(folder: Path, config: Mapping[str, object], script: str, names: Iterable[str]) -> None:
    """Fill caches and compile bytecode, so that this does not slow the first contestant.

    Args:
        folder: where to write the configuration.
        config: the DeepSpeed configuration.
        script: what is tuned.
        names: the contestants.
    """
    path = folder / "warm.json"
    path.write_text(json.dumps({**config, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}))
    launcher = contest.Launcher("warming up", (), (), env={"DS_ACCELERATOR": "cpu"})
    command = [executable("bireme"), "run", "-q", "--accelerator", "cpu", "--num_gpus", str(RANKS)]
    contest.seconds(launcher, [*command, script, "--steps", "2", "--deepspeed_config", str(path)])
    for name in names:
        contest.seconds(launcher, [*tuners()[name].head, "--help"])
    if "bireme-model" in names:
        contest.seconds(launcher, [sys.executable, "-c", "import numpy"])


# -- the command -------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    known = tuners()
    parser.add_argument("--stages", default="0,1,2", help="ZeRO stages (%(default)s)")
    parser.add_argument("--micro", default="4,8,16,32", help="micro-batches (%(default)s)")
    # Each figure is that of a single step, so more steps do not make it steadier once the first few are over.
    parser.add_argument("--end", type=int, default=5, help="end_profile_step (%(default)s, as DeepSpeed has it)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each contestant runs (%(default)s)")
    parser.add_argument("--repeats", type=int, default=0, help="run each winner so often at the end (%(default)s)")
    parser.add_argument("--steps", type=int, default=28, help="steps of these runs (%(default)s)")
    parser.add_argument("--only", default=",".join(known), metavar="NAME,…", help="run only these (%(default)s)")
    parser.add_argument(
        "--limit", type=float, default=1800, help="the longest time of one contestant in seconds (%(default)s)"
    )
    parser.add_argument("--script", default=contest.program("tuned.py"), help="what they tune (programs/tuned.py)")
    parser.add_argument("--earlier", metavar="FILE", help="add to the rounds of this file of --json")
    parser.add_argument("--json", metavar="FILE", help="write every single measurement into this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if strange := [name for name in options.only if name not in known]:
        parser.error(f"--only: unknown name: {strange[0]!r} (expected: {', '.join(known)})")
    for module in ("deepspeed", *(("tabulate",) if DEEPSPEED in options.only else ())):
        if not find_spec(module):
            parser.error(f"{module} is not installed: pip install 'deepspeed[autotuning]'")
    return options


def repeat(rounds: Sequence[Round], folder: Path, config: Mapping[str, object], options: argparse.Namespace) -> Repeats:
    """Run all winners again, and return their figures by name."""
    winners = sorted({one.winner for each in rounds for one in each.values() if one.winner})

    def run(winner: Configuration) -> float:
        batch = winner.micro * winner.accumulation * RANKS
        changes = {
            "train_batch_size": batch,
            "train_micro_batch_size_per_gpu": winner.micro,
            "gradient_accumulation_steps": winner.accumulation,
            "zero_optimization": {"stage": winner.stage},
        }
        chosen = {**config, **changes}
        steps = options.steps
        return clock(folder / "winner", options.script, chosen, ranks=RANKS, threads=threads(), steps=steps)

    return measure({str(winner): partial(run, winner) for winner in winners}, options.repeats)


def play(options: argparse.Namespace, config: Mapping[str, object]) -> tuple[list[Round], list[str], Repeats]:
    """Run all rounds; return their results, the messages of the contestants that failed, and the winners' repeats."""
    rounds = read_json(options.earlier) if options.earlier else []
    first = len(rounds)
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pdsh").write_text(PDSH)
        (folder / "pdsh").chmod(0o755)
        contest.progress("warming up")
        warm_up(folder, config, options.script, options.only)
        for number in range(first, first + options.rounds):
            found: dict[str, Found] = {}
            for name in options.only:
                contest.progress(f"round {number + 1} of {first + options.rounds}: {name}")
                try:
                    found[name] = run(name, folder, config, options)
                except SystemExit as failure:  # keep the results of the others, which took minutes
                    failures.append(str(failure))
            rounds.append(found)
        contest.progress("")
        repeats = repeat(rounds, folder, config, options) if options.repeats else {}
    return rounds, failures, repeats


def main() -> int:
    options = arguments()
    contest.adopt_orphans()
    config = {
        "train_micro_batch_size_per_gpu": [int(word) for word in options.micro.split(",")],
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
        "zero_optimization": {"stage": [int(word) for word in options.stages.split(",")]},
    }
    print(f"DeepSpeed {version('deepspeed')}, PyTorch {version('torch')}; a stand-in replaces pdsh and ssh")
    rounds, failures, repeats = play(options, config)
    show(rounds)
    if repeats:
        names = dict.fromkeys(name for each in rounds for name in each)
        found = {name: [each[name].winner for each in rounds if name in each] for name in names}
        show_winners(repeats, {name: [str(each) for each in mine if each] for name, mine in found.items()})
    contest.write_json(options.json, benchmark="tune", results=as_json(rounds), repeats=repeats, failures=failures)
    for words in failures:
        print(f"\n{words}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
