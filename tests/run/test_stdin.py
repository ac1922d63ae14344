"""stdin: a pipe or a file reaches rank 0 and no other rank."""

from __future__ import annotations

import shlex
import subprocess

from tests.conftest import bireme

READS = """
import os, sys
data = sys.stdin.buffer.read()
sys.stdout.write(f"rank {os.environ['RANK']} read {len(data)} {data[:10]!r}\\n")
"""


def test_a_pipe_reaches_rank_0_only(stage, script):
    process = stage.start("run", "-q", "--num_gpus", "3", "--output", "raw", script(READS), stdin=subprocess.PIPE)
    given = b"\0\xff" + b"x" * 1_000_000
    out, _ = process.communicate(given, timeout=60)
    assert process.returncode == 0
    assert sorted(out.decode().splitlines()) == [
        f"rank 0 read {len(given)} {given[:10]!r}",
        "rank 1 read 0 b''",
        "rank 2 read 0 b''",
    ]


def test_a_file(stage, script, tmp_path):
    (tmp_path / "input").write_bytes(b"lines\n")
    with (tmp_path / "input").open("rb") as file:
        done = stage.run("run", "-q", script(READS), stdin=file)
    assert done.stdout == "rank 0 read 6 b'lines\\n'\n"


def test_line_by_line(stage, script):
    """As a program that talks with rank 0."""
    program = script(
        "while True:\n    line = input()\n    print('got', line, flush=True)\n    if line == 'end': break\n"
    )
    process = stage.start("run", "-q", program, stdin=subprocess.PIPE)
    for word in (b"one", b"two", b"end"):
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"got " + word + b"\n"
    assert process.wait(30) == 0


def test_what_rank_0_does_not_read_stays_in_the_pipe(stage, script):
    process = stage.start("run", "-q", script("pass"), stdin=subprocess.PIPE)
    process.communicate(b"x" * 1000, timeout=30)
    assert process.returncode == 0


def test_it_is_closed(stage, script):
    command = shlex.join(map(str, bireme("run", "-q", script(READS))))
    done = subprocess.run(["sh", "-c", f"exec {command} <&-"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("rank 0 read 0 b''\n", "")


def test_no_input(stage, script):
    done = stage.run("run", "-q", script(READS), stdin=subprocess.DEVNULL)
    assert done.stdout == "rank 0 read 0 b''\n"
