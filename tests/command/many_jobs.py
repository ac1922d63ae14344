"""Many jobs at once, and commands about them that are killed: ``python -m tests.command.many_jobs``.

Jobs of one small rank run side by side, some of them detached. Commands that ask for them (``ps``, ``logs``,
``attach``, ``top``, ``stop``, …) are killed by SIGKILL at moments that a seed draws. No job may notice: each goes on to
write its lines, holds as many files open as before, and ends as if nobody had asked. A job that is killed itself is not
listed any more. The exit code is 1 if something was wrong; nothing may be left running.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import Stage, become_subreaper, bireme, clean_environ, wait_for

TICKS = """
import os, sys, time
number = 0
while not os.path.exists("go"):
    print("tick", number, flush=True)
    number += 1
    time.sleep(0.2)
print("ticks", number, flush=True)
"""
ASKING = (
    *(("ps",), ("ps", "--json"), ("attach", "{job}"), ("logs", "{job}"), ("logs", "-f", "{job}")),
    *(("top", "--once", "{job}"), ("stacks", "{job}"), ("signal", "{job}", "WINCH"), ("report", "{job}")),
)
"""Commands that change nothing."""
LONGEST = 0.6
"""Seconds after which a command is killed, at most."""


class Crowd:
    """The jobs, and who asks for them."""

    def __init__(self, stage: Stage, folder: Path, count: int, seed: str) -> None:
        self.stage, self.folder, self.draw = stage, folder, random.Random(seed)
        self.environ = clean_environ(XDG_STATE_HOME=str(folder / "state"))
        (folder / "ticks.py").write_text(TICKS)
        self.jobs: dict[int, str] = {}  # pid → name, of those that must go on
        self.processes: dict[int, subprocess.Popen[bytes]] = {}  # of those in the foreground
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._start, range(count)))
        wait_for(lambda: self.jobs.keys() <= self.listed().keys(), "all jobs are listed")
        wait_for(lambda: all(job["ranks"] == 1 and job["last"] for job in self.ours()), "all jobs run")

    def _start(self, number: int) -> None:
        name = f"crowd-{os.getpid()}-{number}"
        words = ["run", "-q", "--num_gpus", "1", "--job_name", name, "--events", f"{name}.events", "ticks.py"]
        if number % 2:
            with open(self.folder / f"{name}.out", "wb") as out:
                job = self.stage.start_argv(bireme(*words), cwd=self.folder, env=self.environ, stdout=out, stderr=out)
            self.processes[job.pid] = job
            self.jobs[job.pid] = name
        else:
            words.insert(1, "--detach")
            done = subprocess.run(
                bireme(*words), cwd=self.folder, env=self.environ, capture_output=True, text=True, check=True
            )
            self.jobs[int(done.stdout)] = name

    def listed(self) -> dict[int, dict[str, object]]:
        """What ``bireme ps`` lists."""
        said = subprocess.run(bireme("ps", "--json"), capture_output=True, text=True, check=True, env=self.environ)
        return {job["id"]: job for job in json.loads(said.stdout)}

    def ours(self) -> list[dict[str, object]]:
        """Of those, the jobs that must go on."""
        return [job for pid, job in self.listed().items() if pid in self.jobs]

    def open_files(self) -> dict[int, int]:
        """How many files each job holds open."""
        return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in self.jobs}

    def ask(self, words: Sequence[str], pid: int, seconds: float) -> bool:
        """Run a command about a job, and kill it after so many seconds; return whether it was still there."""
        given = [word.format(job=pid) for word in words]
        with subprocess.Popen(
            bireme(*given), env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as asking:
            try:
                asking.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                asking.kill()
                return True
        return False

    def hassle(self, kills: int, at_once: int = 4) -> int:
        """Ask until so many commands were killed; return how many ended before."""
        pids, asked, killed = sorted(self.jobs), 0, 0
        with ThreadPoolExecutor(at_once) as pool:
            while killed < kills:
                drawn = [
                    (self.draw.choice(ASKING), self.draw.choice(pids), self.draw.uniform(0, 1) ** 2 * LONGEST)
                    for _ in range(min(at_once * 4, kills - killed))
                ]
                asked += len(drawn)
                killed += sum(pool.map(lambda each: self.ask(*each), drawn))
        return asked - killed

    def stop(self, count: int) -> list[str]:
        """Have some jobs stopped by commands that are killed; what was wrong."""
        wrong = []
        for pid in self.draw.sample(sorted(self.processes), count):
            self.ask(("stop", "{job}"), pid, self.draw.uniform(0, LONGEST))
            if pid in self.listed():  # it has not heard
                self.ask(("stop", "{job}"), pid, 60)
            name, code = self.jobs.pop(pid), self.processes.pop(pid).wait(60)
            if code != 143:
                wrong.append(f"{name} was stopped, and ended with {code}")
        return wrong

    def kill(self, count: int) -> list[str]:
        """Kill some jobs; what was wrong."""
        victims = self.draw.sample(sorted(self.jobs), count)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
            self.jobs.pop(pid)
            if pid in self.processes:
                self.processes.pop(pid).wait()
        return [f"job {pid} was killed, and is listed" for pid in victims if pid in self.listed()]

    def finish(self) -> list[str]:
        """Let the jobs end; what was wrong of them."""
        wrong = [f"{name} is not listed" for pid, name in self.jobs.items() if pid not in self.listed()]
        (self.folder / "go").touch()
        for name in self.jobs.values():
            events = self.folder / f"{name}.events"
            wait_for(lambda events=events: '"finished"' in events.read_text(), f"{name} ends")  # type: ignore[misc]
            end = json.loads(events.read_text().splitlines()[-1])
            logs = [*self.folder.glob(f"{name}.out"), *self.folder.glob(f"state/bireme/*-{name}.log")]
            lines = "".join(log.read_text() for log in logs).splitlines()
            ticks = [f"tick {number}" for number in range(len(lines) - 1)]
            if end["code"] or lines != [*ticks, f"ticks {len(ticks)}"]:
                wrong.append(f"{name} ended with {end['code']} and wrote {lines[:3]} … {lines[-3:]}")
        wait_for(lambda: not self.ours(), "no job is listed")
        return wrong


def play(stage: Stage, folder: Path, jobs: int, kills: int, seed: str, some: int) -> list[str]:
    """Start so many jobs, kill so many commands that ask for them, and ``some`` jobs; what was wrong."""
    begin = time.monotonic()
    crowd = Crowd(stage, folder, jobs, seed)
    print(f"{jobs} jobs run after {time.monotonic() - begin:.1f} s", flush=True)
    begin = time.monotonic()
    crowd.listed()
    print(f"bireme ps --json took {time.monotonic() - begin:.2f} s", flush=True)
    before = crowd.open_files()
    others = crowd.hassle(kills)
    print(f"{kills} commands were killed, {others} ended before, in {time.monotonic() - begin:.1f} s", flush=True)
    wait_for(lambda: crowd.open_files() == before, "the jobs close what they have opened for those who asked")
    wrong = crowd.stop(some) + crowd.kill(some)
    return wrong + crowd.finish()


def main(words: Sequence[str] | None = None) -> int:
    """Play it, and say what was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.command.many_jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50, help="jobs side by side")
    parser.add_argument("--kills", type=int, default=100, help="commands that are killed")
    parser.add_argument("--seed", default="a", help="another one draws other moments")
    options = parser.parse_args(words)
    become_subreaper()
    stage = Stage()
    with tempfile.TemporaryDirectory() as folder:
        try:
            wrong = play(stage, Path(folder), options.jobs, options.kills, options.seed, min(5, options.jobs // 4))
        finally:
            stage.end()
    print("\n".join(wrong) or "nothing was wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
