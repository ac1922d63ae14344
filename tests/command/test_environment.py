"""The environment of a rank: the inherited variables byte for byte, ours on top, and nothing else."""

from __future__ import annotations

import os
import re

from tests.command.conftest import LOOK
from tests.conftest import clean_environ
from tests.kit import needs

OURS = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "BIREME_JOB", "BIREME_STEPS",
}  # fmt: skip


def theirs(env):
    """The environment as ``/proc`` shows it, in Latin-1."""
    return {os.fsencode(k).decode("latin-1"): os.fsencode(v).decode("latin-1") for k, v in env.items()}


def test_table_of_each_rank(look):
    ranks = look(ranks=3)
    for rank, found in enumerate(ranks):
        env = found["environ"]
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == env["LOCAL_SIZE"] == "3"
        assert env["NODE_RANK"] == env["GROUP_RANK"] == env["CROSS_RANK"] == "0"
        assert env["GROUP_WORLD_SIZE"] == env["CROSS_SIZE"] == "1"
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["MASTER_PORT"] == ranks[0]["environ"]["MASTER_PORT"]
        assert 1 <= int(env["MASTER_PORT"]) <= 65535
        assert env["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))
        assert re.fullmatch(r"[0-9a-f]{12}/0", env["BIREME_JOB"])
        assert env["BIREME_JOB"] == ranks[0]["environ"]["BIREME_JOB"]
        assert env["TORCHELASTIC_ERROR_FILE"].endswith(f"/rank{rank}.json")


def test_nothing_but_the_table_is_added(look):
    before = clean_environ()
    for found in look(env=before):
        assert set(found["environ"]) - set(theirs(before)) - {"LOOK_DIR"} == OURS


def test_hard_values_arrive_as_they_were(look):
    hard = {
        "A_SPACE": "a b ",
        "A_QUOTE": "'\"`",
        "A_DOLLAR": "$HOME ${PATH}",
        "A_LINE": "one\ntwo\n",
        "AN_EMPTY": "",
        "A_JSON": '{"a": [1, 2]}',
        "AN_EQUALS": "a=b=c",
        "A_UTF8": "ü 漢字",
        "SOME_BYTES": os.fsdecode(bytes(range(1, 256))),
        "WITH-DASH.AND.DOT": "x",
        "lower case": "x",
        os.fsdecode(b"NAME\xff"): "x",
        "BASH_FUNC_f%%": "() {  echo x\n}",
        "HF_TOKEN": "a secret",
    }
    for found in look(env={**clean_environ(), **hard}):
        assert {name: found["environ"].get(name) for name in theirs(hard)} == theirs(hard)


def test_two_hundred_kilobytes(look):
    large = {f"VARIABLE_{i}": os.urandom(24).hex() * 2 for i in range(1000)}
    large |= {"BIG_A": "a" * 60_000, "BIG_B": "b" * 60_000}
    assert sum(len(name) + len(value) + 2 for name, value in large.items()) > 200_000
    for found in look(env={**clean_environ(), **large}):
        assert large.items() <= found["environ"].items()


def test_of_an_outer_job_is_replaced(look):
    outer = dict.fromkeys(OURS - {"OMP_NUM_THREADS"}, "7")
    for rank, found in enumerate(look(env={**clean_environ(), **outer})):
        env = found["environ"]
        assert (env["RANK"], env["WORLD_SIZE"], env["NODE_RANK"]) == (str(rank), "2", "0")
        assert "7" not in {env[name] for name in OURS - {"OMP_NUM_THREADS"}}


def test_threads_that_the_user_set_stay_and_nothing_is_said(look):
    ranks = look(env=clean_environ(OMP_NUM_THREADS="5"))
    assert [found["environ"]["OMP_NUM_THREADS"] for found in ranks] == ["5", "5"]
    assert "OMP_NUM_THREADS" not in ranks.done.stderr


def test_threads_that_the_user_set_here_travel_to_nodes(stage, tmp_path):
    (tmp_path / "rank.py").write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    way_in = ("--launcher", "exec", "--launcher_args", "env -u OMP_NUM_THREADS HOST={host} {argv}")
    words = ("run", "--hosts", "one:1,two:1", "--master_addr", "127.0.0.1", *way_in, "--output", "raw", "rank.py")
    done = stage.run(*words, cwd=tmp_path, env=clean_environ(OMP_NUM_THREADS="7"))
    assert (done.returncode, done.stdout.split()) == (0, ["7", "7"]), done.stderr


def test_threads_are_said_once(look):
    ranks = look(ranks=3)
    assert ranks.done.stderr.count("OMP_NUM_THREADS") == 1


def test_accelerator_cpu_hides_the_gpus(look):
    for found in look("--accelerator", "cpu"):
        assert found["environ"]["CUDA_VISIBLE_DEVICES"] == ""
        assert found["environ"]["DS_ACCELERATOR"] == "cpu"


def test_rendezvous_that_the_user_names(look):
    for options in (["--master_addr", "::1"], ["--rdzv_endpoint", "[::1]:0"]):
        for found in look(*options):
            assert found["environ"]["MASTER_ADDR"] == "::1"


def test_a_rank_is_as_if_started_by_hand(look, stage, tmp_path):
    """Directory, umask, limits, signal mask and dispositions are the command's own; only the session is new."""
    import json
    import subprocess
    import sys

    bare = tmp_path / "bare"
    bare.mkdir()
    env = {**clean_environ(), "LOOK_DIR": str(bare), "RANK": "0"}
    subprocess.run([sys.executable, LOOK], env=env, check=True, cwd=tmp_path)
    expected = json.loads((bare / "0.json").read_text())
    for found in look(cwd=tmp_path):
        assert found["session"]
        for name in ("cwd", "umask", "affinity", "limits", "executable"):
            assert found[name] == expected[name], name
        for name in ("SigBlk", "SigIgn", "SigCgt", "Uid", "Gid", "NoNewPrivs", "Cpus_allowed_list"):
            assert found["status"][name] == expected["status"][name], name


def test_a_rank_inherits_no_descriptor_of_ours(look, tmp_path):
    path = tmp_path / "theirs"
    path.write_text("")
    given = os.open(path, os.O_RDONLY)
    try:
        for found in look(pass_fds=[given]):
            assert {int(fd) for fd in found["fds"]} == {0, 1, 2, given}, found["fds"]
            assert found["fds"][str(given)] == str(path)
    finally:
        os.close(given)


@needs.programs("mpirun.openmpi")
def test_a_strangers_file_in_the_working_directory_is_passed_over(stage, script, tmp_path):
    """Where ranks of other nodes would get what it says; in /tmp, say, anyone can leave one."""
    program = script("import os\nprint('EVIL' in os.environ, 'MINE' in os.environ)")
    words = ("run", "--launcher", "openmpi", "--native_ranks", "--hosts", "localhost:1", program)
    (tmp_path / ".bireme_env").write_text("EVIL=1\n")
    (tmp_path / ".bireme_env").chmod(0o646)
    (tmp_path / ".deepspeed_env").write_text("MINE=1\nPYTHONSTARTUP=/s3cret\n")
    (tmp_path / ".deepspeed_env").chmod(0o600)
    done = stage.run(*words, cwd=tmp_path, code=0)
    assert done.stdout == "False True\n"
    assert f"ignoring {tmp_path}/.bireme_env: everyone can write to it" in done.stderr
    assert (
        f"exporting variables that make programs load code: PYTHONSTARTUP ({tmp_path}/.deepspeed_env:2)" in done.stderr
    )
    assert "s3cret" not in done.stderr


# -- what the user adds, on one machine as on many ------------------------------------------------------


def test_exports_and_environment_files_count_on_one_machine(look, stage, tmp_path, monkeypatch):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / ".deepspeed_env").write_text("A=home\nB=home\nNCCL_DEBUG=INFO\n")
    (work / ".bireme_env").write_text("B=work\nC=work\nRANK=9\n")
    env = clean_environ(HOME=str(home), A="shell", D="shell")
    looks = look("--export", "C=typed", "--export", "D", env=env, cwd=work)
    for rank, found in enumerate(looks):
        seen = {name: found["environ"].get(name) for name in ("A", "B", "C", "D", "NCCL_DEBUG", "RANK")}
        expected = {"A": "home", "B": "work", "C": "typed", "D": "shell", "NCCL_DEBUG": "INFO", "RANK": str(rank)}
        assert seen == expected
    assert "ignoring variables that Bireme sets itself: RANK" in looks.done.stderr


def test_an_environment_file_that_others_can_write_is_ignored_on_one_machine(look, tmp_path):
    (tmp_path / ".bireme_env").write_text("A=evil\n")
    (tmp_path / ".bireme_env").chmod(0o666)
    looks = look(cwd=tmp_path)
    assert "A" not in looks[0]["environ"]
    assert "everyone can write to it" in looks.done.stderr


def test_a_variable_that_is_not_set_cannot_be_exported(stage, script):
    done = stage.run("run", "--export", "NO_SUCH_NAME", script("print(1)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--export: NO_SUCH_NAME is not set" in done.stderr


def test_an_address_that_cannot_be(stage, script):
    done = stage.run("run", "--master_addr", "no.such.host.invalid", script("print(1)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--master_addr: no such address" in done.stderr
    done = stage.run("run", "--master_addr", "192.0.2.7", script("print(1)"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "192.0.2.7 is not an address of this machine" in done.stderr


def test_a_stale_lock_of_pytorch_is_named(look, tmp_path):
    (tmp_path / "adam").mkdir()
    (tmp_path / "adam" / "lock").touch()
    looks = look(env={**clean_environ(), "TORCH_EXTENSIONS_DIR": str(tmp_path)})
    assert f"bireme: {tmp_path}/adam/lock is a stale lock of PyTorch: " in looks.done.stderr
    assert f" rm {tmp_path}/adam/lock\n" in looks.done.stderr
