"""Who can change what is at a path: this user and root alone, or others; and what is kept in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.resources.ownership import check_owned, keep, make_owned

OTHER = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``own/cache``, and beside ``own`` a folder ``shared`` like /tmp."""
    (tmp_path / "own/cache").mkdir(parents=True)
    tmp_path.joinpath("shared").mkdir()
    tmp_path.joinpath("shared").chmod(0o1777)
    return tmp_path


def give_away(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def ours_in_shared(place: Path) -> Path:
    (place / "shared/mine").mkdir()
    return place / "shared/mine"


def through_a_link(place: Path) -> Path:
    (place / "link").symlink_to("own/../own")
    (place / "shared/link").symlink_to(f"{place}/link/cache")
    return place / "shared/link"


GOOD: dict[str, Callable[[Path], Path]] = {
    "own": lambda place: place / "own/cache",
    "in a sticky folder": ours_in_shared,
    "through links": through_a_link,
    "dots": lambda place: place / "own/./cache/../cache",
}


@pytest.mark.parametrize("kind", GOOD)
def test_what_only_we_can_change(place: Path, kind: str) -> None:
    check_owned(str(GOOD[kind](place)))


def test_a_relative_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place / "own")
    check_owned("cache")
    (place / "own").chmod(0o777)
    with pytest.raises(BadInputError, match=r"everyone can write to .*/own\n  chmod go-w .*/own$"):
        check_owned("cache")


def others_folder(place: Path) -> str:
    """Another user has made it where both may."""
    (place / "shared/cache/trees").mkdir(parents=True)
    give_away(place / "shared/cache")
    return "shared/cache/trees"


def others_parent(place: Path) -> str:
    """Who owns a parent can rename what is below it, whatever its mode."""
    give_away(place / "own")
    return "own/cache"


def others_link(place: Path) -> str:
    (place / "shared/link").symlink_to("../own/cache")
    give_away(place / "shared/link")
    return "shared/link"


def to_others(place: Path) -> str:
    """The link is ours, but not what it leads to."""
    (place / "own/link").symlink_to(f"{place}/{others_folder(place)}")
    return "own/link"


def after_dots(place: Path) -> str:
    others_folder(place)
    return "shared/x/../cache" if (place / "shared/x").mkdir() is None else ""


@needs_root
@pytest.mark.parametrize("kind", [others_folder, others_parent, others_link, to_others, after_dots])
def test_what_belongs_to_others(place: Path, kind: Callable[[Path], str]) -> None:
    path = place / kind(place)
    for function in (check_owned, make_owned):
        with pytest.raises(BadInputError, match=f"belongs to user {OTHER}, not to this user or root\n  go on$"):
            function(str(path), hint="go on")
    assert not (place / "own/cache/trees").exists()


@pytest.mark.parametrize(
    ("part", "mode"), [("own", 0o777), ("own", 0o775), ("own/cache", 0o1777), ("own/cache", 0o722)]
)
def test_where_others_can_write(place: Path, part: str, mode: int) -> None:
    if mode & 0o070 == 0o070 and os.geteuid() == 0:
        os.chown(place / part, -1, OTHER)
    (place / part).chmod(mode)
    with pytest.raises(BadInputError, match=f"can write to .*/{part}\n  chmod go-w .*/{part}$"):
        make_owned(str(place / "own/cache"))


@needs_root
def test_a_group_of_ones_own(place: Path) -> None:
    """As where each user has one, and the umask is 002. An access control list may allow more to others."""
    (place / "own").chmod(0o775)
    check_owned(str(place / "own/cache"))
    nobody, acl = 0xFFFFFFFF, b"\x02\0\0\0"
    for tag, bits, who in (1, 7, nobody), (2, 7, OTHER), (4, 5, nobody), (16, 7, nobody), (32, 5, nobody):
        acl += tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + who.to_bytes(4, "little")
    try:
        os.setxattr(place / "own", "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"no access control lists: {error}")
    with pytest.raises(BadInputError, match="its group can write"):
        check_owned(str(place / "own/cache"))


def test_making_one(place: Path) -> None:
    path = place / "own/cache/deep/er"
    make_owned(str(path))
    make_owned(str(path))
    assert path.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777 == 0o700
    make_owned(str(place / "shared/two/levels"))
    (place / "own/file").write_text("x")
    for wrong in ("own/file/x", "own/file"):
        with pytest.raises(OSError, match="directory"):
            make_owned(str(place / wrong))
    (place / "own/loop").symlink_to("loop")
    with pytest.raises(BadInputError, match="too many links"):
        make_owned(str(place / "own/loop"))
    with pytest.raises(FileNotFoundError):
        check_owned(str(place / "own/nothing"))


def test_it_is_cheap_to_import() -> None:
    code = "import sys, bireme.resources.ownership; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert not {"grp", "pwd", "re", "typing", "subprocess"} & set(done.stdout.split())


# --- the cache --------------------------------------------------------------------------------


def old(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (1, 1))
    return path


def test_old_files_go(tmp_path: Path) -> None:
    left = old(tmp_path / "bireme/digests/left")
    keep(str(tmp_path / "bireme/digests/new"), b"data")
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
    keep(str(shared / "bireme/digests/new"), b"data")
    assert mine.exists()
