"""``--report FILE``: how a job has ended, for programs, however it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.command.conftest import state_of
from tests.command.test_out_of_memory import EATS, small_memory  # noqa: F401  (a fixture)
from tests.conftest import PROGRAMS, Stage, bireme, clean_environ, guards_of, read_lines, wait_for
from tests.kit import needs

WAITS = "import os, sys, time\nif os.environ['RANK'] != '1': time.sleep(1000)\n"


class Reported:
    """A command that has ended, and its report; None: it has written none."""

    def __init__(self, done: subprocess.CompletedProcess[str], path: Path) -> None:
        self.done = done
        self.report: Any = json.loads(path.read_text()) if path.exists() else None
        assert sorted(path.parent.glob("report*")) == ([path] if self.report else []), "a draft is left"
        if self.report is not None:
            assert self.report["exit_code"] == done.returncode


@pytest.fixture
def run(stage: Stage, tmp_path: Path):
    """Run a job with ``--report``."""

    def start(*words: object, ranks: int = 2, **kwargs: Any) -> Reported:
        path = tmp_path / "report.json"
        done = stage.run("run", "-q", "--num_gpus", ranks, "--report", path, *words, **kwargs)  # type: ignore[arg-type]
        return Reported(done, path)

    return start


def test_all_well(run, script):
    report = run(script("pass")).report
    assert (report["exit_code"], report["cause"], report["first"]) == (0, "ok", None)
    assert [(end["rank"], end["code"], end["stopped"], end["detail"]) for end in report["ends"]] == [
        (0, 0, False, ""),
        (1, 0, False, ""),
    ]
    assert (report["hosts"], report["note"], report["killed"]) == ([], "", 0)
    assert report["seconds"] >= max(end["seconds"] for end in report["ends"]) > 0


def test_a_script_that_raises(run, script):
    report = run("--time_limit", "1000", script(WAITS + "raise ValueError('boom')\n")).report
    assert (report["exit_code"], report["cause"]) == (1, "rank failed")
    first = report["first"]
    assert (first["rank"], first["code"], first["by_signal"], first["stopped"]) == (1, 1, False, False)
    assert first["device"] == "cpu"
    assert first["detail"].startswith("Traceback (most recent call last):\n")
    assert first["detail"].endswith("\nValueError: boom")
    assert report["ends"][1] == first
    assert report["ends"][0]["stopped"] and report["ends"][0]["detail"] == ""


def test_a_rank_that_is_killed(run, script):
    report = run(script(WAITS + "os.kill(os.getpid(), 9)\n")).report
    assert (report["exit_code"], report["cause"], report["first"]["rank"]) == (137, "rank failed", 1)
    assert report["first"]["by_signal"] and not report["first"]["out_of_memory"]


def test_the_out_of_memory_killer(run, script, small_memory):  # noqa: F811
    report = run(script(EATS), preexec_fn=small_memory).report
    assert (report["exit_code"], report["first"]["rank"], report["first"]["out_of_memory"]) == (137, 1, True)


def test_those_that_failed_by_themselves_are_quoted(stage, script, tmp_path):
    """The command is halted while they die, so that it stops none of them."""
    path, go = tmp_path / "report.json", tmp_path / "go"
    program = script(
        "import os, sys, time\n"
        "print('ready', os.getpid(), flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.001)\n"
        "raise ValueError('boom in rank ' + os.environ['RANK'])\n"
    )
    process = stage.start("run", "-q", "--output", "raw", "--num_gpus", "10", "--report", path, program, go)
    pids = [int(line.split()[-1]) for line in read_lines(process, 10, "ready")]
    process.send_signal(signal.SIGSTOP)
    go.touch()
    wait_for(lambda: not any(state_of(pid) for pid in pids), "the ranks to die")
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    report = json.loads(path.read_text())
    assert not any(end["stopped"] for end in report["ends"])
    quoted = [end for end in report["ends"] if end["detail"]]
    assert len(quoted) == 8 and report["first"] in quoted
    assert all(end["detail"].endswith(f"ValueError: boom in rank {end['rank']}") for end in quoted)


def test_what_a_rank_said_that_was_stopped(run, script, tmp_path):
    """It raised first, but another missed it and was dead before it was."""
    program = script(
        "import os, sys, time, traceback\n"
        "if os.environ['RANK'] == '1':\n"
        "    try:\n"
        "        raise MemoryError('mine')\n"
        "    except MemoryError:\n"
        "        traceback.print_exc()\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    time.sleep(1000)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.001)\n"
        "if os.environ['RANK'] == '0': raise ConnectionError('connection closed by peer')\n"
        "time.sleep(1000)\n"
    )
    report = run(program, tmp_path / "said", ranks=3).report
    assert report["first"]["rank"] == 0
    assert report["first"]["detail"].endswith("ConnectionError: connection closed by peer")
    assert report["ends"][1]["stopped"]
    assert report["ends"][1]["detail"].endswith("MemoryError: mine")
    assert report["ends"][2]["detail"] == ""


def test_the_time_limit(run):
    run = run("--time_limit", "0.5", PROGRAMS / "scene.py", "wait")
    report = run.report
    assert "2 ranks were stopped because of it" in run.done.stderr
    assert (report["exit_code"], report["cause"], report["first"]) == (124, "time limit", None)
    assert report["note"] == "stopped after the time limit of 0.5 s"
    assert all(end["stopped"] for end in report["ends"])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda signum: signum.name)
def test_a_signal_to_the_command(stage, tmp_path, signum):
    path = tmp_path / "report.json"
    process = stage.start("run", "-q", "--num_gpus", 2, "--report", path, PROGRAMS / "scene.py", "wait")
    read_lines(process, 2, "ready")
    process.send_signal(signum)
    process.communicate(timeout=60)
    report = json.loads(path.read_text())
    assert (report["exit_code"], report["cause"], report["signum"]) == (128 + signum, "signal", signum)
    assert process.returncode == 128 + signum


def test_a_guardian_that_is_killed(stage, tmp_path):
    path = tmp_path / "report.json"
    process = stage.start("run", "-q", "--num_gpus", 2, "--report", path, PROGRAMS / "scene.py", "wait")
    read_lines(process, 2, "ready")
    os.kill(guards_of(process.pid)["guardian"], signal.SIGKILL)
    process.communicate(timeout=60)
    report = json.loads(path.read_text())
    assert (report["exit_code"], report["cause"], report["hosts"]) == (75, "agent lost", ["localhost"])
    assert "guardian" in report["note"]


def test_a_machine_that_is_not_fit(run, script):
    import resource

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    report = run(script("pass"), ranks=40, preexec_fn=few_files).report
    assert (report["exit_code"], report["cause"], report["hosts"]) == (69, "unfit", ["localhost"])
    assert report["note"] and report["ends"] == []


def test_a_killed_command_leaves_none(stage, tmp_path):
    path = tmp_path / "report.json"
    path.write_text("of an earlier job")
    process = stage.start("run", "-q", "--report", path, PROGRAMS / "scene.py", "wait")
    read_lines(process, 1, "ready")
    assert not path.exists()
    process.kill()
    process.wait()
    assert not stage.left(within=30)
    assert os.listdir(tmp_path) == []


def test_a_report_of_an_earlier_job_is_gone_whatever_comes(run, tmp_path):
    (tmp_path / "report.json").write_text("of an earlier job")
    reported = run("--time_limit", "1", "no-such-script.py")
    assert (reported.done.returncode, reported.report) == (2, None)


def test_relative_to_the_working_directory(stage, script, tmp_path):
    (tmp_path / "out").mkdir()
    done = stage.run("run", "-q", "--report", "out/report.json", script("import os\nos.chdir('/')"), cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out/report.json").read_text())["cause"] == "ok"


@needs.programs("mpirun.openmpi")
def test_under_native_ranks_the_engine_is_the_rank(stage, script, tmp_path):
    path = tmp_path / "report.json"
    words = ("--launcher", "openmpi", "--native_ranks", "--hosts", "localhost:2")
    done = stage.run("run", "-q", *words, "--report", path, script("raise SystemExit(3)"))
    report = json.loads(path.read_text())
    assert done.returncode == report["exit_code"] == 3, done.stderr
    assert [end["rank"] for end in report["ends"]] == [0] and report["hosts"] == []


# -- where others can write into the folder ---------------------------------------------------------------

# lays a link where the runner would write a draft, had it the name that anyone can tell
PLANTS = """
import os, sys
with open(f"/proc/{os.getppid()}/stat") as file:
    runner = file.read().rpartition(")")[2].split()[1]
os.symlink(sys.argv[2], f"{sys.argv[1]}.{runner}.tmp")
"""


def test_a_link_that_is_laid_while_the_job_runs_is_not_followed(stage, script, tmp_path):
    path, precious = tmp_path / "report.json", tmp_path / "precious"
    precious.write_text("mine")
    stage.run("run", "-q", "--report", path, script(PLANTS), path, precious, code=0)
    assert precious.read_text() == "mine"
    assert not path.is_symlink() and json.loads(path.read_text())["cause"] == "ok"


def test_a_link_that_was_laid_before_is_not_in_the_way(script, tmp_path):
    path, precious = tmp_path / "report.json", tmp_path / "precious"
    precious.write_text("mine")
    words = bireme("run", "-q", "--report", path, script("pass"))
    shell = 'ln -s "$0" "$1.$$.tmp"; shift; exec "$@"'
    done = subprocess.run(["sh", "-c", shell, precious, path, *words], env=clean_environ(), check=False)
    assert done.returncode == 0
    assert precious.read_text() == "mine"
    assert json.loads(path.read_text())["cause"] == "ok"


@pytest.mark.parametrize("name", ["nowhere/report.json", ".", "link", "pipe", ""])
def test_what_cannot_be_written_is_said_before_anything_starts(stage, script, tmp_path, name):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    done = stage.run("run", "--report", name, script("open('started', 'w')"), cwd=tmp_path, code=2)
    assert done.stderr.startswith("bireme: --report: ") and len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "started").exists()
    assert (tmp_path / "link").read_text() == "mine"


def test_a_file_that_cannot_be_written_at_the_end(stage, script, tmp_path):
    """It is said, and the job's code stays what it is."""
    (tmp_path / "out").mkdir()
    program = script("import os\nos.rmdir('out')\nraise SystemExit(3)\n")
    done = stage.run("run", "-q", "--report", "out/report.json", program, cwd=tmp_path, code=3)
    assert "cannot write the report" in done.stderr


def test_a_dry_run_leaves_the_file_alone(stage, script, tmp_path):
    path = tmp_path / "report.json"
    path.write_text("of an earlier job")
    done = stage.run("run", "--report", path, "--dry_run", script("pass"))
    assert (done.returncode, path.read_text()) == (0, "of an earlier job")
