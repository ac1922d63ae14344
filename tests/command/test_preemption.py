"""Preemptions: the ranks are told to save, and have the time that is left."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.cluster import preempted_moments
from tests.conftest import TIMES, clean_environ, read_lines, wait_for, wait_until_listed

SAVES = """
import os, signal, sys, time

rank = os.environ["RANK"]
path = sys.argv[1] + "/step" + rank
step = int(open(path).read()) if os.path.exists(path) else 0
first = step

def save(signum, frame):
    print("saves", step, flush=True)
    with open(path, "w") as file:
        file.write(str(step))
    sys.exit(int(sys.argv[2]) if rank == "1" else 0)

signal.signal(signal.SIGUSR1, save)
while True:
    time.sleep(0.01)
    step += 1
    if step == first + 1:
        print("ready at", first, "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
"""
STAYS = """
import os, signal, time
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: print("has heard SIGTERM", flush=True))
else:
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
print("ready", flush=True)
while True: time.sleep(0.05)
"""
WORDS = ("run", "--num_gpus", "2", "--checkpoint_signal", "USR1")


def test_all_ranks_save_and_the_next_job_continues(stage, script, tmp_path):
    """By the scheduler's SIGTERM to the command; who saves may end with any code."""
    events = tmp_path / "events"
    job = stage.start(*WORDS, "--events", str(events), script(SAVES), str(tmp_path), "3")
    read_lines(job, 2, "ready at 0 restart 0")
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 78, err
    assert out.count(b"saves") == 2
    assert b"preempted: SIGTERM; the ranks get SIGUSR1 and time to save" in err
    assert b"  2 ranks ended without being stopped: rank 0 after " in err and b" s (exit code 3)\n" in err
    assert b"10.0 s are left, as --grace says; if it is more, type --preempt_signal SIGTERM@SECONDS" in err
    assert b"because of it" not in err
    (stopping,) = [each for each in map(json.loads, events.read_text().splitlines()) if each["event"] == "stopping"]
    assert (stopping["cause"], stopping["note"]) == ("preempted", "SIGTERM")
    again = stage.start(*WORDS, script(SAVES), str(tmp_path), "0", env={**os.environ, "SLURM_RESTART_COUNT": "2"})
    for line in read_lines(again, 2, "restart 2"):
        assert "ready at 0 " not in line
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    assert again.returncode == 78


def test_who_does_not_end_is_stopped_when_the_time_is_over(stage, script):
    """SIGTERM a fifth of the time before, SIGKILL at its end; the one that has ended by itself is told."""
    begin = time.monotonic()
    job = stage.start(*WORDS, "--preempt_signal", "USR2@5", "--grace", "1000", script(STAYS))
    read_lines(job, 2, "ready")
    job.send_signal(signal.SIGUSR2)
    out, err = job.communicate(timeout=100)
    assert job.returncode == 78 and time.monotonic() - begin >= 5
    assert b"has heard SIGTERM" in out and b"bireme: 5.0 s are left\n" in err
    assert (
        b"1 rank was stopped because of it, by SIGKILL" in err
        and b"  1 rank ended without being stopped: rank 0" in err
    )


LATE = """
import os, signal, sys, time
rank = os.environ["RANK"]
print("ready", flush=True)
while rank == "1" and not os.path.exists(sys.argv[1]): time.sleep(0.01)
signal.signal(signal.SIGUSR1, lambda *_: (print("saves", flush=True), sys.exit(0)))
print("begins", flush=True)
while True: time.sleep(0.01)
"""


def test_a_rank_that_handles_the_signal_later_gets_it_then(stage, script, tmp_path):
    """It imported its modules when the others were told; what it does from then on would be lost."""
    job = stage.start(*WORDS, "--preempt_signal", "TERM@1000", script(LATE), tmp_path / "go")
    read_lines(job, 1, "begins")
    job.send_signal(signal.SIGTERM)
    read_lines(job, 1, "saves")
    (tmp_path / "go").touch()
    out, err = job.communicate(timeout=60)
    assert job.returncode == 78 and out.count(b"saves") == 1
    assert b"rank 1 on " in err and b" does not get SIGUSR1 before it handles it: without a handler" in err
    assert b"  2 ranks ended without being stopped: rank 0 after " in err


def test_a_rank_that_is_not_up_yet_gets_the_signal_later(stage, script, tmp_path):
    """Nor does it die of it before it is executed, here because its template has failed."""
    here, go = tmp_path / "here", tmp_path / "go"
    waits = f"import os, time\nopen({str(here)!r}, 'w')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    script(f"{waits}raise SystemError", "fails.py")
    program, words = script(LATE), ("--num_gpus", "4", "--preload", "fails", "--preempt_signal", "TERM@1000")
    job = stage.start(*WORDS, *words, program, "/", env=clean_environ(PYTHONPATH=str(tmp_path)))
    wait_for(here.exists, "the template")
    job.send_signal(signal.SIGTERM)
    assert job.stderr
    while b"preempted" not in job.stderr.readline():
        pass
    go.touch()
    out, err = job.communicate(timeout=60)
    assert job.returncode == 78 and out.count(b"saves") == 4, err
    assert b"  4 ranks ended without being stopped: rank 0 after " in err


def test_ranks_save_although_another_one_has_done_its_work(stage, script, tmp_path):
    """It may have less to do: that does not mean that the others are about to end."""
    done = "import os\nif os.environ['RANK'] == '0': raise SystemExit(0)\n"
    job = stage.start(*WORDS, "--events", tmp_path / "events", script(done + SAVES), tmp_path, "0")
    read_lines(job, 1, "ready")
    wait_for(lambda: '"down"' in (tmp_path / "events").read_text(), "the end of the other rank")
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 78 and b"saves" in out


FAILS = """
import os, signal, sys, time
def ends(*_):
    print("is told to end", flush=True)
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    os._exit(0)
if os.environ["RANK"] == "1":
    while not os.path.exists(sys.argv[1] + "0"): time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, ends)
open(sys.argv[1] + "0", "w").close()
while True: time.sleep(0.01)
"""


def test_a_job_that_is_preempted_while_an_attempt_fails_is_not_restarted(stage, script, tmp_path):
    """Whoever takes the nodes away does not say it twice."""
    job = stage.start(*WORDS, "--restarts", "5", "--grace", "1000", script(FAILS), tmp_path / "go")
    read_lines(job, 1, "is told to end")
    job.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    _, err = job.communicate(timeout=60)
    assert job.returncode == 78 and b"restart 1 of" not in err
    assert b"bireme: preempted: SIGTERM, when an attempt had failed: rank 1 on " in err and b"exit code 3" in err


def test_a_job_that_fails_for_good_is_not_preempted(stage, script, tmp_path):
    job = stage.start(*WORDS, "--grace", "1000", script(FAILS), tmp_path / "go")
    read_lines(job, 1, "is told to end")
    job.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    job.communicate(timeout=60)
    assert job.returncode == 3


@pytest.mark.slow
def test_moments(stage, tmp_path):
    """``python -m tests.cluster.preempted_moments`` has more of them."""
    assert preempted_moments.here(stage, tmp_path, [f"moment{number}" for number in range(TIMES)]) == [""] * TIMES


def test_the_end_of_the_allocation_announces_itself(stage, script, tmp_path):
    env = {**os.environ, "SLURM_JOB_END_TIME": str(round(time.time()) + 33)}
    job = stage.start(*WORDS, "--preempt_signal", "USR2@30", script(SAVES), str(tmp_path), "0", env=env)
    read_lines(job, 2, "ready")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 78 and b"preempted: the end of the allocation; the ranks get SIGUSR1" in err


def test_an_end_of_the_allocation_that_only_slurm_knows(stage, script, tmp_path):
    """Older versions do not say it in the environment."""
    (tool := tmp_path / "scontrol").write_text(
        f"#!/bin/sh\necho JobId=7 EndTime={round(time.time()) + 33} Deadline=N/A\n"
    )
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    words = (*WORDS, "--hosts", "localhost", "--preempt_signal", "USR2@30")
    job = stage.start(*words, script(SAVES), str(tmp_path), "0", env=env)
    read_lines(job, 2, "ready")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 78 and b"preempted: the end of the allocation; the ranks get SIGUSR1" in err


def test_an_end_that_was_moved_is_no_preemption(stage, script, tmp_path):
    """Slurm is asked before anything begins; what it says is the new end."""
    asked, end = tmp_path / "asked", round(time.time()) + 3600
    (tool := tmp_path / "scontrol").write_text(f"#!/bin/sh\necho JobId=7 EndTime={end} Deadline=N/A\n: >{asked}\n")
    tool.chmod(0o755)
    more = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(end - 3570)}
    job = stage.start(*WORDS, "--hosts", "localhost", script(SAVES), str(tmp_path), "0", env={**os.environ, **more})
    read_lines(job, 2, "ready")
    wait_for(asked.exists, "the question")
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert b"preempted: SIGTERM" in err and b"the end of the allocation" not in err


def test_a_rehearsal(stage, script, tmp_path):
    job = stage.start(*WORDS, "--job_name", "practice", script(SAVES), str(tmp_path), "0")
    read_lines(job, 2, "ready")
    wait_until_listed(job)
    assert stage.run("preempt", "practice", code=0).stdout == f"preempted job {job.pid}\n"
    _, err = job.communicate(timeout=60)
    assert job.returncode == 78 and b"practice: preempted: bireme preempt" in err


def test_no_rehearsal_without_a_checkpoint(stage, script, tmp_path):
    job = stage.start("run", "--job_name", "bare", script(SAVES), str(tmp_path), "0")
    read_lines(job, 1, "ready")
    wait_until_listed(job)
    assert "it has no --checkpoint_signal" in stage.run("preempt", "bare", code=2).stderr
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 143


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--requeue",), "--requeue only works with --checkpoint_signal"),
        (("--preempt_signal", "USR1"), "--preempt_signal only works with --checkpoint_signal"),
        (("--checkpoint_signal", "USR3"), "--checkpoint_signal: not a signal that can be handled: 'USR3'"),
        (("--checkpoint_signal", "KILL"), "--checkpoint_signal: not a signal that can be handled: 'KILL'"),
        (("--checkpoint_signal", "USR1", "--preempt_signal", "USR2@soon"), "not a number of seconds: 'soon'"),
        (("--checkpoint_signal", "USR1", "--requeue"), "--requeue: there is no job of Slurm to queue again"),
    ],
    ids=lambda each: each[0].strip("-") if isinstance(each, tuple) else "",
)
def test_what_is_refused(stage, script, words, said):
    done = stage.run("run", *words, script("raise SystemExit(9)"), code=2)
    assert said in done.stderr
