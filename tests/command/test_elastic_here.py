"""Elastic training on this machine: a job of one node, whose workers are restarted. See also ``tests/cluster``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.deepspeed.runner import encode_world_info
from bireme.runner import job_client
from tests.conftest import bireme, clean_environ, free_ports, read_lines, wait_for
from tests.kit import needs

# fails in its first attempts as often as its first argument says, as soon as it is told; then, with a second, waits
RANK = """
import os, sys, time
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "MASTER_PORT")
words = ("here", str(count), *(os.environ[name] for name in names))
os.write(1, " ".join(words).encode() + b"\\n")  # at once: under PyTorch's own agent the ranks share a pipe
if count < int(sys.argv[1]):
    while os.environ["RANK"] != "1" or not os.path.exists(f"fail{count}"):
        time.sleep(0.01)
    raise ValueError(f"no luck {count}")
if len(sys.argv) > 2:
    time.sleep(60)
"""


@pytest.fixture
def job(script):
    path = script(RANK)
    return lambda *words, fails=0: ["run", "--elastic_training", "--num_gpus", "2", *map(str, words), path, str(fails)]


def drain(*words: str) -> tuple[int, str]:
    done = subprocess.run(bireme("drain", *words), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_workers_are_started_again(job, tmp_path, stage):
    """On one machine, which needs no ssh; its pid file and its logs are those of the whole job."""
    options = ("--report", tmp_path / "report.json", "--save_pid", "--log_dir", "logs")
    process = stage.start(*job(*options, fails=2), cwd=tmp_path, env=clean_environ(PATH=str(tmp_path)))
    lines = []
    for count in range(3):
        lines += read_lines(process, 2, f"here {count}")
        if count < 2:  # the last ones end at once
            assert Path(f"/tmp/{process.pid}.deepspeed").read_text() == str(process.pid)
            (tmp_path / f"fail{count}").touch()
    stdout, stderr = (text.decode() for text in process.communicate(timeout=240))
    assert process.returncode == 0, stderr
    assert stdout == ""
    here = [line.partition("here ")[2].split() for line in lines]
    assert sorted(words[:4] for words in here) == [
        [str(count), str(rank), "2", "3"] for count in range(3) for rank in range(2)
    ]
    assert len({words[4] for words in here}) == 1
    assert re.findall(r"^bireme: (restart .*)$", stderr, re.MULTILINE) == ["restart 1 of 3", "restart 2 of 3"]
    assert "ValueError: no luck 0" in stderr and "ValueError: no luck 1" in stderr
    assert "bireme: 2 changes during the job:" in stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(set(report["logs"])) == 6 and sorted(report["logs"]) == sorted(map(str, (tmp_path / "logs").iterdir()))
    assert not Path(f"/tmp/{process.pid}.deepspeed").exists()
    history = report["history"]
    assert len(history) == 2 and all("rank 1" in line and "exit code 1" in line for line in history)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
def test_ended_while_it_waits(job, stage, tmp_path, signum):
    """The only node is drained: the job waits, and can be ended as ever."""
    process = stage.start(*job(), "wait", cwd=tmp_path)
    read_lines(process, 2, "here 0")
    assert drain("localhost", str(process.pid))[0] == 0
    err = process.stderr
    while b"waiting up to 600 s" not in (line := err.readline()):
        assert line
    for nonsense in (b"[" * 4000, b"[1]", b"\xff", b"{}"):  # harms nobody
        with job_client.connect(process.pid) as guest:
            guest.setblocking(True)
            guest.send(nonsense)
            guest.recv(4096)
    assert drain("localhost", str(process.pid)) == (2, "bireme: localhost is already drained\n")
    process.send_signal(signum)
    assert process.wait(60) == (130 if signum == signal.SIGINT else -9)
    assert stage.left(within=30) == {}


@pytest.mark.slow
def test_a_node_is_drained_on_a_screen(job, stage, terminal, tmp_path):
    process = stage.start(*job(), "wait", cwd=tmp_path)
    read_lines(process, 2, "here 0")
    screen = terminal("top", str(process.pid), env=clean_environ(TERM="xterm"), columns=100)
    screen.expect("2 ranks on 1 node")
    screen.type(b"d")
    screen.expect("the others go on? y/n")
    screen.type(b"y")
    while b"waiting up to 600 s" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda signum: signum.name)
def test_ended_while_an_epoch_is_being_stopped(script, stage, tmp_path, signum):
    """There is no other epoch then."""
    process = stage.start(
        "run", "--elastic_training", "--num_gpus", "2", "--grace", "8", script(STUBBORN), cwd=tmp_path
    )
    read_lines(process, 2, "here")
    assert drain("localhost", str(process.pid))[0] == 0
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    assert b"waiting" not in err and b"epoch 2" not in err
    assert stage.left() == {}


@pytest.mark.slow
def test_epochs_leave_nothing_in_the_command(job, stage, tmp_path):
    """Neither descriptors nor zombies."""
    process = stage.start(*job("--max_restarts", "4", fails=2), "wait", cwd=tmp_path)

    def holds() -> tuple[int, int]:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return len(os.listdir(f"/proc/{process.pid}/fd")), len(children)

    def is_as_before() -> bool:
        return all(now <= before for now, before in zip(holds(), first, strict=True))

    read_lines(process, 2, "here 0")
    first = holds()
    for count in (1, 2):
        (tmp_path / f"fail{count - 1}").touch()
        read_lines(process, 2, f"here {count}")
        wait_for(is_as_before, f"at most {first} in epoch {count}", 20)  # it may be reading a file just now
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143


@needs.modules("torch")
@pytest.mark.torch
@pytest.mark.slow
def test_one_node_by_hand(stage, tmp_path, script):
    """DeepSpeed's per-node launcher: PyTorch's own agent, with our guardian above it."""
    world = encode_world_info({"here": [0, 1]})
    bounds = ("--enable_elastic_training", "--min_elastic_nodes", "1", "--max_elastic_nodes", "1")
    where = ("--master_port", str(free_ports()), "--accelerator", "cpu")
    command = [sys.executable, "-m", "bireme.agent", "--world_info", world, *bounds, *where]

    for count in range(2):
        (tmp_path / f"fail{count}").touch()
    whole = [*command, "--max_restarts", "1", str(script(RANK)), "9"]
    done = subprocess.run(whole, capture_output=True, text=True, cwd=tmp_path, env=clean_environ(), timeout=140)
    assert done.returncode == 1
    here = sorted(line.split()[1:5] for line in done.stdout.splitlines() if "here" in line)
    assert here == [[count, rank, "2", "1"] for count in "01" for rank in "01"]
    assert len(re.findall(r"^ValueError: no luck [01]", done.stderr, re.MULTILINE)) == 2, done.stderr
    assert "failed first: exit code 1" in done.stderr and "Bireme itself failed" not in done.stderr
    assert stage.left() == {}


# What srun says: first of a node that is gone for a while, then of an allocation that is over.
SRUN = """#!/bin/sh
if mkdir asked; then echo "srun: error: Unable to create step for job 7: Requested nodes are busy" >&2
else echo "srun: error: Slurm job 7 has expired" >&2
fi
exit 1
"""


def test_the_allocation_ends_while_its_nodes_are_sought(job, stage, tmp_path):
    """There is nothing to wait for any more."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_ID="7")
    words = ("--launcher", "slurm", "--hosts", "node1:2", "--elastic_timeout", "30")
    done = stage.run(*job(*words), cwd=tmp_path, env=environ, code=75)
    assert "the allocation is gone: " in done.stderr and "Slurm job 7 has expired" in done.stderr


def bare_interpreter(folder: Path) -> Path:
    """A Python that has nothing but the standard library; return what ``--venv_script`` is given."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    return folder / "venv/bin/activate"


def test_without_torch(job, stage, tmp_path):
    """No PyTorch is needed, neither by the command nor by the nodes."""
    (tmp_path / "fail0").touch()
    done = stage.run(*job("--venv_script", bare_interpreter(tmp_path), fails=1), cwd=tmp_path, code=0)
    assert done.stdout.count("here 1") == 2


def test_by_hand_without_torch_nothing_is_started(job, stage, tmp_path):
    words = ("--no_ssh", "--node_rank", "0", "--hosts", "localhost:2", "--venv_script", bare_interpreter(tmp_path))
    done = stage.run(*job(*words), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "requires PyTorch, which " in done.stderr and "venv/bin/python does not have" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--min_elastic_nodes", "2"), "--min_elastic_nodes only works with --elastic_training"),
        (("--max_elastic_nodes", "2"), "add --elastic_training"),
        (
            ("--elastic_training", "--min_elastic_nodes", "3", "--max_elastic_nodes", "2"),
            "not a range of nodes: 3 to 2",
        ),
        (("--elastic_training", "--min_elastic_nodes", "0"), "--min_elastic_nodes: must be at least 1, not 0"),
        (("--num_nodes", "3:2"), "--num_nodes: not a range of nodes: 3 to 2"),
        (("--num_nodes", "2:"), "--num_nodes: '' is not a whole number"),
        (("--num_nodes", "1:2", "--min_elastic_nodes", "1"), "MIN:MAX cannot be used with"),
        (("--elastic_training", "--native_ranks"), "--elastic_training cannot be used with --native_ranks"),
        (("--elastic_training", "--autotuning", "tune"), "--autotuning cannot be used with --elastic_training"),
        (
            ("--elastic_training", "--restart_window", "0"),
            "--restart_window: 0 would let a failing job restart forever",
        ),
        (("--elastic_training", "--max_restarts", "-1"), "--max_restarts: must be at least 0, not -1"),
        (("--elastic_training", "--launcher", "pdsh", "--hosts", "a,b"), "--launcher ssh or slurm"),
        (
            ("--elastic_training", "--hosts", "a,b", "--min_elastic_nodes", "3"),
            "3 nodes are required, but only 2 given",
        ),
    ],
)
def test_bad_input(stage, tmp_path, words, message):
    done = stage.run("run", *words, __file__, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) <= 2, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected a node and a job"),
        (("node1",), "expected a node and a job"),
        (("node1", "x"), "JOB: 'x' is not a whole number"),
        (("node1", "1"), "with pid 1 runs on this machine"),
        (("--down", "node1", "1"), "unknown option: --down"),
    ],
)
def test_bad_requests(words, message):
    code, text = drain(*words)
    assert code == 2 and message in text


@pytest.mark.parametrize("words", [("--elastic_training",), ("--num_nodes", "1:4")])
def test_a_dry_run(stage, tmp_path, words):
    done = stage.run("run", "--dry_run", "--num_gpus", "2", "--master_addr", "10.9.9.9", *words, __file__, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "10.9.9.9" not in done.stdout, "it counts only where it is the first node's"
    assert "TORCHELASTIC_RESTART_COUNT=0" in done.stdout


def test_a_dry_run_shows_no_spares(stage, tmp_path):
    words = ("--elastic_training", "--hosts", "n[1-3]:2", "--max_elastic_nodes", "2", __file__)
    done = stage.run("run", "--dry_run", *words, cwd=tmp_path, code=0)
    assert " n2 " in done.stdout and " n3 " not in done.stdout
    assert "TORCHELASTIC_RUN_ID='<made at the start>'" in done.stdout
