"""What a study shows on a terminal, and the state of the terminal afterwards, however the study ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from bireme.tune.store.journal import Journal
from tests.conftest import PROGRAMS, clean_environ

CONTRACT = PROGRAMS / "contract.py"
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
CTRL_C, CTRL_Z = b"\x03", b"\x1a"
FAILSAFE = 60.0


class Terminal:
    """A terminal of its own with ``bireme tune`` in it, and all that it has shown."""

    def __init__(self, stage, folder: Path, *words: str, rows: int = 30, grace: int = 1) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        self.process: subprocess.Popen[bytes] = stage.start(
            *("tune", "--num_gpus", "1", "--grace", str(grace), str(CONTRACT), "--deepspeed_config", "ds.json", *words),
            cwd=folder,
            env=clean_environ(TERM="xterm-256color"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.shown = b""

    def until(self, text: bytes | str, after: int = 0) -> None:
        """Wait until it has shown this, after so many bytes of what it has shown."""
        text = text.encode() if isinstance(text, str) else text
        while text not in self.shown[after:]:
            assert self._more(), self.shown.decode(errors="replace")

    def _more(self) -> bool:
        assert select.select([self._fd], [], [], FAILSAFE)[0], self.shown.decode(errors="replace")
        try:
            more = os.read(self._fd, 65536)
        except OSError:  # nobody has it open any more
            return False
        self.shown += more
        return bool(more)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def hang_up(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._fd >= 0 and self._more():
            pass
        return self.process.wait(FAILSAFE)

    @property
    def cursor(self) -> bool:
        return self.shown.rfind(SHOW) >= self.shown.rfind(HIDE)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


@pytest.fixture
def terminal(tmp_path, stage):
    made: list[Terminal] = []

    def make(*words: str, micro=(4, 8), rows: int = 30, grace: int = 1) -> Terminal:
        config = {
            "train_micro_batch_size_per_gpu": list(micro),
            "autotuning": {"tuner_type": "gridsearch"},
        }
        (tmp_path / "ds.json").write_text(json.dumps(config))
        made.append(Terminal(stage, tmp_path, *words, rows=rows, grace=grace))
        return made[-1]

    yield make
    for each in made:
        each.close()


def records(folder: Path, kind: str) -> list[str]:
    journal = Journal.open(str(folder / "autotuning_results" / "journal"))
    found = [str(record[kind]) for record in journal.records if kind in record]
    journal.close()
    return found


def test_what_runs_what_is_best_and_what_is_left(terminal, tmp_path):
    it = terminal("--until", "go")
    it.until("▸")
    it.until("at most 2 to go")
    (tmp_path / "go").touch()
    assert it.end() == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", it.shown).decode()
    assert re.search(r"▸ +z0_gas2_tmbspg4 +localhost:0 +\d", plain)
    assert "best so far: z0_gas1_tmbspg8  800 samples/s by the clock, by 1 run" in plain and "2 done · " in plain
    assert "z0_gas1_tmbspg8: 800 samples/s, the best so far" in plain
    assert it.shown.count(HIDE) == it.shown.count(SHOW) == 1 and it.cursor
    last = it.shown[it.shown.rindex(SHOW) :].decode()
    assert "| z0_gas2_tmbspg4" in last and "bireme run --grace=1.0 --num_gpus 1" in last and "▸" not in last


def test_ctrl_c_stops_in_order_and_gives_the_cursor_back(terminal, stage, tmp_path):
    it = terminal("--do", "0/4=hang", micro=(8, 4))
    it.until("z0_gas1_tmbspg8: 800 samples/s")
    it.until("▸", it.shown.index(b"z0_gas1_tmbspg8: 800"))
    it.type(CTRL_C)
    assert it.end() == 130
    assert stage.left() == {}
    assert it.cursor
    assert b"interrupted: the same command resumes the search" in it.shown
    assert records(tmp_path, "end") == ["z0_gas1_tmbspg8"]
    assert "It ended: it was interrupted." in (tmp_path / "autotuning_results" / "summary.txt").read_text()


def test_ctrl_c_twice_does_not_wait_for_ranks_that_do_not_end(terminal, stage, tmp_path):
    it = terminal("--do", "*/*=stubborn", grace=60)
    it.until("▸")
    while not (tmp_path / "stubborn.0").exists():
        time.sleep(0.01)
    it.type(CTRL_C)
    it.until("stopping; up to 60 s; Ctrl+C again kills; what has ended is kept")
    it.type(CTRL_C)
    assert it.end() == 130 and it.cursor
    assert stage.left() == {}


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(terminal, tmp_path):
    it = terminal("--until", "go")
    it.until("▸")
    it.type(CTRL_Z)
    it.until(SHOW)
    state = Path(f"/proc/{it.process.pid}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    before = len(it.shown)
    (tmp_path / "go").touch()
    os.kill(it.process.pid, signal.SIGCONT)
    it.until(HIDE, before)
    assert it.end() == 0 and it.cursor
    assert len(records(tmp_path, "end")) == 2


def test_a_terminal_that_goes_away_stops_it_in_order(terminal, stage, tmp_path):
    it = terminal("--until", "go")
    it.until("▸")
    it.hang_up()
    # what is written meanwhile fails before the signal is there
    assert it.end() in (128 + signal.SIGHUP, 128 + signal.SIGPIPE)
    assert stage.left() == {}
    assert (tmp_path / "autotuning_results" / "summary.txt").exists()
    (tmp_path / "go").touch()
    assert terminal("--until", "go").end() == 0
    assert len(records(tmp_path, "end")) == 2


def test_ctrl_c_while_it_waits_for_what_another_has_left(terminal, stage, tmp_path):
    first = terminal("--do", "0/4=stubborn", grace=8)
    while not (tmp_path / "stubborn.0").exists():
        time.sleep(0.01)
    first.process.kill()
    first.process.wait()
    second = terminal("--do", "0/4=stubborn")
    second.until("waiting for trials of an earlier tuner to end")
    second.type(CTRL_C)
    assert second.end() == 130 and second.cursor
    assert stage.left(within=60) == {}, "the guardian of the first ends it by itself"


def test_more_rows_than_the_terminal_has(terminal, tmp_path):
    it = terminal("--until", "go", rows=2)
    it.until("to go")
    (tmp_path / "go").touch()
    assert it.end() == 0 and it.cursor


def test_a_reader_that_goes_away_stops_it_in_order(stage, tmp_path):
    config = {"train_micro_batch_size_per_gpu": [1, 2, 4, 8, 16], "autotuning": {"tuner_type": "gridsearch"}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    process = stage.start(
        "tune", "--num_gpus", "1", str(CONTRACT), "--deepspeed_config", "ds.json", "--nap", "0.1", cwd=tmp_path
    )
    assert process.stdout.readline() == b"z0_gas16_tmbspg1 starts on localhost:0\n"
    process.stdout.close()
    assert process.wait(FAILSAFE) == 141
    assert process.stderr.read() == b""
    assert stage.left() == {}
    ended = records(tmp_path, "end")
    assert len(ended) < 5
    summary = (tmp_path / "autotuning_results" / "summary.txt").read_text()
    assert all(f"| {name} " in summary for name in ended)
    assert stage.run("tune", "--num_gpus", "1", str(CONTRACT), "--deepspeed_config", "ds.json", "--nap", "0.1",
                     cwd=tmp_path).returncode == 0  # fmt: skip
    assert len(records(tmp_path, "end")) == 5


# -- what the terminal cannot show ---------------------------------------------------------------------


def strange(folder: Path) -> list[str]:
    """The words of a study whose first experiment fails with what ASCII does not have, and too much of it."""
    config = {"train_micro_batch_size_per_gpu": [1, 8], "autotuning": {"enabled": True}}
    (folder / "ds.json").write_text(json.dumps(config))
    (folder / "strange.py").write_text(
        CONTRACT.read_text().replace(
            "speed = 100.0", "if micro == 1: raise ValueError('größer ' * 50)\nspeed = 100.0", 1
        )
    )
    return ["tune", "--num_gpus", "1", "strange.py", "--deepspeed_config", "ds.json", "--name", "Ω"]


def test_what_the_encoding_does_not_have_is_written_by_its_number(stage, tmp_path):
    environ = clean_environ(PYTHONIOENCODING="ascii")
    done = stage.run(*strange(tmp_path), cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    assert re.search(r"failed: rank 0 on \S+: ValueError: gr\\xf6\\xdfer .*\\u2026", done.stdout)
    assert done.stdout.rstrip().endswith("'\\u03a9'")
    assert "…" in (tmp_path / "autotuning_results" / "summary.txt").read_text(encoding="utf-8")


def test_a_terminal_without_the_signs(terminal, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    it = terminal("--until", "go")
    it.until(">\x1b")
    (tmp_path / "go").touch()
    assert it.end() == 0 and it.cursor
    assert it.shown.isascii() and b"1 done | at most 1 to go" in it.shown


# -- when it goes on -----------------------------------------------------------------------------------


def test_when_the_only_host_has_failed_it_says_when_it_is_tried_again(stage, tmp_path):
    """And Ctrl+C does not wait for that."""
    config = {"train_micro_batch_size_per_gpu": 4, "autotuning": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    words = ["tune", "--hosts", "nobody.invalid:1", str(CONTRACT), "--deepspeed_config", "ds.json"]
    process = stage.start(*words, cwd=tmp_path)
    assert process.stdout.readline() == b"z0_gas1_tmbspg4 starts on nobody.invalid:0\n"
    line = process.stdout.readline().decode()
    assert line.startswith("z0_gas1_tmbspg4: infrastructure: 1 of 1 node cannot run the job: nobody.invalid ssh: ")
    assert re.search(r"; retrying in 1[45]\.\d s \(", line), line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=FAILSAFE)
    assert process.returncode == 130, err
    assert b"interrupted: the same command resumes the search" in out
    assert records(tmp_path, "end") == []
