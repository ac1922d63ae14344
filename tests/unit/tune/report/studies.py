"""Makes the folder of a study as the tuner writes it, with a landscape that has a wall of memory and noise."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path

from bireme.tune.store.journal import Journal

BEGIN = 1_790_000_000.0
COMMAND = ["train.py", "--batch", "{batch}", "--compile", "{compile}", "--api_key", "hunter2-of-the-study"]
HOSTILE = (
    b"step 3 \x1b[31mred\x1b[0m \x1b]0;title\x07 \xff\xfe <script>window.hacked = 1</script>\n"
    b'<img src=x onerror="window.hacked = 1"> --password=s3cretpassword hunter2-of-the-study \xe2\x80\xae\n'
    b"</script><script>window.hacked = 1</script>\n"
)
PARAMETERS = [
    {"name": "batch", "choices": [8, 16, 32, 64, 128, 256, 512], "default": 32, "ordered": True, "memory": True},
    {"name": "compile", "choices": ["on", "off"], "default": "off", "ordered": False, "memory": False},
    {"name": "OMP_NUM_THREADS", "choices": [1, 2, 4], "default": 1, "ordered": True, "memory": False},
    {"name": "loader", "choices": ["plain", "<b>pinned</b>"], "default": "plain", "ordered": False, "memory": False},
]
BASELINE: dict[str, object] = {str(each["name"]): each["default"] for each in PARAMETERS}


def speed(point: Mapping[str, object]) -> float:
    """Samples per second without noise; 0: out of memory."""
    batch = float(str(point["batch"]))
    if batch * (1.0 if point["compile"] == "on" else 1.3) > 300:
        return 0.0
    figure = 900 * batch / (batch + 24) - batch * 0.35
    figure *= 1.12 if point["compile"] == "on" else 1.0
    return figure * (1.0, 1.035, 1.02)[[1, 2, 4].index(int(str(point["OMP_NUM_THREADS"])))]


class StudyMaker:
    """Writes a study trial by trial, two side by side on two slots; ``scale``: seconds of a trial."""

    def __init__(self, folder: Path, *, seed: int = 1, logs: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.random, self.logs = folder, random.Random(seed), logs
        self.journal = Journal.open(str(folder / "journal"))
        self.free = [BEGIN, BEGIN]
        self.count = 0
        self.figures: list[float] = []

    def begin(self, **more: object) -> None:
        self.journal.append(
            {
                "study": {
                    "command": COMMAND,
                    "parameters": PARAMETERS,
                    "goals": [{"name": "samples/s", "direction": "maximize"}],
                    "limits": [{"text": "p99: {} < 200"}],
                    "confidence": 0.95,
                    "effect": 0.02,
                    **more,
                }
            },
            sync=False,
        )

    def start(self, point: Mapping[str, object], phase: str, slot: int) -> str:
        self.count += 1
        name = f"t{self.count:05}"
        record = {"start": name, "on": f"localhost:{slot}", "time": round(self.free[slot], 3), "point": dict(point)}
        self.journal.append({**record, "phase": phase}, sync=False)
        return name

    def trial(
        self, point: Mapping[str, object], phase: str = "search", number: int = 0, slot: int | None = None
    ) -> float:
        slot = min((0, 1), key=lambda each: self.free[each]) if slot is None else slot
        name = self.start(point, phase, slot)
        figure, cause, reason = speed(point) * self.random.gauss(1, 0.008), "ok", ""
        if figure == 0:
            cause, reason = "out of memory", "CUDA out of memory: rank 0 asked for 2.4 GiB"
        elif phase == "search" and self.random.random() < 0.04:
            cause, reason = "failed", "rank 0 exited with 1: ValueError: <script>window.hacked = 1</script>"
        elif phase == "search" and figure < 500:
            cause, reason = "pruned", "could not be better than 540 samples/s"
        seconds = {"out of memory": 11.0, "failed": 7.0, "pruned": 16.0}.get(cause, 31.0) * self.random.uniform(
            0.9, 1.1
        )
        self.free[slot] += seconds
        values = [figure * (1 - 0.6 * math.exp(-place / 3)) * self.random.gauss(1, 0.02) for place in range(40)]
        ok = cause == "ok"
        figures = {"samples/s": figure, "p99": 90.0 + float(str(point["batch"]))} if ok else {}
        metrics = {"samples/s": 540.0} if cause == "pruned" else figures
        self.journal.append(
            {
                "end": name,
                "time": round(self.free[slot], 3),
                "ending": {"cause": cause, "reason": reason, "detail": "", "seconds": seconds, "metrics": metrics},
                "point": dict(point),
                "phase": phase,
                "round": number,
                "block": f"round {number}" if number else "",
                "figures": figures,
                "units": {"p99": "ms"},
                "series": {"samples/s": values} if cause in ("ok", "pruned") else {},
                "warm_up": {"samples/s": 9} if ok else {},
                "parts": {"launch": 4.0, "warm_up": 6.5, "measuring": seconds - 10.5} if ok else {},
            },
            sync=False,
        )
        self.free[slot] += 0.4
        if self.logs:
            self.log(name, cause)
        return figure if ok else 0.0

    def log(self, name: str, cause: str) -> None:
        folder = self.folder / "trials" / name
        folder.mkdir(parents=True, exist_ok=True)
        head = b"".join(b"[0.000 localhost:0] step %d loss %.3f\n" % (each, 2 / (each + 1)) for each in range(9))
        (folder / "stdout.log").write_bytes(head)
        if cause != "ok":
            (folder / "stderr.log").write_bytes(HOSTILE + b"Traceback (most recent call last):\n" + cause.encode())

    def point(self) -> dict[str, object]:
        return {str(each["name"]): self.random.choice(list(each["choices"])) for each in PARAMETERS}  # type: ignore[call-overload]

    def finish(self, best: Mapping[str, object], **answer: object) -> None:
        """Finalists in paired rounds, then the answer."""
        finalists = [best, {**best, "OMP_NUM_THREADS": 4}, {**best, "batch": 64}]
        for number in range(1, 8):
            self.free = [max(self.free)] * 2
            order = [BASELINE, *finalists]
            self.random.shuffle(order)
            for each in order:
                self.trial(each, "confirm", number, slot=0)
        ratios = [speed(each) / speed(BASELINE) for each in finalists]
        compared = [
            {
                "point": dict(each),
                "goal": "samples/s",
                "ratio": ratio,
                "low": ratio - 0.015,
                "high": ratio + 0.016,
                "rounds": 7,
            }
            for each, ratio in zip(finalists, ratios, strict=True)
        ]
        self.journal.append(
            {
                "over": "the best is separated from the default",
                "answer": {
                    "best": dict(best),
                    "baseline": BASELINE,
                    "confirmed": True,
                    "ratio": ratios[0],
                    "low": ratios[0] - 0.015,
                    "high": ratios[0] + 0.016,
                    "rounds": 7,
                    "ties": [finalists[1]],
                    "noise": 0.008,
                    "front": [],
                    "compared": compared,
                    "text": "",
                    **answer,
                },
            }
        )
        words = "bireme run --num_gpus 1 train.py --batch 128 --compile on --api_key hunter2-of-the-study"
        (self.folder / "cmd_best.txt").write_text(words + "\n")


def finished(folder: Path, trials: int = 48, *, logs: bool = True) -> Path:
    """A study that is over."""
    made = StudyMaker(folder, logs=logs)
    made.begin(trials=trials + 40)
    for _ in range(4):
        made.trial(BASELINE, "noise")
    for _ in range(trials):
        made.trial(made.point())
    made.finish({**BASELINE, "batch": 128, "compile": "on", "OMP_NUM_THREADS": 2})
    made.journal.close()
    return folder
