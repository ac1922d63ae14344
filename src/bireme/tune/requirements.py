"""The packages that tuning needs beyond those of launching: the extra ``tune`` of ``pyproject.toml``."""

from __future__ import annotations

import re

from bireme.errors import BadInputError

PACKAGES = {"numpy": "1.24", "hjson": "3.1", "rich": "13", "tomlkit": "0.12"}
"""The oldest version of each package that suffices. A package is imported by the same name."""


def check(purpose: str, *names: str, where: str = "") -> None:
    """Check that packages are installed; none is imported.

    Args:
        purpose: what needs them, for the error message.
        names: which of `PACKAGES`; all of them when none is named.
    """
    missing = [shown for name in names or PACKAGES if (shown := _missing(name))]
    if missing:
        raise BadInputError(
            f"{purpose} needs packages that are not installed: {', '.join(missing)}",
            hint="install them: pip install 'bireme[tune]'",
            where=where,
        )


def _missing(name: str) -> str:
    """The name of a package that is missing or too old, for the error message; "" if it is recent enough."""
    from importlib import metadata, util

    if util.find_spec(name) is None:
        return name
    try:
        version = metadata.version(name)
    except (
        metadata.PackageNotFoundError
    ):  # imported from a folder that is not an installation: its version is not known
        return ""
    return f"{name}>={PACKAGES[name]} ({version} is installed)" if _parts(version) < _parts(PACKAGES[name]) else ""


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a release, as far as they can be compared: ``5.0.0rc1`` counts as ``5.0``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
