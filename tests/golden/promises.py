"""Studies that show whether the tuner keeps a promise, as a user types them; under the clock of `tests.golden.driver`.

`tests/golden/test_promises.py` says what each promises.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.golden import driver
from tests.golden.driver import Happening, Launched, Screen
from tests.golden.journals import reduced
from tests.golden.programs import MICRO, Noise, Program, Scripted
from tests.golden.record import cut

ONE = ("--hosts", "localhost:1", "--num_gpus", "1", "--accelerator", "cpu")
RATE = ("--maximize", "rate: {}")
LOST = {"cause": "agent lost", "note": "the connection was lost", "hosts": ["localhost"]}


class Runs:
    """A program whose argument ``--x`` is told what its runs print.

    Args:
        lines: (value of x, how often it ran before, the trial's name) -> the lines of its output, or a rate.
        each: seconds between two lines.
    """

    def __init__(self, lines: Callable[[str, int, str], Sequence[str] | float | Happening], each: float = 0.3) -> None:
        self._lines, self._each = lines, each
        self.started: list[tuple[str, str]] = []

    def __call__(self, launched: Launched) -> Happening:
        value = launched.args[launched.args.index("--x") + 1]
        name = launched.exports["BIREME_TRIAL"]
        before = len({trial for at, trial in self.started if at == value and trial != name})
        self.started.append((value, name))
        said = self._lines(value, before, name)
        if isinstance(said, Happening):
            return said
        lines = [f"rate: {said:.6g}"] if isinstance(said, float) else said
        writes: list[tuple[float, int | str, str]] = [
            (1.0 + self._each * place, 1, line) for place, line in enumerate(lines)
        ]
        return Happening(writes, writes[-1][0] + 0.25)

    def order(self, value: str) -> list[int]:
        """The places of the runs of a value among all."""
        return [place for place, (at, _) in enumerate(self.started) if at == value]


def study(runs: Runs, *options: str, values: str = "a,b") -> Screen:
    """Tune ``x`` in a new folder of the working directory."""
    Path("train.py").write_text("")
    words = ("tune", *ONE, "--param", f"x={values}", *options, "train.py", "--x", "{x}")
    return driver.type_command(*words, program=runs)


def ends(folder: str = "tuning") -> list[dict[str, Any]]:
    """The trials that have ended, as the report tells them."""
    report = json.loads(driver.type_command("tune", "report", folder, "--json").out)
    return [trial for trial in report["trials"] if trial["cause"] not in ("running", "interrupted")]


def report(folder: str = "tuning") -> dict[str, Any]:
    """What the report says, as data."""
    read: dict[str, Any] = json.loads(driver.type_command("tune", "report", folder, "--json").out)
    return read


def page(folder: str = "tuning") -> str:
    """The text of the report's page."""
    driver.type_command("tune", "report", folder, "--html", "page.html")
    return reduced(Path("page.html").read_text(encoding="utf-8"))[0]


# -- the rounds ------------------------------------------------------------------------------------------


def noisy(size: float, seed: int, **rates: float) -> Runs:
    """Rates with normal noise."""
    return Runs(lambda value, _, name: rates[value] * (1 + random.Random(f"{seed} {name}").gauss(0, size)))


def confidences() -> dict[str, list[float]]:
    """By its confidence, the rounds that a study takes until it is sure, and how far below its interval ends."""
    found = {}
    for confidence in ("80", "99.9"):
        with driver.folder():
            study(noisy(0.02, 3, a=100.0, b=140.0), *RATE, "--confidence", confidence, "--confirm", "sure")
            answer = report()["answer"]
            found[confidence] = [answer["rounds"], answer["ratio"] - answer["low"]]
    return found


def first_runs() -> list[list[str]]:
    """The values in the order of the runs of each round, in some studies."""
    found = []
    for seed in range(3):
        with driver.folder():
            study(noisy(0.08, seed, a=100.0, b=103.0), *RATE, "--seed", str(seed), "--trials", "40")
            rounds: dict[int, list[str]] = {}
            for trial in sorted(ends(), key=lambda each: each["began"]):
                if trial["phase"] == "confirm":
                    rounds.setdefault(trial["round"], []).append(trial["point"]["x"])
            found += [each for each in rounds.values() if len(each) == 2]
    return found


def lost_run() -> dict[str, Any]:
    """A study in which the first run of the best point in a round is never run: its node is lost each time."""
    lost = ""

    def rate(value: str, before: int, name: str) -> float | Happening:
        if name == lost:
            return Happening(seconds=1.0, code=70, report=LOST)
        return 100.0 + 40.0 * (value == "b") + sum(map(ord, name)) % 7

    with driver.folder():
        study(Runs(rate), *RATE)
        lost = next(each["name"] for each in ends() if each["phase"] == "confirm" and each["point"]["x"] == "b")
    with driver.folder():
        runs = Runs(rate)
        study(runs, *RATE)
        return {"attempts": [name for _, name in runs.started].count(lost), "answer": report()["answer"]}


def over_the_limit() -> dict[str, Any]:
    """The fastest point keeps to the limit as long as it is searched, and not any more when it is a finalist."""

    def lines(value: str, before: int, name: str) -> list[str]:
        rate = {"a": 100.0, "b": 120.0, "c": 150.0}[value] + sum(map(ord, name)) % 5
        slow = 300 if value == "c" and before >= 4 else 50
        return [f"rate: {rate}", f"p99: {slow}"]

    with driver.folder():
        study(Runs(lines), *RATE, "--limit", "p99: {} < 200", values="a,b,c")
        told = report()
        points = {each["number"]: each["point"]["x"] for each in told["configurations"]}
        phases = {trial["phase"] for trial in told["trials"] if trial["cause"] == "over limit"}
        return {"best": points[told["answer"]["best"]], "phases": sorted(phases)}


# -- the search ------------------------------------------------------------------------------------------


def unlucky() -> dict[str, Any]:
    """How often each of twelve points runs before the rounds; the best one is unlucky at first."""

    def rate(value: str, before: int, name: str) -> float:
        if value == "7" and not before:
            return 103.0
        return (111.0 if value == "7" else 100.0) * (1 + random.Random(f"{value} {before}").gauss(0, 0.04))

    with driver.folder():
        study(Runs(rate), *RATE, "--search", "gridsearch", values="1..12")
        told = report()
        counts = {str(value): 0 for value in range(1, 13)}
        for trial in told["trials"]:
            counts[str(trial["point"]["x"])] += trial["phase"] != "confirm"
        return {"runs": counts, "best": told["configurations"][told["answer"]["best"]]["point"]["x"]}


def expensive() -> list[int]:
    """The values that a search tries, in their order: there are two peaks, and beyond 20 a run takes ten times."""

    def happening(value: str, before: int, name: str) -> Happening:
        took = 20.0 if int(value) > 20 else 2.0
        rate = 100.0 - min(abs(int(value) - 10), abs(int(value) - 31)) + sum(map(ord, name)) % 3 / 10.0
        return Happening([(took - 0.5, 1, f"rate: {rate:.6g}")], took)

    with driver.folder():
        study(Runs(happening), *RATE, "--trials", "26", values="1..40")
        return [trial["point"]["x"] for trial in ends() if trial["phase"] == "search"]


# -- what is stopped early -------------------------------------------------------------------------------


def _series(rate: float, steps: int, slow: int = 0, deep: float = 0.4) -> list[str]:
    """Lines of a run: some slow ones first, then steady ones that differ by a percent."""
    return [
        f"rate: {rate * (deep if step < slow else 1.0 + 0.01 * ((step * 7) % 5 - 2) / 2):.6g}" for step in range(steps)
    ]


def warming_up() -> dict[str, str]:
    """How trials end of which each is slow at first, for eight of forty readings, and some are better than the best."""
    rates = {str(each): 100.0 + 3 * each for each in range(8)}
    with driver.folder():
        runs = Runs(lambda value, before, name: _series(rates[value] + sum(map(ord, name)) % 3 / 5, 40, slow=12), 0.5)
        study(runs, *RATE, values="0..7")
        return {f"{trial['point']['x']} {trial['name']}": trial["cause"] for trial in ends()}


def behind(part: float) -> list[str]:
    """How the trial of a point ends that is behind by so much, where two runs of the default differ by 3 %."""
    draws = {"a": (1.0, 1.03, 1.0), "b": (1.05,), "c": (1.05 * (1 - part),)}

    def lines(value: str, before: int, name: str) -> list[str]:
        factors = draws[value]
        return _series(100.0 * factors[min(before, len(factors) - 1)], 40)

    with driver.folder():
        study(Runs(lines, 0.5), *RATE, "--search", "gridsearch", values="a,b,c")
        return [trial["cause"] for trial in ends() if trial["point"]["x"] == "c"][:1]


# -- DeepSpeed -------------------------------------------------------------------------------------------


def deepspeed(script: Scripted, section: dict[str, object], *options: str, **config: object) -> Program:
    """Tune a configuration in the working directory."""
    Path("train.py").write_text("")
    whole = {**config, "autotuning": {"enabled": True, **section}}
    Path("ds.json").write_text(json.dumps(whole))
    program = Program(script)
    words = ("tune", *(options or ONE), "train.py", "--deepspeed_config", "ds.json")
    driver.type_command(*words, program=program)
    return program


def out_of_memory() -> list[list[tuple[str, int, bool]]]:
    """(configuration without batch sizes, micro-batch, whether it fits) of the trials of two studies, as they start."""
    studies = []
    for kind in ("gridsearch", "random"):
        with driver.folder():
            script = Scripted(7, limits=(5, 9, 20, 33), noise=Noise("none", 0.0))
            section = {"tuner_type": kind, "tuner_early_stopping": None}
            config: dict[str, object] = {"zero_optimization": {"stage": [0, 1], "overlap_comm": [True, False]}}
            config |= {"fp16": {"enabled": [True, False]}, MICRO: [1, 2, 4, 8, 16, 32, 64, 128]}
            program = deepspeed(script, section, **config)
            studies.append([_fits(script, json.loads(each)) for each in program.started])
    return studies


def _fits(script: Scripted, config: dict[str, Any]) -> tuple[str, int, bool]:
    stage, micro = config["zero_optimization"]["stage"], config[MICRO]
    others = {key: value for key, value in config.items() if "batch" not in key and "accumulation" not in key}
    return json.dumps(others, sort_keys=True), micro, micro <= script.limits[stage]


def shortest_step() -> dict[str, Any]:
    """A study that minimizes the time of a step: what it names as the best, and what repeated."""
    with driver.folder():
        _two_near(("--confidence", "95"))
        config = json.loads(Path("autotuning_results/ds_config_optimal.json").read_text())
        return {"best": config[MICRO], "summary": Path("autotuning_results/summary.txt").read_text()}


def _two_near(options: tuple[str, ...]) -> None:
    """Tune for the shortest step: 4 samples take a tenth less time than 8, which are nearly twice as many a second."""
    script = Scripted(5, half=30.0, noise=Noise("normal", 0.01))
    config: dict[str, object] = {"gradient_accumulation_steps": [1, 2], MICRO: [4, 8]}
    deepspeed(script, {"metric": "latency"}, *ONE, *options, **config)


# -- reports ---------------------------------------------------------------------------------------------


def minimized() -> dict[str, Any]:
    """What is said of a study that minimizes a figure, b being 2 and the default 3.

    ``status``, ``page``: when it was killed in its search; ``over``, ``killed``: what the report has of its finalists,
    when it is over, and without the last record, as if it had been killed then.
    """

    def lines(value: str, before: int, name: str) -> list[str]:
        loss = {"a": 3.0, "b": 2.0, "c": 2.01}[value]
        return [f"loss: {loss + sum(map(ord, name)) % 5 / 100:.6g}"]

    with driver.folder():
        study(Runs(lines), "--minimize", "loss: {}", values="a,b,c")
        told = {"over": report()["finalists"]}
        cut("tuning/journal", 0.9999)
        told["killed"] = report()["finalists"]
        cut("tuning/journal", 0.4)
        return {**told, "page": page(), "status": driver.type_command("tune", "status", "tuning").out}
