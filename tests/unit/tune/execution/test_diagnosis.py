"""What the end of a run means: by tables, and by real runs."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.result.outcome import Outcome, RankEnd
from bireme.result.report_record import of_outcome
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, read_report
from bireme.tune.study.trial import TrialResult
from tests.conftest import PROGRAMS, Stage, read_lines
from tests.kit import needs

FIGURES = {"throughput": 12.5, "latency": 80.0}
NONE = "the run ended without writing metrics.json"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'
OUT_OF_MEMORY = TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
GONE = TRACEBACK + "RuntimeError: Connection closed by peer [127.0.0.1]:43906."
BOOM = TRACEBACK + "ValueError: boom"


def rank(number: int, code: int = 1, detail: str = "", **more: object) -> RankEnd:
    by_signal = code > 128
    fields = {"by_signal": by_signal, "seconds": 1.0, "stopped": False, "detail": detail, **more}
    return RankEnd(number, f"node{number}", "cuda:0", 100 + number, code, **fields)  # type: ignore[arg-type]


def swept(number: int, detail: str = "") -> RankEnd:
    return rank(number, 143, detail, stopped=True)


def failed(first: RankEnd, *others: RankEnd) -> Outcome:
    ends = tuple(sorted((first, *others), key=lambda end: end.rank))
    return Outcome(first.code, "rank failed", 9.0, ends, first)


def result(
    outcome: Outcome | int, *, reason: str = NONE, stderr: str = "", stopped: bool = False, seconds: float = 10.0
) -> TrialResult:
    """The diagnosis of a run with this outcome; of one that left nothing but its exit code."""
    code, report = outcome if isinstance(outcome, int) else outcome.exit_code, None
    if isinstance(outcome, Outcome):
        report = json.loads(json.dumps(of_outcome(outcome)))
    return diagnose(End(code, report, seconds, stopped), {} if reason else FIGURES, reason, stderr)


# -- it ended well -----------------------------------------------------------------------------------


def test_ok() -> None:
    assert result(Outcome(0, "ok", 9.0), reason="") == TrialResult("ok", seconds=10.0, metrics=FIGURES)


def test_ok_although_its_report_could_not_be_written() -> None:
    assert result(0, reason="").cause == "ok"


def test_ok_although_we_wanted_to_stop_it() -> None:
    assert result(Outcome(0, "ok", 9.0), reason="", stopped=True).cause == "ok"


def test_no_metric() -> None:
    assert result(Outcome(0, "ok", 9.0)) == TrialResult("no metric", NONE, seconds=10.0)


def test_who_has_died_cannot_vouch_for_its_figures() -> None:
    found = result(failed(rank(1, 139), swept(0)), reason="")
    assert found == TrialResult(
        "failed", "rank 1 on node1: SIGSEGV (exit code 139) (after it had reported its metrics)", seconds=10.0
    )


# -- memory ------------------------------------------------------------------------------------------


def test_the_first_rank_has_run_out_of_memory() -> None:
    found = result(failed(rank(1, 1, OUT_OF_MEMORY), swept(0)))
    assert found.cause == "out of memory"
    assert found.reason == "rank 1 on node1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert found.detail == OUT_OF_MEMORY


@pytest.mark.parametrize("other", [rank(1, 1, OUT_OF_MEMORY), swept(1, OUT_OF_MEMORY)], ids=["itself", "stopped"])
def test_another_rank_has_run_out_of_memory(other: RankEnd) -> None:
    """Its peers have missed it, and one of them was dead before it was."""
    found = result(failed(rank(0, 1, GONE), other, swept(2, GONE)))
    assert (found.cause, found.reason.partition(":")[0]) == ("out of memory", "rank 1 on node1")


def test_the_kernel_says_so() -> None:
    found = result(failed(rank(0, 1, GONE), rank(1, 137, "step 3", out_of_memory=True)))
    assert (found.cause, found.reason) == (
        "out of memory",
        "rank 1 on node1: the kernel's out-of-memory killer ended it",
    )
    limited = failed(rank(0, 137, "", out_of_memory=True, memory_limit="the limit of 64 MiB of a container"))
    assert result(limited).reason.endswith("killer ended it at the limit of 64 MiB of a container")


def test_a_kill_of_which_the_kernel_knows_nothing() -> None:
    assert result(failed(rank(0, 137, "step 3"))) == TrialResult(
        "failed", "rank 0 on node0: SIGKILL (exit code 137)", "step 3", 10.0
    )


def test_words_on_stderr_alone_are_none() -> None:
    """Programs warn of much and go on; what counts is what a rank died of."""
    stderr = "[node0:0] WARNING: CUDA out of memory. Tried to allocate 2.00 GiB: retrying\n[node0:0] error\n"
    assert result(failed(rank(0, 1, BOOM)), stderr=stderr).cause == "failed"
    assert result(Outcome(0, "ok", 9.0), reason="", stderr=stderr).cause == "ok"


# -- it failed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (rank(1, 1, BOOM), "ValueError: boom"),
        (rank(1, 3), "exit code 3"),
        (
            rank(1, 2, "usage: train.py\ntrain.py: error: no such argument"),
            "exit code 2: train.py: error: no such argument",
        ),
        (
            rank(1, 127, "bireme: cannot run nosuch: No such file"),
            "exit code 127: bireme: cannot run nosuch: No such file",
        ),
        (rank(1, 126), "exit code 126"),
        (rank(1, 124, "timeout"), "exit code 124: timeout"),
        (rank(1, 134, "some\nlast lines"), "SIGABRT (exit code 134)"),
        (rank(1, 1, TRACEBACK + "ValueError: " + "x" * 500), "ValueError: " + "x" * 187 + "…"),
    ],
    ids=lambda value: str(value.code) if isinstance(value, RankEnd) else "",
)
def test_failed(end: RankEnd, why: str) -> None:
    found = result(failed(end, swept(0)))
    assert (found.cause, found.reason) == ("failed", f"rank 1 on node1: {why}")
    assert found.detail == end.detail and found.counts


def test_who_only_missed_another_is_not_the_one_to_name() -> None:
    found = result(failed(rank(0, 1, GONE), swept(1), swept(2, BOOM)))
    assert (found.cause, found.reason) == ("failed", "rank 2 on node2: ValueError: boom")
    assert result(failed(rank(0, 1, GONE), swept(1, GONE))).reason.startswith("rank 0 on node0: RuntimeError")


def test_of_a_long_traceback_the_end_is_kept() -> None:
    found = result(failed(rank(0, 1, TRACEBACK + '  File "x"\n' * 50 + "ValueError: boom")))
    assert len(found.detail.splitlines()) == 20 and found.detail.endswith("\nValueError: boom")


def test_bad_input_is_the_commands_word() -> None:
    words = "bireme: no accelerator found\nbireme: train.py: no such file\n  it is looked for in /home/me\n"
    found = result(2, stderr="[node0:0] of an earlier rank\n" + words)
    assert (found.cause, found.reason) == ("failed", "train.py: no such file it is looked for in /home/me")
    assert result(2).reason == "bireme run refused its command line"


# -- neither -----------------------------------------------------------------------------------------


def test_the_time_limit() -> None:
    found = result(Outcome(124, "time limit", 9.0, (swept(0),), note="stopped after the time limit of 9 s"))
    assert (found.cause, found.reason, found.counts) == ("timed out", "stopped after the time limit of 9 s", True)
    assert result(124).cause == "timed out"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(143, "signal", 9.0, (swept(0),), signum=15),
        failed(rank(0, 137)),  # killed with all that belonged to it, but the command lived on for a moment
        137,
    ],
    ids=["in order", "killed", "killed at once"],
)
def test_stopped(outcome: Outcome | int) -> None:
    found = result(outcome, stopped=True)
    assert (found.cause, found.counts) == ("stopped", False)


# -- the infrastructure ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "reason", "hosts"),
    [
        (
            Outcome(75, "agent lost", 9.0, (swept(0),), note="agent lost on node2: silent", hosts=("node2",)),
            "agent lost on node2: silent",
            ("node2",),
        ),
        (
            Outcome(69, "unfit", 9.0, note="1 of 2 nodes cannot carry it:\n  node3  ssh: timed out", hosts=("node3",)),
            "1 of 2 nodes cannot carry it: node3 ssh: timed out",
            ("node3",),
        ),
        (Outcome(125, "internal error", 9.0, note="KeyError: 'x'"), "KeyError: 'x'", ()),
        (Outcome(143, "signal", 9.0, signum=15), "bireme run received SIGTERM (exit code 143) from outside", ()),
        (Outcome(141, "reader gone", 9.0), "reader gone", ()),
        (failed(rank(1, 143)), "rank 1 on node1: SIGTERM (exit code 143), from outside", ()),
        (
            failed(rank(0, 1, TRACEBACK + "OSError: [Errno 98] Address already in use"), swept(1, GONE)),
            "rank 0 on node0: OSError: [Errno 98] Address already in use",
            (),
        ),
        (137, "bireme run left no report: SIGKILL (exit code 137)", ()),
        (126, "bireme run left no report: exit code 126", ()),
        (1, "bireme run left no report: exit code 1", ()),
    ],
    ids=lambda value: getattr(value, "cause", "") if not isinstance(value, int) else str(value),
)
def test_infrastructure(outcome: Outcome | int, reason: str, hosts: tuple[str, ...]) -> None:
    found = result(outcome, stderr="bireme: OMP_NUM_THREADS=1 for each rank\n")
    assert (found.cause, found.reason, found.hosts, found.counts) == ("infrastructure", reason, hosts, False)


def test_a_port_that_was_given_and_is_taken() -> None:
    found = result(2, stderr="bireme: --master_port: port 29501 is taken by another program\n  leave the option out\n")
    assert (found.cause, found.reason) == ("infrastructure", "--master_port: port 29501 is taken by another program")


# -- real runs ---------------------------------------------------------------------------------------

Run = Callable[..., TrialResult]


@pytest.fixture
def run(stage: Stage, tmp_path: Path) -> Run:
    """Run a job as the tuner does, and say how it ended."""

    def start(*words: object, ranks: int = 2, act: Callable[[Any], object] = lambda process: None) -> TrialResult:
        report = tmp_path / "outcome.json"
        begin = time.monotonic()
        process = stage.start("run", "--num_gpus", str(ranks), "--report", report, *words)  # type: ignore[arg-type]
        act(process)
        _, err = process.communicate(timeout=250)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        end = End(code, read_report(str(report)), time.monotonic() - begin, stopped=False)
        return diagnose(end, {}, NONE, err.decode(errors="replace"))

    return start


def test_really_no_metric(run: Run, script: Callable[..., Path]) -> None:
    found = run(script("print('error: out of memory')"))
    assert (found.cause, found.reason) == ("no metric", NONE)
    assert found.seconds > 0


def test_really_failed(run: Run, script: Callable[..., Path]) -> None:
    found = run(script("import os, time\nif os.environ['RANK'] == '0': time.sleep(1000)\nraise ValueError('boom')"))
    assert found.cause == "failed"
    assert found.reason.startswith("rank 1 on ") and found.reason.endswith(": ValueError: boom")
    assert found.detail.startswith("Traceback")


EATS = """
import os, time
if os.environ["RANK"] == "0":
    time.sleep(1000)
blocks = []
while True:
    blocks.append(bytearray(10_000_000))
"""


def test_really_out_of_memory(run: Run, script: Callable[..., Path]) -> None:
    """A real limit of a real process, by a shell around it."""
    wrap = "bash -c 'ulimit -v 400000; exec \"$@\"' bash"
    found = run("--wrap", wrap, script(EATS))
    assert found.cause == "out of memory"
    assert found.reason.endswith(": MemoryError") and found.reason.startswith("rank 1 on ")


def test_really_refused(run: Run) -> None:
    found = run("no-such-script.py")
    assert found.cause == "failed"
    assert "no-such-script.py" in found.reason


def test_really_a_port_that_is_taken(run: Run, script: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = run("--master_port", str(port), script("pass"))
        assert (found.cause, found.reason) == (
            "infrastructure",
            f"--master_port: port {port} is taken by another program",
        )
        program = script(f"import socket\nsocket.create_server(('127.0.0.1', {port}))")
        found = run(program)
        assert found.cause == "infrastructure" and "Address already in use" in found.reason


def test_really_timed_out(run: Run) -> None:
    assert run("--time_limit", "0.5", PROGRAMS / "scene.py", "wait").cause == "timed out"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_really_signalled(run: Run, signum: signal.Signals) -> None:
    def act(process: Any) -> None:
        read_lines(process, 2, "ready")
        process.send_signal(signum)

    found = run(PROGRAMS / "scene.py", "wait", act=act)
    assert found.cause == "infrastructure" and signum.name in found.reason


TRAINS = """
import atexit, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    atexit.register(time.sleep, 1000)  # what a rank holds takes its time to be given back
    atexit.register(dist.destroy_process_group)
    torch.empty(10**15)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
@pytest.mark.torch
@needs.modules("torch")
def test_really_out_of_memory_in_torch(run: Run, script: Callable[..., Path]) -> None:
    """Although the rank that lacks memory is not the first to die."""
    found = run(script(TRAINS))
    assert found.cause == "out of memory", found
    assert found.reason.startswith("rank 1 on ")
    assert "DefaultCPUAllocator: can't allocate memory" in found.reason
