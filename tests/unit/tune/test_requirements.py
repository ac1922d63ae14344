"""The packages of the extra ``tune``: which modules may import them, and the error when they are missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from bireme.tune.requirements import PACKAGES
from tests.conftest import clean_environ
from tests.test_layers import SRC, all_modules, imports

COMMAND = [sys.executable, "-S", "-m", "bireme", "tune", "x.py"]  # -S: without any installed package
MEND = "  install them: pip install 'bireme[tune]'\n"


def tune(folder: Path) -> subprocess.CompletedProcess[str]:
    """``bireme tune x.py`` where no packages are installed but those in a folder."""
    (folder / "x.py").touch()
    environ = clean_environ(PYTHONPATH=f"{SRC}:{folder / 'packages'}")
    return subprocess.run(COMMAND, cwd=folder, env=environ, capture_output=True, text=True)


def install(folder: Path, name: str, version: str) -> None:
    """A package of which there is no more than its name and its version."""
    packages = folder / "packages"
    (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
    (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (packages / f"{name}.py").touch()


def test_only_the_tuner_imports_them():
    """A base install has none of them, so nothing that launches jobs may import one."""
    tuners = re.compile(r"bireme\.tune\..*")
    found = {
        module
        for module, path in all_modules().items()
        for _, imported in imports(ast.parse(path.read_text()), module, path.name == "__init__.py")
        if imported.partition(".")[0] in PACKAGES
    }
    assert found, "the test finds what it looks for"
    assert [module for module in found if not tuners.fullmatch(module)] == []


def test_they_are_those_that_are_declared():
    text = (SRC.parent / "pyproject.toml").read_text()
    (declared,) = re.findall(r"^tune = (\[.*?\])", text, re.MULTILINE)
    assert ast.literal_eval(declared) == [f"{name}>={version}" for name, version in PACKAGES.items()]


def test_all_that_are_missing_are_named(tmp_path):
    done = tune(tmp_path)
    names = ", ".join(PACKAGES)
    assert done.stderr == f"bireme: bireme tune needs packages that are not installed: {names}\n{MEND}"
    assert done.returncode == 2
    install(tmp_path, "rich", "14.0")
    assert "not installed: numpy, hjson, tomlkit\n" in tune(tmp_path).stderr


def test_one_that_is_too_old_is_named_with_its_version(tmp_path):
    for name, version in (("numpy", "1.9"), ("hjson", "3.1.0"), ("rich", "12.6"), ("tomlkit", "0.12")):
        install(tmp_path, name, version)
    done = tune(tmp_path)
    old = "numpy>=1.24 (1.9 is installed), rich>=13 (12.6 is installed)"
    assert done.stderr == f"bireme: bireme tune needs packages that are not installed: {old}\n{MEND}"
