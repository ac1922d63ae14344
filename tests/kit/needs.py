"""What a test needs that a machine may lack: PyTorch, an engine, a compiler, namespaces.

Without it the test skips and says what is missing. With ``BIREME_TEST_REQUIRED=1``, as in the continuous integration,
it fails: a machine on which an installation has failed is not to look like one on which all is well. Only what no
installation brings (another system, root, a second core, IPv6) is an ordinary skip; ``.ci/run`` lists those at its end.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from types import ModuleType
from typing import NoReturn

import pytest

REQUIRED = "BIREME_TEST_REQUIRED"


def missing(what: str) -> NoReturn:
    """End the test: it cannot run without this. Skip, or fail where everything is required."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what} ({REQUIRED} is set, so this is no skip)", pytrace=False)
    pytest.skip(what)


def modules(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or with ``pytestmark`` a file, that needs these modules."""
    return pytest.mark.needs_modules(*names)


def programs(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or with ``pytestmark`` a file, that needs these programs."""
    return pytest.mark.needs_programs(*names)


def module(name: str) -> ModuleType:
    """Import a module that the test needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(f"not installed: {name} ({error})")


def program(*names: str, path: str | None = None) -> str:
    """The path of the first of these programs that is there; the test needs one of them."""
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    missing(f"not installed: {' or '.join(names)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for what the test's marks name."""
    for mark in item.iter_markers("needs_modules"):
        lacking = [name for name in mark.args if importlib.util.find_spec(name) is None]
        if lacking:
            missing(f"not installed: {', '.join(lacking)}")
    for mark in item.iter_markers("needs_programs"):
        for name in mark.args:
            program(name)
