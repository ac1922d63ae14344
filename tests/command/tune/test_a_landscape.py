"""A real program tuned from nothing to its report by the command line alone, through all that may stop a study.

The program is one of the recorded landscapes (``benchmarks/landscapes``): an SQLite database under a load of writes.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, TIMES, bireme, clean_environ
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

SMALL_DISK = """
mount -t tmpfs -o size="$1k" none "$2" && cd "$2" && shift 2
"$@"; code=$?
cp tuning/journal journal.then
mount -o remount,size=10m none . && "$@" >/dev/null && cp -r tuning/journal tuning/summary.txt journal.then ..
exit $code
"""


def records(journal: Path) -> list[dict]:
    """The whole records of a journal."""
    found = []
    for line in journal.read_text(errors="replace").splitlines()[1:]:
        try:
            found.append(json.loads(line.partition(" ")[2]))
        except ValueError:
            pass  # cut off
    return found


def assert_nothing_ran_again(found: list[dict]) -> None:
    """What has an end record is never started again."""
    ended = set()
    for record in found:
        assert record.get("start") not in ended
        if "end" in record:
            ended.add(record["end"])


@pytest.mark.slow
def test_from_nothing_to_the_report(tmp_path, stage):
    words, chance, journal = (
        ["tune", "--trials", "40", *OPTIONS, *PROGRAM],
        random.Random(7),
        tmp_path / "tuning" / "journal",
    )
    for sent in [signal.SIGINT, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM] * max(1, TIMES // 4):
        study = stage.start(*words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            study.wait(timeout=chance.uniform(0.3, 2.0))
        except subprocess.TimeoutExpired:
            study.send_signal(sent)
        assert b"Traceback" not in study.communicate(timeout=60)[1]
        if sent == signal.SIGKILL and records(journal):
            assert stage.left(within=10) == {}
            whole = journal.read_bytes()
            begin = whole.rstrip(b"\n").rindex(b"\n") + 1  # of the last record
            journal.write_bytes(whole[: chance.randrange(begin, len(whole))])
    before = {record["end"]: record for record in records(journal) if "end" in record}
    done = stage.run(*words, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(journal)
    assert_nothing_ran_again(found)
    ends = {record["end"]: record for record in found if "end" in record}
    assert before.items() <= ends.items() and 8 <= len(ends) <= 40
    best = re.search(
        r"^best: journal=\S+ synchronous=\S+ rows=(\d+)  rows/s \S+, (\S+) x the default", done.stdout, re.M
    )
    assert best and best[1] != "1" and float(best[2]) > 2, done.stdout  # one commit for many rows: ten times as fast
    job = stage.run(*shlex.split((tmp_path / "tuning" / "cmd_best.txt").read_text())[1:], cwd=tmp_path)
    assert job.returncode == 0 and "rows/s: " in job.stdout
    assert "rows/s" in stage.run("tune", "status", cwd=tmp_path).stdout
    needs.module("vl_convert")
    assert stage.run("tune", "report", "tuning", cwd=tmp_path).returncode == 0
    page = (tmp_path / "tuning" / "report.html").read_text()
    assert all(f'"{name}"' in page for name in ends) and "rows=" in page


@pytest.mark.slow
@pytest.mark.parametrize("size", [12, 40])
def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path, stage, size):
    """With room again, the study goes on where it was."""
    namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
    needs.program("unshare")
    if subprocess.run([*namespaces, "true"], capture_output=True).returncode:
        needs.missing("no namespaces for a disk of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    words = bireme("tune", "--trials", "12", *OPTIONS, *PROGRAM, "--folder", str(tmp_path))
    done = subprocess.run(
        [*namespaces, "sh", "-c", SMALL_DISK, "sh", str(size), str(disk), *words],
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=120,
    )
    assert done.returncode == 69, done.stdout + done.stderr
    assert re.search(r"bireme: /\S+ cannot be (written|made): No space left on device", done.stderr)
    assert "Traceback" not in done.stderr and "Bireme itself failed" not in done.stderr
    found = records(tmp_path / "journal")
    assert_nothing_ran_again(found)
    before = [record["end"] for record in records(tmp_path / "journal.then") if "end" in record]
    assert before == [record["end"] for record in found if "end" in record][: len(before)]
    assert all(record["ending"]["cause"] in ("ok", "pruned") for record in found if "end" in record)
    assert re.search(r"^best( so far)?: ", (tmp_path / "summary.txt").read_text(), re.M)
