"""Every public name of DeepSpeed's launcher and scheduler exists here, or the documentation names a replacement."""

from __future__ import annotations

import argparse
import importlib
import logging
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.kit import needs
from tests.test_docs import code_words, page, rows, section

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def listed() -> set[str]:
    return {
        name for row in rows(section(page("deepspeed.md"), "Names that are not there")) for name in code_words(row[0])
    }


def counterparts() -> dict[str, str]:
    return {code_words(row[0])[0]: code_words(row[1])[0] for row in rows(section(page("deepspeed.md"), "Modules"))}


def of_deepspeed() -> Iterator[str]:
    """The names of the modules, without the programs of the tuner's templates."""
    for package in ("deepspeed.launcher", "deepspeed.autotuning"):
        for found in pkgutil.iter_modules(needs.module(package).__path__, f"{package}."):
            yield found.name


def is_public(value: object) -> bool:
    """Not a module, and not a name that was imported from another package than DeepSpeed; constants have no origin."""
    if isinstance(value, ModuleType):
        return False
    origin = getattr(value, "__module__", None) or "deepspeed"
    return origin.partition(".")[0] == "deepspeed" or isinstance(value, logging.Logger)


def names(module: Any) -> Iterator[tuple[str, object]]:
    for name in dir(module):
        value = getattr(module, name)
        if not name.startswith("__") and not hasattr(argparse, name) and is_public(value):
            yield name, value


def lacking(theirs: str, ours: str) -> Iterator[str]:
    """Full names that our module lacks, members of classes too."""
    reference, adapter = needs.module(theirs), importlib.import_module(ours)
    for name, value in names(reference):
        if not hasattr(adapter, name):
            yield f"{theirs}.{name}"
        elif isinstance(value, type):
            known = dir(getattr(adapter, name))
            yield from (f"{theirs}.{name}.{member}" for member in dir(value) if member not in known)


def test_every_name_is_there_or_listed() -> None:
    missing = set()
    for module in of_deepspeed():
        ours = counterparts().get(module)
        missing |= {module} if ours is None else set(lacking(module, ours))
    assert missing - listed() == set(), "neither there nor in docs/deepspeed.md"
    assert listed() - missing == set(), "listed in docs/deepspeed.md, but there, or nothing of DeepSpeed"


def test_names_of_other_versions_are_there() -> None:
    from bireme.deepspeed import runner

    assert runner.parse_num_nodes("3", elastic_training=False) == (3, -1)
    assert runner.parse_num_nodes("2:4", elastic_training=True) == (2, 4)
    for words in (("2:4", False), ("2:x", True), ("2:4:5", True)):
        with pytest.raises(RuntimeError):
            runner.parse_num_nodes(*words)
    assert runner.EXCLUDE_ENVS == {"AISC_JOB_NAME": ["NCCL_IB_HCA", "UCX_NET_DEVICES"]}


def test_the_logger_speaks_as_bireme_does(capfd: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    from bireme.deepspeed import launch, runner

    assert runner.logger is launch.logger
    assert runner.fetch_hostfile(str(tmp_path / "absent")) is None
    assert capfd.readouterr().err.startswith(f"bireme: no hostfile {tmp_path}")
    runner.logger.setLevel(logging.ERROR)
    try:
        runner.fetch_hostfile(str(tmp_path / "absent"))
        assert capfd.readouterr().err == ""
    finally:
        runner.logger.setLevel(logging.INFO)
