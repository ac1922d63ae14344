"""What a rank can run: a script, a directory, a module, any program; with a wrapper; in another environment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from tests.conftest import clean_environ

ARGUMENTS = "import sys; print('got', *sys.argv[1:])"


def got(done):
    """What each rank's script said it got, by rank."""
    assert done.returncode == 0, done.stderr
    return sorted(line.partition("got")[2].strip() for line in done.stdout.splitlines() if "got" in line)


# -- kinds ---------------------------------------------------------------------------------------


def test_a_directory_with_main(stage, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(ARGUMENTS)
    assert got(stage.run("run", tmp_path / "app", "a")) == ["a"]


def test_a_module_is_found_beside_us(stage, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(ARGUMENTS)
    assert got(stage.run("run", "-m", "package.train", "a", cwd=tmp_path)) == ["a"]
    assert got(stage.run("run", "--module", "package.train", "a", cwd=tmp_path)) == ["a"]


def test_a_program_of_any_kind(stage, tmp_path):
    program = tmp_path / "tool"
    program.write_text('#!/bin/sh\necho "got $RANK"\n')
    program.chmod(0o755)
    assert got(stage.run("run", "--num_gpus", "2", "--no_python", program)) == ["0", "1"]
    env = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert got(stage.run("run", "--num_gpus", "2", "--no_python", "tool", env=env)) == ["0", "1"]


def test_a_program_that_is_not_there(stage, script):
    """Which is found only at the start where the rank is a part of its name."""
    done = stage.run("run", "--wrap", "no-such-program-{rank}", script("pass"), code=127)
    assert "cannot run no-such-program-0: No such file or directory" in done.stderr


def test_a_program_that_cannot_be_executed(stage, tmp_path):
    program = tmp_path / "tool"
    program.write_text("plain text")
    program.chmod(0o755)
    done = stage.run("run", "--no_python", program, code=126)
    assert f"cannot run {program}" in done.stderr


def test_what_python_cannot_run_is_executed_if_it_can_be(stage, tmp_path):
    program = tmp_path / "train.sh"
    program.write_text('#!/bin/sh\necho "got $RANK $1"\n')
    program.chmod(0o755)
    for name in (program, "train.sh"):
        assert got(stage.run("run", "--num_gpus", "2", name, "a", cwd=tmp_path)) == ["0 a", "1 a"]
    assert got(stage.run("run", "/usr/bin/env", "echo", "got", "b")) == ["b"]


def test_python_is_unbuffered_but_its_children_are_not(stage, script):
    program = script(
        "import os, sys, time\nprint('got', sys.stdout.write_through, os.environ.get('PYTHONUNBUFFERED', 'unset'))\n"
    )
    assert got(stage.run("run", program)) == ["True unset"]


# -- --local_rank --------------------------------------------------------------------------------

TEXTS = {
    "names_none": "",
    "names_it": "'''docs'''; add = str; add('--local_rank')\n",
    "with_dash": "takes = ('-l', '--local-rank')\n",
    "in_a_comment": "# parser.add_argument('--local_rank')\n",
    "in_a_docstring": "'--local_rank'\ndef f(): '''--local_rank'''\n",
    "in_a_message": "message = 'give --local_rank to \\d'\n",
}
AUTO = {"names_it": "--local_rank=", "with_dash": "--local-rank="}


@pytest.mark.parametrize("names", TEXTS)
def test_local_rank_where_the_script_wants_it(stage, script, names):
    flag = AUTO.get(names, "")
    expected = [f"{flag}{rank} a" if flag else "a" for rank in (0, 1)]
    assert got(stage.run("run", "--num_gpus", "2", script(TEXTS[names] + ARGUMENTS), "a")) == expected


@pytest.mark.parametrize("names", ["names_none", *AUTO])
def test_local_rank_never(stage, script, names):
    options = ["--num_gpus", "2", "--no_local_rank"]
    assert got(stage.run("run", *options, script(TEXTS[names] + ARGUMENTS), "a")) == ["a", "a"]


@pytest.mark.parametrize("names", ["names_none", *AUTO])
def test_local_rank_always(stage, script, names):
    flag = AUTO.get(names, "--local_rank=")
    options = ["--num_gpus", "2", "--local_rank_arg"]
    expected = [f"{flag}0 a", f"{flag}1 a"]
    assert got(stage.run("run", *options, script(TEXTS[names] + ARGUMENTS), "a")) == expected


def test_local_rank_of_a_module_and_of_a_program(stage, tmp_path):
    (tmp_path / "old.py").write_text(TEXTS["names_it"] + ARGUMENTS)
    assert got(stage.run("run", "-m", "old", "a", cwd=tmp_path)) == ["--local_rank=0 a"]
    tool = tmp_path / "tool"
    # The kernel takes no interpreter whose path has a space, so a shell starts it; to Python these lines are a string.
    found = f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} \"$0\" \"$@\"\n' '''\n"
    tool.write_text(f"{found}{TEXTS['names_it']}{ARGUMENTS}\n")
    tool.chmod(0o755)
    assert got(stage.run("run", "--no_python", tool, "a")) == ["--local_rank=0 a"]


def test_local_rank_that_the_script_refuses_after_all(stage, script):
    program = script("import argparse\nif '--local_rank': argparse.ArgumentParser().parse_args()\n")
    done = stage.run("run", program, code=2)
    assert "  Bireme has added --local_rank=0 to the arguments, and the script refuses it" in done.stderr, done.stderr
    assert "--no_local_rank" in done.stderr
    mine = stage.run("run", "--no_local_rank", program, "--local_rank=0")
    assert mine.returncode == 2 and "Bireme has added" not in mine.stderr


# -- wrappers ------------------------------------------------------------------------------------


def test_wrapper_gets_rank_and_host(stage, script):
    wrap = "env 'WRAPPED=r{rank} l{local_rank} {host} {other}'"
    done = stage.run("run", "--num_gpus", "2", "--wrap", wrap, script("import os; print('got', os.environ['WRAPPED'])"))
    host = os.uname().nodename.partition(".")[0]
    assert got(done) == [f"r0 l0 {host} {{other}}", f"r1 l1 {host} {{other}}"]


@pytest.mark.parametrize(("ranks", "wrapped"), [("0,3", {0, 3}), ("1-2", {1, 2}), ("2", {2}), ("", {0, 1, 2, 3})])
def test_wrapper_of_some_ranks(look, ranks, wrapped):
    options = ["--wrap", "env WRAPPED=1"] + (["--wrap_ranks", ranks] if ranks else [])
    found = look(*options, ranks=4)
    assert {rank for rank in range(4) if "WRAPPED" in found[rank]["environ"]} == wrapped


def test_wrapper_that_is_not_there(stage, script):
    done = stage.run("run", "--wrap", "no-such-wrapper -x", script(ARGUMENTS))
    assert (done.returncode, done.stderr) == (2, "bireme: --wrap: no such program: no-such-wrapper\n")


# -- --venv_script -------------------------------------------------------------------------------


@pytest.fixture
def venv(tmp_path):
    """A real virtual environment, with a package that is only there."""
    place = tmp_path / "with blank"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "only_there.py").write_text("here = 'in the venv'\n")
    return place


def test_venv_script(stage, script, venv):
    activate = venv / "bin" / "activate"
    program = script("import os, sys, only_there; print('got', sys.prefix, os.environ['VIRTUAL_ENV'])")
    done = stage.run("run", "--num_gpus", "2", "--venv_script", activate, program)
    assert got(done) == [f"{venv} {venv}"] * 2


def test_module_in_a_venv(stage, venv):
    """It is the venv's Python that must find it, not ours."""
    (packages,) = (venv / "lib").glob("python*/site-packages")
    (packages / "only_there_too.py").write_text(ARGUMENTS)
    done = stage.run("run", "--venv_script", venv / "bin" / "activate", "-m", "only_there_too", "a")
    assert got(done) == ["a"]


def test_venv_script_sees_and_changes_the_environment_byte_for_byte(look, tmp_path):
    hard = os.fsdecode(b"a 'b' \"c\"\n\xff$HOME")
    source = tmp_path / "source.sh"
    source.write_text('export ADDED="$GIVEN+"\nunset REMOVED\nread LINE\necho noise\necho noise >&2\n')
    env = clean_environ(GIVEN=hard, REMOVED="1")
    for found in look("--venv_script", source, env=env):
        assert found["environ"]["GIVEN"] == os.fsencode(hard).decode("latin-1")
        assert found["environ"]["ADDED"] == os.fsencode(hard + "+").decode("latin-1")
        assert "REMOVED" not in found["environ"]


def test_venv_script_runs_once_for_all_ranks(look, tmp_path):
    source = tmp_path / "source.sh"
    source.write_text(f"echo x >> {tmp_path}/count\n")
    look("--venv_script", source, ranks=3)
    assert (tmp_path / "count").read_text() == "x\n"


# -- cores ---------------------------------------------------------------------------------------

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_each_rank_has_cores_of_its_own(look, tmp_path):
    found = look("--bind_core_list", f"{CORES[1]},{CORES[0]}")
    assert [rank["affinity"] for rank in found] == [[CORES[1]], [CORES[0]]]
    assert [rank["environ"]["OMP_NUM_THREADS"] for rank in found] == ["1", "1"]


def test_bound_to_physical_cores(look):
    (found,) = look("--bind_cores_to_rank", ranks=1)
    assert set(found["affinity"]) <= set(CORES)
    assert found["environ"]["OMP_NUM_THREADS"] == str(len(found["affinity"]))


def test_unbound_without_the_option(look):
    for found in look():
        assert found["affinity"] == CORES
