"""``bireme shim``: other programs' launchers are Bireme."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Stage, clean_environ

SHOWS = """
import os, sys
names = ("RANK", "WORLD_SIZE", "BIREME_JOB_ID")
print("ran", [os.environ.get(name, "") != "" for name in names], sys.argv[1:], os.environ["PATH"])
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
    return clean_environ(PATH=path, XDG_CACHE_HOME=str(place / "cache"), PYTHON_EXEC=sys.executable)


TORCHRUN = ("--nproc_per_node", "2", "shows.py", "--lr", "1")


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--standalone", *TORCHRUN),
        ("deepspeed", "--num_gpus", "2", "shows.py", "--lr", "1"),
        ("accelerate", "launch", "--num_processes", "2", "--cpu", "shows.py", "--lr", "1"),
        ("python", "-m", "torch.distributed.run", *TORCHRUN),
        ("python3", "-u", "-W", "ignore", "-m", "torch.distributed.launch", "--use_env", *TORCHRUN),
    ],
    ids=["torchrun", "deepspeed", "accelerate", "python", "python3"],
)
def test_launchers_are_bireme(stage: Stage, place: Path, words: tuple[str, ...]) -> None:
    environ = {**environ_of(place), "DS_ACCELERATOR": "cpu"}
    done = stage.run("shim", "--", "sh", "-c", 'exec "$@"', "sh", *words, cwd=place, env=environ, code=0)
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if "ran" in line]
    assert len(lines) == 2, done.stdout + done.stderr
    assert all("['--lr', '1']" in line or "'--lr', '1'" in line for line in lines)
    assert all(line.endswith(f" {place}/tools:/usr/bin:/bin") for line in lines)  # that of the user


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("accelerate", "env"), "real accelerate env"),
        (("accelerate",), "real accelerate"),
        (
            ("python", "-c", "import sys; print(sys.argv[1:], sys.executable)", "-m", "x"),
            "['-m', 'x'] PLACE/tools/python",
        ),
        (("python3", "shows.py"), "ran [False, False, False] []"),
        (("python", "-m", "calendar", "2026", "1"), "January 2026"),
    ],
    ids=["accelerate", "bare", "python-c", "script", "module"],
)
def test_everything_else_is_the_real_one(stage: Stage, place: Path, words: tuple[str, ...], said: str) -> None:
    done = stage.run("shim", "--", *words, cwd=place, env=environ_of(place), code=0)
    assert said.replace("PLACE", str(place)) in done.stdout


def test_installed_in_a_folder(stage: Stage, place: Path) -> None:
    done = stage.run("shim", "--install", "shims", cwd=place, code=0)
    assert done.stdout == f"put it first in PATH: export PATH={place}/shims:$PATH\n"
    environ = environ_of(place)
    environ["PATH"] = f"{place}/shims:{environ['PATH']}"
    done = stage.run_argv(
        ["sh", "-c", "torchrun --standalone --nproc_per_node 1 shows.py"], cwd=place, env=environ, code=0
    )
    assert "ran" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "expected a command"),
        (("--", "nosuch"), 127, "no such program: nosuch"),
        (("--nosuch",), 2, "unknown option: --nosuch"),
        (("--install", "x", "y"), 2, "--install writes the commands, and runs none"),
        (("--install", "/dev/null/x"), 2, "cannot write to /dev/null/x"),
    ],
)
def test_mistakes(stage: Stage, place: Path, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in stage.run("shim", *words, cwd=place, env=environ_of(place), code=code).stderr


def test_the_exit_code_is_that_of_the_command(stage: Stage, place: Path) -> None:
    assert os.environ.get("PATH")
    stage.run("shim", "sh", "-c", "exit 7", env=environ_of(place), code=7)
