"""Defects of DeepSpeed's scheduler (by the numbers of its issues) that ours does not have."""

from __future__ import annotations

import json
import os

import pytest

from bireme.deepspeed.scheduler import Node, Reservation, clean_up
from tests.unit.deepspeed.conftest import Made

HERE = os.uname().nodename


def errors(manager) -> dict[str, str | None]:
    """name → error of what has finished."""
    return {exp["name"]: error for exp, error in manager.finished_experiments.values()}


def test_4100_it_goes_on_after_an_experiment_has_failed(make: Made):
    manager = make.manager("--fail", "1/4", slots=1)
    manager.schedule_experiments([make.exp("bad", stage=1), make.exp("good")])
    manager.run()
    assert list(errors(manager)) == ["bad", "good"] and errors(manager)["good"] is None
    assert manager.parse_results("throughput")[0]["name"] == "good"


def test_7269_the_reason_of_a_failure_is_its_exception(make: Made):
    """Not "(", what follows the first "Error" in stderr.log."""
    manager = make.manager("--fail", "all", "--say", "UserWarning: Error(s) (")
    manager.schedule_experiments([make.exp("bad", stage=1)])
    manager.run()
    assert errors(manager) == {"bad": f"failed: rank 0 on {HERE}: ValueError: no luck with stage 1"}


def test_the_word_error_on_stderr_is_no_failure(make: Made):
    manager = make.manager("--say", "error: (this only looks like one)")
    manager.schedule_experiments([make.exp("one")])
    manager.run()
    assert "error: (this" in make.result("one", "stderr.log").read_text()
    assert errors(manager) == {"one": None}
    again = make.manager("--say", "error: (this only looks like one)")
    again.schedule_experiments([make.exp("one")])
    assert errors(again) == {"one": None}, "nor when its result is found"


def test_5709_neither_pdsh_nor_ssh_is_needed_on_one_machine(make: Made, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    manager = make.manager()
    manager.schedule_experiments([make.exp("one", gpus=2)])
    manager.run()
    assert errors(manager) == {"one": None}


def test_3475_all_out_of_memory_is_no_crash(make: Made, script):
    full = script("raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')")
    manager = make.manager(script=full)
    assert manager.parse_results("throughput") == (None, None)
    manager.schedule_experiments([make.exp("m4"), make.exp("m8", micro=8)])
    manager.run()
    assert all(error.startswith("out of memory: rank 0 on ") for error in errors(manager).values())
    exp, value = manager.parse_results("throughput")
    assert exp["name"] in errors(manager) and value is None


def test_4997_slots_of_uneven_nodes_are_all_used(make: Made, tmp_path):
    """One host has three slots and the other one; four experiments run side by side, each waits for the others."""
    wait_for_all = "import os, sys, time\nopen(f'{os.getpid()}.up', 'w')\n"
    wait_for_all += "while len([f for f in os.listdir() if f.endswith('.up')]) < 4: time.sleep(0.01)\n"
    (tmp_path / "together.py").write_text(wait_for_all)
    manager = make.manager(script=tmp_path / "together.py", hosts={"localhost": [0, 1, 2], "127.0.0.1": [0]})
    assert [node.max_slots for node in manager.nodes] == [3, 1]
    manager.schedule_experiments([make.exp(f"m{micro}", micro=micro) for micro in (1, 2, 4, 8)])
    manager.run()
    slots = {json.loads(make.result(name, "exp.json").read_text())["slots"] for name in ("m1", "m2", "m4", "m8")}
    assert slots == {"localhost:0", "localhost:1", "localhost:2", "127.0.0.1:0"}
    assert all(error.startswith("no metric: ") for error in errors(manager).values())


@pytest.mark.parametrize("declared", ["by the manager", "in a hostfile"])
def test_slots_4_and_5_are_these_and_not_0_and_1(make: Made, tmp_path, declared):
    (tmp_path / "hosts").write_text("localhost slots=8\n")
    launch = ("--hostfile", tmp_path / "hosts") if declared == "in a hostfile" else ()
    manager = make.manager(hosts={"localhost": [4, 5]}, launch=launch)
    manager.schedule_experiments([make.exp("wide", gpus=2)])
    manager.run()
    assert "devices 4,5 " in make.output("wide")


def test_parallel_experiments_keep_their_own_configuration(make: Made):
    """In DeepSpeed they share one list of arguments: what starts last overwrites what the others run."""
    manager = make.manager("--batch", "0", "--nap", 0.3, mappings={"train_micro_batch_size_per_gpu": "--batch"})
    names = [f"m{micro}" for micro in (1, 2, 4, 8)]
    manager.schedule_experiments([make.exp(name, micro=int(name[1:])) for name in names])
    manager.run()
    for name in names:
        assert f"batch {name[1:]} " in make.output(name)
        assert f'"train_micro_batch_size_per_gpu": {name[1:]}' in make.output(name)
    assert manager.args.user_args == ["--deepspeed_config", "ds.json", "--batch", "0", "--nap", "0.3"]


def test_cleaning_up_after_tmbspg1_leaves_tmbspg16_alone(make: Made, tmp_path):
    manager = make.manager("--until", tmp_path / "go")
    manager.schedule_experiments([make.exp("z0_gas1_tmbspg1"), make.exp("z0_gas1_tmbspg16", micro=16)])
    short, long = manager.experiment_queue
    for exp in (short, long):
        manager.run_job(exp, manager.resource_request(exp))
    clean_up(short, [])
    assert manager.status() == "localhost (3 idle gpus)" and list(manager.running_experiments) == [long["exp_id"]]
    (tmp_path / "go").touch()
    while manager.running_experiments:
        manager.experiment_check()
    assert errors(manager) == {short["name"]: "stopped: stopped by the tuner", long["name"]: None}
    clean_up(long, [])  # there is nothing to do


def test_latency_is_minimized(make: Made):
    manager = make.manager()
    manager.schedule_experiments([make.exp("fast", micro=8), make.exp("slow", micro=4)])
    manager.run()
    best, value = manager.parse_results("latency")
    assert (best["name"], value) == ("fast", 1250.0)


def test_slots_are_restored_by_the_reservation():
    node = Node("a", 4)
    reservation = Reservation(node, node.reserve_slots(3))
    reservation.restore_slots()
    reservation.restore_slots()
    assert node.idle_slots == [0, 1, 2, 3], "also when they are given back twice"


def test_more_slots_than_any_node_has_is_an_error_and_no_hang(make: Made):
    manager = make.manager(hosts={"localhost": [0, 1, 2], "127.0.0.1": [0]})
    with pytest.raises(ValueError, match="can never run: 4 slots on one node"):
        manager.schedule_experiments([make.exp("wide", gpus=4)])
    with pytest.raises(ValueError, match="only 1 can give that many: localhost"):
        manager.schedule_experiments([make.exp("broad", gpus=2, nodes=2)])
    assert manager.experiment_queue == []
    manager.schedule_experiments([make.exp("fits", gpus=3)])
    manager.nodes[0].reserve_slots(1)
    with pytest.raises(ValueError, match="cannot run while slots are reserved"):
        manager.run()


def test_a_host_without_slots_is_left_out(make: Made):
    manager = make.manager(hosts={"localhost": [0, 1], "nobody.invalid": []})
    manager.schedule_experiments([make.exp("one", gpus=2)])
    manager.run()
    assert errors(manager) == {"one": None}
    assert "--hosts=localhost:2 --local_rank_arg --include localhost:0,1 " in make.result("one", "cmd.txt").read_text()
