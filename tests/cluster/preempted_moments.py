"""Preemptions at random moments: ``python -m tests.cluster.preempted_moments``.

A training of two ranks, on this machine or on two nodes by ssh (``--over ssh``), gets SIGTERM at moments that a seed
draws, from the first millisecond of the command on. Each rank that has begun to train must save and end by itself,
those that have not are named, and the next job continues at the steps that were saved. Nothing may be left running.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.jobs import Jobs
from tests.cluster.planted_hangs import cluster
from tests.conftest import Stage, become_subreaper, bireme

TRAINS = """
import os, random, signal, sys, time

def write(name, number):
    with open(name + ".new", "w") as file:
        file.write(str(number))
    os.rename(name + ".new", name)

def save(*_):
    write("saved" + rank, step)
    sys.exit(0)

rank = os.environ["RANK"]
time.sleep(random.Random(sys.argv[1] + rank).uniform(0, 0.4))  # it imports its modules
first = step = int(open("saved" + rank).read()) if os.path.exists("saved" + rank) else 0
signal.signal(signal.SIGUSR1, save)
for step in range(first + 1, 1_000_000):
    write("done" + rank, step)
    time.sleep(0.01)
"""
SECONDS = 6
"""The time that the ranks have to save."""
Start = Callable[[list[str], Path], subprocess.Popen[bytes]]
Tell = Callable[[subprocess.Popen[bytes]], object]


def moment(start: Start, tell: Tell, options: Sequence[str], folder: Path, seed: str) -> str:
    """Preempt a job at a moment; what was wrong, "": nothing. Jobs in the same folder continue each other."""
    draw, events = random.Random(seed), folder / "events"
    (folder / "trains.py").write_text(TRAINS)
    steps = {name: numbers(folder, name) for name in ("saved", "done")}
    events.unlink(missing_ok=True)
    words = ["run", *options, *draw.choice(((), ("--preload", "json"))), "--checkpoint_signal", "USR1"]
    words += ["--preempt_signal", f"TERM@{SECONDS}", "--events", str(events), "trains.py", seed]
    job = start(bireme(*words), folder)
    after = draw.choice(("", "planned", '"up"'))
    while after and job.poll() is None and not (events.exists() and after in events.read_text()):
        time.sleep(0.001)
    late = draw.uniform(0, 1) ** 2 if after else draw.uniform(0, 1.0 if "--hosts" in options else 0.4)  # most are early
    time.sleep(late)
    tell(job)
    _, err = (data.decode(errors="replace") for data in job.communicate(timeout=60))
    known = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    down = {each["rank"]: each for each in known if each["event"] == "down"}
    stopped = {rank for rank, each in down.items() if each["stopped"]}
    ended = down.keys() - stopped
    saved, done = numbers(folder, "saved"), numbers(folder, "done")
    trained = {rank for rank in done if done[rank] != steps["done"].get(rank)}
    planned = any(each["event"] == "planned" for each in known)
    wrong = []
    if job.returncode != 78 and (planned or job.returncode not in (143, -15)):
        wrong.append(f"exit code {job.returncode}")
    for rank in trained:
        if saved.get(rank) not in (done[rank], done[rank] + 1):
            wrong.append(f"rank {rank} has done {done[rank]} and saved {saved.get(rank)}")
        if done[rank] <= steps["saved"].get(rank, 0):
            wrong.append(f"rank {rank} did not continue at {steps['saved']}")
    wrong += [f"rank {rank} died by a signal" for rank in ended if down[rank]["by_signal"]]
    wrong += [f"rank {rank} trained and was stopped" for rank in trained & stopped]
    wrong += [f"rank {rank} waited for its end, and did not train" for rank in stopped - trained]
    if (job.returncode == 78) != ("preempted: SIGTERM" in err):
        wrong.append("it does not say so")
    where = f"{late:.3f} s after {after or 'the start'}: exit code {job.returncode}, {sorted(trained)} trained"
    print(f"{seed}: {where}, {sorted(ended)} ended, {sorted(stopped)} stopped", flush=True)
    return "" if not wrong else f"seed {seed}, {where}: {'; '.join(wrong)}\n{err}"


def numbers(folder: Path, name: str) -> dict[int, int]:
    """What each rank has written into a file of this name."""
    return {int(path.name[len(name) :]): int(path.read_text()) for path in folder.glob(f"{name}[0-9]")}


def here(stage: Stage, folder: Path, seeds: Sequence[str]) -> list[str]:
    """What was wrong on this machine."""

    def start(words: list[str], cwd: Path) -> subprocess.Popen[bytes]:
        return stage.start_argv(words, cwd=cwd)

    return [
        moment(start, lambda job: job.send_signal(signal.SIGTERM), ("--num_gpus", "2"), folder, seed) for seed in seeds
    ]


def by_ssh(jobs: Jobs, seeds: Sequence[str]) -> list[str]:
    """What was wrong on two nodes."""

    def start(words: list[str], cwd: Path) -> subprocess.Popen[bytes]:
        return jobs.login.popen(words, cwd=str(cwd), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def tell(job: subprocess.Popen[bytes]) -> None:
        jobs.login.kill(job, signal.SIGTERM)

    return [moment(start, tell, ("--hosts", "node[1-2]:1"), jobs.shared, seed) for seed in seeds]


def main(words: Sequence[str] | None = None) -> int:
    """Preempt jobs, and say what was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.preempted_moments", description=__doc__)
    parser.add_argument("--over", choices=("here", "ssh"), default="here")
    parser.add_argument("--times", type=int, default=20, help="how many jobs")
    parser.add_argument("--seed", default="a", help="another one draws other moments")
    options = parser.parse_args(words)
    seeds = [f"{options.seed}{number}" for number in range(options.times)]
    with tempfile.TemporaryDirectory() as base:
        if options.over == "here":
            become_subreaper()
            stage = Stage()
            wrong = here(stage, Path(base), seeds)
            stage.end()
        else:
            with cluster(Path(base), "ssh") as testbed:
                wrong = by_ssh(Jobs(testbed, "ssh", Path(base)), seeds)
                left = testbed.strays(30.0)
                assert not any(left.values()), left
    for text in filter(None, wrong):
        print(text)
    print(f"{wrong.count('')} of {len(wrong)} preemptions went well")
    return 0 if not any(wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
