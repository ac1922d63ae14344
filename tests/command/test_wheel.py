"""The base install launches jobs; only the tuner requires what only it needs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bireme.tune.requirements import PACKAGES
from tests.command.test_examples import COMMAND, EXAMPLES, accuracy
from tests.conftest import PROGRAMS
from tests.kit import needs
from tests.kit.clean_install import CleanInstall, build_wheel, once

pytestmark = pytest.mark.slow

RANK = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
MISSING = (
    f"bireme tune needs packages that are not installed: {', '.join(PACKAGES)}\n"
    "  install them: pip install 'bireme[tune]'\n"
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> CleanInstall:
    """What ``pip install bireme`` brings."""
    return CleanInstall(once(tmp_path_factory, "base", lambda folder: CleanInstall(folder).install(wheel)))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working directory with a script."""
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


def test_it_has_none_of_the_tuners_packages(base: CleanInstall, tmp_path: Path) -> None:
    code = f"from importlib import util; print([name for name in {[*PACKAGES]} if util.find_spec(name)])"
    assert base.run_python(code, cwd=tmp_path).stdout == "[]\n"
    place = base.run_python("import bireme; print(bireme.__file__)", cwd=tmp_path).stdout
    assert place.startswith(str(base.python.parents[1])), "not the tree that the wheel was built from"


def test_help(base: CleanInstall, here: Path) -> None:
    for command in ("", "run", "check", "tune"):
        done = base.run(*command.split(), "--help", cwd=here)
        assert done.returncode == 0 and f"bireme {command}" in done.stdout and not done.stderr, done.stderr


def test_a_job_of_two_ranks(base: CleanInstall, here: Path) -> None:
    done = base.run("run", "--accelerator", "cpu", "--num_gpus", "2", "rank.py", cwd=here)
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_a_job_with_everything(base: CleanInstall, here: Path) -> None:
    """The rarer paths import more than others: a restart, log files, the report as a file."""
    (here / "fails.py").write_text("import os\nos.environ['RANK'] == '1' and 1 / 0\n")
    rare = ("--restarts", "1", "--report", "report.json", "--enable_each_rank_log", "logs", "--timestamps", "--fold")
    done = base.run("run", "--accelerator", "cpu", "--num_gpus", "2", *rare, "fails.py", cwd=here)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr, done.stderr
    assert "Bireme itself failed" not in done.stderr
    assert json.loads((here / "report.json").read_text())["exit_code"] == 1


def test_this_machine_is_fit(base: CleanInstall, here: Path) -> None:
    done = base.run("check", "rank.py", cwd=here)
    assert done.returncode == 0 and "Python" in done.stdout, done.stderr


def test_a_plan_for_a_set_of_nodes(base: CleanInstall, here: Path) -> None:
    (here / "nodes").write_text("node[1-3] slots=2\n")
    done = base.run("run", "--dry_run", "--json", "--hostfile", "nodes", "rank.py", cwd=here)
    assert done.returncode == 0, done.stderr
    assert {"node1", "node2", "node3"} <= set(done.stdout.replace('"', " ").split())


def test_tuning_says_what_to_install(base: CleanInstall, here: Path) -> None:
    for words in (["tune"], ["run", "--autotuning", "tune"], ["run", "--autotuning=run"]):
        done = base.run(*words, "rank.py", cwd=here)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "bireme: " + MISSING)
        assert [path.name for path in here.iterdir()] == ["rank.py"]


def test_tuning_from_python_says_it_too(base: CleanInstall, here: Path) -> None:
    code = "from bireme.deepspeed import runner\n"
    code += "args = runner.parse_args(['--autotuning', 'tune', 'rank.py'])\n"
    code += "try: runner.run_autotuning(args, {'localhost': [0]})\n"
    code += "except ValueError as error: print(type(error).__name__, error)"
    done = base.run_python(code, cwd=here)
    assert done.stdout == "BadInputError " + MISSING, done.stderr


def test_an_experiment_in_hjson_names_the_one_package(base: CleanInstall, here: Path) -> None:
    """DeepSpeed's scheduler by itself needs none of them, but for files in HJSON."""
    (here / "exp.hjson").write_text("{\n# an experiment\nname: one\n}")
    code = "from bireme.deepspeed import runner, scheduler\n"
    code += "args = runner.parse_args(['rank.py'])\n"
    code += "manager = scheduler.ResourceManager(args, {'localhost': [0]}, 0, 'results', 'exps', {})\n"
    code += "try: manager.schedule_experiments(['exp.hjson'])\n"
    code += "except ValueError as error: print(error)"
    done = base.run_python(code, cwd=here)
    head = "exp.hjson: not JSON, and reading HJSON needs packages that are not installed: hjson\n"
    assert done.stdout == head + MISSING.partition("\n")[2], done.stderr


def test_the_extra_is_all_that_a_study_needs(wheel: Path, here: Path) -> None:
    """``pip install 'bireme[tune]'``: the model, with its packages, on a configuration in HJSON."""
    tuner = CleanInstall(here / "venv").install(wheel, extras=["tune"])
    (here / "ds.hjson").write_text(
        "{\n# choices\ntrain_micro_batch_size_per_gpu: [1, 2, 4, 8]\nzero_optimization: {stage: [0, 1]}\n"
        "autotuning: {\nenabled: true\ntuner_type: model_based\ntuner_num_trials: 6\ntuner_early_stopping: 6\n}\n}\n"
    )
    shutil.copy(PROGRAMS / "contract.py", here)
    words = ["--accelerator", "cpu", "--num_gpus", "1", "contract.py", "--deepspeed_config", "ds.hjson"]
    done = tuner.run("tune", *words, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to run the job with the best configuration" in done.stdout


@pytest.mark.torch
@needs.modules("torch", "sklearn")
def test_the_demo(wheel: Path, here: Path) -> None:
    """What ``make demo`` runs, beside PyTorch and scikit-learn: a real training of two ranks."""
    demo = CleanInstall(here / "venv").install(wheel, also=["torch", "scikit-learn"])
    done = demo.run(*COMMAND, EXAMPLES / "digits_ddp.py", cwd=here)
    assert done.returncode == 0, done.stderr
    assert accuracy(done) > 0.95 and "ModuleNotFoundError" not in done.stderr, done.stderr
    assert len(re.findall(r"^\[\S+:0\] epoch +\d+ +loss ", done.stdout, re.MULTILINE)) == 10
