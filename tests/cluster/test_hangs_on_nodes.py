"""Jobs on two nodes that hang in many ways: each rank's own line is named, and the job is stopped."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.jobs import Jobs, gpus
from tests.cluster.planted_hangs import SAMPLE, plant
from tests.conftest import PROGRAMS, bireme, read_lines, wait_for
from tests.kit import needs

pytestmark = [pytest.mark.slow, needs.programs(str(Path(sys.executable).with_name("py-spy")))]

# Each rank hangs in the function of its number. What they make is made for this rank alone.
KINDS = """
import asyncio, atexit, ctypes, fcntl, logging, multiprocessing, os, queue, select, signal, socket, subprocess, sys
import tempfile, threading, time

def joins_a_thread():
    (thread := threading.Thread(target=time.sleep, args=(1000,), daemon=True)).start()
    thread.join()
def gets_from_a_queue(): queue.Queue().get()
def waits_for_a_condition():
    with (condition := threading.Condition()): condition.wait()
def awaits_a_future():
    async def never(): await asyncio.get_running_loop().create_future()
    asyncio.run(never())
def waits_for_a_signal(): signal.sigwait({signal.SIGUSR1})
def waits_for_a_child(): os.waitpid(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000"), 0)
def reads_of_a_child(): subprocess.run(["sleep", "1000"], capture_output=True)
def locks_a_file():
    held = tempfile.TemporaryFile()
    if not os.fork(): fcntl.lockf(held, fcntl.LOCK_EX); os.write(pipe[1], b"1"); time.sleep(1000)
    os.read(pipe[0], 1); fcntl.lockf(held, fcntl.LOCK_EX)
def opens_a_fifo(): os.mkfifo(path := tempfile.mktemp()); open(path)
def polls(): select.poll().poll()
def accepts(): socket.create_server(("127.0.0.1", 0)).accept()
def takes_a_shared_lock(): lock = multiprocessing.Lock(); lock.acquire(); lock.acquire()
def gets_from_a_process(): multiprocessing.get_context("fork").Queue().get()
def waits_at_a_barrier(): threading.Barrier(2).wait()
def holds_the_interpreter(): ctypes.PyDLL(None).pause()
def logs():
    logging.getLogger().addHandler(handler := logging.StreamHandler())
    threading.Thread(target=handler.acquire, daemon=True).start(); time.sleep(0.2); logging.warning("stuck")
def sends_to_nobody():
    pair = socket.socketpair()
    while True: pair[0].send(bytes(1 << 16))
def stands_still(): os.kill(os.getpid(), signal.SIGSTOP)
def never_leaves(): atexit.register(time.sleep, 1000)

pipe = os.pipe()
kinds = [each for name, each in list(globals().items()) if type(each) is type(polls)]
if len(sys.argv) > 1:
    print(*(each.__name__ for each in kinds))
else:
    print("begins", flush=True)
    kinds[int(os.environ["RANK"])]()
"""


def test_each_kind_of_hang_is_named(jobs: Jobs) -> None:
    script = jobs.write("kinds.py", KINDS)
    names = jobs.login.run([sys.executable, str(script), "names"]).stdout.split()
    done = jobs.run(
        *("--hang_timeout", "6", "--on_hang", "stop"), script, hosts=f"node1:{len(names) - 9},node2:9", code=77
    )
    told = dict(re.findall(r"^bireme: +rank (\d+) on node[12]  +(.*)", done.stderr, re.MULTILINE))
    assert len(names) >= 19
    for rank, name in enumerate(names):
        if name == "never_leaves":  # it has left the script
            assert "sleep" in told[str(rank)] or "hrtimer" in told[str(rank)], done.stderr
        else:
            assert re.search(rf"kinds\.py:\d+ {name}\b", told[str(rank)]), done.stderr
    assert "stopped" in told[str(names.index("stands_still"))]


@pytest.mark.torch
def test_a_rank_that_hangs_while_the_others_reduce(jobs: Jobs) -> None:
    """Found out by itself, as the job has a cadence, and three ranks wait for the fourth."""
    named, _, said = plant(jobs, SAMPLE, auto=True, hurried=True)
    assert named, said
    assert re.search(r"^ranks 0-2 +all_reduce ← train-\S+\.py:\d+", said, re.MULTILINE), said


LATE = "ranks 0-2 wait in all_reduce, collective 4 of the group default_pg: rank 3 has not called it"


@pytest.fixture
def recorded(jobs: Jobs) -> Iterator[list[object]]:
    """The words of a job whose ranks answer as those with NCCL do: one on each of two GPUs of two nodes."""
    with gpus([jobs.testbed["node1"], jobs.testbed["node2"]], count=2):
        yield [PROGRAMS / "recorded_hang.py"]


@pytest.mark.torch
def test_ranks_with_nccl_say_in_which_collective_they_wait(jobs: Jobs, recorded: list[object]) -> None:
    job = jobs.start("--job_name", "recorded", *recorded, "late", hosts="node[1-2]")
    read_lines(job, 4, "begins")
    ask = bireme("stacks", "recorded")
    said = wait_for(lambda: jobs.login.run(ask, check=False).stdout.partition(LATE)[2], "who waits for whom")
    counts = "Communicator ranks have different collective operation counts"
    assert said == f"\nNCCL: #0-0 (27a079b828ff1a75) MISMATCH\nNCCL:   {counts}\n"
    jobs.login.kill(job, signal.SIGTERM)
    job.communicate(timeout=60)


@pytest.mark.parametrize("kind", ["python", "script", "wrap", "own"])
def test_which_ranks_are_to_record(jobs: Jobs, recorded: list[object], kind: str) -> None:
    """None whose files may be others: PyTorch ends a rank where it cannot make its pipe. The user's words go before."""
    names = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "NCCL_RAS_ADDR")
    script = jobs.write("shows.py", f"import os\nprint([os.environ.get(name) for name in {names}])\n")
    wrapper = jobs.write("enters", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    words = {
        "python": (),
        "script": ("--python", wrapper),
        "wrap": ("--wrap", "env"),
        "own": ("--export", "NCCL_RAS_ADDR=localhost:7"),
    }
    shown = jobs.run("-q", "--output", "raw", *words[kind], script, hosts="node1:1", code=0).stdout.strip()
    said = {"python": r"\['/.*/recorder', 'localhost:2\d{4}'\]", "own": r"\['/.*/recorder', 'localhost:7'\]"}
    assert re.fullmatch(said.get(kind, r"\[None, None\]"), shown), shown


@pytest.mark.torch
def test_what_pytorch_has_written_at_a_time_out_is_in_the_report(jobs: Jobs, recorded: list[object]) -> None:
    done = jobs.run(*recorded, "times out", hosts="node[1-2]", code=134)
    assert f"before they were stopped:\nbireme:     {LATE}\n" in done.stderr, done.stderr
