"""Bireme installed as a tool in an environment of its own: ranks run in the environment that is active."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bireme
from tests.conftest import clean_environ

SHOWS = "import sys; print('prefix', sys.prefix)\n"


def environment(place: Path) -> Path:
    """A real virtual environment, without Bireme."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    """An environment with nothing but Bireme, and the path of its command."""
    place = environment(tmp_path_factory.mktemp("tools") / "tool")
    (packages,) = (place / "lib").glob("python*/site-packages")
    own = [path for path in sys.path if path.endswith("site-packages")]  # ClusterShell
    (packages / "borrowed.pth").write_text("\n".join([str(Path(bireme.__file__).parents[1]), *own]))
    command = place / "bin" / "bireme"
    command.write_text("from bireme.__main__ import command\ncommand()\n")
    return place, [str(place / "bin" / "python"), str(command)]


@pytest.fixture
def project(tmp_path):
    place = environment(tmp_path / "project")
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "only_here.py").write_text("")
    return place


def active(place: Path, variable: str = "VIRTUAL_ENV") -> dict[str, str]:
    """The environment variables once this environment is active."""
    environ = clean_environ(PATH=f"{place / 'bin'}:{os.environ['PATH']}")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        environ.pop(name, None)
    return {**environ, variable: str(place)}


def prefix_of(stage, words, env, *options):
    done = stage.run_argv([*words, "run", "-q", *map(str, options)], env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_ranks_run_in_the_active_environment(stage, script, tool, project, variable):
    assert prefix_of(stage, tool[1], active(project, variable), script(SHOWS)) == f"prefix {project}"


def test_the_first_on_path_counts(stage, script, tool, project):
    other = environment(project.parent / "other")
    environ = {**active(other, "CONDA_PREFIX"), "VIRTUAL_ENV": str(project)}
    assert prefix_of(stage, tool[1], environ, script(SHOWS)) == f"prefix {other}"
    environ["PATH"] = f"{project / 'bin'}:{environ['PATH']}"
    assert prefix_of(stage, tool[1], environ, script(SHOWS)) == f"prefix {project}"


def test_a_python_that_is_named_counts(stage, script, tool, project):
    place, words = tool
    named = [words[0], "-m", "bireme"]
    assert prefix_of(stage, named, active(project), script(SHOWS)) == f"prefix {place}"
    for python in (project, project / "bin" / "python"):
        assert prefix_of(stage, named, clean_environ(), "--python", python, script(SHOWS)) == f"prefix {project}"
    relative = ["sh", "-c", f'cd {project.parent} && exec "$@"', "sh", *named]
    assert prefix_of(stage, relative, clean_environ(), "--python", project.name, script(SHOWS)) == f"prefix {project}"
    other = environment(project.parent / "other")
    assert prefix_of(stage, words, active(project), "--python", other, script(SHOWS)) == f"prefix {other}"


def test_the_python_of_torchruns_variable(stage, script, tool, project):
    place, words = tool
    environ = {**active(place), "PYTHON_EXEC": str(project / "bin" / "python")}
    assert prefix_of(stage, words, environ, script(SHOWS)) == f"prefix {project}"
    assert prefix_of(stage, words, environ, "--python", place, script(SHOWS)) == f"prefix {place}"


def test_no_environment_is_active(stage, script, tool):
    place, words = tool
    environ = clean_environ()
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        environ.pop(name, None)
    assert prefix_of(stage, words, environ, script(SHOWS)) == f"prefix {place}"


def test_a_module_that_is_only_in_the_active_environment(stage, script, tool, project):
    place, words = tool
    done = stage.run_argv([words[0], "-m", "bireme", "run", str(script("import only_here\n"))], env=active(project))
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'only_here'" in done.stderr
    assert f"it was run by {place}/bin/python, but the active environment is {project}" in done.stderr, done.stderr
    assert f"--python {project}" in done.stderr
    fine = stage.run_argv([*words, "run", str(script("import only_here\n"))], env=active(project))
    assert fine.returncode == 0, fine.stderr
    assert f"bireme: ranks run in the active environment {project}\n" in fine.stderr


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/no/such/python", "not found: /no/such/python"),
        ("/etc", "no Python in /etc"),
        ("/etc/passwd", "cannot be executed"),
    ],
)
def test_a_python_that_cannot_be_used(stage, script, python, says):
    done = stage.run("run", "--python", python, script(SHOWS))
    assert done.returncode == 2
    assert f"--python: {says}" in done.stderr and len(done.stderr.splitlines()) <= 2
