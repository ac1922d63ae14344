"""A study of real processes: run to its end, interrupted, killed at any moment, and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bireme.errors import UnfitError
from bireme.tune.execution.slot_scheduler import Scheduler, Shape, Task
from bireme.tune.execution.study_run import Conclusion, StudyRun
from bireme.tune.store.folder import ExperimentsLock
from bireme.tune.store.journal import Journal, read
from bireme.tune.store.records import StudyRecords
from bireme.tune.study.trial import TrialResult
from tests.conftest import TIMES
from tests.unit.tune.execution.toys import Client


class Counting:
    """The simplest thing to tune: so many experiments, each of which appends its name to a file when it is done."""

    def __init__(self, client: Client, names: list[str], past: dict[str, TrialResult]):
        self.client, self.past = client, past
        self.to_do = [name for name in names if name not in past]
        self.pending: list[str] = []
        self.finalists: dict[str, object] = {}
        self.launch_request, self.judge, self.settling = client.launch_request, client.judge, client.settling

    @property
    def stop_reason(self) -> str:
        return "" if self.to_do or self.pending else "all were measured"

    def starting(self, name: str) -> dict[str, object]:
        return {}

    def next(self) -> Task | None:
        if not self.to_do:
            return None
        self.pending.append(self.to_do.pop(0))
        return Task(self.pending[-1], Shape(1, 1))

    def tell(self, name: str, result: TrialResult) -> dict[str, object]:
        self.pending.remove(name)
        self.past[name] = result
        return {"fact": name.upper()}

    def re_enqueue(self, name: str) -> None:
        self.pending.remove(name)
        self.to_do.insert(0, name)

    def fail(self, name: str) -> None:
        self.pending.remove(name)


class Watching:
    """Keeps what it is told."""

    interval = 0.0

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ends: list[tuple[str, str]] = []

    def started(self, name, reservation):
        pass

    def ended(self, name, result, *, again):
        self.ends.append((name, result.cause))

    def note(self, text):
        self.notes.append(text)

    def tick(self):
        pass

    def close(self):
        pass


DONE = "import os, time; time.sleep({nap}); f = open('done', 'a'); f.write('{name}\\n'); f.close()"
POOL = {"a": ("0", "1")}


def run_study(folder: Path, names: list[str], nap: float = 0.0) -> tuple[Conclusion, Counting, Watching]:
    journal = Journal.open(str(folder / "journal"))
    past = {str(r["end"]): TrialResult.from_record(r["ending"]) for r in journal.records if "end" in r}
    programs = {name: DONE.replace("{name}", name).replace("{nap}", str(nap)) for name in names}
    adapter, watcher = Counting(Client(folder, programs), names, past), Watching()
    with ExperimentsLock(str(folder / "lock")) as lock:
        lock.wait()
        conclusion = StudyRun(adapter, Scheduler(POOL), journal, watcher, keep=(lock.fileno(),)).run()
    journal.close()
    return conclusion, adapter, watcher


def test_to_its_end(tmp_path):
    names = [f"e{number}" for number in range(5)]
    conclusion, adapter, watcher = run_study(tmp_path, names)
    assert conclusion == Conclusion("all were measured")
    assert sorted(adapter.past) == names
    assert sorted((tmp_path / "done").read_text().split()) == names
    assert sorted(watcher.ends) == [(name, "ok") for name in names]


def test_what_has_ended_is_not_run_again(tmp_path):
    names = [f"e{number}" for number in range(4)]
    run_study(tmp_path, names[:2])
    _, _, watcher = run_study(tmp_path, names)
    assert sorted((tmp_path / "done").read_text().split()) == names
    assert sorted(watcher.ends) == [(name, "ok") for name in names[2:]]


def test_what_an_end_has_made_needless_is_not_run(tmp_path):
    """One is asked for ahead, so that a slot need not wait; but it was chosen without knowing what runs now."""

    class Climbing(Counting):
        def next(self) -> Task | None:
            return None if self.past else super().next()

    names = [f"e{number}" for number in range(5)]
    programs = {name: DONE.replace("{name}", name).replace("{nap}", "0") for name in names}
    journal = Journal.open(str(tmp_path / "journal"))
    adapter = Climbing(Client(tmp_path, programs), names, {})
    StudyRun(adapter, Scheduler({"a": ("0",)}), journal, Watching()).run()
    journal.close()
    assert (tmp_path / "done").read_text().split() == ["e0"]
    assert adapter.to_do == ["e1", "e2", "e3", "e4"]


def test_the_journal_keeps_facts_beside_the_ending(tmp_path):
    run_study(tmp_path, ["e0"])
    journal = Journal.open(str(tmp_path / "journal"))
    (record,) = [record for record in journal.records if "end" in record]
    journal.close()
    assert record["fact"] == "E0"
    assert TrialResult.from_record(record["ending"]).cause == "ok"


def in_a_process(folder: Path, count: int, nap: float) -> subprocess.Popen[bytes]:
    program = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {os.getcwd()!r})
        from pathlib import Path
        from tests.unit.tune.execution.test_study_run import run_study
        conclusion, _, _ = run_study(Path({str(folder)!r}), [f"e{{n}}" for n in range({count})], {nap})
        print(conclusion.stop_reason, conclusion.signum, flush=True)
    """)
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def test_interrupted_it_stops_in_order_and_says_so(tmp_path, stage):
    tuner = in_a_process(tmp_path, 4, 600)
    stage.started.append(tuner)
    while not (tmp_path / "e1.out").exists():
        time.sleep(0.01)
    tuner.send_signal(signal.SIGINT)
    out, err = tuner.communicate(timeout=60)
    assert out.split()[-1] == b"2", err
    assert stage.left() == {}


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_undisturbed(tmp_path, stage):
    """What has an end record never runs again, what was interrupted does; the end is that of an undisturbed study.

    The whole command is killed in ``test_command.py``.
    """
    count, chance = 40, random.Random(7)
    seen: set[str] = set()
    kills = 0
    while kills < 2 * TIMES:
        tuner = in_a_process(tmp_path, count, 0.1)
        stage.started.append(tuner)
        try:
            tuner.wait(timeout=chance.uniform(0.05, 0.6))
        except subprocess.TimeoutExpired:
            tuner.kill()
            tuner.wait()
            kills += 1
        else:
            (tmp_path / "journal").unlink()  # at its end: begin anew, so that there are enough
            (tmp_path / "done").unlink()
            seen.clear()
            continue
        before = seen
        seen = ended(tmp_path)
        assert before <= seen, "an end record is never lost"
    tuner = in_a_process(tmp_path, count, 0.0)
    out, err = tuner.communicate(timeout=120)
    assert out == b"all were measured 0\n", err
    assert stage.left() == {}
    assert ended(tmp_path) == {f"e{number}" for number in range(count)}
    runs = (tmp_path / "done").read_text().split()
    assert set(runs) == ended(tmp_path)


def ended(folder: Path) -> set[str]:
    if not (folder / "journal").exists():
        return set()
    journal = Journal.open(str(folder / "journal"))
    names = [str(record["end"]) for record in journal.records if "end" in record]
    journal.close()
    assert len(names) == len(set(names)), "nothing ends twice"
    return set(names)


def test_a_study_that_is_over_already_ends_at_once(tmp_path):
    run_study(tmp_path, ["e0"])
    conclusion, _, watcher = run_study(tmp_path, ["e0"])
    assert (conclusion.stop_reason, watcher.ends) == ("all were measured", [])


def study_of(folder: Path, adapter: Counting, pool: dict[str, tuple[str, ...]], **more: object) -> StudyRun:
    """A study with a journal of its own."""
    return StudyRun(adapter, Scheduler(pool), Journal.open(str(folder / "journal")), Watching(), **more)


def test_a_signal_during_the_last_event_is_not_lost(tmp_path):
    """Else ``--autotuning run`` would go on with the real job."""

    class Interrupting(Counting):
        def tell(self, name: str, result: TrialResult) -> dict[str, object]:
            os.kill(os.getpid(), signal.SIGINT)
            return super().tell(name, result)

    adapter = Interrupting(Client(tmp_path, {"e0": "pass"}), ["e0"], {})
    handler = signal.getsignal(signal.SIGINT)
    conclusion = study_of(tmp_path, adapter, {"a": ("0",)}).run()
    assert conclusion == Conclusion("all were measured", signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler


LOST_AT_FIRST = """
import json, os, sys
if not os.path.exists("mark"):
    open("mark", "w")
    json.dump({"hosts": ["a"]}, open("e0.report", "w"))
    sys.exit(75)
"""
UNTIL_E2 = """
import os, time
for _ in range(2000):
    if os.path.exists("e2.done"):
        open("seen", "w")
        break
    time.sleep(0.01)
"""


def test_a_host_that_has_rested_is_used_while_a_retry_waits_for_another(tmp_path):
    """The first fails on a, which rests, and waits for b; there the second waits for the third, which is run by a."""
    programs = {"e0": LOST_AT_FIRST, "e1": UNTIL_E2, "e2": "open('e2.done', 'w')"}
    client = Client(tmp_path, programs)
    adapter = Counting(client, list(programs), {})
    launch_request, where = adapter.launch_request, {}

    def ordered(name, reservation, place):
        where.setdefault(name, []).append(reservation.include())
        return launch_request(name, reservation, place)

    adapter.launch_request = ordered
    study = StudyRun(
        adapter,
        Scheduler({"a": ("0",), "b": ("0",)}, backfill=True),
        Journal.open(str(tmp_path / "journal")),
        Watching(),
        back_off=0.2,
    )
    assert study.run() == Conclusion("all were measured")
    assert where == {"e0": ["a:0", "b:0"], "e1": ["b:0"], "e2": ["a:0"]}
    assert (tmp_path / "seen").exists()


def test_what_is_given_up_is_in_the_journal_and_run_again_by_the_next_command(tmp_path):
    programs = {"e0": "import sys; sys.exit(75)", "e1": "pass"}
    study = study_of(tmp_path, Counting(Client(tmp_path, programs), list(programs), {}), POOL, back_off=0.01)
    study.run()
    study._journal.close()
    known = StudyRecords([{"study": {}}, *read(str(tmp_path / "journal"))])
    assert list(known.ends) == ["e1"] and list(known.gave_up) == ["e0"]
    assert known.gave_up["e0"]["ending"]["reason"] == "a node was lost"
    run_study(tmp_path, list(programs))
    known = StudyRecords([{"study": {}}, *read(str(tmp_path / "journal"))])
    assert sorted(known.ends) == ["e0", "e1"] and not known.gave_up


class Unfit(Client):
    """What ends with 69 has found no host that is fit."""

    def judge(self, name, end):
        if end.exit_code != 69:
            return super().judge(name, end)
        return TrialResult("infrastructure", "no python there", hosts=tuple(end.report["hosts"]))


UNFIT = """
import json, sys
json.dump({"hosts": [slot.partition(":")[0] for slot in "{slots}".split("@")]}, open("NAME.report", "w"))
sys.exit(69)
"""


@pytest.mark.parametrize("hosts", ["a", "ab"])
def test_where_no_host_can_run_anything_it_ends_soon(tmp_path, stage, hosts):
    names = [f"e{number}" for number in range(50)]
    adapter = Counting(Unfit(tmp_path, {name: UNFIT.replace("NAME", name) for name in names}), names, {})
    study = study_of(tmp_path, adapter, dict.fromkeys(hosts, ("0",)), back_off=0.01)
    with pytest.raises(UnfitError, match="no experiment can run: no python there"):
        study.run()
    assert 4 * len(hosts) <= len(study._callback.ends) < 50
    assert not adapter.past and stage.left() == {}


def test_one_host_that_is_not_fit_does_not_end_it(tmp_path):
    script = "import sys\nif '{slots}'[0] == 'a':\n    " + UNFIT.strip().replace("\n", "\n    ")
    names = [f"e{number}" for number in range(8)]
    adapter = Counting(Unfit(tmp_path, {name: script.replace("NAME", name) for name in names}), names, {})
    study = study_of(tmp_path, adapter, {"a": ("0",), "b": ("0",)}, back_off=0.01)
    assert study.run() == Conclusion("all were measured")
    assert sorted(adapter.past) == names
