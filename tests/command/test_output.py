"""Output of many ranks: labelled, complete, in each rank's order, and no line is split."""

from __future__ import annotations

import os
import re
import signal
from collections import defaultdict

import pytest

from tests.kit import written
from tests.kit.written import WRITER, expected

HOST = os.uname().nodename.partition(".")[0]
MAX_LINE = 64 * 1024


def start(stage, *words, ranks=2, **kwargs):
    """Run ``writer.py`` to its end; what came out, as bytes."""
    process = stage.start("run", "-q", "--num_gpus", ranks, *words, **kwargs)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def by_rank(output):
    return written.by_rank(output, defaultdict(lambda: HOST))


def test_one_rank_is_not_labelled(stage):
    code, out, _ = start(stage, WRITER, "lines", "100", ranks=1)
    assert (code, out) == (0, expected(0, b"out", 100))


def test_order_of_each_rank_is_kept(stage):
    code, out, _ = start(stage, WRITER, "lines", "20000", ranks=4)
    assert code == 0
    assert by_rank(out) == {rank: expected(rank, b"out", 20000) for rank in range(4)}


def test_lines_written_in_odd_pieces_are_not_torn(stage):
    code, out, err = start(stage, WRITER, "pieces", "3000", ranks=4)
    assert code == 0
    assert by_rank(out) == {rank: expected(rank, b"out", 3000) for rank in range(4)}
    assert by_rank(err) == {rank: expected(rank, b"err", 3000) for rank in range(4)}
    assert b"+] " not in out


def test_both_streams_in_one_file(stage, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        code, *_ = start(stage, WRITER, "pieces", "3000", ranks=3, stdout=log, stderr=log)
    assert code == 0
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    for name in (b"out", b"err"):
        mine = b"".join(line for line in lines if b"] " + name in line)
        assert by_rank(mine) == {rank: expected(rank, name, 3000) for rank in range(3)}
    assert len(lines) == 2 * 3 * 3000


def test_the_longest_line_that_is_kept_whole(stage):
    code, out, _ = start(stage, WRITER, "long", f"{MAX_LINE},{MAX_LINE - 1},{MAX_LINE},1")
    assert code == 0
    assert b"+] " not in out
    for rank in (0, 1):
        lines = [b"%d" % rank * length for length in (MAX_LINE, MAX_LINE - 1, MAX_LINE, 1)]
        assert by_rank(out)[rank] == b"\n".join(lines) + b"\n"


def test_longer_lines_come_in_marked_pieces(stage):
    lengths = [MAX_LINE + 1, 5 * MAX_LINE, 1_000_000, 3]
    code, out, _ = start(stage, WRITER, "long", ",".join(map(str, lengths)))
    assert code == 0
    assert by_rank(out) == {rank: b"".join(b"%d" % rank * n + b"\n" for n in lengths) for rank in (0, 1)}
    assert max(map(len, out.split(b"\n"))) <= MAX_LINE + len(f"[{HOST}:0+] ")


HARD = {
    "nul": b"a\0b\n\0\n",
    "not utf-8": b"\xff\xfe\xc3\n\x80tail\n",
    "every byte": bytes(range(256)) * 3,
    "empty lines": b"\n\n\na\n\n",
    "line ends of the other kind": b"a\r\nb\r\n",
    "bar": b"\r10%|#   \r20%|##  \r30%|### \n",
    "like a label": f"[{HOST}:1] x\n[{HOST}:1+] y\n".encode(),
    "escapes": b"\x1b[31mred\x1b[0m\x07\n",
    "no last newline": b"first\nlast",
    "nothing": b"",
}


@pytest.mark.parametrize(
    ("name", "ending"), [*((name, "exits") for name in HARD), *((name, "is killed") for name in list(HARD)[-2:])]
)
def test_bytes_arrive_as_they_were(stage, tmp_path, name, ending):
    """Also the last ones before a SIGKILL."""
    path = tmp_path / "bytes"
    path.write_bytes(HARD[name])
    signum = [str(int(signal.SIGKILL))] if ending == "is killed" else []
    code, out, _ = start(stage, WRITER, "file", path, *signum, ranks=1)
    assert (code, out) == (137 if signum else 0, HARD[name])


@pytest.mark.parametrize("name", HARD)
def test_bytes_arrive_under_their_labels(stage, tmp_path, name):
    path = tmp_path / "bytes"
    path.write_bytes(HARD[name])
    code, out, _ = start(stage, WRITER, "file", path)
    text = HARD[name] if HARD[name].endswith(b"\n") or not HARD[name] else HARD[name] + b"\n"
    assert code == 0
    assert by_rank(out) == ({0: text, 1: text} if text else {})


def test_last_words_of_a_killed_rank_with_others(stage, script):
    program = script(
        "import os, time\n"
        "os.write(1, b'x' * 200_000 + b'\\nlast words')\n"
        "os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else time.sleep(1000)\n"
    )
    code, out, _ = start(stage, program)
    assert code == 137
    assert by_rank(out)[1] == b"x" * 200_000 + b"\nlast words\n"


MODES = {
    "prefix": [f"[{HOST}:0] r0", f"[{HOST}:1] r1"],
    "raw": ["r0", "r1"],
    "rank0": ["r0"],
    "none": [],
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(stage, script, mode):
    program = script(
        "import os, sys\nprint('r' + os.environ['RANK'])\nprint('r' + os.environ['RANK'], file=sys.stderr)\n"
    )
    code, out, err = start(stage, "--output", mode, program)
    assert code == 0
    assert sorted(out.decode().splitlines()) == MODES[mode]
    assert sorted(err.decode().splitlines()) == MODES[mode]


def test_prefix_for_one_rank_when_asked_for(stage, script):
    _, out, _ = start(stage, "--output", "prefix", script("print('a')"), ranks=1)
    assert out.decode() == f"[{HOST}:0] a\n"


def test_what_is_not_shown_is_in_the_report(stage, script):
    code, out, err = start(stage, "--output", "none", script("raise ValueError('hidden')"))
    assert (code, out) == (1, b"")
    assert err.count(b"ValueError: hidden") == 1


@pytest.mark.parametrize("mode", ["prefix", "raw", "rank0"])
def test_timestamps(stage, script, mode):
    _, out, _ = start(stage, "--timestamps", "--output", mode, script("print('a')\nprint('b')"))
    lines = out.decode().splitlines()
    assert len(lines) == (2 if mode == "rank0" else 4)
    for line in lines:
        assert re.fullmatch(rf"\[\d\d:\d\d:\d\d\.\d{{3}} {HOST}:[01]\] [ab]", line), line


def test_a_program_that_writes_faster_than_we_read_loses_nothing(stage):
    code, out, _ = start(stage, "--no_python", "sh", "-c", "seq 100000")
    assert code == 0
    numbers = b"".join(b"%d\n" % i for i in range(1, 100001))
    assert by_rank(out) == {0: numbers, 1: numbers}


@pytest.mark.slow
def test_bounded_memory_without_a_newline(stage):
    """16 ranks, 16 MB each, not one newline."""
    import subprocess

    process = stage.start("run", "-q", "--num_gpus", "16", WRITER, "flood", "16000000", stdout=subprocess.PIPE)
    size, peak = 0, 0
    while block := process.stdout.read1(1 << 20):
        size += len(block)
        with open(f"/proc/{process.pid}/status") as file:
            text = file.read()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        peak = max(peak, int(found[1]) if found else 0)
    assert process.wait(60) == 0
    assert size >= 16 * (16_000_000 // 65536) * 65536
    assert peak < 60_000, f"{peak} kB"


def test_our_own_words_come_first_and_last_and_on_whole_lines(stage, script):
    program = script("import os, sys\nos.write(2, b'no newline')\nsys.exit(3)\n")
    process = stage.start("run", "--num_gpus", "2", program)
    _, err = process.communicate(timeout=60)
    lines = err.decode().splitlines()
    assert lines[0].startswith("bireme: ")
    assert lines[-1].startswith("bireme: ")
    assert any(line == f"[{HOST}:{rank}] no newline" for line in lines for rank in (0, 1)), lines
