"""The report of a failed job: at the end of the output, once, and complete."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.conftest import clean_environ

HOST = os.uname().nodename.partition(".")[0]
OTHERS_WAIT = "import os, sys, time\nif os.environ['RANK'] != '1': time.sleep(1000)\n"


def report_of(done):
    """The lines of the report, without our name; nothing may come after them."""
    lines = done.stderr.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("bireme: rank "))
    assert all(line.startswith("bireme: ") for line in lines[first:]), lines[first:]
    assert sum("failed first" in line for line in lines) == 1
    return [line.removeprefix("bireme: ") for line in lines[first:]]


def fail(stage, script, text, *options, ranks=3, **kwargs):
    program = script(OTHERS_WAIT + text)
    done = stage.run("run", "-q", "--num_gpus", ranks, *options, program, **kwargs)
    return done, report_of(done), program


def test_a_script_that_raises(stage, script):
    done, report, program = fail(stage, script, "def f():\n    raise ValueError('boom')\nf()\n")
    assert done.returncode == 1
    assert re.fullmatch(rf"rank 1 on {HOST} \(cpu\), pid \d+, failed first: exit code 1, after \d+\.\d s", report[0]), (
        report[0]
    )
    traceback = [line.removeprefix("  | ") for line in report if line.startswith("  | ")]
    assert traceback[0] == "Traceback (most recent call last):"
    assert f'  File "{program}", line 5, in <module>' in traceback
    assert traceback[-1] == "ValueError: boom"
    assert report[-1] == "  2 other ranks were stopped because of it"


def test_chained_tracebacks(stage, script):
    text = "try:\n    {}['key']\nexcept KeyError as error:\n    raise RuntimeError('wrapped') from error\n"
    _, report, _ = fail(stage, script, text)
    inside = "\n".join(report)
    assert inside.index("KeyError: 'key'") < inside.index("direct cause") < inside.index("RuntimeError: wrapped")
    assert report[1] == "  | Traceback (most recent call last):"


SIGNALS = [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGBUS]


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda s: s.name)
def test_a_signal_by_its_name(stage, script, signum):
    text = f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.kill(os.getpid(), {int(signum)})\n"
    done, report, _ = fail(stage, script, text, ranks=2)
    assert done.returncode == 128 + signum
    assert f"failed first: {signum.name} (exit code {128 + signum})" in report[0]
    assert report[-1] == "  1 other rank was stopped because of it"


def test_last_lines_where_there_is_no_traceback(stage, script):
    text = "for i in range(100): print('line', i, file=sys.stderr)\nsys.exit(7)\n"
    done, report, _ = fail(stage, script, text)
    assert done.returncode == 7
    said = [line for line in report if line.startswith("  | ")]
    assert said == [f"  | line {i}" for i in range(90, 100)]


def test_the_first_of_several_failures(stage, script):
    program = script(
        "import os, signal, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 2: sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(10 + rank))\n"
        "while True: time.sleep(0.05)\n"  # not longer: a signal that comes just before a sleep begins is heard after it
    )
    # rank 2 may be quicker than the others' handlers: they then die of SIGTERM, which is no failure of theirs either
    for _ in range(5):
        done = stage.run("run", "-q", "--num_gpus", "4", program)
        report = report_of(done)
        assert done.returncode == 9
        assert report[0].startswith("rank 2 ")
        assert report[-1] == "  3 other ranks were stopped because of it"


def test_ranks_that_had_ended_well_are_not_counted(stage, script, tmp_path):
    program = script(
        "import os, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 0:\n"
        "    open(sys.argv[1] + '.new', 'w').write(str(os.getpid()))\n"
        "    os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "    sys.exit(0)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.001)\n"
        "while os.path.exists('/proc/' + open(sys.argv[1]).read()): time.sleep(0.001)\n"
        "if rank == 1: sys.exit(4)\n"
        "time.sleep(1000)\n"
    )
    done = stage.run("run", "-q", "--num_gpus", "3", program, tmp_path / "done", code=4)
    assert report_of(done)[-1] == "  1 other rank was stopped because of it"


def test_stubborn_ranks_are_counted_as_killed(stage, script):
    program = script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1] + os.environ['RANK'], 'w')\n"
        "while not all(os.path.exists(sys.argv[1] + str(rank)) for rank in range(3)): time.sleep(0.001)\n"
        "if os.environ['RANK'] == '1': sys.exit(5)\n"
        "time.sleep(1000)\n"
    )
    done = stage.run("run", "-q", "--num_gpus", "3", "--grace", "0.2", program, program.parent / "ready", code=5)
    assert any(line.startswith("  2 other ranks were stopped because of it, by SIGKILL") for line in report_of(done))


def test_no_grace_at_all(stage, script):
    text = "sys.exit(5)\n"
    program = script("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + OTHERS_WAIT + text)
    stage.run("run", "-q", "--num_gpus", "2", "--grace", "0", program, code=5)


def test_a_failure_is_reported_however_little_is_shown(stage, script):
    for options in (["--output", "none"], ["--log_level", "critical"], ["--output", "rank0"]):
        done, report, _ = fail(stage, script, "raise ValueError('boom')\n", *options)
        assert done.returncode == 1
        assert "  | ValueError: boom" in report


def test_nothing_is_said_when_all_goes_well(stage, script):
    done = stage.run("run", "-q", "--num_gpus", "2", script("pass"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- what torch's ``record`` decorator leaves ------------------------------------------------------

RECORDS = """
import json
record = {"message": {"message": "ValueError: recorded", "extraInfo": {
    "py_callstack": "Traceback (most recent call last):\\n  here\\nValueError: recorded\\n", "timestamp": "1"}}}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump(record, file)
"""


def test_a_recorded_error_is_read(stage, script):
    done, report, _ = fail(stage, script, RECORDS + "os._exit(1)\n")
    assert done.returncode == 1
    assert report[1:4] == ["  | Traceback (most recent call last):", "  |   here", "  | ValueError: recorded"]


def test_a_broken_record_is_survived(stage, script):
    for text in ("{", "", "[1]", "\\xff"):
        _, report, _ = fail(
            stage, script, f"open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{text}')\nsys.exit('plain')\n"
        )
        assert report[1] == "  | plain"


@pytest.mark.parametrize("make", ["os.mkfifo(path)", "os.symlink('/dev/zero', path)", "os.mkdir(path)"])
def test_what_is_no_file_in_its_place_is_not_read(stage, script, make):
    """A pipe would keep the command from ever ending, a device would fill its memory."""
    done, report, _ = fail(stage, script, f"path = os.environ['TORCHELASTIC_ERROR_FILE']\n{make}\nsys.exit('plain')\n")
    assert done.returncode == 1 and report[1] == "  | plain"


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_the_directory_of_records_is_gone_afterwards(stage, script, tmp_path, end):
    (tmp_path / "tmp").mkdir()
    env = clean_environ(TMPDIR=str(tmp_path / "tmp"))
    program = script(
        "import os, sys\n" + RECORDS + f"print('dir', os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']))\n{end}\n"
    )
    process = stage.start("run", "-q", "--num_gpus", "2", program, env=env)
    out, _ = process.communicate(timeout=60)
    assert str(tmp_path).encode() in out
    assert os.listdir(tmp_path / "tmp") == []


def test_and_after_a_kill_of_the_command(stage, script, tmp_path):
    (tmp_path / "tmp").mkdir()
    program = script("import os, time\n" + RECORDS + "print('ready', flush=True)\ntime.sleep(1000)\n")
    process = stage.start("run", "-q", program, env=clean_environ(TMPDIR=str(tmp_path / "tmp")))
    assert process.stdout.readline() == b"ready\n"
    assert len(os.listdir(tmp_path / "tmp")) == 1
    process.kill()
    process.wait()
    assert not stage.left(within=30)
    assert os.listdir(tmp_path / "tmp") == []


def test_a_rank_leaves_a_link_in_place_of_the_directory_of_error_files(stage, script, tmp_path):
    """What it leads to is not ours to remove."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target/kept").touch()
    text = (
        "folder = os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE'])\n"
        f"os.rename(folder, {str(tmp_path / 'moved')!r})\nos.symlink({str(tmp_path / 'target')!r}, folder)\n"
    )
    env = clean_environ(TMPDIR=str(tmp_path))
    stage.run("run", "-q", "--num_gpus", "1", script(f"import os\n{text}"), env=env, code=0)
    assert (tmp_path / "moved").exists() and (tmp_path / "target/kept").exists()


def test_a_thread_of_gloo_aborts_the_end_of_a_script(stage, script):
    """What PyTorch cannot end while Python shuts down; the report says what ends it before."""
    text = "sys.stderr.write('terminate called without an active exception\\n')\nsys.stderr.flush()\nos.abort()\n"
    done, report, _ = fail(stage, script, text)
    assert done.returncode == 134 and any("gloo" in line and "destroy_process_group()" in line for line in report)
