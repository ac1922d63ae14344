"""Experiments, their processes and their files when something dies, is stopped, or runs twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from bireme.deepspeed.scheduler import Node, Reservation, ResourceManager, clean_up, run_experiment
from bireme.errors import BiremeError, UnfitError
from bireme.tune.execution.executor import Executor
from bireme.tune.store.journal import Journal
from tests.conftest import wait_for
from tests.unit.deepspeed.conftest import Made

PATIENT = """
import base64, json, os, sys, time
config = json.loads(base64.urlsafe_b64decode(sys.argv[sys.argv.index("--deepspeed_config") + 1]))
micro = config["train_micro_batch_size_per_gpu"]
with open("ran", "a") as file:
    file.write(f"{micro} ")
while not os.path.exists(f"go{micro}"):
    time.sleep(0.01)
with open(config["autotuning"]["metric_path"], "w") as file:
    json.dump({"throughput": 1.0 * micro}, file)
"""
"""Says that it runs, and waits to be let go."""

MANAGER = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.unit.deepspeed.conftest import Made
make = Made(Path({folder!r}))
manager = make.manager(script={script!r}, slots=1)
manager.schedule_experiments([make.exp("m1", micro=1), make.exp("m2", micro=2)])
try:
    manager.run()
except ValueError as error:
    sys.exit(str(error))
print(sorted((exp["name"], error) for exp, error in manager.finished_experiments.values()))
"""


@pytest.fixture
def patient(script) -> Path:
    return script(PATIENT, "patient.py")


@pytest.fixture
def start_manager(stage, tmp_path, patient):
    """Start a manager with two experiments in a process of its own; one runs at a time."""
    root = os.getcwd()

    def start() -> subprocess.Popen[bytes]:
        source = MANAGER.format(root=root, folder=str(tmp_path), script=str(patient))
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            cwd=tmp_path,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        stage.started.append(process)
        return process

    return start


@pytest.fixture
def ran(tmp_path):
    """The micro-batches that have run, in order of their starts."""

    def read() -> list[int]:
        return [int(word) for word in (tmp_path / "ran").read_text().split()] if (tmp_path / "ran").exists() else []

    return read


def run_of(folder: Path) -> int:
    """The pid of the ``bireme run`` with this folder of results: the one that its guardian has started."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            guard = Path(f"/proc/{parent}/comm").read_text().strip()
        except OSError:
            continue
        if "run" in words and str(folder / "outcome.json") in words and guard == "bireme-guard":
            return int(pid)
    raise AssertionError(f"nothing runs in {folder}")


def in_thread(act):
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def names(exps: Iterable[dict[str, object]]) -> list[object]:
    return [exp["name"] for exp in exps]


# -- the manager dies --------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_a_kill_what_had_ended_is_kept_and_what_ran_runs_again(start_manager, make: Made, tmp_path, ran):
    """The second manager comes at once: it waits for what the first has left, and is not refused."""
    (tmp_path / "go1").touch()
    first = start_manager()
    wait_for(lambda: ran() == [1, 2])
    first.kill()
    second = start_manager()
    wait_for(lambda: ran() == [1, 2, 2])
    (tmp_path / "go2").touch()
    out, err = second.communicate(timeout=60)
    assert out.decode() == "[('m1', None), ('m2', None)]\n", err.decode()
    assert ran() == [1, 2, 2]


@pytest.mark.slow
def test_sigterm_stops_all_in_order_and_is_no_keyboard_interrupt(start_manager, stage, tmp_path, ran):
    manager = start_manager()
    wait_for(lambda: ran() == [1])
    manager.terminate()
    _, err = manager.communicate(timeout=60)
    assert manager.returncode == -signal.SIGTERM and b"Traceback" not in err
    assert stage.left() == {}
    assert json.loads((tmp_path / "results/m1/outcome.json").read_text())["cause"] == "signal"


@pytest.mark.slow
def test_ctrl_c_stops_all_and_keeps_the_queue(make: Made, tmp_path, patient, ran, stage):
    handler = signal.getsignal(signal.SIGINT)
    manager = make.manager(script=patient, slots=2)
    manager.schedule_experiments([make.exp(f"m{micro}", micro=micro) for micro in (1, 2, 3)])

    def interrupt():
        wait_for(lambda: sorted(ran()) == [1, 2])
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        manager.run()
    thread.join()
    assert stage.left() == {}
    assert signal.getsignal(signal.SIGINT) is handler
    assert names(manager.experiment_queue) == ["m1", "m2", "m3"]
    assert manager.running_experiments == {} and manager.finished_experiments == {}
    for micro in (1, 2, 3):
        (tmp_path / f"go{micro}").touch()
    again = make.manager(script=patient)
    again.schedule_experiments([make.exp("m1", micro=1)])
    assert names(again.experiment_queue) == ["m1"], "what was stopped is no result"
    manager.run()
    assert manager.parse_results("throughput")[1] == 3.0


def test_an_error_of_ours_stops_all_and_keeps_the_queue(make: Made, tmp_path, patient, ran, stage):
    """The folder of the second experiment cannot be made; the first runs already."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "m2").touch()
    manager = make.manager(script=patient)
    manager.schedule_experiments([make.exp("m1", micro=1), make.exp("m2", micro=2)])
    with pytest.raises((OSError, BiremeError), match="m2"):
        manager.run()
    assert stage.left() == {}
    assert names(manager.experiment_queue) == ["m1", "m2"] and manager.running_experiments == {}
    (tmp_path / "results" / "m2").unlink()
    (tmp_path / "go1").touch()
    (tmp_path / "go2").touch()
    manager.run()
    assert manager.parse_results("throughput")[1] == 2.0


# -- an experiment dies ------------------------------------------------------------------------------


def test_what_others_have_killed_is_run_again_and_is_no_result(make: Made, tmp_path, patient, ran):
    manager = make.manager(script=patient)
    manager.schedule_experiments([make.exp("m1", micro=1)])

    def kill():
        wait_for(lambda: ran() == [1])
        os.kill(run_of(tmp_path / "results/m1"), signal.SIGKILL)
        wait_for(lambda: ran() == [1, 1])
        (tmp_path / "go1").touch()

    thread = in_thread(kill)
    manager.run()
    thread.join()
    assert [(exp["name"], error) for exp, error in manager.finished_experiments.values()] == [("m1", None)]


def test_an_experiment_may_take_so_long(make: Made, patient):
    manager = make.manager(script=patient, launch=("--experiment_limit", 0.5))
    manager.schedule_experiments([make.exp("m1", micro=1)])
    manager.run()
    assert manager.finished_experiments[0][1].startswith("timed out: ")
    same = make.manager(script=patient, launch=("--experiment_limit", 0.5))
    same.schedule_experiments([make.exp("m1", micro=1)])
    assert same.experiment_queue == []
    longer = make.manager(script=patient, launch=("--experiment_limit", 50))
    longer.schedule_experiments([make.exp("m1", micro=1)])
    assert names(longer.experiment_queue) == ["m1"], "that was the limit's fault"


# -- two of them -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_manager_is_refused_and_changes_nothing(start_manager, tmp_path, ran):
    first = start_manager()
    wait_for(lambda: ran() == [1])
    second = start_manager()
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1 and f"another tuner is using this folder: pid {first.pid} " in err.decode()
    (tmp_path / "go1").touch()
    (tmp_path / "go2").touch()
    out, _ = first.communicate(timeout=60)
    assert out.decode() == "[('m1', None), ('m2', None)]\n"
    assert ran() == [1, 2]


def test_neither_a_manager_nor_a_job_runs_beside_bireme_tune(make: Made, tmp_path):
    (tmp_path / "results").mkdir()
    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    exp = manager.experiment_queue[0]
    journal = Journal.open(str(tmp_path / "results" / "journal"))
    with pytest.raises(ValueError, match="another tuner"):
        manager.run()
    with pytest.raises(ValueError, match="another tuner"):
        manager.run_job(exp, manager.resource_request(exp))
    journal.close()
    assert names(manager.experiment_queue) == ["one"] and manager.running_experiments == {}
    assert manager.status() == "localhost (4 idle gpus)"


def test_two_experiments_of_one_name_are_refused(make: Made):
    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    with pytest.raises(ValueError, match="duplicate experiment name: one"):
        manager.schedule_experiments([make.exp("one", suffix="hjson")])


# -- one by one --------------------------------------------------------------------------------------


def test_clear_stops_what_runs(make: Made, patient, ran, stage):
    manager = make.manager(script=patient, slots=3)
    manager.schedule_experiments([make.exp("m1", micro=1), make.exp("m2", micro=2, gpus=2)])
    for exp in manager.experiment_queue:
        manager.run_job(exp, manager.resource_request(exp))
    assert manager.status() == "localhost (0 idle gpus)"
    wait_for(lambda: set(ran()) == {1, 2})
    manager.clear()
    assert stage.left() == {}
    assert manager.status() == "localhost (3 idle gpus)" and manager.experiment_count == 2
    assert not (manager.experiment_queue or manager.running_experiments or manager.finished_experiments)


def test_a_progress_bar_is_told_of_each_end(make: Made):
    class Bar:
        count = 0

        def update(self, number: int) -> None:
            self.count += number

    manager = make.manager()
    manager.schedule_experiments([make.exp("m4"), make.exp("m8", micro=8)])
    for exp in manager.experiment_queue:
        manager.run_job(exp, manager.resource_request(exp))
    bar = Bar()
    while manager.running_experiments:
        manager.experiment_check(bar)
    assert bar.count == 2


def test_a_job_that_cannot_start_gives_its_slots_back(make: Made):
    manager = make.manager(slots=1)
    manager.schedule_experiments([make.exp("one")])
    exp = manager.experiment_queue[0]
    manager.args.user_args = []
    with pytest.raises(ValueError, match="no DeepSpeed configuration"):
        manager.run_job(exp, manager.resource_request(exp))
    assert manager.status() == "localhost (1 idle gpus)" and manager.running_experiments == {}


@pytest.mark.slow
def test_an_interrupted_run_experiment_leaves_nothing(make: Made, tmp_path, patient, ran, stage):
    exp = json.loads(Path(make.exp("m1", micro=1)).read_text())
    exp["result_dir"] = str(tmp_path / "results" / "elsewhere") + "/"
    exp["ds_config"]["autotuning"]["metric_path"] = str(tmp_path / "figures.json")
    node = Node("localhost", 1)

    def interrupt():
        wait_for(lambda: ran() == [1])
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(exp, [Reservation(node, node.reserve_slots(1))], str(patient), ["--deepspeed_config", "ds.json"])
    thread.join()
    assert stage.left() == {}
    assert node.idle_slots == [0] and (tmp_path / "results/elsewhere/cmd.txt").exists()
    (tmp_path / "go1").touch()
    run_experiment(exp, [Reservation(node, node.reserve_slots(1))], str(patient), ["--deepspeed_config", "ds.json"])
    assert json.loads((tmp_path / "figures.json").read_text()) == {"throughput": 1.0}


# -- a host that cannot be reached -------------------------------------------------------------------

NOBODY = "nobody.invalid"
"""A name that no resolver knows (RFC 6761)."""


def job_that_rests(make: Made):
    """A manager with a job that could not be started, and is to be tried again when its host has rested."""
    manager = make.manager(hosts={NOBODY: [0]})
    manager.schedule_experiments([make.exp("one")])
    exp = manager.experiment_queue[0]
    manager.run_job(exp, manager.resource_request(exp))
    executor, loop = manager.running_experiments[0][0], manager._open().loop

    def stop_when_it_rests() -> None:
        if executor.waiting:
            loop.stop()
        else:
            loop.after(0.01, stop_when_it_rests)

    stop_when_it_rests()
    manager.experiment_check()
    assert executor.waiting and executor.rest("one") > 5
    return manager, exp


@pytest.mark.timeout(60)
def test_clear_does_not_wait_for_what_waits_to_be_tried_again(make: Made):
    manager, _ = job_that_rests(make)
    manager.clear()
    assert not (manager.running_experiments or manager.finished_experiments)
    assert manager.status() == f"{NOBODY} (1 idle gpus)"


@pytest.mark.timeout(60)
def test_nor_does_clean_up(make: Made):
    manager, exp = job_that_rests(make)
    clean_up(exp, [])
    assert manager.finished_experiments == {0: (exp, "stopped")} and manager.running_experiments == {}
    assert manager.status() == f"{NOBODY} (1 idle gpus)"


@pytest.mark.timeout(60)
def test_a_signal_while_an_end_is_told_waits_until_it_was(make: Made, monkeypatch):
    """In the midst of it, it would leave an experiment that neither runs nor has ended, for which all would wait."""
    judge = ResourceManager.judge

    def interrupted(self, name, end):
        os.kill(os.getpid(), signal.SIGINT)
        return judge(self, name, end)

    handler = signal.getsignal(signal.SIGINT)
    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    exp = manager.experiment_queue[0]
    manager.run_job(exp, manager.resource_request(exp))
    monkeypatch.setattr(ResourceManager, "judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.experiment_check()
    assert signal.getsignal(signal.SIGINT) is handler
    manager.clear()
    assert manager.running_experiments == {} and manager.status() == "localhost (4 idle gpus)"


@pytest.mark.timeout(60)
def test_nor_does_an_interrupted_run_experiment(make: Made, tmp_path, stage):
    exp = json.loads(Path(make.exp("one")).read_text())
    exp["result_dir"] = str(tmp_path / "results" / "one")
    node = Node(NOBODY, 1)
    outcome = tmp_path / "results" / "one" / "outcome.json"

    def interrupt():
        wait_for(lambda: outcome.exists() and not stage.left())
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(exp, [Reservation(node, node.reserve_slots(1))], "train.py", ["--deepspeed_config", "ds.json"])
    thread.join()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_ctrl_c_while_all_wait_to_be_tried_again_keeps_the_queue(make: Made, tmp_path):
    manager = make.manager(hosts={NOBODY: [0]})
    manager.schedule_experiments([make.exp("m1", micro=1), make.exp("m2", micro=2)])

    def interrupt():
        wait_for((tmp_path / "results" / "m1" / "outcome.json").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        manager.run()
    thread.join()
    assert names(manager.experiment_queue) == ["m1", "m2"] and manager.finished_experiments == {}


def test_where_nothing_can_run_it_says_so_soon(make: Made, monkeypatch):
    monkeypatch.setitem(Executor.__init__.__kwdefaults__, "back_off", 0.01)  # it would take two minutes
    manager = make.manager(hosts={NOBODY: [0]})
    manager.schedule_experiments([make.exp(f"m{micro}", micro=micro) for micro in range(1, 7)])
    with pytest.raises(UnfitError, match=f"no experiment can run: .* {NOBODY} ssh: "):
        manager.run()
    assert len(manager.experiment_queue) == 5 and len(manager.finished_experiments) == 1


def test_a_signal_during_the_last_event_is_not_lost(make: Made, monkeypatch):
    ended = ResourceManager._ended

    def interrupted(self, exp, result):
        os.kill(os.getpid(), signal.SIGINT)
        ended(self, exp, result)

    monkeypatch.setattr(ResourceManager, "_ended", interrupted)
    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    with pytest.raises(KeyboardInterrupt):
        manager.run()
    assert [error for _, error in manager.finished_experiments.values()] == [None]
