"""DeepSpeed's names for one node: code written for DeepSpeed works after its import is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.deepspeed import launch, runner
from tests.conftest import clean_environ, run_python

POOL = OrderedDict([("worker-0", [0, 1, 2, 3]), ("worker-1", [0, 1]), ("worker-2", [0])])

# What ``deepspeed.launcher.runner.parse_args(["train.py", "a"])`` gives (0.16 to 0.18).
OF_RUNNER = {
    "autotuning": "",
    "bind_core_list": None,
    "bind_cores_to_rank": False,
    "enable_each_rank_log": "None",
    "exclude": "",
    "force_multi": False,
    "hostfile": "/job/hostfile",
    "include": "",
    "launcher": "pdsh",
    "launcher_args": "",
    "log_level": "info",
    "master_addr": "",
    "master_port": 29500,
    "module": False,
    "no_local_rank": False,
    "no_python": False,
    "no_ssh": False,
    "no_ssh_check": False,
    "node_rank": -1,
    "num_gpus": -1,
    "num_nodes": -1,
    "quiet": False,
    "save_pid": False,
    "ssh_port": None,
    "user_args": ["a"],
    "user_script": "train.py",
    "venv_script": None,
}
OF_LAUNCH = {
    "bind_core_list": None,
    "bind_cores_to_rank": False,
    "enable_each_rank_log": "None",
    "log_level": "info",
    "master_addr": "127.0.0.1",
    "master_port": 29500,
    "module": False,
    "no_local_rank": False,
    "no_python": False,
    "node_rank": 0,
    "quiet": False,
    "save_pid": 0,
    "training_script": "train.py",
    "training_script_args": ["a"],
    "world_info": "None",
}


# -- parse_args ----------------------------------------------------------------------------------


def test_runners_namespace():
    assert vars(runner.parse_args(["train.py", "a"])).items() >= OF_RUNNER.items()


def test_launchs_namespace(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["launch", "train.py", "a"])
    assert vars(launch.parse_args()).items() >= OF_LAUNCH.items()


def test_runners_values():
    words = [
        "--num_gpus=2",
        "-i",
        "worker-0:1",
        "--master_port",
        "6000",
        "--save_pid",
        "train.py",
        "--lr",
        "1",
        "--num_gpus",
    ]
    args = runner.parse_args(words)
    assert (args.num_gpus, args.include, args.master_port, args.save_pid) == (2, "worker-0:1", 6000, True)
    assert (args.user_script, args.user_args) == ("train.py", ["--lr", "1", "--num_gpus"])


@pytest.mark.parametrize(
    "words",
    [[], ["--nonsense", "train.py"], ["--master_port", "x", "train.py"], ["--num_gpus"]],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_read(words, capsys):
    for parse_args in (runner.parse_args, launch.parse_args):
        with pytest.raises(SystemExit) as caught:
            parse_args(words)
        assert caught.value.code == 2
        assert capsys.readouterr().err


# -- filters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ("", "", POOL),
        ("worker-1", "", {"worker-1": [0, 1]}),
        ("worker-0:0,2", "", {"worker-0": [0, 2]}),
        ("worker-0:2,0", "", {"worker-0": [0, 2]}),
        ("worker-2@worker-0:3", "", {"worker-0": [3], "worker-2": [0]}),
        ("", "worker-0", {"worker-1": [0, 1], "worker-2": [0]}),
        ("", "worker-0:0,1@worker-2", {"worker-0": [2, 3], "worker-1": [0, 1]}),
        ("", "worker-1:0,1", {"worker-0": [0, 1, 2, 3], "worker-2": [0]}),
    ],
)
def test_resource_filter(include, exclude, left):
    found = runner.parse_resource_filter(POOL, include_str=include, exclude_str=exclude)
    assert found == left
    assert list(found) == list(left)
    assert all(type(slot) is int for slots in found.values() for slot in slots)
    counts = OrderedDict((host, len(slots)) for host, slots in POOL.items())
    assert runner.parse_inclusion_exclusion(counts, include, exclude) == left


@pytest.mark.parametrize(
    ("include", "exclude"),
    [
        ("worker-0", "worker-1"),
        ("nobody", ""),
        ("", "nobody"),
        ("worker-0:9", ""),
        ("", "worker-0:9"),
        ("worker-0:a", ""),
        ("worker-0:", ""),
        ("@", ""),
        ("worker-0:0:1", ""),
    ],
)
def test_refused_filters(include, exclude):
    with pytest.raises(ValueError):
        runner.parse_resource_filter(POOL, include_str=include, exclude_str=exclude)


@settings(max_examples=100, deadline=None)
@given(st.text("worke-012:@, a\n", max_size=25), st.booleans())
def test_any_filter_is_accepted_or_a_value_error(text, excludes):
    try:
        left = runner.parse_resource_filter(POOL, **{"exclude_str" if excludes else "include_str": text})
    except ValueError:
        return
    for host, slots in left.items():
        assert slots
        assert set(slots) <= set(POOL[host])


# -- world info ----------------------------------------------------------------------------------


def test_encode_world_info():
    text = runner.encode_world_info(POOL)
    assert json.loads(urlsafe_b64decode(text)) == POOL


# -- main ----------------------------------------------------------------------------------------


def run(text, *args):
    """A program that calls DeepSpeed's names."""
    return run_python(text, *args)


def test_main_runs_a_job(script):
    program = script("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")
    text = "import sys\nfrom bireme.deepspeed.runner import main\nmain(sys.argv[1:])\nprint('after')\n"
    done = run(text, "-q", "--num_gpus", "2", program, "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert all(f"['--local_rank={rank}', '--lr', '1']" in done.stdout for rank in range(2))
    assert done.stdout.endswith("after\n")


def test_main_exits_with_the_jobs_code(script):
    text = "import sys\nfrom bireme.deepspeed.runner import main\nmain(sys.argv[1:])\nprint('after')\n"
    done = run(text, "-q", "--num_gpus", "2", script("raise SystemExit(7)"))
    assert done.returncode == 7
    assert "after" not in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--include", "localhost:9"],
        ["-i", "localhost", "-e", "localhost"],
        ["--num_gpus", "0"],
        ["--no_python", "--module"],
    ],
    ids=" ".join,
)
def test_main_raises_value_error(script, tmp_path, words):
    text = (
        "import sys\nfrom bireme.deepspeed.runner import main\n"
        "try: main(sys.argv[1:])\nexcept ValueError as error: print('refused', error)\n"
    )
    done = run(text, *words, script(f"open({str(tmp_path / 'ran')!r}, 'w')"))
    assert done.stdout.startswith("refused "), done.stderr
    assert not (tmp_path / "ran").exists()


def test_launch_main(script):
    world = runner.encode_world_info({"a": [0], "b": [0, 1]})
    program = script("import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'])\n")
    text = "from bireme.deepspeed.launch import main\nmain()\n"
    done = run(text, f"--world_info={world}", "--node_rank=1", "-q", program)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split("] ")[1] for line in done.stdout.splitlines()) == ["1 3 0", "2 3 1"]


def test_launch_as_a_module(script):
    world = runner.encode_world_info({"a": [0]})
    words = ["-m", "bireme.deepspeed.launch", f"--world_info={world}", "-q", str(script("raise SystemExit(5)"))]
    assert subprocess.run([sys.executable, *words], env=clean_environ(), capture_output=True).returncode == 5


def test_launch_main_raises_value_error(script):
    text = (
        "from bireme.deepspeed.launch import main\ntry: main()\nexcept ValueError as error: print('refused', error)\n"
    )
    done = run(text, "--world_info=%%%", script("pass"))
    assert done.stdout.startswith("refused "), done.stderr


def test_where_pid_files_are():
    assert launch.PID_FILE_BASEPATH == "/tmp"
