"""The ranks' log files: complete, with both streams; a full disk is reported and does not end the training."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from bireme.logs.rankfiles import RankFiles
from tests.conftest import bireme, clean_environ, wait_for
from tests.kit import needs
from tests.kit.written import WRITER, expected


def logs(directory):
    """The text of each rank's log, by rank."""
    found = {}
    for path in directory.iterdir():
        match = re.fullmatch(r"\d{14}_rank(\d+)\.log", path.name)
        assert match, path
        found[int(match[1])] = path.read_bytes()
    return found


@pytest.mark.parametrize("option", ["--enable_each_rank_log", "--enable-each-rank-log"])
def test_each_rank_has_all_its_output_in_a_file(stage, tmp_path, option):
    done = stage.run("run", "-q", "--num_gpus", "3", option, tmp_path / "a" / "b", WRITER, "pieces", "2000", code=0)
    found = logs(tmp_path / "a" / "b")
    assert sorted(found) == [0, 1, 2]
    for rank, text in found.items():
        assert text.count(b"\n") == 4000
        assert len(text) == len(expected(rank, b"out", 2000)) + len(expected(rank, b"err", 2000))
    # the console keeps its output too
    assert done.stdout.count("\n") == done.stderr.count("\n") == 6000


def test_attempts_of_one_second_do_not_share_a_file(tmp_path):
    attempts = [RankFiles(str(tmp_path), [0, 1], pytest.fail) for _ in range(3)]
    paths = [path for files in attempts for path in files.paths.values()]
    assert len(set(paths)) == 6 and sorted(paths) == sorted(map(str, tmp_path.iterdir()))
    for files in attempts:
        files.close()


def test_bytes_are_as_they_came(stage, tmp_path):
    given = bytes(range(256)) * 1000 + b"\r50%\r\n\xff no newline"
    (tmp_path / "bytes").write_bytes(given)
    done = stage.run("run", "-q", "--enable_each_rank_log", tmp_path / "logs", "--num_gpus", "2", "--output", "none",
                     WRITER, "file", tmp_path / "bytes")  # fmt: skip
    assert done.returncode == 0
    assert logs(tmp_path / "logs") == {0: given, 1: given}


def test_without_any_output_on_the_screen(stage, tmp_path):
    done = stage.run("run", "-q", "--output", "none", "--enable_each_rank_log", tmp_path, WRITER, "lines", "100")
    assert (done.stdout, done.stderr) == ("", "")
    assert logs(tmp_path) == {0: expected(0, b"out", 100)}


def test_relative_to_the_working_directory(stage, tmp_path):
    stage.run("run", "-q", "--enable_each_rank_log", "logs", WRITER, "lines", "1", cwd=tmp_path)
    assert logs(tmp_path / "logs") == {0: expected(0, b"out", 1)}


def test_last_words_before_a_kill_are_in_the_file(stage, tmp_path, script):
    program = script("import os\nos.write(1, b'x' * 100_000 + b'last words')\nos.kill(os.getpid(), 9)\n")
    stage.run("run", "-q", "--enable_each_rank_log", tmp_path / "logs", program, code=137)
    assert logs(tmp_path / "logs") == {0: b"x" * 100_000 + b"last words"}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB, in a namespace of its own; it is seen through the process that keeps it."""
    apart = [needs.program("unshare"), "--user", "--map-root-user", "--mount", "sh", "-c"]
    keep = 'mount -t tmpfs -o size=64k none "$1" && echo ready && read _'
    with subprocess.Popen([*apart, keep, "sh", tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        if keeper.stdout.readline() != b"ready\n":
            needs.missing("no small disk can be mounted here")
        yield Path(f"/proc/{keeper.pid}/root{tmp_path}")


def test_a_full_disk_is_said_once_for_each_file_and_training_goes_on(stage, small_disk):
    done = stage.run("run", "-q", "--num_gpus", "2", "--enable_each_rank_log", small_disk, WRITER, "lines", "5000")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2 * 5000
    said = done.stderr.splitlines()
    assert len(said) == 2, said
    for rank in (0, 1):
        (line,) = (line for line in said if f"_rank{rank}.log" in line)
        assert line.startswith("bireme: cannot write the log ")
        assert "No space left on device" in line
    for rank, text in logs(small_disk).items():
        assert text == expected(rank, b"out", 5000)[: len(text)]


def test_a_detached_job_goes_on_when_the_disk_of_its_log_is_full(stage, small_disk, tmp_path):
    events = tmp_path.with_suffix(".events")  # not on that disk
    inside = [needs.program("nsenter"), "-t", small_disk.parts[2], "-U", "-m", "--preserve-credentials"]
    words = bireme("run", "--detach", "--num_gpus", "2", "--events", str(events), str(WRITER), "lines", "5000")
    stage.run_argv([*inside, *words], env=clean_environ(XDG_STATE_HOME=str(tmp_path / "state")), code=0)
    wait_for(lambda: '"finished"' in events.read_text(), "the end")
    happened = [json.loads(line) for line in events.read_text().splitlines()]
    assert happened[-1]["code"] == 0
    assert [each["reason"] for each in happened if each["event"] == "output lost"] == ["No space left on device"]
    (log,) = (small_disk / "state" / "bireme").glob("*.log")
    assert 0 < log.stat().st_size <= 64 << 10


def test_the_log_of_a_detached_job_goes_on_once_there_is_room(stage, small_disk, tmp_path_factory, tmp_path):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    events, go, program = elsewhere / "events", elsewhere / "go", elsewhere / "program.py"
    begins = "import os, sys, time\nprint('x' * 60000, flush=True)\n"
    goes_on = "while not os.path.exists(sys.argv[1]): print('more', flush=True); time.sleep(0.1)\n"
    program.write_text(begins + goes_on)
    (small_disk / "filler").write_bytes(b"x" * 32_000)
    inside = [needs.program("nsenter"), "-t", small_disk.parts[2], "-U", "-m", "--preserve-credentials"]
    words = bireme("run", "--detach", "--num_gpus", "1", "--events", str(events), str(program), str(go))
    stage.run_argv([*inside, *words], env=clean_environ(XDG_STATE_HOME=str(tmp_path / "state")), code=0)
    wait_for(lambda: '"output lost"' in events.read_text(), "the full disk")
    (small_disk / "filler").unlink()
    (log,) = (small_disk / "state" / "bireme").glob("*.log")
    wait_for(lambda: b"more\nmore\n" in log.read_bytes(), "the rest of the log")
    go.touch()
    wait_for(lambda: '"finished"' in events.read_text(), "the end")
    said = "\nbireme: output is missing here: No space left on device\nmore\n"
    assert said in log.read_text() and events.read_text().count("output lost") == 1


def test_a_disk_that_is_full_from_the_start(stage, small_disk):
    with pytest.raises(OSError):
        (small_disk / "filler").write_bytes(b"x" * 100_000)
    done = stage.run("run", "-q", "--enable_each_rank_log", small_disk, WRITER, "lines", "100", code=0)
    assert done.stdout.count("\n") == 100
    assert done.stderr.count("No space left on device") == 1


def test_the_report_says_where_the_logs_are(stage, script, tmp_path):
    program = script("import sys\nsys.exit(3)\n")
    process = stage.start("run", "-q", "--num_gpus", "2", "--enable_each_rank_log", tmp_path / "logs", program)
    _, err = process.communicate(timeout=60)
    last = err.decode().splitlines()[-1]
    for path in (tmp_path / "logs").iterdir():
        assert str(path) in last
    assert process.returncode == 3
