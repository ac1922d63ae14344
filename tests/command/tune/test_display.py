"""What a study shows on a terminal, and the state of the terminal afterwards, however the study ends."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.command.conftest import Terminal, state_of
from tests.conftest import clean_environ, wait_for

HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
CTRL_C, CTRL_Z = b"\x03", b"\x1a"
MICRO = "train_micro_batch_size_per_gpu"


@pytest.fixture
def shown(terminal, desk):
    """Start a study on a terminal."""

    def start(*args: str, micro=(4, 8), rows: int = 30, grace: int = 1) -> Terminal:
        desk.configure({MICRO: list(micro), "autotuning": {}})
        words = desk.words(*args, options=("--num_gpus", "1", "--grace", grace))
        environ = clean_environ(TERM="xterm-256color")
        return terminal("tune", *words, env=environ, columns=100, rows=rows, cwd=desk.folder)

    return start


def ends(it: Terminal, code: int = 0) -> None:
    """With this code, and the cursor is there again."""
    assert it.wait() == code, it.seen
    assert it.seen.rfind(SHOW) >= it.seen.rfind(HIDE)


def test_what_runs_what_is_best_and_what_is_left(shown, desk):
    it = shown("--until", "go")
    it.expect("▸")
    it.expect("at most 2 to go")
    (desk.folder / "go").touch()
    ends(it)
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", it.seen).decode()
    assert re.search(r"▸ +z0_gas2_tmbspg4 +localhost:0 +\d", plain)
    assert "best so far: z0_gas1_tmbspg8  800 samples/s by the clock, from 1 run" in plain and "2 done · " in plain
    assert "z0_gas1_tmbspg8: 800 samples/s, the best so far" in plain
    assert it.seen.count(HIDE) == it.seen.count(SHOW) == 1
    last = it.seen[it.seen.rindex(SHOW) :].decode()
    assert "| z0_gas2_tmbspg4" in last and "bireme run --grace=1.0 --num_gpus 1" in last and "▸" not in last


def test_ctrl_c_stops_in_order_and_gives_the_cursor_back(shown, desk):
    it = shown("--do", "0/4=hang", micro=(8, 4))
    it.expect("z0_gas1_tmbspg8: 800 samples/s")
    it.expect("▸", after=it.seen.index(b"z0_gas1_tmbspg8: 800"))
    it.type(CTRL_C)
    ends(it, 130)
    assert desk.stage.left() == {}
    assert b"interrupted: the same command resumes the search" in it.seen
    assert list(desk.ends()) == ["z0_gas1_tmbspg8"]
    assert "It ended: it was interrupted." in (desk.results / "summary.txt").read_text()


def test_ctrl_c_twice_does_not_wait_for_ranks_that_do_not_end(shown, desk):
    it = shown("--do", "*/*=stubborn", grace=60)
    it.expect("▸")
    wait_for((desk.folder / "stubborn.0").exists)
    it.type(CTRL_C)
    it.expect("stopping; up to 60 s; Ctrl+C again kills; the results so far are kept")
    it.type(CTRL_C)
    ends(it, 130)
    assert desk.stage.left() == {}


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(shown, desk):
    it = shown("--until", "go")
    it.expect("▸")
    it.type(CTRL_Z)
    it.expect(SHOW)
    wait_for(lambda: state_of(it.pid) == "T", "the study to halt")
    (desk.folder / "go").touch()
    os.kill(it.pid, signal.SIGCONT)
    it.expect(HIDE, times=2)
    ends(it)
    assert len(desk.ends()) == 2


def test_a_terminal_that_goes_away_stops_it_in_order(shown, desk):
    it = shown("--until", "go")
    it.expect("▸")
    it.hang_up()
    # what is written meanwhile fails before the signal is there
    assert it.wait() in (128 + signal.SIGHUP, 128 + signal.SIGPIPE)
    assert desk.stage.left() == {}
    assert (desk.results / "summary.txt").exists()
    (desk.folder / "go").touch()
    ends(shown("--until", "go"))
    assert len(desk.ends()) == 2


def test_ctrl_c_while_it_waits_for_what_another_has_left(shown, desk):
    first = shown("--do", "0/4=stubborn", grace=8)
    wait_for((desk.folder / "stubborn.0").exists)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    second = shown("--do", "0/4=stubborn")
    second.expect("waiting for trials of an earlier tuner to end")
    second.type(CTRL_C)
    ends(second, 130)
    assert desk.stage.left(within=60) == {}, "the guardian of the first ends it by itself"


def test_more_rows_than_the_terminal_has(shown, desk):
    it = shown("--until", "go", rows=2)
    it.expect("to go")
    (desk.folder / "go").touch()
    ends(it)


def test_a_reader_that_goes_away_stops_it_in_order(desk):
    desk.configure({MICRO: [1, 2, 4, 8, 16], "autotuning": {}})
    process = desk.start("--nap", "0.1")
    assert process.stdout.readline() == b"z0_gas16_tmbspg1 starts on localhost:0\n"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    assert desk.stage.left() == {}
    ended = desk.ends()
    assert len(ended) < 5
    summary = (desk.results / "summary.txt").read_text()
    assert all(f"| {name} " in summary for name in ended)
    desk.run("--nap", "0.1")
    assert len(desk.ends()) == 5


# -- what the terminal cannot show ---------------------------------------------------------------------


def test_what_the_encoding_does_not_have_is_written_by_its_number(desk):
    """The first experiment fails with what ASCII does not have, and too much of it."""
    desk.configure({MICRO: [1, 8], "autotuning": {}})
    strange = "if micro == 1: raise ValueError('größer ' * 50)\n"
    program = desk.program("strange.py", ("speed = 100.0", f"{strange}speed = 100.0"))
    done = desk.run("--name", "Ω", program=program, env=clean_environ(PYTHONIOENCODING="ascii"))
    assert re.search(r"failed: rank 0 on \S+: ValueError: gr\\xf6\\xdfer .*\\u2026", done.stdout)
    assert done.stdout.rstrip().endswith("'\\u03a9'")
    assert "…" in (desk.results / "summary.txt").read_text(encoding="utf-8")


def test_a_terminal_without_the_signs(shown, desk, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    it = shown("--until", "go")
    it.expect(">\x1b")
    (desk.folder / "go").touch()
    ends(it)
    assert it.seen.isascii() and b"1 done | at most 1 to go" in it.seen


# -- when it goes on -----------------------------------------------------------------------------------


def test_when_the_only_host_has_failed_it_says_when_it_is_tried_again(desk):
    """And Ctrl+C does not wait for that."""
    desk.configure({MICRO: 4, "autotuning": {}})
    process = desk.start(options=("--hosts", "nobody.invalid:1"))
    assert process.stdout.readline() == b"z0_gas1_tmbspg4 starts on nobody.invalid:0\n"
    line = process.stdout.readline().decode()
    assert line.startswith("z0_gas1_tmbspg4: infrastructure: 1 of 1 node cannot run the job: nobody.invalid ssh: ")
    assert re.search(r"; retrying in 1[45]\.\d s \(", line), line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"interrupted: the same command resumes the search" in out
    assert not desk.ends()
