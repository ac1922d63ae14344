"""Output of ranks on many nodes: lines stay whole, labelled and in order, and none is lost."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.cluster.basics import children, read, wait_until
from tests.cluster.jobs import Jobs, backends
from tests.conftest import PROGRAMS, read_lines
from tests.kit.written import WRITER, by_rank, expected

SCENE = PROGRAMS / "scene.py"
HOST_OF = {0: "node1", 1: "node1", 2: "node2", 3: "node2", 4: "node3", 5: "node3"}
MOST_KB = 48_000  # resident, of any process of ours: less than what the ranks write


@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_lines_written_in_odd_pieces(jobs: Jobs) -> None:
    process = jobs.start("-q", WRITER, "pieces", "2000")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert by_rank(out, HOST_OF) == {rank: expected(rank, b"out", 2000) for rank in HOST_OF}
    assert by_rank(err, HOST_OF) == {rank: expected(rank, b"err", 2000) for rank in HOST_OF}


def test_the_width_that_labels_leave(jobs: Jobs) -> None:
    """Ranks of other nodes have pipes, so a variable tells them the width of the terminal; elsewhere there is none."""
    program = jobs.write("width.py", "import os; print('width', os.environ.get('COLUMNS'))")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = jobs.start("-q", program, stdout=theirs, stderr=theirs)
    assert process.wait(60) == 0
    shown = os.read(ours, 65536)
    os.close(ours)
    os.close(theirs)
    assert shown.count(b"width %d\r\n" % (100 - len("[node1:0] "))) == len(HOST_OF), shown
    assert jobs.run("-q", program).stdout.count("width None") == len(HOST_OF)


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_many_lines(jobs: Jobs) -> None:
    """Not one of half a million is lost, torn or out of its rank's order."""
    count = 83_333
    process = jobs.start("-q", WRITER, "lines", str(count))
    assert process.stdout
    nexts = dict.fromkeys(HOST_OF, 0)
    letters = b"abcdefghij"
    ends = [b" " + letters[: i % 11] * (i % 7) + b"\n" for i in range(77)]
    for line in process.stdout:
        label, _, rest = line.partition(b"] out of rank ")
        rank_word, _, rest = rest.partition(b": ")
        rank = int(rank_word)
        number = nexts[rank]
        assert rest == b"%d%b" % (number, ends[number % 77]), line
        assert label == b"[%s:%d" % (HOST_OF[rank].encode(), rank)
        nexts[rank] = number + 1
    assert process.wait(60) == 0
    assert set(nexts.values()) == {count}


LAST_WORDS = """
import os, time
if os.environ["RANK"] == "4":
    os.write(1, b"x" * 300_000 + b"\\nlast words")
    os.write(2, b"on stderr too")
    os.kill(os.getpid(), 9)
time.sleep(1000)
"""


@pytest.mark.parametrize("backend", backends("ssh", "slurm"))
def test_last_words_of_a_killed_rank(jobs: Jobs) -> None:
    process = jobs.start("--grace", "5", jobs.write("last.py", LAST_WORDS))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 137, err
    assert by_rank(out, HOST_OF) == {4: b"x" * 300_000 + b"\nlast words\n"}
    assert b"[node3:4] on stderr too\n" in err
    assert b"rank 4 on node3" in err


# -- a reader that does not read -------------------------------------------------------------------


class Peaks:
    """The most memory that each of our processes had, as far as it was looked at."""

    def __init__(self, jobs: Jobs, process: subprocess.Popen[bytes]) -> None:
        (self.runner,) = children(process.pid)
        self.agents = [pid for node in jobs.testbed.nodes for pid in node.agents()]
        assert len(self.agents) >= 3
        self.peaks: dict[int, int] = {}

    def look(self) -> None:
        for pid in (self.runner, *self.agents):
            found = re.search(r"VmHWM:\s+(\d+) kB", read(f"/proc/{pid}/status"))
            if found:
                self.peaks[pid] = int(found[1])

    @property
    def most(self) -> int:
        self.look()
        return max(self.peaks.values())


# Floods, once it was seen that all are there, and says how many bytes it got rid of: flood.py BYTES
FLOOD = """
import os, sys, time
os.write(2, b"ready\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
rank, size = os.environ["RANK"], int(sys.argv[1])
line = rank.encode() * 99 + b"\\n"
block = line * 600
done = 0
while done < size:
    done += os.write(1, block[done % 100:][: min(size - done, 59900)])
    with open(f"done-{rank}", "w") as file:
        file.write(str(done))
"""


def written(jobs: Jobs) -> int:
    """Bytes that the ranks have got rid of so far."""
    return sum(int(path.read_text() or 0) for path in jobs.shared.glob("done-*"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_reader_that_does_not_read(jobs: Jobs) -> None:
    """Memory stays small, ranks wait, and nobody is taken for lost: neither we by the agents nor they by us."""
    size, heartbeat = 8_000_000, 3.0
    command = jobs.command("--heartbeat", heartbeat, jobs.write("flood.py", FLOOD), str(size))
    with open(jobs.shared / "err", "wb") as err:
        process = jobs.login.popen(command, cwd=str(jobs.shared), stdout=subprocess.PIPE, stderr=err)
    wait_until("the ranks", lambda: read(f"{jobs.shared}/err").count("ready") == 6, 30)
    peaks = Peaks(jobs, process)
    (jobs.shared / "go").touch()
    wait_until("some output", lambda: written(jobs) > 1_000_000, 30)
    before, since = -1, time.monotonic()
    while time.monotonic() < since + 2 * heartbeat:  # this time itself is what is tested
        now = written(jobs)
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.05)
    assert 0 < before < 6 * size / 2, "the ranks do not wait"
    assert process.poll() is None
    assert peaks.most < MOST_KB, peaks.peaks
    assert process.stdout
    lines = dict.fromkeys(HOST_OF, 0)
    whole = {b"[%s:%d] " % (host.encode(), rank) + b"%d" % rank * 99 + b"\n": rank for rank, host in HOST_OF.items()}
    for number, line in enumerate(process.stdout):
        assert line in whole, "torn"
        lines[whole[line]] += 1
        if number % 10_000 == 0:
            peaks.look()
    assert process.wait(60) == 0, read(f"{jobs.shared}/err")
    assert {rank: 100 * count for rank, count in lines.items()} == dict.fromkeys(HOST_OF, size)
    assert peaks.most < MOST_KB, peaks.peaks


@pytest.mark.slow
def test_no_memory_for_output_without_newlines(jobs: Jobs) -> None:
    process = jobs.start("-q", WRITER, "flood", "8000000", stderr=subprocess.DEVNULL)
    assert process.stdout
    got = len(process.stdout.read1(1 << 20))  # type: ignore[attr-defined]
    peaks = Peaks(jobs, process)
    while block := process.stdout.read1(1 << 20):  # type: ignore[attr-defined]
        got += len(block)
        peaks.look()
    assert process.wait(60) == 0
    assert got >= 6 * (8_000_000 // 65536) * 65536
    assert peaks.most < MOST_KB, peaks.peaks


@pytest.mark.parametrize("backend", backends("ssh", "openmpi"))
def test_reader_goes_away(jobs: Jobs) -> None:
    """As under ``| head``."""
    process = jobs.start("--grace", "5", WRITER, "flood", "500000000")
    assert process.stdout and process.stderr
    process.stdout.read1(1000)  # type: ignore[attr-defined]
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 141, err
    jobs.testbed.leaves_nothing()


# -- log files -------------------------------------------------------------------------------------


def logs_in(text: str) -> dict[str, str]:
    """The files that ``head -v`` shows: name → content."""
    parts = re.split(r"^==> (.*) <==\n", text, flags=re.MULTILINE)
    return {Path(name).name: content.removesuffix("\n") for name, content in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("backend", backends("ssh", "mpich"))
def test_log_dir_is_on_the_machine_of_the_command(jobs: Jobs) -> None:
    """All ranks' output, whole, in a directory that no other host has."""
    jobs.run("-q", "--log_dir", "/tmp/gathered", WRITER, "lines", "3000", code=0)
    try:
        names = jobs.login.run("cd /tmp/gathered && find . -type f | sort").stdout.split()
        assert len(names) == 6
        for rank, name in enumerate(names):
            text = jobs.login.run(["cat", f"/tmp/gathered/{name}"]).stdout.encode()
            assert text == expected(rank, b"out", 3000), name
        assert not any(node.run("ls /tmp/gathered 2>/dev/null; :").stdout for node in jobs.testbed.nodes)
    finally:
        jobs.login.run(["rm", "-rf", "/tmp/gathered"])


def test_each_rank_log_is_on_its_node(jobs: Jobs) -> None:
    done = jobs.run("-q", "--enable_each_rank_log", "/tmp/mine", WRITER, "lines", "300")
    try:
        assert done.returncode == 0, done.stderr
        assert done.stdout, "the console shows it all the same"
        for place, node in enumerate(jobs.testbed.nodes[:3]):
            names = node.run("cd /tmp/mine && find . -type f | sort").stdout.split()
            assert len(names) == 2
            for rank, name in zip((2 * place, 2 * place + 1), names, strict=True):
                assert node.run(["cat", f"/tmp/mine/{name}"]).stdout.encode() == expected(rank, b"out", 300)
        assert not jobs.login.run("ls /tmp/mine 2>/dev/null; :").stdout
    finally:
        for host in jobs.testbed.hosts.values():
            host.run(["rm", "-rf", "/tmp/mine"])


def test_log_of_a_failed_job_is_named(jobs: Jobs) -> None:
    done = jobs.run("--grace", "5", "--log_dir", "logs", jobs.write("boom.py", "raise ValueError('boom')"), code=1)
    assert "logs" in done.stderr and "ValueError: boom" in done.stderr
    assert len(list((jobs.shared / "logs").rglob("*"))) >= 6


def test_pid_file(jobs: Jobs) -> None:
    """``/tmp/<pid>.deepspeed`` is there while the job runs, on the machine of the command alone."""
    for host in jobs.testbed.hosts.values():  # a command that a test has killed may have left one
        host.run("rm -f /tmp/*.deepspeed")
    process = jobs.start("--save_pid", SCENE, "exit3", "go")
    read_lines(process, 6, "ready")
    (runner,) = children(process.pid)
    inside = int(read(f"/proc/{runner}/status").partition("NSpid:")[2].split("\n")[0].split()[-1])
    assert jobs.login.run(["cat", f"/tmp/{inside}.deepspeed"]).stdout.strip() == str(inside)
    assert not any(node.run("ls /tmp/*.deepspeed 2>/dev/null; :").stdout for node in jobs.testbed.nodes)
    (jobs.shared / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert not jobs.login.run("ls /tmp/*.deepspeed 2>/dev/null; :").stdout
