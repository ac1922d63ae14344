"""``--dry_run``: the plan as text and as JSON; secrets are masked, nothing is started, nothing is written."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys

import pytest

from bireme import JobSpec, Program
from bireme.errors import BadInputError
from bireme.launching.placement import preview
from bireme.planning.masking import MASK, is_secret, masked_environment, masked_words
from tests.conftest import bireme, clean_environ

NEW_EACH_TIME = ("BIREME_JOB", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def witness(tmp_path):
    """A script that leaves a file behind if it is ever run."""
    path = tmp_path / "train.py"
    path.write_text(f"takes = '--local_rank'\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
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
        assert f"$ {shlex.quote(sys.executable)} -u {witness} --local_rank={rank} 'a b'" in text
    assert "WORLD_SIZE=2" in text
    assert not (tmp_path / "ran").exists()


def test_slots_of_this_machine_may_be_declared(stage, witness):
    assert plan(stage, "--hosts", "localhost:3", witness)["world_size"] == 3


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
        assert environ[name] == value or name in NEW_EACH_TIME, name


def test_by_hand_it_is_the_part_of_this_node(stage, witness):
    """With ``--no_ssh`` the plan is what this command would start, and it refuses what that would refuse."""
    words = ("--hosts", "a:1,b:2", "--no_ssh", "--node_rank")
    found = plan(stage, *words, "1", witness)
    assert [(node["node_rank"], len(node["workers"])) for node in found["nodes"]] == [(1, 2)]
    assert (found["world_size"], found["master_addr"], found["launch"]) == (3, "a", [])
    done = stage.run("run", "--dry_run", *words, "2", witness)
    assert (done.returncode, done.stdout) == (2, "") and "--node_rank: no such node: 2" in done.stderr


def first_words(witness, **fields):
    """The program of each node's first rank."""
    sketch, _ = preview(JobSpec(Program(str(witness)), **fields), clean_environ())
    return [node.workers[0].argv[0] for node in sketch.whole().nodes]


def test_python_of_each_node(witness, tmp_path):
    """What a node would run, as far as it is known here."""
    nodes = {"hosts": "a:1,b:1"}
    assert first_words(witness, **nodes) == [sys.executable] * 2
    assert first_words(witness, **nodes, python="/{host}/python") == ["/a/python", "/b/python"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert first_words(witness, **nodes, python=str(tmp_path)) == [f"{tmp_path}/bin/python"] * 2
    for unknown in ({"launcher": "docker"}, {"venv_script": "/activate"}):
        assert first_words(witness, **nodes, **unknown) == ["<the node says>"] * 2
    by_hand = {"by_hand": True, "node_rank": 1}
    (tmp_path / "b").symlink_to(tmp_path)
    assert first_words(witness, **nodes, **by_hand, python=f"{tmp_path}/{{host}}") == [f"{tmp_path}/b/bin/python"]


def test_python_that_cannot_differ(witness):
    """Where one command is for all nodes, it cannot have another path on each."""
    common = {"hosts": "a:1,b:1", "launcher": "openmpi"}
    for more in ({"native_ranks": True, "python": "/{host}/python"}, {"node_python": "/{host}/python"}):
        with pytest.raises(BadInputError, match=r"^--(node_)?python: .*{host} is not replaced"):
            first_words(witness, **common, **more)


def test_the_command_can_be_pasted_into_a_shell(stage, witness):
    hard = ["a b", "'", '"', "$HOME", "*", "a\nb", ""]
    done = stage.run("run", "--dry_run", witness, *hard)
    command = done.stdout[done.stdout.rindex("$ ") + 2 :]
    assert shlex.split(command)[4:] == hard


def test_wrapped_ranks_and_cores(stage, witness):
    found = plan(stage, "--num_gpus", "2", "--wrap", "env -o r{rank}", "--wrap_ranks", "1", witness)
    first, second = (worker["argv"] for worker in found["nodes"][0]["workers"])
    assert second[:3] == ["env", "-o", "r1"]
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

SECRET_OPTIONS = (
    *("--api_key", "--api-key", "--wandb_token", "--password", "--hf-token", "-p", "--key", "--pw", "--auth"),
    *("--bearer", "--mypass", "--HFTOKEN", "--client_secret", "--ssh_key", "--db-pwd", "--authToken", "--basic.auth"),
    "--api_keys",
)
SECRET_WORDS = [
    *([option, "hunter2"] for option in SECRET_OPTIONS),
    *([f"{option}=hunter2"] for option in SECRET_OPTIONS),
    ["AWS_SECRET_ACCESS_KEY=hunter2"],
    ["--set=model.api_key=hunter2"],
    ["--use_auth_token", "--password", "hunter2"],
    ["--api_keys", "hunter1", "hunter2"],
    ["bash -c 'TOKEN=hunter2 true'"],
    ["https://user:hunter2@host/path"],
    ["--db=postgres://user:a@hunter2@host:5432/db"],
    ["git+https://hunter2@host/repository"],
    ["redis://:12/hunter2@host"],
    ["https://host/?token=hunter2&page=1"],
    ["https://host/path?sig=hunter2"],
    ["--jwt", "hunter2"],
    ["--config", '{"lr": 1, "api_key": "hunter2"}'],
    ["--header", "Authorization: Bearer hunter2"],
    ["--set", "password:hunter2"],
]


@pytest.mark.parametrize("words", SECRET_WORDS, ids=" ".join)
def test_secrets_are_masked(words):
    shown = " ".join(masked_words(["train.py", *words, "--lr", "0.1"]))
    assert "hunter2" not in shown
    assert MASK in shown and shown.startswith("train.py ") and shown.endswith(" --lr 0.1")


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_secrets_are_not_printed(stage, witness, form):
    words = ["--key", "hunter2", "-p", "hunter2", "--pass=hunter2", "https://user:hunter2@host", "--lr", "0.1"]
    done = stage.run("run", "--dry_run", *form, witness, *words)
    assert "hunter2" not in done.stdout + done.stderr
    assert done.stdout.count(MASK) == 4
    assert "0.1" in done.stdout


def test_secrets_of_the_engines_command(stage, witness, tmp_path):
    """Values that travel never stand there; what the user gives to the engine does, and the script's arguments."""
    engine = tmp_path / "mpirun"
    engine.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.0'\n")
    engine.chmod(0o755)
    given = ("--launcher", "openmpi", "--launcher_args", "-x TOKEN=hunter2 --mca plm_rsh_args '-p 2222'")
    words = ("--native_ranks", "--hosts", "a:1,b:1", "--export", "PLAIN=hunter2")
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = stage.run("run", "--dry_run", *given, *words, witness, "--key", "hunter2", env=environ)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout
    by_agents = stage.run("run", "--dry_run", *given, "--hosts", "a:1,b:1", witness, env=environ)
    assert " --dial '<our addresses>' " in by_agents.stdout
    assert "TOKEN=" in done.stdout and "-p 2222" in done.stdout and "PLAIN" in done.stdout
    assert masked_words(["ssh", "-p", "2222", "host"], of_script=False) == ["ssh", "-p", "2222", "host"]
    assert masked_words(["srun", "--export=ALL,WORD=hunter2"]) == ["srun", f"--export=ALL,WORD={MASK}"]
    assert masked_words(["mpiexec", "-genv", "HF_TOKEN", "hunter2", "x"])[3:] == [MASK, "x"]


def test_inherited_secrets_are_not_shown(stage, witness):
    done = stage.run("run", "--dry_run", witness, env=clean_environ(HF_TOKEN="hunter2", PLAIN="hunter2"))
    assert "hunter2" not in done.stdout


def test_variables_by_the_same_rules():
    env = {"HF_TOKEN": "x", "DB_PASS": "x", "MYSQL_PWD": "x", "API_KEY_2": "x", "URL": "https://u:x@h", "PWD": "/w"}
    shown = dict.fromkeys(env, MASK) | {"URL": f"https://u:{MASK}@h", "PWD": "/w"}
    assert masked_environment(env) == shown


@pytest.mark.parametrize("name", ["HF_TOKEN", "--auth-token", "OPENAI_API_KEY", "DB_PASSWORD", "client_secret"])
def test_names_of_secrets(name):
    assert is_secret(name)


NO_SECRETS = (
    *("--max_tokens", "TOKENIZERS_PARALLELISM", "--lr", "--keyframes", "--num_tokens=3", "--tokens_per_batch"),
    *("--key_dim", "--num_keys", "--num_passes", "--pass_through", "--author", "--pattern", "SSH_AUTH_SOCK", "OLDPWD"),
)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_names_of_no_secrets(name):
    assert not is_secret(name)


def test_masking_leaves_all_else_alone():
    words = ["python", "-u", "s.py", "--lr", "1", "", "a b", "--flag", "x=y", "--num_keys", "3", "--port", "2222"]
    words += ["https://host:8080/a@b", "ssh://git@host/repository", "https://host/?user=a@b", "a@b:c://d", "=", "=="]
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
        done = stage.run("run", "--dry_run", "--json", *words, "--wrap", "env --api_key hunter2", witness)
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


PEAK = """
import os, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Prints the peak memory of a command, in KiB. The kernel counts what a process was before ``exec``: this is small."""


@pytest.mark.slow
def test_thousands_of_nodes_take_little_memory(stage, witness, tmp_path):
    for form, slots in ([], 8), (["--json"], 1):
        path = hostfile(tmp_path, *[slots] * 8000)
        command = bireme("run", "--dry_run", *form, "--hostfile", path, witness)
        done = stage.run_argv([sys.executable, "-c", PEAK, *command])
        assert done.returncode == 0, done.stderr
        assert 10 * 1000 < int(done.stdout) < 45 * 1000
