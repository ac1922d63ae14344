"""``bireme.launch``, ``bireme.start`` and ``bireme.Executor`` in a user's program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Stage, clean_environ, free_ports, read_lines, run_python, wait_for
from tests.kit import needs

BEGIN = """
import os, signal, sys, threading, time
import bireme

def launch(function, *args, ranks=2, **fields):
    return bireme.launch(function, *args, num_gpus=ranks, accelerator="cpu", log_level="error", **fields)

def start(what, *args, ranks=2, **fields):
    return bireme.start(what, *args, num_gpus=ranks, accelerator="cpu", log_level="error", **fields)

def pool(ranks=2, **fields):
    return bireme.Executor(num_gpus=ranks, accelerator="cpu", log_level="error", **fields)

def on_rank(rank):
    "A function for one rank; the others wait until they are stopped."
    def around(function):
        def called(*args):
            if bireme.rank() != rank:
                time.sleep(1000)
            return function(*args)
        return called
    return around
"""


def program(text: str, **kwargs: object) -> list[str]:
    """Run a program that uses the interface; the lines that it prints."""
    done = run_python(BEGIN + text, **kwargs)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


# -- functions on all ranks ------------------------------------------------------------------------------


def test_results_come_by_rank() -> None:
    lines = program("""
factor = 10
def task(base):
    return base + factor * bireme.rank(), bireme.world_size(), bireme.local_rank(), bireme.node()
results = launch(task, 1, ranks=3)
host = os.uname().nodename
print(list(results) == [(1, 3, 0, 0), (11, 3, 1, 0), (21, 3, 2, 0)], results[2])
print(len(results), results.on(host) == list(results))
""")
    assert lines == ["True (21, 3, 2, 0)", "3 True"]


def test_a_function_of_a_module_is_imported_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("def name():\n    return __name__, __file__\n")
    text = "import tasks\nprint(launch(tasks.name, ranks=1)[0])\n"
    (tmp_path / "main.py").write_text(BEGIN + text)
    words = [sys.executable, "main.py"]
    done = subprocess.run(words, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False)
    assert done.stdout == f"{('tasks', str(tmp_path / 'tasks.py'))}\n", done.stderr


@pytest.mark.parametrize(
    ("where", "lines"),
    [
        ("", ["[HOST:0] said 0", "[HOST:1] said 1"]),
        (", stdout=subprocess.DEVNULL", []),
        (", stdout=lambda line: kept.append('> ' + line)", ["> [HOST:0] said 0", "> [HOST:1] said 1"]),
        (", stdout=text", ["[HOST:0] said 0", "[HOST:1] said 1"]),
    ],
    ids=["terminal", "nowhere", "function", "file"],
)
def test_where_output_goes(where: str, lines: list[str]) -> None:
    found = program(f"""
import io, subprocess
kept, text = [], io.StringIO()
launch(lambda: print("said", bireme.rank()){where})
print(*kept, text.getvalue(), sep="\\n")
""")
    assert sorted(filter(None, found)) == [line.replace("HOST", os.uname().nodename) for line in lines]


def test_redirected_output() -> None:
    lines = program("""
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as text:
    launch(lambda: print("said"), ranks=1)
print(text.getvalue().count("said"))
""")
    assert lines == ["1"]


def test_an_error_of_a_rank_is_raised_as_itself() -> None:
    lines = program("""
class OwnError(ValueError):
    pass
@on_rank(1)
def task():
    raise OwnError("no", 7)
try:
    launch(task, ranks=3)
except OwnError as error:
    print(error.args, type(error.__cause__).__name__)
    print(str(error.__cause__).strip().splitlines()[0], "bireme/calls" in str(error.__cause__))
    print(error.__notes__[0].startswith("raised on rank 1 on "), error.__notes__[1])
""")
    assert lines == [
        "('no', 7) RankTracebackError",
        "Traceback (most recent call last): False",
        "True 2 other ranks were stopped because of it",
    ]


def test_the_place_of_an_error_in_code_that_travels_by_value(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"{BEGIN}\ndef task():\n    return 1 / 0\nlaunch(task, ranks=1)\n")
    words = [sys.executable, "main.py"]
    done = subprocess.run(words, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False)
    line = BEGIN.count("\n") + 3
    assert f'File "{tmp_path}/main.py", line {line}, in task\n    return 1 / 0' in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("launch(lambda: threading.Lock())", "TypeError the result of type _thread.lock cannot be sent"),
        (
            "launch(lambda: [b'x' * 3_000_000, threading.Lock()])",
            "TypeError the result of type builtins.list cannot be sent",
        ),
        ("launch(os._exit, 0, ranks=1)", "JobError rank 0 on"),
        ("launch(print, stdout='x')", "TypeError stdout: expected a file, a function or subprocess.DEVNULL, not 'x'"),
        ("launch(print, threading.Lock())", "TypeError argument 0 cannot be sent to the ranks"),
        ("launch(print, num_gpu=2)", "TypeError JobSpec() got an unexpected keyword argument 'num_gpu'"),
        ("launch(print, ranks=0)", "BadInputError num_gpus must be at least 1, not 0"),
        ("launch(print, restarts=1)", "BadInputError restarts: cannot be used with functions"),
        ("launch(print, hosts='node1:x')", "BadInputError hosts"),
        ("start('nosuch.py').wait()", "BadInputError no such script: nosuch.py"),
        ("launch(lambda: os.kill(os.getpid(), signal.SIGKILL))", "RankKilledError rank"),
        ("launch(lambda: sys.exit(3), ranks=1)", "JobError rank 0 on"),
        ("launch(time.sleep, 1000, time_limit=0.5)", "TimeLimitError stopped after the time limit of 0.5 s"),
        (
            "sys.version_info = (3, 1); launch(lambda: 1)",
            "TypeError a function that travels by value needs the same Python: ",
        ),
    ],
)
def test_what_goes_wrong(text: str, said: str) -> None:
    lines = program(f"try:\n    {text}\nexcept Exception as error:\n    print(type(error).__name__, error)\n")
    assert lines[0].startswith(said)


def test_a_large_result_is_not_in_memory_twice() -> None:
    size = 300 << 20
    lines = program(
        f"""
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = launch(lambda: bytes({size}), ranks=1)[0]
print(len(result), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / {size} < 1.15)
"""
    )
    assert lines == [f"{size} True"]


def test_the_typed_keywords_are_the_fields_of_a_job() -> None:
    """An editor offers what `JobSpec` takes."""
    from bireme.calls.job_fields import JobFields
    from bireme.job import JobSpec

    fields = JobFields.__annotations__
    assert list(fields) == [name for name in JobSpec._fields if name != "program"]
    for name, hint in JobSpec.__annotations__.items():
        if name not in ("program", "ship") and not hint.startswith("tuple"):
            assert fields[name].__forward_arg__ == hint


# -- jobs as objects ------------------------------------------------------------------------------------


def test_jobs_side_by_side_in_threads(tmp_path: Path) -> None:
    lines = program("""
found = []
threads = [threading.Thread(target=lambda k=k: found.append(launch(lambda: k, ranks=1)[0])) for k in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(found))
""")
    assert lines == ["[0, 1, 2, 3, 4]"]


def test_a_script_as_a_job(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    lines = program(
        """
job = start("script.py", "--lr", 0.1, ranks=1, output="raw")
outcome = job.wait()
print(outcome.exit_code, outcome.cause, job.done(), job.outcome is outcome)
""",
        cwd=tmp_path,
    )
    assert lines == ["['--lr', '0.1']", "3 rank failed True True"]


def test_a_job_that_is_stopped() -> None:
    lines = program("""
with start(time.sleep, 1000) as job:
    try:
        job.wait(0.1)
    except TimeoutError as error:
        print(error)
print(job.outcome.cause, job.outcome.signum)
try:
    job.results()
except bireme.StoppedError as error:
    print(error)
""")
    assert lines[:2] == ["the job is still running after 0.1 s", "signal 15"]
    assert lines[2].startswith("stopped by SIGTERM")


@pytest.mark.parametrize("now", [False, True])
def test_a_job_that_is_stopped_at_once(now: bool) -> None:
    """Its process may not yet know what to do with a signal."""
    lines = program(f"""
for pause in (0, 0.01, 0.02, 0.04, 0.08):
    job = start(time.sleep, 1000)
    time.sleep(pause)
    job.stop(now={now})
    print(job.wait().cause, job.outcome.signum, job.outcome.exit_code)
""")
    assert lines == ["signal 15 143"] * 5


@pytest.mark.parametrize("heard", [True, False])
def test_a_job_is_killed_by_signals_that_come_together(heard: bool) -> None:
    """Its process was suspended, so that SIGTERM and SIGINT wait for it; the caller may ignore them."""
    lines = program(f"""
import signal
if not {heard}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def deaf():
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    print("begins", flush=True)
    time.sleep(1000)
begun = __import__("threading").Event()
job = start(deaf, ranks=1, grace=1000, stdout=lambda line: begun.set())
begun.wait()
os.kill(job.pid, signal.SIGSTOP)
job.stop(now=True)
os.kill(job.pid, signal.SIGCONT)
print(job.wait(60).cause)
""")
    assert lines == ["signal"]


@pytest.mark.parametrize("how", ["ranks.shutdown(wait=False, cancel_futures=True)", "late.cancel(); ranks._job.stop()"])
def test_who_waits_for_a_cancelled_call_hears_of_it(how: str) -> None:
    lines = program(f"""
import concurrent.futures
ranks = pool(1, stderr=-3)
busy, late = ranks.submit(time.sleep, {1 if "shutdown" in how else 1000}), ranks.submit(print, "never")
{how}
done, waits = concurrent.futures.wait([busy, late], 60)
print(len(done), len(waits), late.cancelled())
ranks.shutdown()
""")
    assert lines == ["2 0 True"]


def test_asyncio() -> None:
    lines = program("""
import asyncio
async def main():
    one, two = start(lambda: 1, ranks=1), start(lambda: 2, ranks=1)
    print(*await one, *await two)
    endless = start(time.sleep, 1000, ranks=1)
    try:
        await asyncio.wait_for(endless, 0.3)
    except asyncio.TimeoutError:
        print(endless.wait().cause)
asyncio.run(main())
""")
    assert lines == ["1 2", "signal"]


def test_nothing_is_left_of_a_job_whose_caller_is_killed(stage, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    text = f"""{BEGIN}
def task():
    open({str(ready)!r} + str(bireme.rank()), "w").close()
    time.sleep(1000)
launch(task)
"""
    process = stage.start_argv([sys.executable, "-c", text], env=clean_environ())
    while not all(Path(f"{ready}{rank}").exists() for rank in range(2)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()  # and `stage` waits until nothing is left


def test_what_happens_to_a_job(tmp_path: Path) -> None:
    lines = program(
        """
import asyncio
print(*(event["event"] for event in start(os.getpid, ranks=1).events()))
open("script.py", "w").write("import os; print(len(os.listdir('/proc/self/fd')))")
async def main():
    job = start("script.py", ranks=1, output="raw")
    print(*[event["event"] async for event in job])
asyncio.run(main())
try:
    list(start(bireme.JobSpec(bireme.Program("script.py")), ranks=1, events="log", exports="A=1").events())
except ValueError as error:
    print(error)
""",
        cwd=tmp_path,
    )
    assert lines[0] == "planned up down finished"
    assert "the events of this job are written to log" in lines
    assert "4" in lines[1:]  # 0, 1, 2, and that of the folder: the ranks inherit nothing of it
    assert "planned up first output down finished" in lines[1:]


def test_a_file_of_events_is_made_anew(tmp_path: Path) -> None:
    """As by ``bireme run --events``."""
    lines = program(
        """
spec = bireme.JobSpec(program=bireme.Program("true", kind="exec"), num_gpus=1, accelerator="cpu", events="file",
                      log_level="error")
for do in (lambda: launch(os.getpid, ranks=1, events="file"), lambda: bireme.run(spec)):
    for _ in range(2):
        do()
        print(open("file").read().count('"planned"'))
""",
        cwd=tmp_path,
    )
    assert lines == ["1", "1", "1", "1"]


# -- ranks that stay ------------------------------------------------------------------------------------


def test_calls_on_ranks_that_stay() -> None:
    lines = program("""
with pool() as ranks:
    pids = {ranks.submit(os.getpid).result() for _ in range(50)}
    print(ranks.world_size, len(pids) <= 2)
    print(list(ranks.map(pow, range(5), range(5))), sum(ranks.map(int, range(10_000), chunksize=500)))
    print(sorted(ranks.launch(bireme.rank)), ranks.launch(os.getpid)[0] in pids)
    try:
        ranks.submit(int, "x").result()
    except ValueError as error:
        print(error)
    print({ranks.submit(os.getpid).result() for _ in range(50)} <= {*ranks.launch(os.getpid)})
try:
    ranks.submit(print)
except RuntimeError as error:
    print(error)
""")
    assert lines == [
        "2 True",
        "[1, 1, 4, 27, 256] 49995000",
        "[0, 1] True",
        "invalid literal for int() with base 10: 'x'",
        "True",
        "cannot schedule new futures after shutdown",
    ]


def replaced(text: str) -> tuple[list[str], str]:
    """Run a program of whose ranks some die; the lines that it prints, and what is said of the ranks."""
    done = run_python(BEGIN + text)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("end", "said", "how"),
    [
        ("os._exit(0)", "JobError rank 1 on HOST ended during a call", "exit code 0"),
        ("os.kill(os.getpid(), 9)", "RankKilledError rank 1 on HOST, pid ", "SIGKILL (exit code 137)"),
        ("os._exit(3)", "JobError rank 1 on HOST, pid ", "exit code 3"),
    ],
)
def test_a_rank_that_dies_fails_its_own_call_and_is_replaced(tmp_path: Path, end: str, said: str, how: str) -> None:
    host = os.uname().nodename
    lines, told = replaced(f"""
go = {str(tmp_path / "go")!r}
def slow():
    while not os.path.exists(go):
        time.sleep(0.01)
    return bireme.rank(), os.getpid()
with pool(ranks=3) as ranks:
    before = list(ranks.launch(os.getpid))
    first = ranks.submit(slow)
    failing = ranks.submit(lambda: {end})
    last = ranks.submit(slow)
    print(type(failing.exception()).__name__, failing.exception())
    open(go, "w").close()
    after = list(ranks.launch(os.getpid))
    print([first.result(), last.result()] == [(0, before[0]), (2, before[2])])
    print([old == new for old, new in zip(before, after)])
""")
    assert lines[0].startswith(said.replace("HOST", host))
    assert lines[1:] == ["True", "[True, False, True]"]
    assert told == f"bireme: rank 1 on {host} is replaced: {how}\n"


@pytest.mark.parametrize(
    ("end", "error", "said"),
    [("os._exit(3)", "JobError", 1), ("raise KeyError('x')", "KeyError", 0), ("open('began', 'w').close()", "", 0)],
    ids=["dies", "raises", "interrupted"],
)
def test_a_group_of_which_one_rank_fails(tmp_path: Path, end: str, error: str, said: int) -> None:
    """The others would wait for it. Ctrl+C ends the group, not the ranks that stay."""
    lines, told = replaced(f"""
def task():
    if bireme.rank() == 1:
        {end}
    time.sleep(1000)
def interrupts():
    while not os.path.exists("began"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
os.chdir({str(tmp_path)!r})
if not {error!r}:
    threading.Thread(target=interrupts).start()
with pool(ranks=3) as ranks:
    try:
        ranks.launch(task)
    except BaseException as error:
        print(type(error).__name__, *error.__notes__[-1:] if {error!r} else ())
    print(list(ranks.launch(bireme.rank)))
""")
    assert lines == [
        f"{error} 2 other ranks were stopped because of it" if error else "KeyboardInterrupt",
        "[0, 1, 2]",
    ]
    assert told.count("\n") == said


def test_all_ranks_are_replaced_where_the_job_ends(tmp_path: Path) -> None:
    """The events of the new ones follow those of the old."""
    lines, told = replaced(f"""
with pool(events={str(tmp_path / "events")!r}) as ranks:
    failing = ranks.submit(lambda: os.kill(os.getppid(), 9))
    print(type(failing.exception()).__name__)
    print(ranks.submit(pow, 2, 3).result())
""")
    assert lines == ["RankKilledError", "8"]
    assert told.startswith("bireme: the ranks are replaced: rank ")
    assert (tmp_path / "events").read_text().count('"event":"planned"') == 2


def test_a_signal_reaches_the_call(stage: Stage, tmp_path: Path) -> None:
    """Ranks that stay may save what they have, as others."""
    text = f"""{BEGIN}
os.chdir({str(tmp_path)!r})
def task():
    signal.signal(signal.SIGTERM, lambda *_: open("saved" + str(bireme.rank()), "w").close() or os._exit(0))
    open("began" + str(bireme.rank()), "w").close()
    time.sleep(1000)
ranks = pool(time_limit=1000)
ranks.submit(task)
print(ranks._job.pid, flush=True)
try:
    ranks.launch(task)
except bireme.StoppedError as error:
    print(error)
"""
    process = stage.start_argv([sys.executable, "-c", text], env=clean_environ())
    pid = int(read_lines(process, 1, "")[0])
    wait_for(lambda: list(tmp_path.glob("began?")), "the call")
    os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert out.startswith(b"stopped by SIGTERM"), err
    assert list(tmp_path.glob("saved?"))


def test_a_signal_that_a_call_does_not_expect(tmp_path: Path) -> None:
    """It is for those that have a handler, as everywhere, and kills no other."""
    lines = program(f"""
os.chdir({str(tmp_path)!r})
def hears():
    signal.signal(signal.SIGUSR1, lambda *_: open("heard", "w").close())
    open("ready", "w").close()
    while not os.path.exists("heard"):
        time.sleep(0.01)
    return "heard"
def does_not():
    while not os.path.exists("heard"):
        time.sleep(0.01)
    time.sleep(0.2)
    return "lived"
with pool() as ranks:
    calls = [ranks.submit(hears), ranks.submit(does_not)]
    while not os.path.exists("ready"):
        time.sleep(0.01)
    os.kill(ranks._job.pid, signal.SIGUSR1)
    print(*(call.result() for call in calls))
""")
    assert lines == ["heard lived"]


@pytest.mark.parametrize(("end", "asked"), [("None", True), ("os._exit(0)", False)], ids=["stays", "dies"])
def test_what_a_call_leaves_behind(stage: Stage, tmp_path: Path, end: str, asked: bool) -> None:
    """It is ended with its rank: killed if that has died, else asked first, as by every job."""
    left = """import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close() or os._exit(0))
open("ready", "w").close()
time.sleep(1000)"""
    text = f"""{BEGIN}
import subprocess
def task():
    subprocess.Popen([sys.executable, "-c", {left!r}])
    while not os.path.exists("ready"):
        time.sleep(0.01)
    {end}
with pool(ranks=1) as ranks:
    ranks.submit(task).exception()
"""
    stage.run_argv([sys.executable, "-c", text], code=0, cwd=tmp_path)
    assert (tmp_path / "asked").exists() == asked


@pytest.mark.parametrize("next_one", ["", "; print(ranks.submit(bireme.rank).result(30))"], ids=["end", "call"])
def test_what_comes_while_a_rank_is_replaced(stage: Stage, next_one: str) -> None:
    """Between two of its processes; here it takes a while until the second is there."""
    text = f"""{BEGIN}
import inspect
original, begin = inspect.getsource, "        while True:\\n            with self._lock:\\n"
def slow(module):
    text = original(module)
    assert begin in text or module.__name__ != "bireme.calls.rank_side"
    return text.replace(begin, begin.replace("with", "time.sleep(0.3)\\n            with"))
inspect.getsource = slow
with pool(ranks=1) as ranks:
    print(type(ranks.submit(os._exit, 0).exception()).__name__){next_one}
"""
    said = stage.run_argv([sys.executable, "-c", text], code=0).stdout
    assert said.split() == ["JobError", *["0"] * bool(next_one)]


@pytest.mark.parametrize("how", ["start(time.sleep, 1000)", "pool()"])
def test_the_end_of_the_caller_where_a_fork_of_it_lives_on(stage: Stage, tmp_path: Path, how: str) -> None:
    text = f"""{BEGIN}
job = {how}
job = getattr(job, "_job", job)
print(job.pid, flush=True)
if os.fork() == 0:
    while not os.path.exists("go"): time.sleep(0.01)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = stage.start_argv([sys.executable, "-c", text], cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert process.stdout
    pid = int(process.stdout.readline())
    wait_for(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text(), "it ends")
    (tmp_path / "go").touch()


def test_ctrl_c_while_an_executor_starts(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "slow.sh").write_text("echo > begun; sleep 1000\n")
    text = f"""{BEGIN}
try:
    pool(venv_script="slow.sh")
except KeyboardInterrupt:
    for each in threading.enumerate():
        if each.name == "bireme-job":
            each.join()
    print("nothing is left")
"""
    process = stage.start_argv([sys.executable, "-c", text], cwd=tmp_path)
    wait_for(lambda: (tmp_path / "begun").exists(), "the ranks start")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == b"nothing is left\n"


def test_errors_that_take_no_attributes_or_have_no_text() -> None:
    """They fail their call, and the rank stays. One that cannot be read here is a RuntimeError."""
    lines = program(
        """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int = 3
class Unsayable(Exception):
    def __str__(self): raise ValueError
def fail(kind):
    raise kind()
with pool(ranks=1) as ranks:
    for kind in (Frozen, Unsayable):
        before, failed, after = (ranks.submit(each) for each in (os.getpid, lambda: fail(kind), os.getpid))
        print(type(failed.exception()).__name__, before.result() == after.result())
"""
    )
    assert lines == ["RuntimeError True", "Unsayable True"]


def test_each_group_has_a_port_of_its_own() -> None:
    """What a group before has left open is not in the way."""
    lines = program(
        """
def task():
    import socket
    if bireme.rank() == 0:
        sys.kept = getattr(sys, "kept", []) + [socket.create_server(("", int(os.environ["MASTER_PORT"])))]
    return os.environ["MASTER_PORT"]
with pool() as ranks:
    one, two = ranks.launch(task), ranks.launch(task)
    print(one[0] == one[1] != two[0] == two[1])
with pool(master_port=FREE) as ranks:
    print(*ranks.launch(task))
""".replace("FREE", str(port := free_ports()))
    )
    assert lines == ["True", f"{port} {port}"]


@pytest.mark.torch
@needs.modules("torch")
def test_a_group_after_another() -> None:
    lines = program("""
def task(k):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(bireme.rank() + k)])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()
with pool() as ranks:
    print([list(ranks.launch(task, k)) for k in range(3)])
""")
    assert lines == ["[[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]]"]


def test_what_was_submitted_is_done_before_the_program_ends() -> None:
    assert program("ranks = pool(output='raw')\nranks.submit(lambda: (time.sleep(0.3), print('done')))\n") == ["done"]
