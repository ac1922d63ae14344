"""The scripts of continuous integration: nothing that could be installed is skipped, and every skip is reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.needs import REQUIRED

ROOT = Path(__file__).parent.parent

NEEDY = """
import pytest
from tests.kit import needs

@needs.modules("json", "no_such_module")
def test_module():
    raise AssertionError("it ran")

@needs.programs("sh", "no-such-program")
def test_program():
    raise AssertionError("it ran")

@needs.modules("json")
@needs.programs("sh")
def test_all_is_there():
    assert needs.module("json").loads("1") == 1
    assert needs.program("no-such-program", "sh").endswith("/sh")

def test_in_its_body():
    needs.module("no_such_module")

@pytest.mark.skip("it is so everywhere")
def test_of_another_kind():
    pass
"""


@pytest.mark.parametrize(
    ("required", "closing"), [("", "1 passed, 4 skipped"), ("1", "1 failed, 1 passed, 1 skipped, 2 errors")]
)
def test_what_is_missing(tmp_path: Path, required: str, closing: str) -> None:
    """It skips on somebody's machine, and fails where everything is required."""
    (tmp_path / "test_needy.py").write_text(NEEDY)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -rs\nmarkers =\n  needs_modules\n  needs_programs\n")
    environ = {**os.environ, REQUIRED: required, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "tests.kit.needs", "-p", "no:cacheprovider", "test_needy.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert closing in done.stdout.splitlines()[-1], done.stdout
    assert all(f"not installed: {name}" in done.stdout for name in ("no_such_module", "no-such-program"))


MAKE = """#!/bin/sh
echo "required: $BIREME_TEST_REQUIRED"
cat <<'END'
{log}
END
exit {code}
"""
SKIPS = """
=========================== short test summary info ============================
SKIPPED [12] tests/a.py:3: no IPv6
SKIPPED [1] tests/b.py:30: one core: nothing to share out
FAILED tests/c.py::test_x - AssertionError: SKIPPED [9] no"""


@pytest.mark.parametrize(
    ("log", "code", "end"),
    [
        (
            f"{SKIPS}\n=== 1 failed, 7 passed, 13 skipped in 71.20s (0:01:11) ===",
            2,
            [
                "13 skipped:",
                "  12 x tests/a.py:3: no IPv6",
                "  1 x tests/b.py:30: one core: nothing to share out",
                "=== 1 failed, 7 passed, 13 skipped in 71.20s (0:01:11) ===",
            ],
        ),
        ("===== 7 passed in 71.20s =====", 0, ["0 skipped", "===== 7 passed in 71.20s ====="]),
        ("===== 7 skipped in 71.20s =====", 0, ["0 skipped", "no test has passed"]),
        ("ruff: no", 2, ["0 skipped", "make test failed before pytest could finish"]),
    ],
    ids=["skips", "all passed", "none passed", "lint"],
)
def test_the_end_of_a_run(tmp_path: Path, log: str, code: int, end: list[str]) -> None:
    """By a stand-in for make."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "make").write_text(MAKE.format(log=log, code=code))
    (tmp_path / "make").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / ".ci/run"], env=environ, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == "required: 1"
    assert lines[-len(end) :] == end
    assert done.returncode == (code or int("passed in" not in log))


def test_pythons_that_are_not_there(tmp_path: Path) -> None:
    """It says so, and is no failure; the one that is on PATH leads nowhere."""
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    (tmp_path / "python3.10").write_text("#!/bin/false\n")
    (tmp_path / "python3.10").chmod(0o755)
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([ROOT / ".ci/pythons"], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["NOT TESTED"] * 2
    assert "3.10" in done.stderr


def test_the_tool_is_made_again_after_an_edit(tmp_path: Path) -> None:
    """`make demo TOOL=1` runs the sources as they are."""
    done = [tmp_path / "venv" / ".pip", tmp_path / "venv-tool" / ".uv", tmp_path / "venv-tool" / ".done"]
    for stamp in done:
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    common = ["make", "-C", ROOT, "--dry-run", "TOOL=1", f"VENV={tmp_path}/venv", str(done[-1])]
    for more, made in ([], False), (["--assume-new=src/bireme/tune/study/study.py"], True):
        environ = {"PATH": os.environ["PATH"]}  # not that of a make around the tests
        said = subprocess.run([*common, *more], env=environ, capture_output=True, text=True, check=True)
        assert ("uv tool install" in said.stdout) == made, said


PYTHON = """#!/bin/sh
case "$*" in
*"-m venv"*)
    for folder; do :; done
    mkdir -p "$folder/bin" "$folder/lib/python3/site-packages"
    cp "$0" "$folder/bin/python"
    ;;
*"-m pytest"*) echo "$0"; exit 3 ;;
esac
"""


def test_pythons_whose_tests_fail(tmp_path: Path) -> None:
    """Both are run, and the exit code tells; by stand-ins that do nothing else."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for version in ("3.10", "3.14"):
        path = tmp_path / f"python{version}"
        path.write_text(PYTHON)
        path.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([tmp_path / ".ci/pythons"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith(".venv-")]
    assert [line.split("/")[0] for line in ran] == [".venv-3.10", ".venv-3.14"], done.stdout
