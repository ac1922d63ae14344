"""Draws a study by its number: a command line, the program that it tunes, and what happens to it meanwhile."""

from __future__ import annotations

import json
import math
import random
from typing import Any, NamedTuple

from tests.golden.programs import MICRO, NOISES, Faults, Noise, Scripted, Tuned

KINDS = ("program", "deepspeed", "ask and tell")


class Drawn(NamedTuple):
    """A study.

    Attributes:
        number: its own.
        kind: of `KINDS`.
        about: what it is, in a few words.
        words: the command line, without ``bireme``.
        program: what runs.
        files: to be written before, by name.
        capacity: bytes of memory of a GPU; None: there are none.
        folder: of its results.
        signals: seconds after its start at which Ctrl+C is pressed, once in each run of the command.
        cut: the part of its journal's records that is left when it is resumed after a kill; None: it is not killed.
        torn: whether the kill leaves an incomplete record.
        again: whether the command is typed once more when it is over.
    """

    number: int
    kind: str
    about: str
    words: tuple[str, ...]
    program: Tuned | Scripted
    files: dict[str, str]
    capacity: int | None = None
    folder: str = "tuning"
    signals: tuple[float, ...] = ()
    cut: float | None = None
    torn: bool = False
    again: bool = False


def draw(number: int) -> Drawn:
    """The study of this number: of three, one is DeepSpeed's; of ten, one is driven by ask and tell."""
    luck = random.Random(f"golden study {number}")
    if number % 10 == 9:
        return _program(number, luck, ask_tell=True)
    return _deepspeed(number, luck) if number % 3 == 1 else _program(number, luck)


def _noise(luck: random.Random) -> Noise:
    return Noise(luck.choice(NOISES), luck.choice((0.003, 0.01, 0.02, 0.05)))


def _faults(luck: random.Random) -> Faults:
    if luck.random() < 0.6:
        return Faults()
    lost, killed = luck.choice((0.0, 0.0, 0.03, 0.1)), luck.choice((0.0, 0.0, 0.03))
    return Faults(luck.choice((0.0, 0.1, 0.3)), luck.choice((0.0, 0.0, 0.1)), lost, killed)


def _places(luck: random.Random) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """(options, hosts, how many trials run side by side)."""
    which = luck.choice(("one", "one", "some", "nodes", "wide"))
    if which == "one":
        return ("--hosts", "localhost:1", "--num_gpus", "1"), ("localhost",), 1
    if which == "some":
        slots = luck.choice((2, 3, 4))
        return ("--hosts", f"localhost:{slots}", "--num_gpus", "1"), ("localhost",), slots
    if which == "nodes":
        return ("--hosts", "node[1-2]:2", "--num_nodes", "1", "--num_gpus", "1"), ("node1", "node2"), 4
    return ("--hosts", "localhost:4", "--num_gpus", "2"), ("localhost",), 2


def _events(luck: random.Random) -> dict[str, Any]:
    """What happens to the study besides."""
    which = luck.random()
    if which < 0.62:
        return {"again": luck.random() < 0.1}
    if which < 0.8:
        return {"signals": tuple(luck.uniform(2.0, 150.0) for _ in range(luck.choice((1, 1, 2))))}
    return {"cut": luck.random(), "torn": luck.random() < 0.3}


# -- a program -------------------------------------------------------------------------------------------

_NUMBERS = (
    ("8..512:log2", [8, 16, 32, 64, 128, 256, 512]),
    ("1..8", list(range(1, 9))),
    ("1,2,4,8,16", [1, 2, 4, 8, 16]),
    ("0..100:10", list(range(0, 101, 10))),
    ("1e-4..1e-1:log:10", [0.0001, 0.000215, 0.000464, 0.001, 0.00215, 0.00464, 0.01, 0.0215, 0.0464, 0.1]),
    ("1..40", list(range(1, 41))),
)
_LARGEST = 700
"""Points of a space; in larger ones a trial takes much real time."""

_WORDS = (("safe", "fast"), ("off", "on"), ("a", "b", "c"), ("none", "cpu", "nvme", "mixed"))
_NAMES = ("batch", "depth", "threads", "chunk", "rate", "mode")


def _program(number: int, luck: random.Random, *, ask_tell: bool = False) -> Drawn:
    many = luck.choice((1, 1, 2, 2, 2, 3, 3, 4, 5))
    flat = luck.random() < 0.15
    factors: dict[str, dict[str, float]] = {}
    declared: list[tuple[str, str]] = []
    choices: dict[str, list[str]] = {}
    size = 1
    for name in _NAMES[:many]:
        text, numbers = luck.choice(_NUMBERS)
        if luck.random() < 0.65 and size * len(numbers) <= _LARGEST:
            size *= len(numbers)
            texts = [f"{value:g}" for value in numbers]
            peak, width = luck.random(), luck.uniform(0.3, 1.5)
            tall = 0.0 if flat else luck.choice((0.02, 0.1, 0.5, 1.0))
            place = [at / max(1, len(texts) - 1) for at in range(len(texts))]
            known = [1.0 + tall * math.exp(-(((at - peak) / width) ** 2) * 4.0) for at in place]
        else:
            texts = list(luck.choice(_WORDS))
            size *= len(texts)
            text = ",".join(texts) + (":ordered" if luck.random() < 0.2 else "")
            known = [1.0 + (0.0 if flat else luck.choice((0.0, 0.01, 0.05, 0.3)) * luck.random()) for _ in texts]
        factors[name] = {value: round(factor, 4) for value, factor in zip(texts, known, strict=True)}
        declared.append((name, text))
        choices[name] = texts
    names = list(factors)
    many = len(names)
    pairs = {}
    if not flat and many > 1 and luck.random() < 0.5:
        for _ in range(luck.choice((1, 3, 6))):
            one, other = sorted(luck.sample(names, 2))
            pairs[f"{one}={luck.choice(choices[one])} {other}={luck.choice(choices[other])}"] = luck.uniform(0.7, 1.3)
    memory = [name for name in names if choices[name][0].isdigit() and luck.random() < 0.4]
    least = math.prod(max(1.0, float(choices[name][0])) for name in memory)
    most = math.prod(float(choices[name][-1]) for name in memory)
    wall = least + luck.random() * (most - least) if memory and luck.random() < 0.6 else math.inf
    options, hosts, side_by_side = _places(luck)
    goals, how, goal_names = _goals(luck, ask_tell or side_by_side > 1)
    search = luck.choice(("model_based",) * 5 + ("gridsearch", "random"))
    program = Tuned(
        seed=number,
        factors=factors,
        pairs={words: round(factor, 4) for words, factor in pairs.items()},
        memory=memory,
        wall=wall,
        how=how,
        noise=_noise(luck),
        faults=_faults(luck),
        steps=luck.choice((3, 6, 12)),
        hosts=hosts,
    )
    args, files, params = _deliveries(luck, names, declared, {*memory} if luck.random() < 0.7 else set(), ask_tell)
    more = _conditions(luck, names, choices)
    if luck.random() < 0.3:
        name = luck.choice(names)
        more += ["--default", f"{name}={luck.choice(choices[name])}"]
    if luck.random() < 0.15 and len(goal_names) == 1 and how != "time":
        more += ["--limit", f"peak: {{}} < {luck.choice((60, 120, 400))}MiB"]
    trials = luck.choice((None, None, None, 2, 5, 10, 16, 25, 40))
    budget = luck.choice((None, None, None, "30s", "90s", "4m"))
    if trials is None and (budget is None or ask_tell):
        trials = 40
    bounds = [*(["--trials", str(trials)] if trials else []), *(["--budget", budget] if budget else [])]
    bounds += ["--effect", luck.choice(("1", "2", "5", "10"))] if luck.random() < 0.4 else []
    bounds += ["--confidence", luck.choice(("80", "90", "99"))] if luck.random() < 0.25 else []
    bounds += ["--seed", str(luck.randrange(100))] if luck.random() < 0.5 else []
    about = f"{search}, {program.noise.kind} noise {program.noise.size:g}, {len(names)} parameters"
    about += f", {side_by_side} at a time" if side_by_side > 1 else ""
    about += ", faults" if program.faults != Faults() else ""
    said = [*params, *more, *goals, "--search", search, *bounds]
    if ask_tell:
        return Drawn(number, "ask and tell", about, ("tune", *said, "--ask_tell"), program, files)
    launch = ["--accelerator", "cpu", *options]
    words = ["tune", *said, *launch, "train.py", *args]
    if luck.random() < 0.12:
        about, words = f"{about}, study file", ["tune", "tune.toml"]
        files["tune.toml"] = _study_file(said, launch, ["train.py", *args])
    return Drawn(number, "program", about, tuple(words), program, files, **_events(luck))


def _study_file(said: list[str], launch: list[str], command: list[str]) -> str:
    """What options say, as a study file."""
    pairs = list(zip(said[::2], said[1::2], strict=True))
    lists: dict[str, list[str]] = {"maximize": [], "minimize": [], "limits": [], "constraints": [], "conditions": []}
    names = {"limit": "limits", "constraint": "constraints", "when": "conditions"}
    defaults = dict(text.split("=") for option, text in pairs if option == "--default")
    lines, tables = [f"command = {json.dumps(command)}"], []
    for option, text in pairs:
        key = option[2:]
        if key in ("param", "env", "in"):
            name, _, values = text.partition("=")
            file, colon, path = name.partition(":")
            name = path.rpartition(".")[2] if colon else name
            tables += ["", f"[parameters.{name}]", f"values = {json.dumps(values)}"]
            tables += [f"default = {json.dumps(_read(defaults[name]))}"] if name in defaults else []
            tables += [f"env = {json.dumps(name)}"] if key == "env" else []
            tables += [f"file = {json.dumps(file)}", f"key = {json.dumps(path)}"] if colon else []
        elif names.get(key, key) in lists:
            lists[names.get(key, key)].append(text)
        elif key != "default":
            lines.append(f"{key} = {json.dumps(_read(text) if key != 'budget' else text)}")
    lines += [f"{key} = {json.dumps(texts)}" for key, texts in lists.items() if texts]
    options = [f"{key[2:]} = {json.dumps(_read(text))}" for key, text in zip(launch[::2], launch[1::2], strict=True)]
    return "\n".join([*lines, *tables, "", "[launch]", *options, ""])


def _read(text: str) -> object:
    """The number that a text is, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _goals(luck: random.Random, plain: bool) -> tuple[list[str], str, list[str]]:
    """(options, how the program tells its figures, the names of the goals)."""
    how = luck.choice(("pattern", "pattern", "pattern", "reported", "time"))
    if how == "pattern" and not plain and luck.random() < 0.3:
        how = "file"
    if how == "time":
        return ["--minimize", "time"], how, ["time"]
    word = {"pattern": "rate: {}", "reported": "rate", "file": "result.json:rate"}[how]
    goals = ["--maximize", word]
    if luck.random() < 0.12:
        return [*goals, "--minimize", "peak: {}"], how, ["rate", "peak"]
    return goals, how, ["rate"]


def _deliveries(
    luck: random.Random, names: list[str], declared: list[tuple[str, str]], marked: set[str], ask_tell: bool
) -> tuple[list[str], dict[str, str], list[str]]:
    """(arguments of the program, files, options that declare the parameters)."""
    args: list[str] = []
    options: list[str] = []
    keys: dict[str, object] = {}
    for name, text in declared:
        way = "argument" if ask_tell else luck.choice(("argument",) * 4 + ("environment", "file"))
        text += ":memory" if name in marked else ""
        if way == "environment":
            options += ["--env", f"{name}={text}"]
        elif way == "file" and not text[0].isalpha():
            options += ["--in", f"config.json:training.{name}={text}"]
            keys[name] = 1
        else:
            options += ["--param", f"{name}={text}"]
            args += [f"--{name}", f"{{{name}}}"]
    files = {"train.py": ""}
    if keys:
        files["config.json"] = json.dumps({"training": keys, "name": "x"})
        args += ["--config", "config.json"]
    return args, files, options


def _conditions(luck: random.Random, names: list[str], choices: dict[str, list[str]]) -> list[str]:
    more = []
    words = [name for name in names if choices[name][0].isalpha()]
    numbers = [name for name in names if name not in words]
    if words and numbers and luck.random() < 0.35:
        more += ["--when", f"{numbers[-1]} only if {words[0]} == {choices[words[0]][-1]}"]
    elif len(numbers) > 1 and luck.random() < 0.35:
        one, other = numbers[:2]
        least = float(choices[one][0]) * float(choices[other][0])
        most = float(choices[one][-1]) * float(choices[other][-1])
        more += ["--constraint", f"{one} * {other} <= {least + luck.uniform(0.2, 0.9) * (most - least):.4g}"]
    return more


# -- DeepSpeed -------------------------------------------------------------------------------------------


def _deepspeed(number: int, luck: random.Random) -> Drawn:
    stages = luck.choice((0, 1, [0, 1], [0, 1, 2], [1, 3], "all"))
    config: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
    factors: dict[str, float] = {}
    zero: dict[str, Any] = {"stage": stages}
    if luck.random() < 0.5:
        zero["overlap_comm"] = [True, False]
        factors["zero_optimization.overlap_comm=true"] = luck.choice((0.95, 1.0, 1.02, 1.15))
    if luck.random() < 0.25:
        zero["offload_optimizer"] = [{"device": "none"}, {"device": "cpu"}]
        factors['zero_optimization.offload_optimizer.device="cpu"'] = luck.choice((0.7, 0.9))
    if luck.random() < 0.3:
        zero["reduce_bucket_size"] = [50_000_000, 500_000_000, 1_000_000_000]
        factors["zero_optimization.reduce_bucket_size=500000000"] = luck.choice((1.0, 1.03, 1.1))
    config["zero_optimization"] = zero
    if luck.random() < 0.5:
        config["fp16"] = {"enabled": luck.choice((True, [True, False]))}
        factors["fp16.enabled=true"] = luck.choice((1.0, 1.4))
    batch = luck.choice(("micro", "micro", "auto", "auto", "train"))
    if batch == "micro":
        config[MICRO] = luck.choice(([4, 8], [1, 2, 4, 8], [8, 16, 32, 64], 8))
    elif batch == "train":
        config["train_batch_size"] = luck.choice((64, 256))
    elif luck.random() < 0.4:
        config["gradient_accumulation_steps"] = luck.choice(([1, 2], [1, 4]))
    section: dict[str, Any] = {"enabled": True}
    section["fast"] = luck.random() < 0.75
    for key, values in (
        ("tuner_type", ("gridsearch", "random", "model_based", "gridsearch", None)),
        ("metric", ("throughput", "latency", "flops", None, None, None)),
        ("tuner_num_trials", (None, None, 5, 12, 30)),
        ("tuner_early_stopping", (None, None, 2, 5)),
        ("num_tuning_micro_batch_sizes", (None, None, 2, 5)),
        ("max_train_batch_size", (None, None, None, 64)),
        ("max_train_micro_batch_size_per_gpu", (None, None, 40)),
        ("overwrite", (None, None, False)),
    ):
        value = luck.choice(values)
        if value is not None:
            section[key] = value
    if section.get("tuner_num_trials") is None:
        section["tuner_num_trials"] = 40
    capacity = luck.choice((None, None, 8, 16, 80))
    config["autotuning"] = section
    options, hosts, side_by_side = _places(luck)
    program = Scripted(
        seed=number,
        half=luck.choice((2.0, 8.0, 30.0)),
        tolls=luck.choice(((0.0, 0.1, 0.2, 0.3), (0.02, 0.0, 0.01, 0.05), (0.3, 0.2, 0.1, 0.0))),
        limits=luck.choice(((64,) * 4, (4, 8, 16, 32), (24, 24, 50, 90), (0, 3, 7, 13), (1000,) * 4)),
        factors=factors,
        profile=luck.random() < 0.85,
        logs=luck.random() < 0.85,
        exits=luck.random() < 0.93,
        noise=_noise(luck),
        faults=_faults(luck),
        hosts=hosts,
    )
    words = ["tune", *options]
    words += ["--effect", luck.choice(("1", "5"))] if luck.random() < 0.3 else []
    words += ["--confidence", luck.choice(("0", "80", "99"))] if luck.random() < 0.3 else []
    words += ["--budget", luck.choice(("20s", "2m"))] if luck.random() < 0.3 else []
    words += ["--order", "longest"] if luck.random() < 0.2 else []
    words += ["--experiment_limit", luck.choice(("4", "6", "20"))] if luck.random() < 0.15 else []
    words += ["--config_as", "file"] if luck.random() < 0.2 else []
    words += [] if capacity else ["--accelerator", "cpu"]
    about = f"{section.get('tuner_type', 'gridsearch')}, stages {stages}, {batch} batch, {program.noise.kind} noise "
    about += f"{program.noise.size:g}{'' if section['fast'] else ', not fast'}"
    about += f", {side_by_side} at a time" if side_by_side > 1 else ""
    about += ", faults" if program.faults != Faults() else ""
    files = {"train.py": "", "ds.json": json.dumps(config, indent=1)}
    words += ["train.py", "--deepspeed_config", "ds.json"]
    return Drawn(
        number,
        "deepspeed",
        about,
        tuple(words),
        program,
        files,
        capacity=capacity and capacity << 30,
        folder="autotuning_results",
        **_events(luck),
    )
