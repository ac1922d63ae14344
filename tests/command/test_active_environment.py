"""Bireme installed as a tool in an environment of its own: ranks run in the environment that is active."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import bireme
from bireme.cli.defaults import in_active_environment
from bireme.cli.job_options import nodes_spec
from bireme.cli.parser import parse
from bireme.errors import BadInputError
from bireme.one_node import activation
from bireme.options.table import select
from tests.conftest import clean_environ
from tests.kit import needs
from tests.kit.clean_install import build_wheel, closure, pack, required

SHOWS = "import sys; print('prefix', sys.prefix)\n"


def environment(place: Path) -> Path:
    """A real virtual environment, without Bireme."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place


@pytest.fixture(scope="session")
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
    place = environment(tmp_path / "environment_of_this_test")  # no command has this name
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
    done = stage.run_argv([*words, "run", "-q", *map(str, options)], env=env, code=0)
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", "pipx"])
def test_installed_as_a_tool(stage, script, project, tmp_path, tmp_path_factory, installer):
    """As users do it; nothing is downloaded."""
    module = needs.module(installer)
    wheels, bin_folder = tmp_path / "wheels", tmp_path / "bin"
    wheels.mkdir()
    for name in closure(required(metadata.distribution("bireme"))):
        pack(metadata.distribution(name), wheels)
    offline = ["--no-index", "--find-links", str(wheels)]
    if installer == "uv":
        words = [module.find_uv_bin(), "tool", "install", "--offline", *offline]
        places = {"UV_TOOL_DIR": tmp_path / "tools", "UV_TOOL_BIN_DIR": bin_folder, "UV_CACHE_DIR": tmp_path / "cache"}
    else:
        words = [sys.executable, "-m", "pipx", "install", "--pip-args", shlex.join(offline)]
        places = {"PIPX_HOME": tmp_path / "tools", "PIPX_BIN_DIR": bin_folder}
    environ = clean_environ(HOME=str(tmp_path), **{name: str(place) for name, place in places.items()})
    words += ["--python", sys.executable, str(build_wheel(tmp_path_factory))]
    subprocess.run(words, env=environ, check=True)
    assert prefix_of(stage, [str(bin_folder / "bireme")], active(project), script(SHOWS)) == f"prefix {project}"


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


def test_a_path_for_each_machine(stage, script, project):
    own = project.parent / os.uname().nodename.partition(".")[0]
    own.symlink_to(project)
    words = [sys.executable, "-m", "bireme"]
    place = project.parent / "{host}"
    assert prefix_of(stage, words, clean_environ(), "--python", place, script(SHOWS)) == f"prefix {own}"


def test_check_shows_the_python_of_the_ranks(stage, tool, project):
    done = stage.run_argv([*tool[1], "check"], env=active(project))
    version = "{}.{}".format(*sys.version_info)
    assert done.stdout.endswith(f" cores  Python {version}  {project}/bin/python\n"), done
    done = stage.run_argv([*tool[1], "check"], env=active(tool[0]))
    assert done.stdout.endswith(f" cores  Python {sys.version.split()[0]}\n"), done


def test_what_has_named_a_python_that_is_missing():
    environ = {"PYTHON_EXEC": "/no/such/python"}
    spec = nodes_spec(in_active_environment(parse(select("check"), []), environ))
    with pytest.raises(BadInputError, match=r"^PYTHON_EXEC: not found: /no/such/python\n  --python names"):
        activation.interpreter(spec, environ)


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
    fine = stage.run_argv([*words, "run", str(script("import only_here\n"))], env=active(project), code=0)
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
    done = stage.run("run", "--python", python, script(SHOWS), code=2)
    assert f"--python: {says}" in done.stderr and len(done.stderr.splitlines()) <= 2
