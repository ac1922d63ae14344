"""``bireme top`` and ``bireme report``: what ranks use, and the page of a job."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from bireme.cli import job_page, top
from tests.conftest import Stage, clean_environ, read_lines, wait_until_listed

WORKS = """
import os, sys, time
print("line of", os.environ["RANK"], flush=True)
while os.environ["RANK"] == "1":
    pass
held = b"x" * (64 << 20)
time.sleep(1000)
"""
WORDS = ("run", "--accelerator", "cpu", "--num_gpus", "2", "--job_name")


@pytest.fixture
def name(stage: Stage, script, tmp_path: Path) -> str:
    """The name of a job that runs: rank 1 spins, rank 0 sleeps and holds memory."""
    name = f"top-{os.getpid()}-{tmp_path.name}"[-60:]
    job = stage.start(*WORDS, name, "--events", str(tmp_path / "events"), script(WORKS))
    read_lines(job, 2, "line of")
    wait_until_listed(job)
    return name


def facts(*each: dict[str, object], nodes: tuple[str, ...] = ("a", "b")) -> dict[str, object]:
    about = {"id": 7, "name": "mine", "ranks": len(each), "state": "running", "seconds": 61, "nodes": list(nodes)}
    plain = {"state": "asleep", "cpu": 0.0, "rss": 0, "at": 0.0, "step": -1.0, "gpu": -1.0, "gpu_memory": -1}
    return {**about, "each": [{"rank": rank, **plain, **each} for rank, each in enumerate(each)]}


def test_the_slowest_stand_first() -> None:
    found = facts(*({"node": node, "age": age} for node, age in (("a", 1), ("a", 3), ("b", 2), ("b", 90), ("a", 8))))
    assert [(node, [each["rank"] for each in ranks]) for node, ranks in top.slowest(found)] == [
        ("b", [3, 2]),
        ("a", [4, 0, 1]),
    ]
    assert top.head(found) == "job 7 mine: 5 ranks on 2 nodes, running for 1 min 01 s"
    assert [top.line(row, found, {})[1] for row in top.arranged(found, 80)] == [True, False]


def test_a_narrow_window_has_more_rows() -> None:
    found = facts(*({"node": "a", "age": 0} for _ in range(5)), nodes=("a",))
    assert [row[0] for row in top.arranged(found, 50)] == ["a", "", ""]
    assert len(top.arranged(found, 200)) == 1


def test_what_a_cell_says() -> None:
    unknown = {"step": -1.0, "gpu": -1.0, "gpu_memory": -1}
    old, new = (
        {"rank": 3, "state": "running", "age": 5400, "at": at, "cpu": at / 2, "rss": 3 << 29, **unknown}
        for at in (1.0, 3.0)
    )
    assert top.cell(new, {3: old}) == "3:  50% 1.5G 2h"
    assert top.cell({**new, "state": None}, {}) == "3: ended"
    assert top.cell({**new, "step": 812.0}, {3: {**old, "step": 805.0}}) == "3:  50% 1.5G 2h #812 3.5/s"
    assert top.cell({**new, "gpu": 0.97, "gpu_memory": 71 << 30}, {}) == "3:    - 1.5G 2h gpu 97% 71G"
    assert top.cell({**new, "step": 812.0}, {3: old}) == "3:  50% 1.5G 2h #812"


STEPS = """
import os, time
import bireme
for step in range(8 if os.environ["RANK"] == "0" else 4):
    bireme.report(step=step, loss=1.0)
print("begins", flush=True)
time.sleep(1000)
"""


def test_ranks_that_report_steps(stage: Stage, script) -> None:
    """The screen and the report show who is behind; nothing of it is in the output."""
    job = stage.start(*WORDS, "steps", "--time_limit", "4", script(STEPS))
    assert len(read_lines(job, 2, "begins")) == 2
    wait_until_listed(job)
    first, _, *cells = stage.run("top", "--once", str(job.pid), code=0).stdout.splitlines()
    assert first.endswith("; rank 1 is at step 3, 4 behind the first")
    assert " #7 0/s" in cells[0] and " #3 0/s" in cells[0]
    _, err = job.communicate(timeout=60)
    assert b"rank 1 is at step 3, 4 behind the first\n" in err


def test_a_snapshot(stage: Stage, name: str) -> None:
    said = stage.run("top", "--once", name).stdout
    cells = dict(re.findall(r"(\d): +(\d+% \d+M) ", said))
    assert cells.keys() == {"0", "1"}, said
    share, memory = zip(*(map(int, re.findall(r"\d+", cells[rank])) for rank in "01"), strict=True)
    assert share[1] > share[0] and memory[0] >= 64 > memory[1] > 0


def test_the_screen_and_its_keys(stage: Stage, terminal, name: str) -> None:
    """A job that is not elastic cannot be drained; the command ends with the job."""
    screen = terminal("top", name, env=clean_environ(TERM="xterm"), columns=100)
    screen.expect("2 ranks on 1 node")
    for key, said in ((b"l", "0: line of 0"), (b"x", "s stacks"), (b"s", "program.py:7"), (b"x", "s stacks")):
        seen = len(screen.seen)
        screen.type(key)
        screen.expect(said, after=seen)
    seen = len(screen.seen)
    screen.type(b"d")
    screen.expect("it is not an elastic job", after=seen)
    screen.type(b"x")
    screen.expect("share of a core", after=seen)
    assert stage.run("stop", "--now", name).stdout
    screen.expect("has ended")
    assert screen.wait() == 0


def test_q_ends_only_the_command(stage: Stage, terminal, name: str) -> None:
    screen = terminal("top", name, env=clean_environ(TERM="xterm"), columns=100)
    screen.expect("2 ranks on 1 node")
    screen.type(b"q")
    assert screen.wait() == 0
    assert name[:20] in stage.run("ps").stdout


def test_the_page_of_a_job_that_runs(stage: Stage, name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert stage.run("report", "--html", str(page), name).stdout == f"{page}\n"
    assert len(re.findall(r'<rect class="runs"', page.read_text())) == 2
    assert stage.run("report", str(tmp_path / "events")).stdout == f"{tmp_path}/events.html\n"


def test_the_page_of_a_job_that_was_restarted(stage: Stage, script, tmp_path: Path) -> None:
    """Rank 1 of the first attempt fails, which stops rank 0; then both end well."""
    events = tmp_path / "events"
    program = script(
        "import os, sys, time\nprint('on', flush=True)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    time.sleep(1000 if os.environ['RANK'] == '0' else 0)\n    sys.exit(3)\n"
    )
    stage.run("run", "--num_gpus", "2", "--restarts", "1", "--events", str(events), program)
    text = job_page.page(job_page.read(str(events)), str(events))
    kinds = {kind: text.count(f'<rect class="{kind}"') for kind in ("stopped", "failed", "ended")}
    assert kinds == {"stopped": 1, "failed": 1, "ended": 2}
    assert "attempt 2" in text and "exit code 3" in text and re.search(r"<dt>cause</dt><dd>ok</dd>", text)


def event(name: str, **fields: object) -> str:
    return json.dumps({"v": 1, "time": 1.0, "event": name, **fields})


def test_what_a_program_has_said_is_no_html(tmp_path: Path) -> None:
    (path := tmp_path / "<b>").write_text(event("hang", seconds=3, stacks="<script>evil()</script>") + "\n")
    text = job_page.page(job_page.read(str(path)), str(path))
    assert "evil()" in text and "<script" not in text and "<b>" not in text


def test_quiet_times_and_lost_nodes_are_in_the_story(tmp_path: Path) -> None:
    told = [event("planned", nodes=["a"], ranks=1), event("connected", host="a"), event("suspected", seconds=40)]
    told += [event("quiet", seconds=50), event("lost", host="a", reason="no sign of life for 10 s")]
    (path := tmp_path / "events").write_text("\n".join(told) + "\n")
    text = job_page.page(job_page.read(str(path)), str(path))
    assert "nothing was written for 50.0 s, but a rank moves" in text and "a: no sign of life for 10 s" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no file and no job of yours"),
        ("", "no event in"),
        ("no json\n", "events:1: not an event of version 1"),
        (event("planned", v=2) + "\n", "events:1: not an event of version 1"),
        (event("up") + "\n", "an event lacks what it must have: 'rank'"),
        (event("planned") + "\n" + event("up", rank=0)[:-3], "an event lacks what it must have: 'ranks'"),
    ],
    ids=["nothing", "empty", "text", "version", "field", "unfinished line"],
)
def test_what_is_refused(stage: Stage, tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "events"
    if text is not None:
        path.write_text(text)
    assert said in stage.run("report", str(path), code=2).stderr


def test_a_job_that_is_only_starting(stage: Stage, tmp_path: Path) -> None:
    """Nobody knows of a rank yet: so it says, and the job goes on."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    job = stage.start("run", "--launcher", "exec", "--launcher_args", f"{slow} {{host}}", "--hosts", "node1:2", "x.py")
    wait_until_listed(job)
    said = stage.run("top", "--once", str(job.pid), code=0).stdout
    assert said.startswith(f"job {job.pid}: 0 ranks on 0 nodes, starting for ")
    assert job.poll() is None
    job.terminate()
    assert job.wait(60) == 143
