"""``parse_args`` of runner and launcher: DeepSpeed's names, defaults and shortened options."""

from __future__ import annotations

import pytest

from bireme.deepspeed import launch, runner
from bireme.deepspeed.launcher_helper import parse_args as parse_helper_args

DEFAULTS = {
    "hostfile": "/job/hostfile",
    "include": "",
    "exclude": "",
    "num_nodes": -1,
    "num_gpus": -1,
    "master_port": 29500,
    "master_addr": "",
    "node_rank": -1,
    "launcher": "pdsh",
    "launcher_args": "",
    "module": False,
    "no_python": False,
    "no_local_rank": False,
    "no_ssh": False,
    "no_ssh_check": False,
    "force_multi": False,
    "save_pid": False,
    "enable_each_rank_log": "None",
    "autotuning": "",
    "user_script": "train.py",
    "user_args": [],
    "bind_cores_to_rank": False,
    "bind_core_list": None,
    "ssh_port": None,
    "venv_script": None,
    "log_level": "info",
    "quiet": False,
}

GIVEN = {
    "--hostfile h train.py": {"hostfile": "h"},
    "-H h -i a:0 train.py": {"hostfile": "h", "include": "a:0"},
    "-e a@b:1 train.py -q --x": {"exclude": "a@b:1", "user_args": ["-q", "--x"]},
    "--num_nodes 2 --num_gpus=4 train.py": {"num_nodes": 2, "num_gpus": 4},
    "--num_accelerators 3 train.py": {"num_gpus": 3},
    "--num_acc 3 train.py": {"num_gpus": 3},
    "--master_p 1 --master_a host train.py": {"master_port": 1, "master_addr": "host"},
    "--no_ssh --node_rank 1 train.py": {"no_ssh": True, "node_rank": 1},
    "--no_ssh_c train.py": {"no_ssh_check": True},
    "--launcher slurm --launcher_arg=-x train.py": {"launcher": "slurm", "launcher_args": "-x"},
    "--mod train.py": {"module": True},
    "--no_p train.py": {"no_python": True},
    "--no_loc train.py": {"no_local_rank": True},
    "--force train.py": {"force_multi": True},
    "--save train.py": {"save_pid": True},
    "--en logs train.py": {"enable_each_rank_log": "logs"},
    "--bind_cores --bind_core_l 0-3 train.py": {"bind_cores_to_rank": True, "bind_core_list": "0-3"},
    "--ssh 22 --venv v.sh train.py": {"ssh_port": 22, "venv_script": "v.sh"},
    "--autotuning tune train.py": {"autotuning": "tune"},
    "--log debug -q train.py": {"log_level": "debug", "quiet": True},
}


def known(namespace) -> dict[str, object]:
    return {name: value for name, value in vars(namespace).items() if name in DEFAULTS}


def test_defaults() -> None:
    assert known(runner.parse_args(["train.py"])) == DEFAULTS


@pytest.mark.parametrize("line", GIVEN)
def test_given(line: str) -> None:
    assert known(runner.parse_args(line.split())) == {**DEFAULTS, **GIVEN[line]}


def test_ours_too() -> None:
    """Options that DeepSpeed does not have, in either spelling; a shortened one is DeepSpeed's first."""
    parsed = runner.parse_args(["--nproc-per-node", "auto", "--grace=3", "--acc", "cpu", "train.py"])
    assert (parsed.num_gpus, parsed.grace, parsed.accelerator) == (-1, 3.0, "cpu")
    assert runner.parse_args(["--log", "error", "train.py"]).log_level == "error"  # not --log_dir


def test_launchers_in_any_case() -> None:
    assert runner.parse_args(["--launcher", "OpenMPI", "train.py"]).launcher == "openmpi"


def test_what_follows_the_script_is_left_alone() -> None:
    words = ["--launcher", "X", "--", "--num_gpus", "-1", ""]
    assert runner.parse_args(["train.py", *words]).user_args == words


@pytest.mark.parametrize("line", ["", "--nope train.py", "--master_port x train.py", "--num train.py", "-H"])
def test_unreadable(line: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        runner.parse_args(line.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("bireme: ")


@pytest.mark.parametrize("parse", [runner.parse_args, launch.parse_args])
def test_help(parse, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    assert "--master_addr" in capsys.readouterr().out


def test_without_arguments_it_is_the_process_own(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["deepspeed", "--num_gpus", "2", "train.py", "x"])
    parsed = runner.parse_args()
    assert (parsed.num_gpus, parsed.user_script, parsed.user_args) == (2, "train.py", ["x"])


LAUNCH_DEFAULTS = {
    "node_rank": 0,
    "master_addr": "127.0.0.1",
    "master_port": 29500,
    "world_info": "None",
    "module": False,
    "no_python": False,
    "no_local_rank": False,
    "save_pid": 0,
    "enable_each_rank_log": "None",
    "bind_cores_to_rank": False,
    "bind_core_list": None,
    "log_level": "info",
    "quiet": False,
    "training_script": "train.py",
    "training_script_args": [],
}


def test_launch() -> None:
    parsed = vars(launch.parse_args(["train.py"]))
    assert {name: parsed[name] for name in LAUNCH_DEFAULTS} == LAUNCH_DEFAULTS
    parsed = vars(launch.parse_args(["--world", "abc", "--node_r=1", "--save_pid", "7", "-q", "train.py", "--x"]))
    given = {"world_info": "abc", "node_rank": 1, "save_pid": 7, "quiet": True, "training_script_args": ["--x"]}
    assert {name: parsed[name] for name in LAUNCH_DEFAULTS} == {**LAUNCH_DEFAULTS, **given}


def test_helper() -> None:
    parsed = parse_helper_args(["--launcher", "mpich", "--module", "pkg", "-x"])
    assert (parsed.launcher, parsed.module, parsed.no_python) == ("mpich", True, False)
    assert (parsed.user_script, parsed.user_args) == ("pkg", ["-x"])
    with pytest.raises(ValueError):
        parse_helper_args(["--launcher", "slurm", "x.py"])
