"""``bireme shim``: other programs' launchers are Bireme."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Stage, clean_environ

SHOWS = """
import os, sys
names = ("RANK", "WORLD_SIZE", "BIREME_JOB", "PYTHON_EXEC", "ROLE_NAME")
print("ran", [os.environ.get(name, "") != "" for name in names], sys.argv[1:], sys.executable, os.environ["PATH"])
"""
REAL = "#!/bin/sh\necho real $(basename $0) $*\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a script that shows what it gets, and with launchers that say that they are the real ones."""
    (tmp_path / "shows.py").write_text(SHOWS)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("torchrun", "deepspeed", "accelerate"):
        (tools / name).write_text(REAL)
        (tools / name).chmod(0o755)
    (tools / "python").symlink_to(sys.executable)
    (tools / "python3").symlink_to(sys.executable)
    return tmp_path


def environ_of(place: Path) -> dict[str, str]:
    path = f"{place}/tools:/usr/bin:/bin"
    return clean_environ(PATH=path, XDG_CACHE_HOME=str(place / "cache"), HOME=str(place), DS_ACCELERATOR="cpu")


def ranks_of(done: subprocess.CompletedProcess[str], place: Path) -> int:
    """How many ranks of Bireme have run; each must have the user's own PATH, and the Python of the real launcher."""
    lines = [line.partition("ran ")[2] for line in done.stdout.splitlines() if "ran " in line]
    for line in lines:
        assert line.startswith("[True, True, True, False, True] ["), line
        python = line.partition("'--lr', '1'] ")[2].replace("python3", "python")
        assert python == f"{place}/tools/python {place}/tools:/usr/bin:/bin", line
    return len(lines)


TORCHRUN = ("--nproc_per_node", "2", "shows.py", "--lr", "1")


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--standalone", *TORCHRUN),
        ("deepspeed", "--num_gpus", "2", "shows.py", "--lr", "1"),
        ("accelerate", "launch", "--num_processes", "2", "--cpu", "shows.py", "--lr", "1"),
        ("python", "-m", "torch.distributed.run", *TORCHRUN),
        ("python3", "-u", "-W", "ignore", "-m", "torch.distributed.launch", "--use_env", *TORCHRUN),
        ("python", "-umtorch.distributed.run", *TORCHRUN),
    ],
    ids=["torchrun", "deepspeed", "accelerate", "python", "python3", "joined"],
)
def test_launchers_are_bireme(stage: Stage, place: Path, words: tuple[str, ...]) -> None:
    done = stage.run("shim", "--", "sh", "-c", 'exec "$@"', "sh", *words, cwd=place, env=environ_of(place), code=0)
    assert ranks_of(done, place) == 2, done.stdout + done.stderr


LAUNCHER = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


def test_a_python_program_that_starts_a_launcher(stage: Stage, place: Path) -> None:
    words = ("python", "-c", LAUNCHER, "python3", "-c", LAUNCHER, "torchrun", *TORCHRUN)
    done = stage.run("shim", "--", *words, cwd=place, env=environ_of(place), code=0)
    assert ranks_of(done, place) == 2, done.stdout + done.stderr


def test_ranks_that_start_a_launcher_have_the_real_one(stage: Stage, place: Path) -> None:
    words = ("torchrun", "--no_python", "python", "-c", LAUNCHER, "torchrun", "x.py")
    done = stage.run("shim", "--", *words, cwd=place, env=environ_of(place), code=0)
    assert done.stdout == "real torchrun x.py\n"


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (("torchrun", "--role", ""), 1),
        (("torchrun", "--hosts=localhost:2"), 1),
        (("torchrun", "--nproc-per-node=2"), 2),
        (("torchrun", "--nnodes=1", "--node_rank=0", "--master_addr=localhost", "--master_port=0"), 1),
        (("accelerate", "launch"), 2),
        (("accelerate", "launch", "--num-processes", "1"), 1),
    ],
    ids=["empty-role", "one-rank", "two-ranks", "one-node", "saved-config", "typed-over-saved"],
)
def test_defaults_are_the_launchers_own(stage: Stage, place: Path, words: tuple[str, ...], ranks: int) -> None:
    """torchrun starts one rank; accelerate reads its saved file; neither uses the other nodes of an allocation."""
    saved = place / ".cache/huggingface/accelerate"
    saved.mkdir(parents=True)
    (saved / "default_config.yaml").write_text("num_processes: 2\nuse_cpu: true\n")
    environ = environ_of(place)
    del environ["XDG_CACHE_HOME"]
    environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "elsewhere[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    done = stage.run("shim", "--", *words, "shows.py", "--lr", "1", cwd=place, env=environ, code=0)
    assert ranks_of(done, place) == ranks, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("accelerate", "env"), "real accelerate env"),
        (("accelerate",), "real accelerate"),
        (
            ("python", "-c", "import sys; print(sys.argv[1:], sys.executable)", "-m", "x"),
            "['-m', 'x'] PLACE/tools/python",
        ),
        (("python3", "shows.py"), "ran [False, False, False, False, False] []"),
        (("python", "-m", "calendar", "2026", "1"), "January 2026"),
        (("python", "-mcalendar", "2026", "1"), "January 2026"),
        (("python", "-Ecimport sys; print(sys.argv)", "-m", "x"), "['-c', '-m', 'x']"),
        (("python", "-m"), None),
    ],
    ids=["accelerate", "bare", "python-c", "script", "module", "joined", "joined-c", "error"],
)
def test_everything_else_is_the_real_one(stage: Stage, place: Path, words: tuple[str, ...], said: str | None) -> None:
    done = stage.run("shim", "--", *words, cwd=place, env=environ_of(place), code=0 if said else 2)
    assert said.replace("PLACE", str(place)) in done.stdout if said else "Argument expected" in done.stderr


@pytest.mark.parametrize("name", ["torchrun", "python"])
def test_several_folders_of_these_commands_in_path(stage: Stage, place: Path, name: str) -> None:
    """None takes a command of another folder, or of its own by another name, for the real one."""
    for folder in ("one", "two"):
        stage.run("shim", "--install", folder, cwd=place, code=0)
    environ = environ_of(place)
    environ["PATH"] = f"{place}/one/:{place}/two:{place}/one:{environ['PATH']}"
    words = [name, "-m", "torch.distributed.run"] if name == "python" else [name]
    done = stage.run_argv([*words, *TORCHRUN], cwd=place, env=environ, code=0)
    assert ranks_of(done, place) == 2
    done = stage.run_argv(["python", "-c", "print(1)"], cwd=place, env=environ, code=0)
    assert done.stdout == "1\n"


def test_installed_in_a_folder(stage: Stage, place: Path) -> None:
    done = stage.run("shim", "--install", "shims", cwd=place, code=0)
    assert done.stdout == f"put it first in PATH: export PATH={place}/shims:$PATH\n"
    environ = environ_of(place)
    environ["PATH"] = f"{place}/shims:{environ['PATH']}"
    done = stage.run_argv(
        ["sh", "-c", "torchrun --standalone --nproc_per_node 1 shows.py"], cwd=place, env=environ, code=0
    )
    assert "ran" in done.stdout
    (place / "shims").rename(place / "moved")
    environ["PATH"] = environ["PATH"].replace("shims", "moved")
    done = stage.run_argv(["python", "-c", "print(1)"], cwd=place, env=environ, code=0)
    assert done.stdout == "1\n"
    environ["PATH"] = f"{place}/moved"
    done = stage.run_argv([f"{place}/moved/python", "x.py"], cwd=place, env=environ, code=127)
    assert done.stderr == "bireme: python: command not found\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "expected a command"),
        (("--", "nosuch"), 127, "no such program: nosuch"),
        (("--nosuch",), 2, "unknown option: --nosuch"),
        (("--install", "x", "y"), 2, "--install only writes the commands"),
        (("--install", "/dev/null/x"), 2, "cannot write to /dev/null/x"),
    ],
)
def test_mistakes(stage: Stage, place: Path, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in stage.run("shim", *words, cwd=place, env=environ_of(place), code=code).stderr


def test_the_exit_code_is_that_of_the_command(stage: Stage, place: Path) -> None:
    assert os.environ.get("PATH")
    stage.run("shim", "sh", "-c", "exit 7", env=environ_of(place), code=7)
