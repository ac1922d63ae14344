"""stdin: a pipe, a file or a terminal reaches rank 0, or the ranks that ``--stdin`` names."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess

import pytest

from bireme.loop import Loop
from bireme.one_node.pipes import InputPipes
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
    assert process.wait(60) == 0


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


GIVEN = b"\0\xff" + b"y" * 1_000_000


@pytest.mark.parametrize(("readers", "who"), [("1", {1}), ("all", {0, 1, 2}), ("none", set())])
def test_chosen_ranks(stage, script, readers, who):
    words = ("run", "-q", "--num_gpus", "3", "--output", "raw", "--stdin", readers, script(READS))
    process = stage.start(*words, stdin=subprocess.PIPE)
    out, err = process.communicate(GIVEN if who else None, timeout=60)
    assert process.returncode == 0, err
    got = {rank: f"{len(GIVEN)} {GIVEN[:10]!r}" if rank in who else "0 b''" for rank in range(3)}
    assert sorted(out.decode().splitlines()) == [f"rank {rank} read {text}" for rank, text in got.items()]


def test_a_file_for_all(stage, script, tmp_path):
    (tmp_path / "input").write_bytes(GIVEN)
    with (tmp_path / "input").open("rb") as file:
        done = stage.run("run", "-q", "--num_gpus", "2", "--stdin", "all", "--output", "raw", script(READS), stdin=file)
    assert done.stdout.count(f"read {len(GIVEN)} ") == 2, done.stderr


ENDS = """
import os, sys
os.chdir(os.path.dirname(__file__))
if os.environ["RANK"] == "0":
    sys.exit()
if os.environ["RANK"] == "1":
    os.close(0)
    os.open("closed", os.O_CREAT)
    while not os.path.exists("read"): __import__("time").sleep(0.01)
else:
    print(len(sys.stdin.buffer.read()), flush=True)
    os.open("read", os.O_CREAT)
"""


def test_ranks_that_do_not_read_any_more(stage, script):
    """One has ended, and one has closed its stdin: the third one gets everything."""
    words = ("run", "-q", "--num_gpus", "3", "--stdin", "all", "--output", "raw", script(ENDS))
    process = stage.start(*words, stdin=subprocess.PIPE)
    out, err = process.communicate(GIVEN, timeout=60)
    assert (process.returncode, out) == (0, b"%d\n" % len(GIVEN)), err


def test_the_slowest_rank_sets_the_pace():
    """No more is asked for until all ranks have taken what there is, so that no more than that is in memory."""
    loop, asked, got = Loop(), [], {}
    pipes = InputPipes(loop, lambda: asked.append(dict(got)))
    slow, fast = (os.dup(pipes.add()) for _ in range(2))
    pipes.begin()

    def read(fd):
        got[fd] = got.get(fd, 0) + len(os.read(fd, 65536))
        if got[fd] == len(GIVEN):
            loop.stop() if fd == slow else loop.watch(slow, lambda: read(slow))

    pipes.write(GIVEN)
    loop.watch(fast, lambda: read(fast))
    loop.run()
    assert got == {slow: len(GIVEN), fast: len(GIVEN)}
    assert all(then.get(slow, 0) >= len(GIVEN) - 65536 for then in asked), "the rest is in the pipe"
    pipes.close()
    loop.close()
    for fd in (slow, fast):
        os.close(fd)


TALKS = """
import os
while os.environ["RANK"] in {ranks} and (line := input()) != "end":
    print(os.environ["RANK"], "got", line, flush=True)
"""


@pytest.mark.parametrize(("readers", "ranks"), [("1", {"1"}), ("all", {"0", "1"})])
def test_at_a_terminal(stage, script, readers, ranks):
    """Each line is there when it is typed."""
    command = bireme("run", "-q", "--num_gpus", "2", "--output", "raw", "--stdin", readers)
    program = script(TALKS.replace("{ranks}", repr(ranks)))
    pid, ours = pty.fork()
    if pid == 0:
        os.execvp(command[0], [*map(str, command), str(program)])
    said = b""
    for word in (b"one", b"two"):
        os.write(ours, word + b"\n")
        while not all(b"%s got %s" % (rank.encode(), word) in said for rank in ranks):
            said += os.read(ours, 65536)
    os.write(ours, b"end\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(ours)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--stdin", "2"), "--stdin: no such rank: 2 (the job has 2)"),
        (("--stdin", "-1"), "--stdin: must be the number of a rank, all or none, not '-1'"),
        (("--stdin", "every"), "--stdin: must be the number of a rank, all or none, not 'every'"),
        (("--stdin", "1", "--elastic_training"), "--stdin cannot be used with --elastic_training"),
    ],
)
def test_no_such_rank(stage, script, options, error):
    done = stage.run("run", "--num_gpus", "2", *options, script("open('started', 'w')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr


@pytest.mark.parametrize("code", ["breakpoint()", "input()"])
def test_a_rank_that_reads_nothing_is_told_what_to_type(stage, script, code):
    program = script(f"import os, time\nif os.environ['RANK'] == '1':\n    {code}\nelse:\n    time.sleep(1000)\n")
    done = stage.run("run", "--num_gpus", "2", program)
    what = "to read yours there, as for breakpoint(), type --stdin 1, or --stdin all if each rank reads"
    hint = f"the stdin of rank 1 is /dev/null: {what}"
    assert done.returncode == 1 and done.stderr.count(hint) == 1, done.stderr
    typed = stage.run("run", "--num_gpus", "2", "--stdin", "1", program, stdin=subprocess.DEVNULL)
    assert typed.returncode == 1 and "--stdin" not in typed.stderr, "it reads ours already"
