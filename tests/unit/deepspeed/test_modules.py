"""``python -m bireme.deepspeed.runner`` and ``.launch``: DeepSpeed's modules as commands, with its arguments."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.deepspeed.launch import terminate_process_tree
from bireme.deepspeed.runner import encode_world_info, parse_args
from tests.conftest import clean_environ

SAY = "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:], 'at', os.environ['MASTER_ADDR'], flush=True)\n"


def module(name: str, *words: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a command; on the CPU, as these machines may have devices."""
    command = [sys.executable, "-m", f"bireme.deepspeed.{name}", *map(str, words)]
    environ = {**clean_environ(), **more}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "say.py").write_text(SAY)
    (tmp_path / "fail.py").write_text("raise SystemExit(7)\n")
    return tmp_path


def test_the_runner_runs_the_job(folder: Path) -> None:
    """The script does not mention ``--local_rank``, and gets it all the same; names may be cut short."""
    done = module("runner", "--accel", "cpu", "--num_g", "2", "--master_p", 29731, "say.py", "--lr", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank} ['--local_rank={rank}', '--lr', '1']" in done.stdout for rank in range(2)), done.stdout


def test_the_runner_ends_with_the_code_of_the_job(folder: Path) -> None:
    assert module("runner", "-q", "--accelerator", "cpu", "--num_gpus", "1", "fail.py", cwd=folder).returncode == 7


def test_launch_runs_the_ranks_of_its_node(folder: Path) -> None:
    world = encode_world_info({"a": [0], "b": [0, 1]})
    done = module("launch", f"--world={world}", "--node_r=1", "--accelerator=cpu", "say.py", "x", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank + 1} ['--local_rank={rank}', 'x']" in done.stdout for rank in range(2)), done.stdout


@pytest.mark.parametrize("name", ["runner", "launch"])
def test_without_local_rank(folder: Path, name: str) -> None:
    world = (f"--world_info={encode_world_info({'a': [0]})}",) if name == "launch" else ("--num_gpus", "1")
    done = module(name, *world, "--accelerator", "cpu", "--no_local_rank", "say.py", "x", cwd=folder)
    assert "rank 0 ['x']" in done.stdout, done.stderr


@pytest.mark.parametrize("words", [["--elastic_training"], ["--num_nodes", "1:2"], ["--launcher", "openmpi"]])
def test_where_deepspeed_passes_no_local_rank(words: list[str]) -> None:
    assert not parse_args([*words, "train.py"]).local_rank_arg
    assert parse_args(["--launcher", "pdsh", "train.py"]).local_rank_arg


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nope", "say.py"), "unknown option: --nope"),
        (("--num_gpus", "1"), "no script given"),
        (("-i", "localhost:0", "-e", "localhost:1", "say.py"), "--include"),
        (("--launcher", "slurm", "--hostfile", "hosts", "-i", "a:1", "say.py"), "slurm cannot choose specific"),
    ],
)
def test_bad_input(folder: Path, words: tuple[str, ...], message: str) -> None:
    (folder / "hosts").write_text("a slots=2\nb slots=2\n")
    done = module("runner", *words, cwd=folder)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("bireme: ") and message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("allocated", [False, True])
def test_a_missing_hostfile_means_this_machine(folder: Path, allocated: bool) -> None:
    """And nothing else: not an allocation either. Quiet or not, it is said."""
    (folder / "nodes").write_text("elsewhere\n")
    more = {"PBS_NODEFILE": str(folder / "nodes"), "PBS_JOBID": "1"} if allocated else {}
    words = ("-q", "--hostfile", "absent", "--master_addr", "10.255.255.1", "--accelerator", "cpu", "--num_gpus", "2")
    done = module("runner", *words, "say.py", cwd=folder, **more)
    assert done.returncode == 0, done.stderr
    assert "at 127.0.0.1" in done.stdout
    assert "no hostfile absent" in done.stderr and "THIS MACHINE ALONE" in done.stderr
    assert "rank 1 " in done.stdout
    assert "PBS" not in done.stderr


def test_a_missing_hostfile_does_not_hide_other_mistakes(folder: Path) -> None:
    done = module("runner", "--hostfile", "absent", "--num_nodes", "2", "say.py", cwd=folder)
    assert done.returncode == 2 and "rank" not in done.stdout


def test_a_tree_of_processes_ends(tmp_path: Path) -> None:
    """All of it has ended afterwards, the grandchild too, whether or not somebody has reaped that."""
    inner = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
    outer = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {inner!r}]); time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    grandchild = os.pidfd_open(int(process.stdout.readline()))
    terminate_process_tree(process.pid)
    assert process.wait() == -signal.SIGTERM
    assert select.select([grandchild], [], [], 0)[0], "the grandchild has not ended"
    os.close(grandchild)
    process.stdout.close()
    with pytest.raises(OSError):
        terminate_process_tree(process.pid)
