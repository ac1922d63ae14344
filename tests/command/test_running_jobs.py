"""Commands about running jobs: ``bireme ps``, ``logs``, ``attach``, ``stop``, ``signal``, ``stacks``; ``--detach``."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bireme.loop import Loop
from bireme.runner import detached as detached_jobs
from bireme.runner.event_log import EventLog
from tests.command import many_jobs
from tests.conftest import TIMES, Stage, as_nobody, bireme, clean_environ, read_lines, wait_for, wait_until_listed
from tests.kit import needs

LONG = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
print("begins", os.environ["RANK"], flush=True)
while True:
    time.sleep(1000)
"""
WORDS = ("--accelerator", "cpu", "--num_gpus", "2", "--job_name")


@pytest.fixture
def job(stage: Stage, script, tmp_path: Path):
    """A job in the foreground, with a name of its own; its process."""
    process = stage.start("run", *WORDS, name_of(tmp_path), script(LONG))
    read_lines(process, 2, "begins")
    wait_until_listed(process)
    return process


def name_of(tmp_path: Path) -> str:
    return f"job-{os.getpid()}-{tmp_path.name}"[-60:]


def listed() -> dict[int, dict[str, object]]:
    done = subprocess.run(bireme("ps", "--json"), capture_output=True, text=True, check=True, env=clean_environ())
    return {job["id"]: job for job in json.loads(done.stdout)}


def known(pid: int) -> bool:
    return pid in listed()


def test_a_job_is_listed_until_it_ends(stage: Stage, job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    mine = listed()[job.pid]
    assert (mine["name"], mine["ranks"], mine["state"]) == (name_of(tmp_path), 2, "running")
    assert mine["nodes"] == [os.uname().nodename]
    assert str(mine["command"]).endswith("program.py") and "begins" in str(mine["last"])
    text = stage.run("ps", code=0).stdout
    assert str(job.pid) in text and text.startswith("ID ")
    job.kill()
    job.wait()
    assert not known(job.pid)


def test_a_job_that_is_suspended(stage: Stage, job: subprocess.Popen[bytes]) -> None:
    """It does not answer, and nobody waits for that."""
    job.send_signal(signal.SIGTSTP)
    wait_for(lambda: Path(f"/proc/{job.pid}/stat").read_text().split(") ")[1][0] == "T", "it is suspended")
    mine = listed()[job.pid]
    assert mine["state"] == "suspended" and str(mine["command"]).endswith("program.py")
    assert "suspended" in stage.run("ps", code=0).stdout
    said = stage.run("stop", str(job.pid), code=75).stderr
    assert said.startswith("bireme: the job does not answer: it is suspended; fg in its terminal lets it go on")
    job.send_signal(signal.SIGCONT)
    stage.run("stop", str(job.pid), code=0)


@pytest.mark.parametrize(("words", "said", "code"), [((), "stopping", 143), (("--now",), "killing", 130)])
def test_a_job_is_stopped(
    stage: Stage, job: subprocess.Popen[bytes], words: tuple[str, ...], said: str, code: int
) -> None:
    done = stage.run("stop", str(job.pid), *words, code=0)
    assert done.stdout == f"{said} job {job.pid}\n"
    assert not known(job.pid)
    assert job.wait(60) == code


def test_a_job_that_is_being_stopped_is_killed(stage: Stage, script) -> None:
    program = script("import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('waits', flush=True))\n"
                     "print('begins', flush=True)\nwhile True: time.sleep(1000)\n")  # fmt: skip
    process = stage.start("run", "--grace", "1000", "--accelerator", "cpu", "--num_gpus", "2", program)
    read_lines(process, 2, "begins")
    wait_until_listed(process)
    process.send_signal(signal.SIGTERM)
    read_lines(process, 2, "waits")
    stage.run("stop", "--now", str(process.pid), code=0)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and err.count(b"killing 2 ranks") == 1, err


@pytest.mark.parametrize("words", [(), ("--now",)])
def test_a_job_that_ignores_signals_is_stopped(stage: Stage, script, tmp_path: Path, words: tuple[str, ...]) -> None:
    """As one does that was started with ``&`` in a script, or below a program that ignores them."""
    deaf = "import os, signal, sys\nfor each in (2, 15): signal.signal(each, 1)\nos.execv(sys.argv[1], sys.argv[1:])"
    command = bireme("run", *WORDS, name_of(tmp_path), script(LONG))
    process = stage.start_argv([sys.executable, "-c", deaf, *command], env=clean_environ())
    read_lines(process, 2, "begins")
    wait_until_listed(process)
    stage.run("stop", *words, str(process.pid), code=0)
    assert process.wait(60) == (130 if words else 143)


def test_a_job_that_is_killed_says_nothing_more(stage: Stage, script) -> None:
    program = script("import os, time\ntry:\n    print('begins', flush=True)\n    time.sleep(1000)\n"
                     "finally:\n    print('ends', flush=True)\n")  # fmt: skip
    process = stage.start("run", "--accelerator", "cpu", "--num_gpus", "2", program)
    read_lines(process, 2, "begins")
    wait_until_listed(process)
    stage.run("stop", "--now", str(process.pid), code=0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"ends" not in out and b"KeyboardInterrupt" not in out + err, (out, err)


def test_a_signal_for_all_ranks(stage: Stage, job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    stage.run("signal", name_of(tmp_path), "USR1", code=0)
    assert len(read_lines(job, 2, "usr1")) == 2


def attached(stage: Stage, job: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """``bireme attach``, once it has seen something."""
    watcher = stage.start("attach", str(job.pid))
    assert watcher.stdout is not None
    os.set_blocking(watcher.stdout.fileno(), False)
    seen = b""

    def has_seen() -> bool:
        nonlocal seen
        stage.run("signal", str(job.pid), "10", code=0)
        seen += watcher.stdout.read() or b""  # type: ignore[union-attr]
        return b":0] usr1" in seen and b":1] usr1" in seen

    wait_for(has_seen, "what the ranks write")
    return watcher


def test_who_attaches_sees_what_comes(stage: Stage, job: subprocess.Popen[bytes]) -> None:
    watcher = attached(stage, job)
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0 and err == f"bireme: detached: job {job.pid} goes on\n".encode()
    assert job.poll() is None


def test_who_attaches_is_told_of_the_end(stage: Stage, job: subprocess.Popen[bytes]) -> None:
    watcher = attached(stage, job)
    stage.run("stop", str(job.pid), code=0)
    _, err = watcher.communicate(timeout=60)
    assert err.endswith(f"bireme: job {job.pid} has ended\n".encode())


def test_a_watcher_that_does_not_read_holds_up_nothing(stage: Stage, script, tmp_path: Path) -> None:
    program = script("import sys\nprint('begins', flush=True)\nsys.stdin.read()\n"
                     "for _ in range(200): print('x' * 60000, flush=True)\n")  # fmt: skip
    words = ("run", "--accelerator", "cpu", "--num_gpus", "1", program)
    process = stage.start(*words, stdin=subprocess.PIPE, stdout=(tmp_path / "out").open("wb"))
    wait_until_listed(process)
    watcher = stage.start("attach", str(process.pid))
    wait_for(lambda: (watcher.poll() or b"") == b"", "it runs")
    process.communicate(timeout=60)
    assert process.returncode == 0
    watcher.kill()


def test_who_attaches_and_does_not_read_is_told_so(stage: Stage, script) -> None:
    program = script(LONG.replace('print("usr1", flush=True)', 'print("usr1 " + "x" * 60000, flush=True)'))
    process = stage.start("run", "--accelerator", "cpu", "--num_gpus", "2", program)
    read_lines(process, 2, "begins")
    wait_until_listed(process)
    watcher = stage.start("attach", str(process.pid))
    assert watcher.stdout
    while not select.select([watcher.stdout], [], [], 0)[0]:  # from then on it is there
        stage.run("signal", str(process.pid), "USR1", code=0)
        read_lines(process, 2, "usr1")
    for _ in range(20):
        stage.run("signal", str(process.pid), "USR1", code=0)
        read_lines(process, 2, "usr1")
    assert f"job {process.pid} goes on, but sends nothing more".encode() in watcher.communicate(timeout=60)[1]


@needs.programs(str(Path(sys.executable).with_name("py-spy")))
def test_stacks(stage: Stage, job: subprocess.Popen[bytes]) -> None:
    done = stage.run("stacks", str(job.pid), code=0)
    assert done.stdout.startswith("ranks 0-1  program.py:6  ")
    stage.run("stop", str(job.pid), code=0)
    _, err = job.communicate(timeout=60)
    assert b"before they were stopped" not in err  # the question was another's


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stop", "999999999"), "no job of yours with id 999999999 runs on this machine\n  bireme ps lists them"),
        (("stop", "nosuch"), "no job of yours has the name 'nosuch'\n  bireme ps lists them"),
        (("stop",), "expected a job\n  bireme stop [--now] JOB"),
        (("attach", "999999999"), "no job of yours with id 999999999"),
        (("signal", "1"), "expected a job and a signal\n  bireme signal JOB SIGNAL"),
        (("signal", "1", "NOSUCH"), "no such signal: 'NOSUCH'"),
        (("logs", "nosuch"), "no log of a job nosuch\n  only jobs of bireme run --detach have one"),
        (("ps", "x"), "expected nothing\n  bireme ps [--json]"),
        (("ps", "--nosuch"), "unknown option: --nosuch"),
    ],
)
def test_mistakes(stage: Stage, words: tuple[str, ...], said: str) -> None:
    assert f"bireme: {said}" in stage.run(*words, code=2).stderr


def test_others_neither_see_nor_stop_a_job(job: subprocess.Popen[bytes]) -> None:
    nobody, pid = as_nobody(), str(job.pid)
    done = subprocess.run([*nobody, *bireme("ps")], capture_output=True, text=True, check=True, cwd="/")
    assert pid not in done.stdout
    asked = [("stop", pid), ("signal", pid, "TERM"), ("attach", pid), ("stacks", pid), ("top", "--once", pid)]
    for words in (*asked, ("preempt", pid), ("drain", "node1", pid)):
        done = subprocess.run([*nobody, *bireme(*words)], capture_output=True, text=True, check=False, cwd="/")
        assert (done.returncode, done.stdout) == (2, ""), done
        what = (
            f"JOB: no elastic job of yours with pid {pid}" if words[0] == "drain" else f"no job of yours with id {pid}"
        )
        assert done.stderr.startswith(f"bireme: {what} runs on this machine\n")
    assert job.poll() is None


@pytest.mark.slow
def test_many_jobs_and_commands_that_are_killed(stage: Stage, tmp_path: Path) -> None:
    """``python -m tests.command.many_jobs`` has more of them."""
    assert many_jobs.play(stage, tmp_path, jobs=6, kills=3 * TIMES, seed="few", some=1) == []


def test_events(stage: Stage, script, tmp_path: Path) -> None:
    words = ("run", *WORDS, name_of(tmp_path), "--events", tmp_path / "events")
    program = script("import os, time\nif os.environ['RANK'] == '1':\n    print(1); os._exit(3)\ntime.sleep(1000)\n")
    stage.run(*words, program, code=3)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "planned" and kinds[-1] == "finished" and kinds.count("up") == kinds.count("down") == 2
    assert [event["rank"] for event in events if event["event"] == "first output"] == [1]
    downs = [event for event in events if event["event"] == "down"]
    assert (downs[0]["rank"], downs[0]["code"], downs[0]["stopped"]) == (1, 3, False)
    assert (events[-1]["code"], events[-1]["cause"]) == (3, "rank failed")
    assert all(event["v"] == 1 for event in events)


@pytest.mark.parametrize("reads", [True, False])
def test_events_into_a_pipe(stage: Stage, script, tmp_path: Path, *, reads: bool) -> None:
    """One reader gets the events of all attempts; nothing waits for one."""
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "read", "wb") as file:
        reader = subprocess.Popen(["cat", tmp_path / "pipe"] if reads else ["true"], stdout=file)
    words = ("run", *WORDS, name_of(tmp_path), "--restarts", "1", "--events", tmp_path / "pipe")
    stage.run(*words, script("raise SystemExit(3)"), code=3)
    reader.wait(60)
    events = [json.loads(line)["event"] for line in (tmp_path / "read").read_text().splitlines()]
    assert events.count("planned") == events.count("finished") == 2 * reads


def test_a_reader_of_events_that_is_slow_holds_up_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    loop, said = Loop(), list[str]()
    log = EventLog(loop, str(tmp_path / "pipe"), said.append)
    for rank in range(1000):
        log.write("up", rank=rank, words="x" * 200)
    read = bytearray()
    os.set_blocking(reader, True)
    thread = threading.Thread(target=lambda: read.extend(open(reader, "rb").read()))
    thread.start()
    log.close()
    thread.join(60)
    loop.close()
    assert [json.loads(line)["rank"] for line in read.splitlines()] == list(range(1000)) and not said


def test_events_that_cannot_be_written(stage: Stage, script) -> None:
    done = stage.run("run", "--events", "/dev/null/x", script(""), code=2)
    assert "bireme: --events: cannot write /dev/null/x" in done.stderr


# -- without a terminal ----------------------------------------------------------------------------------


@pytest.fixture
def detached(stage: Stage, tmp_path: Path):
    """Run ``bireme run --detach``; what it has printed."""
    environ = clean_environ(XDG_STATE_HOME=str(tmp_path / "state"))

    def run(*words: object, code: int | None = 0) -> str:
        done = stage.run("run", "--detach", *WORDS, name_of(tmp_path), *map(str, words), code=code, env=environ)
        return done.stdout.strip() or done.stderr

    run.environ = environ  # type: ignore[attr-defined]
    return run


def test_a_detached_job(stage: Stage, detached, script, tmp_path: Path) -> None:
    job = detached(script(LONG))
    assert known(int(job))
    log = tmp_path / "state" / "bireme" / f"{job}-{name_of(tmp_path)}.log"
    assert log.stat().st_mode & 0o777 == 0o600 and log.parent.stat().st_mode & 0o777 == 0o700
    assert os.getsid(int(job)) == int(job)
    follower = stage.start("logs", "-f", "--rank", "1", job, env=detached.environ)
    assert read_lines(follower, 1, "begins 1")
    stage.run("stop", job, code=0)
    out, _ = follower.communicate(timeout=60)
    assert b"begins 0" not in out
    said = stage.run("logs", name_of(tmp_path), code=0, env=detached.environ).stdout
    assert "begins 0" in said and "stopped by SIGTERM" in said


def test_a_detached_job_that_cannot_begin(detached, tmp_path: Path) -> None:
    assert "bireme: no such script: nosuch.py" in detached("nosuch.py", code=2)


@pytest.mark.parametrize("has_log", [True, False])
def test_a_detached_job_that_is_killed_before_it_begins(stage: Stage, detached, tmp_path: Path, has_log: bool) -> None:
    """It waits for a tool that lists GPUs."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(0o755)
    environ = {**detached.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    typed = stage.start("run", "--detach", "--accelerator", "cuda", "x.py", env=environ)
    folder = tmp_path / "state" / "bireme"
    wait_for(lambda: list(folder.glob("[0-9]*.log")), "the log")
    (log,) = folder.glob("*.log")
    if not has_log:
        log.unlink()
    os.kill(int(log.stem), signal.SIGKILL)
    out, err = typed.communicate(timeout=60)
    assert (typed.returncode, out) == (137, b"")
    assert err == b"bireme: the job was ended by SIGKILL before it began\n"


def test_a_detached_job_that_ends_at_once(detached, script, tmp_path: Path) -> None:
    """The command says so if it sees it; the log in any case."""
    detached(script("raise SystemExit(3)"), code=None)
    folder = tmp_path / "state" / "bireme"
    wait_for(lambda: "failed first: exit code 3" in "".join(map(Path.read_text, folder.glob("*.log"))), "the report")


def test_a_job_that_is_detached_does_not_need_who_typed_it(detached, script, tmp_path: Path) -> None:
    """The terminal may be closed before the job has begun."""
    words = ("run", "--detach", *WORDS, name_of(tmp_path), script(LONG))
    typed = subprocess.Popen(bireme(*map(str, words)), env=detached.environ)
    folder = tmp_path / "state" / "bireme"
    while not (logs := list(folder.glob("[0-9]*.log"))) and typed.poll() is None:
        pass
    typed.kill()
    typed.wait()
    (log,) = logs or folder.glob("[0-9]*.log")
    pid = int(log.name.partition("-")[0])
    wait_for(lambda: known(pid), "the job is listed")
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not known(pid), "the end")


def test_the_log_of_a_job_that_runs_is_kept(detached, script, tmp_path: Path) -> None:
    """However old; and many commands may begin, and remove logs, at once."""
    job = detached(script(LONG))
    folder = tmp_path / "state" / "bireme"
    (log,) = folder.glob(f"{job}-*.log")
    os.link(log, tmp_path / "kept")
    os.utime(log, (1, 1))
    for number in range(200):
        (folder / f"{number}.log").write_text("")
        os.utime(folder / f"{number}.log", (2, 2))
    words = bireme("run", "--detach", *WORDS, name_of(tmp_path), script(""))
    others = [
        subprocess.Popen(words, env=detached.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(4)
    ]
    assert not [said for each in others if b"cannot write" in (said := each.communicate(timeout=60)[0])]
    assert log.exists(), (known(int(job)), (tmp_path / "kept").read_text())
    assert not (folder / "150.log").exists()
    os.kill(int(job), signal.SIGTERM)
    wait_for(lambda: not known(int(job)), "the end")


LINE, ROUND, ROUNDS = 8000, 1300, 7
"""Bytes of a line of `FLOODS`; and lines that are written at once, which are 10 MB; and how often."""
FLOODS = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for line in range({ROUNDS} * {ROUND}):
    if os.environ["RANK"] == "1":
        sys.stdout.write(f"line {{line:07d}} ".ljust({LINE}, ".") + "\\n")
    if line % {ROUND} == {ROUND} - 1:
        sys.stdout.flush()
        signal.sigwait([signal.SIGUSR1])
raise SystemExit(3)
"""
LAST_ONES = tuple(f"{number * ROUND - 1:07d}" for number in range(1, ROUNDS + 1))
GAP = "bireme: 32 MiB of output that came here are not kept"


def flooded(said: str) -> list[int | str]:
    """The numbers of the lines that `FLOODS` has written, and what Bireme says of those that are missing."""
    lines = said.splitlines()
    assert all(len(line.partition("] ")[2]) == LINE for line in lines if "] line " in line)
    return [int(line.split()[2]) if "] line " in line else line for line in lines if "] line " in line or line == GAP]


@pytest.mark.slow
def test_a_log_is_bounded_and_keeps_its_beginning_and_end(stage: Stage, detached, script, tmp_path: Path) -> None:
    """Who follows it sees everything; the rank waits for that."""
    job = detached(script(FLOODS))
    follower = stage.start("logs", "-f", "--rank", "1", job, env=detached.environ)
    seen = ""
    assert follower.stdout
    for line in map(bytes.decode, follower.stdout):
        seen += line
        if line[line.find("] line") + 7 :].startswith(LAST_ONES):
            stage.run("signal", job, "USR1", code=0)
    assert follower.wait(60) == 0 and flooded(seen) == [*range(ROUNDS * ROUND)]
    files = {path.name.rpartition(".log")[2]: path.stat().st_size for path in (tmp_path / "state/bireme").iterdir()}
    assert files.keys() == {"", ".3", ".4"} and max(files.values()) <= detached_jobs.PART + (1 << 20)
    said = stage.run("logs", job, code=0, env=detached.environ).stdout
    assert "failed first: exit code 3" in said
    found = flooded(said)
    first, last = found[: found.index(GAP)], found[found.index(GAP) + 1 :]
    assert [*first, *last] == [*range(len(first)), *range(ROUNDS * ROUND - len(last), ROUNDS * ROUND)]
    assert min(len(first), len(last)) >= detached_jobs.PART // (LINE + 100)


@pytest.mark.parametrize(("rank", "letters"), [(0, "ad"), (1, "bcd"), (5, "d"), (10, "ef"), (9, "")])
def test_the_lines_of_a_rank(stage: Stage, tmp_path: Path, rank: int, letters: str) -> None:
    """Also the rest of a long line, and what several ranks have written alike."""
    (folder := tmp_path / "bireme").mkdir()
    lines = ("[b:0] a", "[b:1] b", "[b:1+] c", "[*:0-3,5] d", "[12:30:01.123 b:10] e", "bireme: x", "[y] z", "[b:10] f")
    (folder / "7.log").write_text("\n".join(lines))
    done = stage.run("logs", "7", "--rank", str(rank), code=0, env=clean_environ(XDG_STATE_HOME=str(tmp_path)))
    assert "".join(line.split()[-1] for line in done.stdout.splitlines()) == letters
    assert done.stderr.startswith("bireme: no line of rank 9: ") == (not letters)


def test_parts_of_old_logs_are_removed(detached, script, tmp_path: Path) -> None:
    """Also those whose first part is gone; a log that was written lately is kept with its old first part."""
    folder = tmp_path / "state" / "bireme"
    folder.mkdir(parents=True, mode=0o700)
    os.chmod(folder.parent, 0o700)
    for name in ("1.log", "1.log.3", "2.log.7", "3-x.log", "3-x.log.1"):
        (folder / name).write_text("")
        os.utime(folder / name, None if name == "3-x.log.1" else (1, 1))
    detached(script(""), code=None)
    assert {name for name in os.listdir(folder) if name[0] in "123" and name[1] in ".-"} == {"3-x.log", "3-x.log.1"}


def test_old_logs_are_removed(detached, script, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "bireme"
    folder.mkdir(parents=True, mode=0o700)
    os.chmod(folder.parent, 0o700)
    for number in range(105):
        (folder / f"{number}.log").write_text("")
        os.utime(folder / f"{number}.log", (1, 1) if number < 3 else None)
    detached(script(""), code=None)
    assert {f"{number}.log" for number in range(3)}.isdisjoint(os.listdir(folder))
    assert len(os.listdir(folder)) <= 101
