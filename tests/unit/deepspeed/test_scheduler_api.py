"""DeepSpeed's scheduler, by its names: real experiments on slots of this machine."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

import pytest

from bireme.deepspeed import runner
from bireme.deepspeed.scheduler import (
    Node,
    Reservation,
    clean_up,
    get_job_id,
    get_user,
    run_experiment,
)
from tests.conftest import PROGRAMS

SCRIPT = PROGRAMS / "contract.py"


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


@pytest.mark.parametrize("given", [["--batch=0"], ["--batch", "0"], []])
def test_mapped_arguments_replace_those_given(make, given):
    manager = make.manager(*given, mappings={" train_micro_batch_size_per_gpu ": " --batch "})
    manager.schedule_experiments([make.exp("one", micro=16)])
    manager.run()
    assert "batch 16 " in make.output("one")


def test_what_has_ended_is_not_run_again_and_what_was_stopped_is(make, tmp_path):
    manager = make.manager()
    manager.schedule_experiments([make.exp("one"), make.exp("two", micro=8)])
    manager.run()
    (tmp_path / "results" / "two" / "outcome.json").unlink()  # as if killed in the middle
    again = make.manager()
    again.schedule_experiments([make.exp("one"), make.exp("two", micro=8)])
    assert [exp["name"] for exp in again.experiment_queue] == ["two"]
    assert [exp["name"] for exp, _ in again.finished_experiments.values()] == ["one"]
    more = make.manager("--batch", "7")
    more.schedule_experiments([make.exp("one")])
    assert [exp["name"] for exp in more.experiment_queue] == ["one"], "another command"
    changed = make.manager()
    changed.schedule_experiments([make.exp("one", micro=32)])
    assert [exp["name"] for exp in changed.experiment_queue] == ["one"], "another configuration under an old name"


@pytest.fixture
def left_by_deepspeed(make):
    """The folder of an experiment as DeepSpeed's own scheduler leaves it."""

    def leave(name: str, stderr: str = "", figures: str = "", **changed) -> str:
        path = make.exp(name)
        exp = {**json.loads(Path(path).read_text()), "exp_id": 0, "master_port": 29500, "user": "me", **changed}
        make.result(name, "").mkdir(parents=True)
        make.result(name, "exp.json").write_text(json.dumps(exp))
        make.result(name, "stderr.log").write_text(stderr)
        if figures:
            make.result(name, "metrics.json").write_text(figures)
        return path

    return leave


@pytest.mark.parametrize(
    ("left", "error"),
    [
        ({"figures": '{"throughput": 7.5}'}, None),
        ({"figures": '{"throughput": 7.5}', "stderr": "[WARNING] no error, only a warning"}, None),
        ({"stderr": "x\nRuntimeError: CUDA out of memory\n"}, "CUDA out of memory"),
    ],
)
def test_folders_that_deepspeed_made_count(make, left_by_deepspeed, left, error):
    manager = make.manager()
    manager.schedule_experiments([left_by_deepspeed("one", **left)])
    assert manager.experiment_queue == []
    (exp, found), = manager.finished_experiments.values()  # fmt: skip
    assert exp["name"] == "one" and (found == error if error is None else error in found)
    assert manager.parse_results("throughput")[1] == (7.5 if error is None else None)


@pytest.mark.parametrize(
    "left",
    [
        {"figures": '{"throughput": 7.5}', "stderr": "Traceback\nKeyboardInterrupt\n"},
        {},  # neither figures nor an error
        {"figures": '{"throughput": 7.5}', "num_gpus": 2},
        {"figures": '{"throughput": 7.5}', "ds_config": {"train_micro_batch_size_per_gpu": 64}},
    ],
)
def test_what_deepspeed_was_interrupted_in_is_run_again(make, left_by_deepspeed, left):
    manager = make.manager()
    manager.schedule_experiments([left_by_deepspeed("one", **left)])
    assert [exp["name"] for exp in manager.experiment_queue] == ["one"]


def test_the_experiment_is_described_as_by_deepspeed(make):
    manager = make.manager(launch=("--master_port", "29800"))
    manager.schedule_experiments(
        [make.exp("one", master_port=1, launcher_args=["of an earlier run"], args="x", words="y")]
    )
    manager.run()
    exp = json.loads(make.result("one", "exp.json").read_text())
    assert (exp["args"], exp["words"]) == ("x", "y")
    assert {"name", "exp_id", "ds_config", "num_gpus", "num_nodes", "hostfile", "result_dir"} <= set(exp)
    assert exp["hostfile"] == "/job/hostfile" and exp["master_port"] == 29800
    assert exp["launcher_args"][-4:] == ["--include", "localhost:0", "--master_port", "29800"]
    assert exp["user"] == get_user() and exp["job_id"] == get_job_id()
    assert exp["ds_config_path"] == str(make.result("one", "ds_config.json"))
    assert json.loads(base64.urlsafe_b64decode(exp["ds_config_base64"])) == exp["ds_config"]


def test_the_command_that_is_written_leaves_the_report_alone(make):
    """DeepSpeed's ``run_after_tuning`` runs the command of the best experiment once more."""
    manager = make.manager(launch=("--experiment_limit", "60"))
    manager.schedule_experiments([make.exp("one")])
    manager.run()
    assert make.result("one", "outcome.json").exists()
    command = make.result("one", "cmd.txt").read_text()
    assert "--report" not in command and "--time_limit" not in command


def test_in_order_and_none_passes_a_head_that_waits(make, tmp_path, script):
    """The second needs both slots; the third would find one at once."""
    say = script("import os, sys\nopen('ran', 'a').write(os.environ['WORLD_SIZE'] + sys.argv[2][-1] + ' ')")
    manager = make.manager(script=say, slots=2, mappings={"train_micro_batch_size_per_gpu": "--micro"})
    manager.args.user_args = ["--micro=0", *manager.args.user_args]
    manager.schedule_experiments(
        [make.exp("m1", micro=1), make.exp("m2", micro=2, gpus=2), make.exp("m3", micro=3), make.exp("m4", micro=4)]
    )
    manager.run()
    ran = (tmp_path / "ran").read_text().split()
    assert ran[:3] == ["11", "22", "22"] and sorted(ran[3:]) == ["13", "14"]


def test_the_widest_first_where_that_is_asked_for(make, tmp_path, script):
    say = script("import os\nopen('ran', 'a').write(os.environ['WORLD_SIZE'] + ' ')")
    manager = make.manager(script=say, slots=2, launch=("--order", "longest"))
    manager.schedule_experiments([make.exp("m1", micro=1), make.exp("m2", micro=2), make.exp("m3", micro=3, gpus=2)])
    manager.run()
    assert (tmp_path / "ran").read_text().split() == ["2", "2", "1", "1"]


def test_slots_of_several_nodes_are_reserved_together_or_not_at_all(make):
    manager = make.manager(hosts={"a": [0, 1], "b": [5], "c": [2, 3]})
    request = manager.resource_request
    assert request({"num_nodes": 3, "num_gpus": 2}) is None
    assert manager.status() == "a (2 idle gpus), b (1 idle gpus), c (2 idle gpus)"
    both = request({"num_nodes": 2, "num_gpus": 2})
    assert [each.desc() for each in both] == ["a:0,1@", "c:2,3@"]
    assert [each.desc() for each in request({"num_nodes": 1, "num_gpus": 1})] == ["b:5@"]
    for each in both:
        each.restore_slots()
    assert manager.status() == "a (2 idle gpus), b (0 idle gpus), c (2 idle gpus)"


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
    with pytest.raises(ValueError, match="missing or not of type dict: 'ds_config'"):
        make.manager().schedule_experiments([str(path)])
    path.write_text('{"name": "..", "ds_config": {}, "num_gpus": 1, "num_nodes": 1}')
    with pytest.raises(ValueError, match=r"not a name for an experiment: '\.\.'"):
        make.manager().schedule_experiments([str(path)])


def test_a_results_folder_that_cannot_be_written_to_is_told(make, tmp_path):
    (tmp_path / "results").touch()
    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    with pytest.raises(ValueError, match="results cannot be written to"):
        manager.run()


def test_the_experiment_tells_where_its_figures_are(make, tmp_path):
    """DeepSpeed's tuners read them there."""
    manager = make.manager()
    manager.schedule_experiments([make.exp("one")])
    manager.run()
    exp, _ = manager.finished_experiments[0]
    path = exp["ds_config"]["autotuning"]["metric_path"]
    assert path == str(make.result("one", "metrics.json"))
    assert json.loads(Path(path).read_text())["throughput"] == 400.0


def test_the_model_is_described_where_it_is_asked_for(make, tmp_path, script):
    """As DeepSpeed's tuner does it: a path of its own, and no figures."""
    profile = script(
        "import base64, json, sys\n"
        "section = json.loads(base64.urlsafe_b64decode(sys.argv[-1]))['autotuning']\n"
        "open(section['model_info_path'], 'w').write('{\"num_params\": 7}')"
    )
    info = tmp_path / "info.json"
    section = {"model_info": {"profile": True}, "model_info_path": str(info)}
    manager = make.manager(script=profile)
    manager.schedule_experiments([make.exp("profile_model_info", section=section)])
    manager.run()
    assert manager.finished_experiments[0][1] is None and json.loads(info.read_text()) == {"num_params": 7}


def test_without_figures_it_runs_again(make, script):
    manager = make.manager(script=script(""))
    manager.schedule_experiments([make.exp("short")])
    manager.run()
    assert manager.finished_experiments[0][1].startswith("no metric: the run ended without writing metrics.json")
    again = make.manager(script=script(""))
    again.schedule_experiments([make.exp("short")])
    assert len(again.experiment_queue) == 1


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


def test_run_experiment_and_clean_up_alone(make, tmp_path):
    exp = json.loads(Path(make.exp("one")).read_text())
    exp["result_dir"] = str(tmp_path / "results" / "one")
    node = Node("localhost", 2)
    reservation = Reservation(node, node.reserve_slots(2))
    run_experiment(exp, [reservation], str(SCRIPT), ["--deepspeed_config", "ds.json"])
    clean_up(exp, [reservation])
    assert json.loads((tmp_path / "results/one/metrics.json").read_text())["throughput"] == 400.0
    assert "--include localhost:0,1" in (tmp_path / "results/one/cmd.txt").read_text()


def test_the_experiments_own_hostfile_counts(make, tmp_path):
    (tmp_path / "own").write_text("localhost slots=3\n")
    manager = make.manager()
    manager.schedule_experiments([make.exp("one", hostfile=str(tmp_path / "own")), make.exp("two")])
    manager.run()
    assert (
        f"--hostfile={tmp_path / 'own'} --local_rank_arg --include localhost:"
        in make.result("one", "cmd.txt").read_text()
    )
    assert "--hosts=localhost:4 --local_rank_arg --include localhost:" in make.result("two", "cmd.txt").read_text()


def test_ports_are_next_to_each_other(make, tmp_path):
    manager = make.manager(launch=("--master_port", 29871), slots=2)
    manager.schedule_experiments([make.exp("m4"), make.exp("m8", micro=8)])
    for exp in manager.experiment_queue:
        manager.run_job(exp, manager.resource_request(exp))
    while manager.running_experiments:
        manager.experiment_check()
    assert "--master_port 29871 " in make.result("m4", "cmd.txt").read_text()
    assert "--master_port 29872 " in make.result("m8", "cmd.txt").read_text()


def test_after_the_last_port_comes_the_first_that_anybody_may_use(make, tmp_path):
    manager = make.manager(launch=("--master_port", 65535), slots=1)
    manager.schedule_experiments([make.exp("m4"), make.exp("m8", micro=8)])
    exp = manager.experiment_queue[1]
    manager.run_job(exp, manager.resource_request(exp))
    while manager.running_experiments:
        manager.experiment_check()
    found = re.search(r"--master_port (\d+) ", make.result("m8", "cmd.txt").read_text())
    assert found is not None and 1024 <= int(found[1]) < 1124  # the first may be in use
    assert [error for _, error in manager.finished_experiments.values()] == [None]


def test_the_accelerator_that_torchrun_names_by_a_number(make):
    manager = make.manager(launch=("--num_gpus", "cpu"))
    manager.schedule_experiments([make.exp("one")])
    manager.run()
    assert " --accelerator=cpu " in make.result("one", "cmd.txt").read_text()


def test_a_script_may_be_given_a_file(make):
    manager = make.manager(launch=("--config_as", "file"))
    manager.schedule_experiments([make.exp("one")])
    manager.run()
    assert f"--deepspeed_config {make.result('one', 'ds_config.json')}" in make.result("one", "cmd.txt").read_text()
    assert manager.parse_results("throughput")[1] == 400.0


def test_a_module_and_its_ranks_logs(make, tmp_path, monkeypatch):
    (tmp_path / "job.py").write_text("print('as a module', __spec__.name)")
    launch = ("--module", "--enable_each_rank_log", tmp_path / "logs")
    manager = make.manager(script="job", launch=launch)
    manager.schedule_experiments([make.exp("one", gpus=2)])
    manager.run()
    assert "as a module job" in make.output("one")
    assert len([file for _, _, files in os.walk(tmp_path / "logs" / "one") for file in files]) >= 2


def test_flags_of_the_launch_carry_over(make, tmp_path):
    words = ["--no_local_rank", "--module", "--save_pid", "--master_port", "31000", "--launcher", "ssh"]
    args = runner.parse_args([*words, str(SCRIPT), "--deepspeed_config", "ds.json"])
    from bireme.deepspeed.scheduler import _launch_of

    words = _launch_of(args, {"localhost": ("0",)})[0].words
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
