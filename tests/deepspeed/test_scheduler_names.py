"""The reference's scheduler, by its names: real experiments on slots of this machine."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from bireme.deepspeed import runner
from bireme.deepspeed.scheduler import (
    Node,
    Reservation,
    ResourceManager,
    clean_up,
    get_job_id,
    get_user,
    run_experiment,
)

SCRIPT = Path(__file__).parents[1] / "programs" / "contract.py"
HERE = os.uname().nodename


@pytest.fixture
def make(tmp_path, stage, monkeypatch):
    """A manager on slots of this machine, and its experiments' files. Nothing may be left of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    base = {"optimizer": {"type": "Adam"}}

    class Made:
        def manager(self, *words, hosts=None, slots=4, mappings=None) -> ResourceManager:
            args = runner.parse_args([str(SCRIPT), "--deepspeed_config", "ds.json", *map(str, words)])
            hosts = ["localhost"] if hosts is None else hosts
            return ResourceManager(args, hosts, slots, str(tmp_path / "results"), str(tmp_path / "exps"), mappings)

        def exp(self, name, *, stage=0, micro=4, gpus=1, nodes=1, suffix="json", **more) -> str:
            config = {**base, "zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": micro}
            config["autotuning"] = {"enabled": True, "start_profile_step": 3, "end_profile_step": 5}
            data = {
                "name": name,
                "ds_config": config,
                "num_gpus": gpus,
                "num_nodes": nodes,
                "hostfile": "/job/hostfile",
            }
            (tmp_path / "exps").mkdir(exist_ok=True)
            path = tmp_path / "exps" / f"{name}.{suffix}"
            path.write_text(json.dumps({**data, **more}))
            return str(path)

        def output(self, name) -> str:
            return (tmp_path / "results" / name / "stdout.log").read_text()

    (tmp_path / "results").mkdir()
    return Made()


def test_queue_run_and_best(make):
    manager = make.manager()
    manager.schedule_experiments([make.exp(f"m{micro}", micro=micro) for micro in (4, 16, 8)])
    assert [exp["name"] for exp in manager.experiment_queue] == ["m4", "m16", "m8"]
    manager.run()
    assert manager.experiment_queue == [] and manager.running_experiments == {}
    assert sorted(manager.finished_experiments) == [0, 1, 2] and manager.experiment_count == 3
    assert all(error is None for _, error in manager.finished_experiments.values())
    best, value = manager.parse_results("throughput")
    assert (best["name"], value) == ("m16", 1600.0)
    assert best["results"]["throughput"] == 1600.0


def test_latency_is_minimised(make):
    manager = make.manager()
    manager.schedule_experiments([make.exp("slow", micro=4), make.exp("fast", micro=8)])
    manager.run()
    best, value = manager.parse_results("latency")
    assert (best["name"], value) == ("fast", 1250.0)


def test_parallel_experiments_keep_their_own_configuration(make, tmp_path):
    """In the reference they share one list of arguments: what starts last overwrites what the others run."""
    manager = make.manager("--batch", "0", "--nap", 0.3, mappings={"train_micro_batch_size_per_gpu": "--batch"})
    names = [f"m{micro}" for micro in (1, 2, 4, 8)]
    manager.schedule_experiments([make.exp(name, micro=int(name[1:])) for name in names])
    manager.run()
    for name in names:
        assert f"batch {name[1:]} " in make.output(name)
        assert f'"train_micro_batch_size_per_gpu": {name[1:]}' in make.output(name)
    assert manager.args.user_args == ["--deepspeed_config", "ds.json", "--batch", "0", "--nap", "0.3"]


@pytest.mark.parametrize("given", [["--batch=0"], ["--batch", "0"], []])
def test_mapped_arguments_replace_those_given(make, given):
    manager = make.manager(*given, mappings={" train_micro_batch_size_per_gpu ": " --batch "})
    manager.schedule_experiments([make.exp("one", micro=16)])
    manager.run()
    assert "batch 16 " in make.output("one")


def test_the_word_error_on_stderr_is_no_failure(make):
    manager = make.manager("--say", "error: (this only looks like one)")
    manager.schedule_experiments([make.exp("one")])
    manager.run()
    assert manager.finished_experiments[0][1] is None
    assert manager.parse_results("throughput")[0]["name"] == "one"


def test_the_reason_of_a_failure_is_its_exception(make):
    """The reference reports "(", the first character that follows the word."""
    manager = make.manager("--fail", "1/4")
    manager.schedule_experiments([make.exp("bad", stage=1), make.exp("good")])
    manager.run()
    reasons = {exp["name"]: error for exp, error in manager.finished_experiments.values()}
    assert reasons["bad"] == f"failed: rank 0 on {HERE}: ValueError: no luck with stage 1"
    assert reasons["good"] is None


def test_all_failing_is_no_crash(make):
    manager = make.manager("--fail", "all")
    assert manager.parse_results("throughput") == (None, None)
    manager.schedule_experiments([make.exp("bad")])
    manager.run()
    exp, value = manager.parse_results("throughput")
    assert (exp["name"], value) == ("bad", None)


def test_slots_are_those_that_were_named(make):
    """Slots 2 and 3 of a host are these, and not 0 and 1."""
    manager = make.manager(hosts={"localhost": [2, 3]})
    manager.schedule_experiments([make.exp("wide", gpus=2)])
    manager.run()
    assert "devices 2,3 " in make.output("wide")


def test_nodes_may_differ(make):
    manager = make.manager(hosts={"localhost": [0, 1, 2], "127.0.0.1": [0]})
    assert [node.max_slots for node in manager.nodes] == [3, 1]
    with pytest.raises(ValueError, match="can never run: 4 slots on one node"):
        manager.schedule_experiments([make.exp("wide", gpus=4)])
    with pytest.raises(ValueError, match="so many are only on localhost"):
        manager.schedule_experiments([make.exp("broad", gpus=2, nodes=2)])
    assert manager.experiment_queue == []


def test_what_has_ended_is_not_run_again_and_what_was_stopped_is(make, tmp_path):
    manager = make.manager()
    manager.schedule_experiments([make.exp("one"), make.exp("two", micro=8)])
    manager.run()
    (tmp_path / "results" / "two" / "outcome.json").unlink()  # as if killed in the middle
    again = make.manager()
    again.schedule_experiments([make.exp("one"), make.exp("two", micro=8)])
    assert [exp["name"] for exp in again.experiment_queue] == ["two"]
    assert [exp["name"] for exp, _ in again.finished_experiments.values()] == ["one"]
    changed = make.manager()
    changed.schedule_experiments([make.exp("one", micro=32)])
    assert [exp["name"] for exp in changed.experiment_queue] == ["one"], "another configuration under an old name"


def test_the_same_file_is_queued_once(make):
    manager, path = make.manager(), make.exp("one")
    manager.schedule_experiments([path])
    manager.schedule_experiments([path])
    assert len(manager.experiment_queue) == 1


def test_hjson(make, tmp_path):
    path = Path(make.exp("one", suffix="hjson"))
    path.write_text("# a comment\n" + path.read_text())
    manager = make.manager()
    manager.schedule_experiments([str(path)])
    manager.run()
    assert manager.parse_results("throughput")[1] == 400.0


def test_a_broken_file_is_told_with_its_line(make, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text('{"name": "x",\n "num_gpus": }\n')
    with pytest.raises(ValueError, match=r"broken.json:2"):
        make.manager().schedule_experiments([str(path)])
    path.write_text('{"name": "x"}')
    with pytest.raises(ValueError, match="an experiment needs 'ds_config'"):
        make.manager().schedule_experiments([str(path)])


def test_one_job_on_reserved_slots(make):
    manager = make.manager(slots=2)
    manager.schedule_experiments([make.exp("one", gpus=2)])
    exp = manager.experiment_queue.pop()
    reservations = manager.resource_request(exp)
    assert [reservation.desc() for reservation in reservations] == ["localhost:0,1@"]
    assert manager.resource_request(exp) is None and manager.status() == "localhost (0 idle gpus)"
    manager.run_job(exp, reservations)
    while manager.running_experiments:
        manager.experiment_check()
    assert manager.status() == "localhost (2 idle gpus)"
    assert manager.parse_results("throughput")[0] is exp


def test_an_experiment_whose_name_begins_like_anothers_is_left_alone(make, tmp_path):
    """Cleaning up after ``…tmbspg1`` must not reach ``…tmbspg16``."""
    manager = make.manager("--until", tmp_path / "go")
    manager.schedule_experiments([make.exp("z0_gas1_tmbspg1"), make.exp("z0_gas1_tmbspg16", micro=16)])
    short, long = manager.experiment_queue
    for exp in (short, long):
        manager.run_job(exp, manager.resource_request(exp))
    clean_up(short, [])
    (tmp_path / "go").touch()
    while manager.running_experiments.keys() - {short["exp_id"]}:
        manager.experiment_check()
    assert manager.finished_experiments[long["exp_id"]][1] is None
    manager.clear()


def test_run_experiment_and_clean_up_alone(make, tmp_path):
    exp = json.loads(Path(make.exp("one")).read_text())
    exp["result_dir"] = str(tmp_path / "results" / "one")
    node = Node("localhost", 2)
    reservation = Reservation(node, node.reserve_slots(2))
    run_experiment(exp, [reservation], str(SCRIPT), ["--deepspeed_config", "ds.json"])
    clean_up(exp, [reservation])
    assert json.loads((tmp_path / "results/one/metrics.json").read_text())["throughput"] == 400.0
    assert "--include localhost:0,1" in (tmp_path / "results/one/cmd.txt").read_text()


def test_ctrl_c_stops_all_and_keeps_the_queue(make, tmp_path):
    manager = make.manager("--until", tmp_path / "never", slots=2)
    manager.schedule_experiments([make.exp(f"e{number}", micro=number + 1) for number in range(3)])

    def interrupt():
        while not (tmp_path / "results/e1/stdout.log").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        manager.run()
    thread.join()
    assert sorted(exp["name"] for exp in manager.experiment_queue) == ["e0", "e1", "e2"]
    assert manager.running_experiments == {} and manager.finished_experiments == {}


def test_two_managers_on_one_folder(make, tmp_path):
    from bireme.tune.lock import ExperimentsLock

    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    with ExperimentsLock(str(tmp_path / "results" / "experiments.lock")) as other:
        assert other.taken()
        with pytest.raises(ValueError, match="another tuner"):
            manager.run()
    manager.run()
    assert manager.parse_results("throughput")[1] == 400.0


def test_flags_of_the_launch_carry_over(make, tmp_path):
    words = ["--no_local_rank", "--module", "--save_pid", "--master_port", "31000", "--launcher", "ssh"]
    args = runner.parse_args([*words, str(SCRIPT), "--deepspeed_config", "ds.json"])
    from bireme.deepspeed.experiments import command_of

    words = command_of(args, {"localhost": ("0",)}).launch.words
    assert {"--no_local_rank", "--module", "--launcher=ssh", "--hosts=localhost:1"} <= set(words)
    assert not {word for word in words if word.startswith(("--save_pid", "--master_port"))}


def test_node_slots():
    node = Node("a", 4)
    assert node.reserve_slots(3) == [0, 1, 2] and node.idle_slots == [3]
    assert node.reserve_slots(2) is None
    Reservation(node, [0, 2]).restore_slots()
    assert node.idle_slots == [0, 2, 3]


def test_names_of_the_infrastructure(monkeypatch):
    monkeypatch.setenv("DLTS_JOB_ID", "j7")
    monkeypatch.setenv("USER", "ada")
    assert (get_job_id(), get_user()) == ("j7", "ada")
    monkeypatch.delenv("DLTS_JOB_ID")
    assert get_job_id() == "unknown-job-id"


def test_run_autotuning_on_the_slots_that_are_active(make, tmp_path, capfd):
    config = {"train_micro_batch_size_per_gpu": [4, 8], "autotuning": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    words = [
        "--autotuning",
        "tune",
        "--num_gpus",
        "1",
        "--num_nodes",
        "1",
        str(SCRIPT),
        "--deepspeed_config",
        "ds.json",
    ]
    runner.run_autotuning(runner.parse_args(words), {"localhost": [0, 1]})
    assert json.loads((tmp_path / "autotuning_results/ds_config_optimal.json").read_text())["train_batch_size"] == 8
    out = capfd.readouterr().out
    assert "starts on localhost:0\n" in out and "starts on localhost:1\n" in out, "side by side"
    assert "--deepspeed_config" in (tmp_path / "autotuning_results/cmd_optimal.txt").read_text()


def test_run_autotuning_ends_with_the_code(make, tmp_path):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4}')
    words = ["--autotuning", "tune", "--num_gpus", "1", str(SCRIPT), "--deepspeed_config", "ds.json", "--fail", "all"]
    with pytest.raises(SystemExit) as ended:
        runner.run_autotuning(runner.parse_args(words), {"localhost": [0]})
    assert ended.value.code == 1
