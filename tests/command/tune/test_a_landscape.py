"""A real program tuned from nothing to its report by the command line alone, through all that may stop a study.

The program is one of the recorded landscapes (``benchmarks/landscapes``): an SQLite database under a load of writes.
"""

from __future__ import annotations

import random
import re
import shlex
import signal
import subprocess

import pytest

from tests.conftest import ROOT, TIMES
from tests.kit import needs

DATABASE = str(ROOT / "benchmarks/landscapes/programs/database.py")
OPTIONS = (
    *("--param", "journal=delete,wal,persist", "--param", "synchronous=full,normal,off", "--param", "rows=1,16,256"),
    *("--maximize", "rows/s: {}", "--effect", "5"),
)
PROGRAM = (
    *(DATABASE, "--seconds", "0.05"),
    *("--journal", "{journal}", "--synchronous", "{synchronous}", "--rows", "{rows}"),
)


def assert_nothing_ran_again(found: list[dict]) -> None:
    """What has an end record is never started again."""
    ended = set()
    for record in found:
        assert record.get("start") not in ended
        if "end" in record:
            ended.add(record["end"])


@pytest.mark.slow
def test_from_nothing_to_the_report(bench):
    words, chance, journal = ("--trials", "40", *OPTIONS, *PROGRAM), random.Random(7), bench.results / "journal"
    pipe = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    for sent in [signal.SIGINT, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM] * max(1, TIMES // 4):
        study = bench.stage.start("tune", *words, cwd=bench.folder, **pipe)
        try:
            study.wait(timeout=chance.uniform(0.3, 2.0))
        except subprocess.TimeoutExpired:
            study.send_signal(sent)
        assert b"Traceback" not in study.communicate(timeout=60)[1]
        if sent == signal.SIGKILL and bench.records():
            assert bench.stage.left(within=30) == {}
            whole = journal.read_bytes()
            begin = whole.rstrip(b"\n").rindex(b"\n") + 1  # of the last record
            journal.write_bytes(whole[: chance.randrange(begin, len(whole))])
    before = bench.ends()
    done = bench.tune(*words)
    assert_nothing_ran_again(bench.records())
    ends = bench.ends()
    assert before.items() <= ends.items() and 8 <= len(ends) <= 40
    best = re.search(
        r"^best: journal=\S+ synchronous=\S+ rows=(\d+)  rows/s \S+, (\S+) x the default", done.stdout, re.M
    )
    assert best and best[1] != "1" and float(best[2]) > 2, done.stdout  # one commit for many rows: ten times as fast
    job = bench.tune(*shlex.split((bench.results / "cmd_best.txt").read_text())[1:], command=())
    assert "rows/s: " in job.stdout
    assert "rows/s" in bench.tune("status").stdout
    needs.module("vl_convert")
    bench.tune("report", "tuning")
    page = (bench.results / "report.html").read_text()
    assert all(f'"{name}"' in page for name in ends) and "rows=" in page


@pytest.mark.slow
@pytest.mark.parametrize("size", [12, 40])
def test_a_full_disk_is_told_and_nothing_is_lost(bench, size):
    """With room again, the study goes on where it was."""
    bench.on_a_small_disk(size, "--trials", "12", *OPTIONS, *PROGRAM, "--folder", str(bench.folder))
    kept = bench.folder / "kept"
    assert_nothing_ran_again(bench.records(kept / "journal"))
    before, ends = list(bench.ends(kept / "journal.then")), bench.ends(kept / "journal")
    assert before == list(ends)[: len(before)]
    assert all(record["ending"]["cause"] in ("ok", "pruned") for record in ends.values())
    assert re.search(r"^best( so far)?: ", (kept / "summary.txt").read_text(), re.M)
