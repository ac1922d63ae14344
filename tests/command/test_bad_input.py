"""Bad input: one or two lines on stderr that say what is wrong, exit code 2, and nothing is started."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys

import pytest

from bireme.planning.world import encode_world_info
from tests.conftest import bireme, clean_environ


@pytest.fixture
def witness(tmp_path):
    """A script that leaves a file behind if it is ever run, and a wrapper that does."""
    path = tmp_path / "train.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    return path


def refused(done, *says, tmp_path, lines=2):
    """Check that a command was refused as it should be."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert 1 <= len(done.stderr.splitlines()) <= lines, done.stderr
    assert done.stderr.startswith("bireme: ")
    assert "Traceback" not in done.stderr
    for text in says:
        assert text in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


OPTIONS = {
    "unknown slot": (["-i", "localhost:77"], ["--include", "77"]),
    "unknown slot left out": (["-e", "localhost:gpu"], ["--exclude", "gpu"]),
    "unknown host": (["-i", "elsewhere"], ["--include", "elsewhere"]),
    "malformed filter": (["-i", "localhost:"], ["--include", "localhost:"]),
    "nothing left": (["-e", "localhost"], ["--exclude", "no slot"]),
    "slots without a node": (["-i", "0,1"], ["--include", "put the node in front: --include localhost:0,1"]),
    "long number": (["--num_gpus", "9" * 5000], ["--num_gpus: 999999999999… (5000 digits) is too large"]),
    "too many ranks": (["--num_gpus", "1000000"], ["--num_gpus"]),
    "no such venv script": (["--venv_script", "/no/such/file"], ["--venv_script", "/no/such/file"]),
    "venv script is a directory": (["--venv_script", "/"], ["--venv_script"]),
    "accelerator that is not there": (["--accelerator", "npu"], ["--accelerator"]),
    "unknown accelerator": (["--accelerator", "abacus"], ["--accelerator", "abacus"]),
    "port out of range": (["--master_port", "65536"], ["--master_port", "65535"]),
    "rank that there is not": (["--wrap", "env", "--wrap_ranks", "0,1"], ["--wrap_ranks", "no such rank: 1"]),
    "core that there is not": (["--bind_core_list", "123456"], ["--bind_core_list", "123456"]),
    "more ranks than cores": (["--num_gpus", "4000", "--bind_cores_to_rank"], ["--bind_cores_to_rank"]),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_option(stage, witness, tmp_path, case):
    options, says = OPTIONS[case]
    refused(stage.run("run", *options, witness), *says, tmp_path=tmp_path)


def test_script_in_the_place_of_a_number(stage, witness, tmp_path):
    refused(stage.run("run", "--num_gpus", "hello.py"), "missing: --num_gpus N hello.py", tmp_path=tmp_path)
    refused(stage.run("run", "--num_gpus", witness), f"missing: --num_gpus N {witness}", tmp_path=tmp_path)


def test_no_such_script(stage, tmp_path):
    refused(stage.run("run", tmp_path / "absent.py"), "absent.py", tmp_path=tmp_path)


PROGRAMS = {
    "shell script": (
        "train.sh",
        "#!/bin/bash\necho\n",
        ["train.sh"],
        ["script for /bin/bash", "--no_python /bin/bash train.sh"],
    ),
    "shell script without #!": ("train.sh", "echo\n", ["train.sh"], ["a shell script", "--no_python bash train.sh"]),
    "script of no known kind": ("tool", "echo a\n", ["tool"], ["not a Python script: line 1", "chmod +x tool"]),
    "notebook": ("a.ipynb", "{}", ["a.ipynb"], ["notebook", "jupyter nbconvert --to script a.ipynb"]),
    "binary": ("solver", "\x7fELF", ["solver"], ["a binary", "chmod +x solver"]),
    "file as module": ("train.py", "", ["-m", "train.py"], ["not of a file", "leave out -m"]),
    "carriage return": (
        "tool",
        "#!/bin/sh\r\n",
        ["--no_python", "./tool"],
        ["carriage return", "sed -i 's/\\r$//' ./tool"],
    ),
    "no such interpreter": ("tool", "#!/no/such/sh\n", ["--no_python", "./tool"], ["./tool:1", "/no/such/sh"]),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_what_cannot_be_run(stage, tmp_path, case):
    name, text, words, says = PROGRAMS[case]
    (tmp_path / name).write_text(text, newline="")
    refused(stage.run("run", *words, cwd=tmp_path), *says, tmp_path=tmp_path)


def test_a_script_that_has_another_name(stage, witness, tmp_path):
    (tmp_path / "simulate.sh").touch()
    refused(stage.run("run", "./simulat.sh", cwd=tmp_path), "did you mean ./simulate.sh?", tmp_path=tmp_path)
    refused(stage.run("run", "nothing", cwd=tmp_path), "no such file: nothing", "name a file", tmp_path=tmp_path)
    refused(stage.run("run", "train", cwd=tmp_path), "no such file: train", "mean train.py?", tmp_path=tmp_path)
    refused(stage.run("run", "env", cwd=tmp_path), "no such file: env", "--no_python env", tmp_path=tmp_path)
    python = stage.run("run", "python3", "train.py", cwd=tmp_path)
    refused(python, "no such file: python3", "leave out python3", tmp_path=tmp_path)


def test_a_directory(stage, tmp_path):
    refused(stage.run("run", tmp_path), "directory", tmp_path=tmp_path)
    refused(stage.run("run", "--no_python", tmp_path), "directory", tmp_path=tmp_path)


def test_no_such_module(stage, tmp_path):
    refused(stage.run("run", "-m", "there_is_none.such"), "there_is_none", tmp_path=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(stage, witness, tmp_path):
    witness.chmod(0)
    refused(stage.run("run", witness), "cannot read", tmp_path=tmp_path)
    other = tmp_path / "other.py"
    other.write_text("")
    refused(stage.run("run", "--venv_script", witness, other), "cannot read", tmp_path=tmp_path)


def test_log_directory_is_a_file(stage, witness, tmp_path):
    (tmp_path / "logs").write_text("")
    for path in (tmp_path / "logs", tmp_path / "logs" / "below"):
        done = stage.run("run", "--enable_each_rank_log", path, witness)
        refused(done, "--enable_each_rank_log", "logs", tmp_path=tmp_path)


def test_venv_script_that_fails(stage, witness, tmp_path):
    source = tmp_path / "activate"
    source.write_text("echo 'no such module: cuda/99' >&2\nfalse\n")
    done = stage.run("run", "--venv_script", source, witness)
    refused(done, "--venv_script", "no such module: cuda/99", tmp_path=tmp_path)


def test_named_port_that_is_taken(stage, witness, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(stage.run("run", "--master_port", port, witness), port, "taken", tmp_path=tmp_path)


def test_nothing_is_left_in_the_temporary_directory(stage, witness, tmp_path):
    place = tmp_path / "tmp"
    place.mkdir()
    env = clean_environ(TMPDIR=str(place))
    refused(
        stage.run("run", "--wrap", "env", "--wrap_ranks", "9", witness, env=env), "no such rank: 9", tmp_path=tmp_path
    )
    assert list(place.iterdir()) == []


WORLD = encode_world_info({"a": [0], "b": [1, 3]})
BY_HAND = {
    "world missing": ([], ["--world_info"]),
    "not base64": (["--world_info=%%%"], ["--world_info"]),
    "not json": (["--world_info=AAAA"], ["--world_info"]),
    "not a world": (["--world_info=WzFd"], ["--world_info"]),
    "no slots": ([f"--world_info={encode_world_info({'a': []})}"], ["--world_info", "a"]),
    "no such node": ([f"--world_info={WORLD}", "--node_rank=2"], ["--node_rank", "0 to 1"]),
    "node below zero": ([f"--world_info={WORLD}", "--node_rank=-1"], ["--node_rank"]),
    "no filter here": ([f"--world_info={WORLD}", "--include=a"], ["--include"]),
    "wrapped rank": ([f"--world_info={WORLD}", "--wrap=env", "--wrap_ranks=3"], ["--wrap_ranks", "0 to 2"]),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(stage, witness, tmp_path, case):
    options, says = BY_HAND[case]
    command = [*bireme()[:2], "bireme.agent", *options, witness]
    refused(subprocess.run(command, capture_output=True, text=True, env=clean_environ()), *says, tmp_path=tmp_path)


def in_a_folder_that_is_gone(tmp_path, *words, command=()):
    argv = (*command, *words) if command else bireme(*words)
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {shlex.join(map(str, argv))}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=clean_environ(), cwd=tmp_path)


@pytest.mark.parametrize("options", [(), ("--export", "A=1"), ("--dry_run", "--export", "A=1")])
def test_the_working_directory_is_gone(witness, tmp_path, options):
    done = in_a_folder_that_is_gone(tmp_path, "run", *options, witness)
    refused(done, "the working directory no longer exists", tmp_path=tmp_path)


@pytest.mark.parametrize("folder", ["none", "."])
def test_the_other_directory_is_missing_and_so_is_this_one(witness, tmp_path, folder):
    done = in_a_folder_that_is_gone(tmp_path, "run", "--cwd", folder, witness)
    refused(done, f"--cwd: {folder}: No such file or directory", tmp_path=tmp_path)


def test_another_directory_in_place_of_one_that_is_gone(tmp_path):
    done = in_a_folder_that_is_gone(tmp_path, "run", "--cwd", str(tmp_path), "--no_python", "pwd")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path)), done.stderr


@pytest.mark.parametrize("command", [(), (os.path.join(os.path.dirname(sys.executable), "bireme"),)])
def test_a_machine_is_examined_without_a_working_directory(tmp_path, command):
    done = in_a_folder_that_is_gone(tmp_path, "check", "--accelerator", "cpu", command=command)
    assert done.returncode == 0 and " cores" in done.stdout, done.stderr


def test_usage_without_a_command(stage):
    for words in ([], ["luanch"]):
        done = stage.run(*words)
        assert done.returncode == 2
        assert "usage: bireme" in done.stderr
        assert done.stdout == ""
    assert "bireme run train.py" in stage.run("train.py").stderr
