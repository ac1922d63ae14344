"""``main`` of the runner, and what it refuses as DeepSpeed does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bireme.deepspeed import runner
from bireme.deepspeed.accelerator import get_accelerator
from bireme.deepspeed.constants import PDSH_LAUNCHER
from bireme.deepspeed.multinode_runner import MultiNodeRunner
from tests.conftest import clean_environ


@pytest.mark.parametrize("number", ["--num_nodes 1", "--num_gpus 1", "--num_nodes 1 --num_gpus 1"])
@pytest.mark.parametrize("flag", ["-i", "-e"])
def test_numbers_exclude_filters(number: str, flag: str) -> None:
    with pytest.raises(ValueError):
        runner.main([*number.split(), flag, "localhost", "foo.py"])


@pytest.mark.parametrize("force", [[], ["--force_multi"]])
def test_slurm_cannot_choose_devices(force: list[str], tmp_path) -> None:
    (tmp_path / "hostfile").write_text("worker-0 slots=4\nworker-1 slots=4\n")
    argv = [*force, "--hostfile", str(tmp_path / "hostfile"), "--launcher", "slurm", "--include", "worker-1:0,2"]
    with pytest.raises(ValueError, match="specific device ids"):
        runner.main([*argv, "train.py"])


def test_tuning_needs_a_configuration() -> None:
    with pytest.raises(ValueError, match="no DeepSpeed configuration"):
        runner.main(["--autotuning", "run", "train.py"])


class FourGPUs:
    """A machine that the tests do not have."""

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def device_count(self) -> int:
        return 4


def test_visible_devices_are_a_filter(monkeypatch) -> None:
    """What a list of visible devices names has to be there, and is looked for under names that can be replaced."""
    monkeypatch.setattr(runner, "get_accelerator", FourGPUs)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
    with pytest.raises(ValueError, match="No slot '7' specified on host 'localhost'"):
        runner.main(["train.py"])


def test_ends_with_the_code_of_the_job(tmp_path) -> None:
    """In a process of its own: a job takes the signals of its process."""
    (tmp_path / "train.py").write_text(
        "import os, sys, time\nprint('rank', os.environ['RANK'], flush=True)\n"
        "while sys.argv[2] != '0' and os.environ['RANK'] != '0':\n"
        "    time.sleep(1000)\n"
        "sys.exit(int(sys.argv[2]))\n"
    )
    code = "import sys; from bireme.deepspeed.runner import main; main(sys.argv[1:]); print('ended well')"
    for wanted in (0, 3):
        argv = [sys.executable, "-c", code, "--acc", "cpu", "--num_g", "2", "train.py", str(wanted)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=clean_environ())
        assert done.returncode == wanted, done.stderr
        assert ("ended well" in done.stdout) == (wanted == 0)
        assert "rank 0" in done.stdout


def test_words_that_shells_would_take_arrive(tmp_path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(repr(sys.argv[1:]))\n")
    words = ["--prompt", """I'm going to say "this is 6' tall" """, "$HOME", "a\nb"]
    code = "from bireme.deepspeed.runner import main; main()"
    argv = [sys.executable, "-c", code, "--accelerator", "cpu", "--num_gpus", "1", "train.py", *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=clean_environ())
    assert done.stdout == f"{['--local_rank=0', *words]!r}\n", done.stderr


def test_names() -> None:
    for name in runner.__all__:
        assert hasattr(runner, name), name
    assert runner.DLTS_HOSTFILE == "/job/hostfile"
    assert {"MLFLOW", "PYTHON", "MV2", "UCX", "NCCL"} <= set(runner.EXPORT_ENVS)
    assert set(runner.LAUNCHER_CLASSES) == {"pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm", "ssh"}
    assert all(issubclass(cls, MultiNodeRunner) for cls in runner.LAUNCHER_CLASSES.values())
    assert runner.LAUNCHER_CLASSES[PDSH_LAUNCHER] is runner.PDSHRunner


def test_accelerator(monkeypatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    accelerator = get_accelerator()
    assert (accelerator.device_name(), accelerator.device_name(0)) == ("cpu", "cpu:0")
    assert accelerator.device_count() > 0 and accelerator.is_available()
    assert accelerator.visible_devices_envs() == []
