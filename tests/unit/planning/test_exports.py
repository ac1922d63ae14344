"""Which variables travel to the other nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.planning.exports import Exports, exports, parse_env_file, python_path
from tests.conftest import NOBODY

TRAVELS = (
    *("NCCL_DEBUG", "PYTHONHASHSEED", "MLFLOW_TRACKING_URI", "MV2_DEBUG", "UCX_TLS", "PATH", "LD_LIBRARY_PATH"),
    *(
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTORCH_CUDA_ALLOC_CONF",
        "OMP_NUM_THREADS",
        "MKL_DYNAMIC",
    ),
    *("CUDA_HOME", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "HF_HOME", "HUGGING_FACE_HUB_TOKEN"),
    *(
        "TRANSFORMERS_OFFLINE",
        "WANDB_API_KEY",
        "DS_ACCELERATOR",
        "DEEPSPEED_TIMEOUT",
        "GLOO_SOCKET_IFNAME",
        "FI_PROVIDER",
    ),
    *("TRITON_CACHE_DIR", "TQDM_DISABLE", "TOKENIZERS_PARALLELISM", "XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL", "I_MPI_DEBUG"),
    *("CONDA_PREFIX", "VIRTUAL_ENV", "HSA_OVERRIDE_GFX_VERSION", "NVIDIA_TF32_OVERRIDE", "CCL_WORKER_COUNT"),
)
STAYS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "BIREME_JOB"),
    *(
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    *("ASCEND_RT_VISIBLE_DEVICES", "SLURM_PROCID", "SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_btl", "PMI_RANK"),
    *("PMIX_RANK", "MV2_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TF_CONFIG", "NCCL_HOSTID"),
    *("I_MPI_HYDRA_HOST_FILE", "CCL_LOCAL_RANK", "HOME", "PWD", "HOSTNAME", "SSH_CONNECTION", "TMPDIR", "PATHEXT"),
)


def gathered(
    environ: dict[str, str] | None = None, requests: tuple[str, ...] = (), home: Path | str = "", cwd: Path | str = "/w"
) -> dict[str, str]:
    """What travels, without what always does."""
    result = dict(exports(environ or {}, requests, str(home), str(cwd)).variables)
    if result.get("PYTHONPATH") == str(cwd):
        del result["PYTHONPATH"]
    return result


@pytest.mark.parametrize("name", TRAVELS)
def test_what_travels(name: str) -> None:
    assert gathered({name: "x"}) == {name: "x"}
    assert exports({name: "x"}, (), "", "/w").origins[name] == "environment"


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    assert gathered({name: "x"}) == {}


def test_the_working_directory_goes_first_on_the_module_path() -> None:
    assert exports({}, (), "", "/w").variables == {"PYTHONPATH": "/w"}
    assert exports({"PYTHONPATH": ""}, (), "", "/w").variables == {"PYTHONPATH": "/w"}
    assert exports({"PYTHONPATH": "/a:/b"}, (), "", "/w").variables == {"PYTHONPATH": "/w:/a:/b"}
    assert exports({"PYTHONPATH": "/a"}, ("PYTHONPATH",), "", "/w").variables == {"PYTHONPATH": "/w:/a"}
    assert exports({"PYTHONPATH": "/a"}, ("PYTHONPATH=/b",), "", "/w").variables == {"PYTHONPATH": "/b"}
    assert python_path("/w:/a", "/w") == "/w:/a"
    assert python_path("/www", "/w") == "/w:/www"


def test_search_paths_mean_nothing_in_a_container() -> None:
    environ = {"PATH": "/here", "LD_LIBRARY_PATH": "/here", "PYTHONPATH": "/here", "NCCL_DEBUG": "INFO"}
    found = exports(environ, ("LD_LIBRARY_PATH",), "", "/w", same_files=False).variables
    assert found == {"LD_LIBRARY_PATH": "/here", "PYTHONPATH": "/w", "NCCL_DEBUG": "INFO"}


def test_network_cards_that_the_site_sets_on_every_node() -> None:
    environ = {"NCCL_IB_HCA": "mlx5_0", "UCX_NET_DEVICES": "mlx5_0:1", "NCCL_DEBUG": "INFO"}
    assert gathered(environ) == environ
    assert gathered({**environ, "AISC_JOB_NAME": "j"}) == {"NCCL_DEBUG": "INFO"}
    assert gathered({**environ, "AISC_JOB_NAME": "j"}, ("NCCL_IB_HCA",))["NCCL_IB_HCA"] == "mlx5_0"


# --- requests ---------------------------------------------------------------------------------


def test_requests() -> None:
    environ = {"MINE_A": "1", "MINE_B": "2", "OTHER": "3", "SLURM_JOB_NAME": "j", "MINE-C": "4", "NCCL_DEBUG": "INFO"}
    kept = {"NCCL_DEBUG": "INFO"}
    assert gathered(environ, ("OTHER",)) == {**kept, "OTHER": "3"}
    assert gathered(environ, ("MINE_*",)) == {**kept, "MINE_A": "1", "MINE_B": "2"}
    assert gathered(environ, ("NONE_*",)) == kept
    assert gathered(environ, ("NEW=a=b c",)) == {**kept, "NEW": "a=b c"}
    assert gathered(environ, ("NEW=",)) == {**kept, "NEW": ""}
    assert gathered(environ, ("NCCL_DEBUG=WARN",)) == {"NCCL_DEBUG": "WARN"}
    assert gathered(environ, ("MINE_A=5", "MINE_*")) == {**kept, "MINE_A": "1", "MINE_B": "2"}
    assert gathered(environ, ("MINE_*", "MINE_A=5")) == {**kept, "MINE_A": "5", "MINE_B": "2"}
    assert gathered(environ, ("SLURM_*",)) == kept
    assert gathered(environ, ("SLURM_JOB_NAME",)) == {**kept, "SLURM_JOB_NAME": "j"}
    assert exports(environ, ("OTHER",), "", "/w").origins["OTHER"] == "--export"


def test_everything() -> None:
    environ = {**dict.fromkeys(STAYS, "x"), **dict.fromkeys(TRAVELS, "y"), "MINE": "z", "BASH_FUNC_a%%": "() { :; }"}
    assert gathered(environ, ("*",)) == {**dict.fromkeys(TRAVELS, "y"), "MINE": "z", "PATHEXT": "x"}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("NOWHERE", "NOWHERE is not set"),
        ("", "not a variable name: ''"),
        ("A,B", "not a variable name: 'A,B'"),
        ("A B=1", "not a variable name: 'A B'"),
        ("1A=1", "not a variable name: '1A'"),
        ("É=1", "not a variable name: 'É'"),
        ("=1", "not a variable name: ''"),
        ("A*B", "not a variable name: 'A*B'"),
        ("a-*", "not a variable name: 'a-*'"),
        ("**", "not a variable name: '**'"),
        ("A=\0", "the value of A has a zero byte"),
        ("RANK", "RANK is set by Bireme itself"),
        ("MASTER_ADDR=x", "MASTER_ADDR is set by Bireme itself"),
        ("CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES is set by Bireme itself"),
        ("BIREME_JOB=1", "BIREME_JOB is set by Bireme itself"),
    ],
)
def test_requests_that_are_refused(request_: str, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        exports({"RANK": "0"}, (request_,), "", "/w")
    assert str(caught.value).startswith(f"--export: {message}")


# --- files ------------------------------------------------------------------------------------

LINES = [
    ("A=1", "1"),
    ("A=", ""),
    ("A=a=b==", "a=b=="),
    ("export A=1", "1"),
    ("export\tA=1", "1"),
    (" A = 1 ", "1"),
    ("A=b c", "b c"),
    ("A='b c '", "b c "),
    ('A="b c "', "b c "),
    ("A='a\"b'", 'a"b'),
    ("A='a\\n'", "a\\n"),
    (r'A="a\"b\\c\$d\n"', r"a\"b\\c\$d\n".replace(r"\"", '"').replace(r"\\", "\\").replace(r"\$", "$")),
    ("A='$HOME `id`'", "$HOME `id`"),
    (r'A="\$HOME \`id\`"', "$HOME `id`"),
    ("A=costs 5$", "costs 5$"),
    ('A="5$ or 6 $"', "5$ or 6 $"),
    ("A=1 # $HOME", "1"),
    ('A={"x": "y"}', '{"x": "y"}'),
    ("A=x'y'", "x'y'"),
    ("A=1 # one", "1"),
    ("A=http://x/#y", "http://x/#y"),
    ("A='1' # one", "1"),
    ("A='# one'", "# one"),
    ("A=# one", ""),
    ("A=ä", "ä"),
    ("A=''", ""),
]


@pytest.mark.parametrize(("line", "value"), LINES)
def test_lines_of_a_file(line: str, value: str) -> None:
    assert list(parse_env_file(f"# first\r\n\n{line}\r\n", "f")) == [("A", value, 3)]


@pytest.mark.parametrize(
    "line",
    [
        *("s3cret", "export A", "=s3cret", "A B=s3cret", "1A=s3cret", "A-B=s3cret", "A='s3cret", "A=\0s3cret"),
        *(
            "A='s3cret'x",
            'A="s3cret\\"',
            "A='",
            'A="s3cret" "y"',
            "s3cret+key=",
            "let A=s3cret",
            "export export A=s3cret",
        ),
    ],
)
def test_a_bad_line_is_named_but_not_shown(line: str) -> None:
    with pytest.raises(BadInputError) as caught:
        list(parse_env_file(f"GOOD=1\n{line}\n", "dir/f"))
    assert str(caught.value).startswith("dir/f:2: ")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    ["$HOME", "s3cret$HOME", "/a:${PATH}", '"s3cret $(id)"', "s3cret`id`", '"`id`"', '"\\\\$HOME"', "s3cret$$", "$1"],
)
def test_what_a_shell_would_expand_is_refused(value: str) -> None:
    """DeepSpeed has a shell of the node expand it: as it is written, it would be another value there."""
    with pytest.raises(BadInputError) as caught:
        list(parse_env_file(f"GOOD=1\nPATH={value}\n", "dir/.deepspeed_env"))
    assert str(caught.value).startswith("dir/.deepspeed_env:2: a shell would expand")
    assert "single quotes" in str(caught.value) and "s3cret" not in str(caught.value)


def test_later_files_win(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    for directory in (home, cwd):
        directory.mkdir()
        (directory / ".deepspeed_env").write_text(f"A={directory.name} deepspeed\nB={directory.name} deepspeed\n")
    (home / ".bireme_env").write_text("A=home bireme\nB=home bireme\nC=home bireme\nNCCL_DEBUG=home bireme")
    (cwd / ".bireme_env").write_text("# mine\nA=cwd bireme\n")
    environ = {"NCCL_DEBUG": "INFO"}
    result = exports(environ, ("D=4",), str(home), str(cwd))
    assert result.variables == {
        "PYTHONPATH": str(cwd),
        "NCCL_DEBUG": "home bireme",
        "A": "cwd bireme",
        "B": "cwd deepspeed",
        "C": "home bireme",
        "D": "4",
    }
    assert result.origins == {
        "PYTHONPATH": "environment",
        "NCCL_DEBUG": f"{home}/.bireme_env:4",
        "A": f"{cwd}/.bireme_env:2",
        "B": f"{cwd}/.deepspeed_env:2",
        "C": f"{home}/.bireme_env:3",
        "D": "--export",
    }
    assert gathered(environ, ("A=5",), home, cwd)["A"] == "5"
    assert gathered(environ, (), "", cwd)["A"] == "cwd bireme"


def test_the_reference_names_its_file_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("A=1")
    (tmp_path / "other").write_text("A=2")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "env").write_text("A=3")
    for name, value in (("", "1"), ("other", "2"), ("sub/env", "3"), (str(tmp_path / "sub" / "env"), "3")):
        assert gathered({"DS_ENV_FILE": name}, (), "", tmp_path)["A"] == value
    assert "A" not in gathered({"DS_ENV_FILE": "nothing"}, (), "", tmp_path)
    with pytest.raises(BadInputError, match="cannot be read") as caught:
        gathered({"DS_ENV_FILE": "./nothing"}, (), "", tmp_path)
    assert caught.value.where == "DS_ENV_FILE"


def test_what_a_file_says_of_our_variables_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("A=1\nCUDA_VISIBLE_DEVICES=3\nRANK=0\nSLURM_JOB_NAME=j\n")
    result = exports({}, (), "", str(tmp_path))
    assert result.variables == {"PYTHONPATH": str(tmp_path), "A": "1", "SLURM_JOB_NAME": "j"}
    file = f"{tmp_path}/.deepspeed_env"
    assert result.passed_over == (f"CUDA_VISIBLE_DEVICES ({file}:2)", f"RANK ({file}:3)")


# --- files that others can have written -------------------------------------------------------


@pytest.fixture
def found_file(tmp_path: Path) -> Path:
    """One that nobody has named; whatever the umask."""
    path = tmp_path / ".bireme_env"
    path.write_text("EVIL=1\nLD_PRELOAD=/tmp/evil.so\n")
    path.chmod(0o644)
    return path


def reason(path: Path) -> str:
    """Why a file is passed over; it says nothing then."""
    result = exports({}, (), "", str(path.parent))
    if not result.distrusted:
        assert result.variables["EVIL"] == "1"
        return ""
    assert not result.variables.keys() & {"EVIL", "LD_PRELOAD"} and not result.loading
    (note,) = result.notes()
    assert (
        note[0] == "warning" and note[1].startswith(f"ignoring {result.distrusted[0]} (") and "DS_ENV_FILE" in note[1]
    )
    return result.distrusted[0].removeprefix(f"{path}: ")


def is_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")


def test_only_its_owner_may_write_it(found_file: Path) -> None:
    assert reason(found_file) == ""
    for mode in (0o646, 0o606, 0o602):
        found_file.chmod(mode)
        assert reason(found_file) == "everyone can write to it"


def test_a_group_of_more_than_its_owner_may_not_write_it(found_file: Path) -> None:
    is_root()
    found_file.chmod(0o664)
    assert reason(found_file) == "", "root's group is root's alone"
    os.chown(found_file, -1, 1)
    assert reason(found_file) == "its group can write to it"
    os.chown(found_file, -1, 54321)  # has no name
    assert reason(found_file) == "its group can write to it"


def test_it_belongs_to_the_user(found_file: Path) -> None:
    is_root()
    os.chown(found_file, NOBODY, 0)
    found_file.chmod(0o600)
    assert reason(found_file).startswith("it belongs to ")
    os.chown(found_file, 54321, 0)
    assert reason(found_file) == "it belongs to user 54321"


def test_so_does_a_link(found_file: Path) -> None:
    is_root()
    found_file.rename(found_file.with_name("mine"))
    found_file.symlink_to("mine")
    assert reason(found_file) == ""
    os.chown(found_file, NOBODY, 0, follow_symlinks=False)
    assert reason(found_file).startswith("the link belongs to ")


def test_the_file_of_a_stranger_that_cannot_be_read_stops_nobody(open_folder: Path) -> None:
    """Anyone could keep others from work by it."""
    is_root()
    file = open_folder / ".bireme_env"
    file.write_text("EVIL=1\n")
    file.chmod(0o600)
    os.chown(file, 54321, 54321)
    program = (
        "import grp, os, pwd, sys\n"
        "from bireme.planning.exports import exports\n"
        f"os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "print(exports({}, (), '', sys.argv[1]).distrusted)\n"
    )
    words = [sys.executable, "-c", program, str(open_folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "it belongs to user 54321" in done.stdout, done.stderr


def test_a_file_that_is_named_is_taken(found_file: Path) -> None:
    is_root()
    os.chown(found_file, NOBODY, 0)
    result = exports({"DS_ENV_FILE": str(found_file)}, (), "", "/w")
    assert result.variables["EVIL"] == "1" and not result.distrusted


def test_variables_that_load_code_are_announced(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    names = ("LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "PYTHONSTARTUP", "PYTHONPATH", "NCCL_DEBUG")
    for folder in (home, cwd):
        folder.mkdir()
        (folder / ".deepspeed_env").write_text("".join(f"{name}=s3cret\n" for name in names))
    result = exports({}, (), str(home), str(cwd))
    file = cwd / ".deepspeed_env"
    assert result.loading == tuple(f"{name} ({file}:{line})" for line, name in enumerate(names[:-1], 1))
    assert [level for level, _ in result.notes()] == ["info"]
    assert "s3cret" not in str(list(result.notes()))
    assert not exports({}, (), str(home), "/w").loading, "one's own, which is the same everywhere"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / ".bireme_env").write_bytes(b"A=1\nB=\xff\n")
    with pytest.raises(BadInputError) as caught:
        gathered({}, (), "", tmp_path)
    assert str(caught.value) == f"{tmp_path}/.bireme_env:2: is not UTF-8 text"


def test_values_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / ".bireme_env").write_text("MY_KEY=s3cret\nRANK=s3cret\n")
    result = exports({"WANDB_API_KEY": "s3cret"}, ("TOKEN=s3cret",), "", str(tmp_path))
    assert isinstance(result, Exports)
    for shown in (repr(result), str(result), f"{result!r:>9}"):
        assert "s3cret" not in shown
        assert "WANDB_API_KEY from environment" in shown and "TOKEN from --export" in shown


# --- any input at all -------------------------------------------------------------------------

NEAR_GRAMMAR = st.text("AB_1=*\"'\\# \t\n\r\0$", max_size=24)


@settings(deadline=None)
@given(st.one_of(st.text(), NEAR_GRAMMAR))
def test_every_text_of_a_file_is_accepted_or_refused(text: str) -> None:
    try:
        lines = list(parse_env_file(text, "f"))
    except BadInputError as error:
        assert len(str(error).splitlines()) <= 2
    else:
        assert all(name.isidentifier() and "\0" not in value for name, value, _ in lines)


@settings(deadline=None)
@given(
    st.dictionaries(st.one_of(st.text(max_size=8), st.sampled_from(TRAVELS + STAYS)), st.text(max_size=8)),
    st.lists(st.one_of(st.text(), NEAR_GRAMMAR), max_size=3),
    st.sampled_from(["", "/nowhere"]),
)
def test_every_request_is_accepted_or_refused(environ: dict[str, str], requests: list[str], home: str) -> None:
    try:
        result = exports(environ, requests, home, "/nowhere")
    except BadInputError as error:
        assert len(str(error).splitlines()) <= 2
    else:
        assert result.variables.keys() == result.origins.keys()
        assert not result.variables.keys() & {"RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"}


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=20))
def test_what_is_quoted_is_read_back(value: str) -> None:
    escaped = "".join(f"\\{sign}" if sign in '"\\$`' else sign for sign in value)
    assert list(parse_env_file(f'A="{escaped}"', "f")) == [("A", value, 1)]
    if "'" not in value:
        assert list(parse_env_file(f"A='{value}'", "f")) == [("A", value, 1)]
