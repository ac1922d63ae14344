"""What is kept in the cache: written for this user, and removed when it is old, but nothing of another kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.resources import cache


def old(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (1, 1))
    return path


def test_old_files_go(tmp_path: Path) -> None:
    left = old(tmp_path / "bireme/digests/left")
    cache.keep(str(tmp_path / "bireme/digests/new"), b"data")
    assert not left.exists() and (tmp_path / "bireme/digests/new").read_bytes() == b"data"
    assert (tmp_path / "bireme/digests/new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("link", ["bireme", "bireme/digests"])
def test_a_link_that_somebody_else_has_planted(tmp_path: Path, link: str) -> None:
    """In a cache on a shared disk, into which everybody can write: no file to which it leads is removed."""
    mine = old(tmp_path / "home/digests/mine")
    shared = tmp_path / "shared"
    (shared / link).parent.mkdir(parents=True)
    shared.chmod(0o777)
    (shared / link).symlink_to(tmp_path / "home" / ("digests" if "/" in link else ""))
    cache.keep(str(shared / "bireme/digests/new"), b"data")
    assert mine.exists()
