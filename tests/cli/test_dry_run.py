"""``--dry_run``: the plan in full, for eyes and for machines; secrets hidden; nothing started, nothing written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from bireme.cli.dry_run import MASK, is_secret, masked_words
from tests.conftest import clean_environ


@pytest.fixture
def witness(tmp_path):
    """A script that leaves a file behind if it is ever run."""
    path = tmp_path / "train.py"
    path.write_text(f"# --local_rank\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    return path


def plan(stage, *words, **kwargs):
    done = stage.run("run", "--dry_run", "--json", *words, **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_text(stage, witness, tmp_path):
    done = stage.run("run", "--dry_run", "--num_gpus", "2", "--master_addr", "::1", witness, "a b", cwd=tmp_path)
    assert done.returncode == 0
    text = done.stdout
    assert text.startswith("2 ranks on 1 node (cpu), meeting at ::1:")
    assert f"in {tmp_path}" in text
    for rank in (0, 1):
        assert f"rank {rank}: slot {rank}" in text
        assert f"RANK={rank}\n" in text
        assert f"$ {sys.executable} -u {witness} --local_rank={rank} 'a b'" in text
    assert "WORLD_SIZE=2" in text
    assert not (tmp_path / "ran").exists()


def test_json(stage, witness, tmp_path):
    found = plan(stage, "--num_gpus", "2", witness, "a b", "", cwd=tmp_path)
    assert (found["world_size"], found["accelerator"], found["master_addr"]) == (2, "cpu", "127.0.0.1")
    (node,) = found["nodes"]
    assert (node["cwd"], node["node_rank"]) == (str(tmp_path), 0)
    assert node["env"]["WORLD_SIZE"] == "2"
    assert node["env"]["MASTER_PORT"] == str(found["master_port"])
    for rank, worker in enumerate(node["workers"]):
        assert (worker["rank"], worker["local_rank"], worker["slot"]) == (rank, rank, str(rank))
        assert worker["argv"] == [sys.executable, "-u", str(witness), f"--local_rank={rank}", "a b", ""]
        assert worker["env"]["RANK"] == str(rank)
    assert not (tmp_path / "ran").exists()


def test_what_is_printed_is_what_a_rank_gets(stage, script, tmp_path):
    """The environment and the command of the plan are those of the run, but for the names that are new each time."""
    program = script("import json, os, sys\njson.dump([dict(os.environ), sys.orig_argv], open(sys.argv[1], 'w'))\n")
    words = ["--num_gpus", "1", "--output", "raw", program, tmp_path / "seen"]
    planned = plan(stage, *words)
    stage.run("run", *words)
    environ, argv = json.loads((tmp_path / "seen").read_text())
    (node,) = planned["nodes"]
    (worker,) = node["workers"]
    assert argv == worker["argv"]
    for name, value in {**node["env"], **worker["env"]}.items():
        assert environ[name] == value or name in ("BIREME_JOB", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"), name


def test_the_command_can_be_pasted_into_a_shell(stage, witness):
    hard = ["a b", "'", '"', "$HOME", "*", "a\nb", ""]
    done = stage.run("run", "--dry_run", witness, *hard)
    command = done.stdout[done.stdout.rindex("$ ") + 2 :]
    assert shlex.split(command)[4:] == hard


def test_wrapped_ranks_and_cores(stage, witness):
    found = plan(stage, "--num_gpus", "2", "--wrap", "nsys -o r{rank}", "--wrap_ranks", "1", witness)
    first, second = (worker["argv"] for worker in found["nodes"][0]["workers"])
    assert second[:3] == ["nsys", "-o", "r1"]
    assert first[0] == sys.executable
    core = min(os.sched_getaffinity(0))
    found = plan(stage, "--num_gpus", "1", "--bind_core_list", core, witness)
    assert found["nodes"][0]["workers"][0]["cores"] == [core]


def test_arguments_that_are_not_utf8(stage, witness):
    for words in (["--dry_run"], ["--dry_run", "--json"]):
        process = stage.start("run", *words, witness, os.fsdecode(b"\xff"), env=clean_environ(PYTHONIOENCODING="utf-8"))
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


def test_nothing_is_written(stage, witness, tmp_path):
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    stage.run(
        "run", "--dry_run", "--save_pid", "--enable_each_rank_log", tmp_path / "logs", witness,
        env=clean_environ(TMPDIR=str(tmp)),
    )  # fmt: skip
    assert not list(tmp.iterdir())
    assert not (tmp_path / "logs").exists()


# -- secrets -------------------------------------------------------------------------------------

SECRET_WORDS = [
    ["--api_key", "hunter2"],
    ["--api-key=hunter2"],
    ["--wandb_token", "hunter2"],
    ["--password=hunter2"],
    ["--hf-token", "hunter2"],
    ["AWS_SECRET_ACCESS_KEY=hunter2"],
]


@pytest.mark.parametrize("words", SECRET_WORDS, ids=lambda words: words[0])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_secrets_are_masked(stage, witness, words, form):
    done = stage.run("run", "--dry_run", *form, witness, *words, "--lr", "0.1")
    assert "hunter2" not in done.stdout + done.stderr
    assert MASK in done.stdout
    assert "0.1" in done.stdout


def test_inherited_secrets_are_not_shown(stage, witness):
    done = stage.run("run", "--dry_run", witness, env=clean_environ(HF_TOKEN="hunter2", PLAIN="hunter2"))
    assert "hunter2" not in done.stdout


@pytest.mark.parametrize("name", ["HF_TOKEN", "--auth-token", "OPENAI_API_KEY", "DB_PASSWORD", "client_secret"])
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["--max_tokens", "TOKENIZERS_PARALLELISM", "--lr", "--keyframes", "--num_tokens=3"])
def test_names_of_no_secrets(name):
    assert not is_secret(name)


def test_masking_leaves_all_else_alone():
    words = ["python", "-u", "s.py", "--lr", "1", "", "a b", "--flag", "x=y"]
    assert masked_words(words) == words
    assert re.fullmatch(r"\*+", MASK)


# -- many nodes --------------------------------------------------------------------------------------


def hostfile(folder, *slots):
    path = folder / "hostfile"
    path.write_text("".join(f"node{number} slots={count}\n" for number, count in enumerate(slots)))
    return path


def test_of_many_nodes_the_first_and_the_last_are_printed_in_full(stage, witness, tmp_path):
    path = hostfile(tmp_path, *[2] * 50, *[1] * 49, 2)
    done = stage.run("run", "--dry_run", "--hostfile", path, "--wrap", "env TOKEN=x", witness)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].startswith("151 ranks on 100 nodes")
    nodes = [int(line.split()[1].rstrip(":")) for line in lines if line.startswith("node ")]
    assert nodes == [0, 1, 2, 3, 98, 99]
    assert [int(line.split()[1].rstrip(":")) for line in lines if line.startswith("  rank ")] == [
        *range(8),
        148,
        149,
        150,
    ]
    assert [line.split()[11] for line in lines if line.startswith("  $ ssh")] == [f"node{number}" for number in nodes]
    assert lines.count("  … 94 more commands (--json prints all)") == 1
    left_out = "… nodes 4 to 97: 48 with 1 rank, 46 with 2 ranks; ranks 8 to 147 (--json prints all)"
    assert lines.count(left_out) == 1
    assert lines.count("    RANK=150") == 1


def test_few_nodes_are_all_printed(stage, witness, tmp_path):
    done = stage.run("run", "--dry_run", "--hostfile", hostfile(tmp_path, *[1] * 32), witness)
    assert done.stdout.count("\nnode ") == done.stdout.count("  $ ssh ") == 32
    assert "…" not in done.stdout


def test_json_has_all_nodes_and_is_as_python_prints_it(stage, witness, tmp_path):
    for words in (["--hostfile", hostfile(tmp_path, *[2] * 40)], ["--num_gpus", "1"]):
        done = stage.run("run", "--dry_run", "--json", *words, "--wrap", "x --api_key hunter2", witness)
        found = json.loads(done.stdout)
        assert done.stdout == json.dumps(found, indent=2) + "\n"
        assert [node["node_rank"] for node in found["nodes"]] == list(range(len(found["nodes"])))
        assert [worker["rank"] for node in found["nodes"] for worker in node["workers"]] == list(
            range(found["world_size"])
        )
        assert len(found["launch"]) == (40 if len(found["nodes"]) > 1 else 0)
        assert "hunter2" not in done.stdout and MASK in done.stdout


def test_what_the_interface_plans_is_what_is_printed(stage, witness, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import bireme
    from bireme.job import JobSpec, Program

    path = hostfile(tmp_path, *[2] * 40)
    whole = bireme.plan(JobSpec(Program(str(witness)), hostfile=str(path)))
    printed = plan(stage, "--hostfile", path, witness, cwd=tmp_path)
    assert whole.as_dict() == {name: value for name, value in printed.items() if name != "launch"}


@pytest.mark.slow
def test_a_hundred_thousand_nodes_take_little_memory(stage, witness, tmp_path):
    for form, slots in ([], 8), (["--json"], 1):
        path = hostfile(tmp_path, *[slots] * 100_000)
        process = stage.start("run", "--dry_run", *form, "--hostfile", path, witness, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert usage.ru_maxrss < 300 * 1000
