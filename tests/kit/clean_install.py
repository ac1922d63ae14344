"""Creates clean environments: Bireme built from the tree, and only those packages that it requires."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import clean_environ

ROOT = Path(__file__).parents[2]
PIP = Path(str(find_spec("pip").origin)).parent  # type: ignore[union-attr]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that all workers of a run share. The first that asks for it makes what is in it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(folder)
    return folder


def build_wheel(factory: pytest.TempPathFactory) -> Path:
    """The tree's wheel; the network is not used."""
    words = ["pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", ROOT, "-w"]

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", *words, folder], check=True, env=clean_environ())

    (wheel,) = once(factory, "wheel", build).glob("bireme-*.whl")
    return wheel


class CleanInstall:
    """A virtual environment in a folder, in which Bireme's wheel is or will be installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # pip leaves some variables of its own behind, and PYTHONPATH would bring packages in.
        self.environ = {name: value for name, value in clean_environ().items() if name != "PYTHONPATH"}
        self.environ["PYTHONNOUSERSITE"] = "1"
        self.python, self.command = folder / "bin" / "python", folder / "bin" / "bireme"

    def install(self, wheel: Path, extras: Iterable[str] = (), also: Iterable[str] = ()) -> CleanInstall:
        """Make it.

        The packages that the wheel requires are links to those of this environment, so that nothing is downloaded.

        Args:
            wheel: what is installed.
            extras: of the wheel, as in ``pip install 'bireme[tune]'``.
            also: further packages.
        """
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder], check=True, env=self.environ)
        # Our pip, run by the new interpreter. It sees the tree's own installation too, and is to leave it alone.
        words = ["install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", "--no-compile", wheel]
        subprocess.run([self.python, PIP, *words], check=True, env=self.environ)
        (site,) = self.folder.glob("lib/python*/site-packages")
        (own,) = metadata.distributions(name="bireme", path=[str(site)])
        for name in closure([*required(own, extras), *also]):
            link(metadata.distribution(name), site)
        return self

    def run(self, *words: str | Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
        """Run ``bireme WORDS``, by its console script, in the environment of a shell in which this one is active."""
        return self._run([self.command, *words], **kwargs)

    def run_python(self, code: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
        """Run a text as a program."""
        return self._run([self.python, "-c", code], **kwargs)

    def _run(self, argv: list[str | Path], **kwargs: object) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.python.parent), self.environ["PATH"]])
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [*map(str, argv)], env={**self.environ, "PATH": path}, capture_output=True, text=True, timeout=120, **kwargs
        )


def required(distribution: metadata.Distribution, extras: Iterable[str] = ()) -> Iterator[str]:
    """The packages that a distribution with these extras requires here."""
    for line in distribution.requires or ():
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted.name


def closure(names: Iterable[str]) -> set[str]:
    """These packages and all that they require, as far as they are installed here."""
    found, left = set[str](), [*names]
    while left:
        name = left.pop().lower().replace("_", "-")
        try:
            more = required(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            left += more
    return found


def pack(distribution: metadata.Distribution, folder: Path) -> None:
    """Make a wheel of an installed distribution, for installers that download nothing."""
    name = distribution.metadata["Name"].replace("-", "_")
    with zipfile.ZipFile(folder / f"{name}-{distribution.version}-py3-none-any.whl", "w") as wheel:
        for file in distribution.files or ():
            if file.parts[0] != ".." and "__pycache__" not in file.parts:
                wheel.write(str(distribution.locate_file(file)), str(file))


def link(distribution: metadata.Distribution, site: Path) -> None:
    """Link whatever a distribution has in its site-packages."""
    for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(str(distribution.locate_file(top)))
