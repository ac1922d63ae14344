"""Jobs that Slurm takes the nodes from: every rank saves, and the job that is queued again continues there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cluster import preempted_moments
from tests.cluster.basics import wait_until
from tests.cluster.jobs import Jobs
from tests.cluster.testbed import Testbed
from tests.conftest import TIMES, bireme

pytestmark = [pytest.mark.installed, pytest.mark.slow]
TRAINS = """
import os, signal, sys, time

name = "step" + os.environ["RANK"]
first = int(open(name).read()) if os.path.exists(name) else 0

def save(*_):
    with open(name, "w") as file:
        file.write(str(step))
    sys.exit(0)

signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # without control groups, Slurm sends it to all processes of a step
for step in range(first, first + 100_000):
    if step == first + 2:
        with open(f"began{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w") as file:
            file.write(str(first))
    if first and len([each for each in os.listdir() if each.endswith("-1")]) == 4:
        break
    time.sleep(0.01)
"""
WARNINGS = {
    "the steps": ["scancel", "--signal=TERM", "{job}"],
    "the command": ["scancel", "--batch", "--signal=USR1", "{job}"],
}


def test_moments(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """``python -m tests.cluster.preempted_moments --over ssh`` has more of them."""
    seeds = [f"moment{number}" for number in range(TIMES)]
    assert preempted_moments.by_ssh(Jobs(ssh_cluster, "ssh", shared_dir), seeds) == [""] * TIMES


@pytest.fixture
def jobs(slurm_cluster: Testbed, shared_dir: Path) -> Jobs:
    return Jobs(slurm_cluster, "slurm", shared_dir)


def began(jobs: Jobs, count: int) -> list[Path]:
    return sorted(jobs.shared.glob(f"began*-{count}"))


@pytest.mark.parametrize("signalled", WARNINGS)
def test_a_job_is_preempted_and_continues(jobs: Jobs, signalled: str) -> None:
    """Slurm signals the steps, which are agents; or the batch script, which passes it on to the command."""
    words = ["run", "--num_gpus", "2", "--checkpoint_signal", "USR1", "--requeue", str(jobs.write("train.py", TRAINS))]
    if signalled == "the command":
        words[1:1] = ["--preempt_signal", "USR1@60"]
    lines = ("#!/bin/bash", f"cd {jobs.shared}", f"{shlex.join(bireme(*words))} &", "trap 'kill -USR1 $!' USR1")
    script = jobs.write("job.sh", "\n".join((*lines, "wait; wait; wait; echo code $?", "sleep 100\n")))
    out = jobs.shared / "job.out"
    options = ["--parsable", "-N2", "--requeue", "--open-mode=append", "--output", str(out)]
    job = jobs.login.run(["sbatch", *options, "--chdir", str(jobs.shared), str(script)]).stdout.strip()
    wait_until("the ranks", lambda: len(began(jobs, 0)) == 4, 60)
    jobs.login.run([word.format(job=job) for word in WARNINGS[signalled]])
    wait_until("the checkpoints", lambda: len(list(jobs.shared.glob("step*"))) == 4, 60)
    wait_until("Slurm's new start", lambda: "asking Slurm to queue the job again" in out.read_text(), 60)
    said = out.read_text()
    assert "4 ranks ended without being stopped: rank 0 after" in said, said
    assert ("SIGTERM on node" in said) == (signalled == "the steps"), said
    # Else it may be cancelled first, and queued again after that.
    wait_until("it to be queued", lambda: any("PENDING" in each for each in jobs.testbed.slurm_jobs()), 60)
    if signalled == "the command":
        continues(jobs, job)
    jobs.login.run(["scancel", job])
    wait_until("the job to go", lambda: not jobs.testbed.slurm_jobs(), 60)


def continues(jobs: Jobs, job: str) -> None:
    """The job that is queued again begins at the steps that were saved."""

    def runs() -> bool:
        """Slurm waits with it, unless it is told not to once the job is pending."""
        jobs.login.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False)
        return len(began(jobs, 1)) == 4

    wait_until("the ranks of the new start", runs, 240, 0.5)
    for path in began(jobs, 1):
        assert path.read_text() == (jobs.shared / path.name.split("-")[0].replace("began", "step")).read_text() > "0"
