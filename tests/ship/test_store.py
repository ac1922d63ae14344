"""The copies of trees on a node: complete or absent, never used after a rank has written to them, cleaned up."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from bireme.ship import manifest
from bireme.ship.manifest import Entry, Manifest
from bireme.ship.store import NEWEST, TreeStore
from bireme.ship.tree import HeldTree, NewTree, write_all

T = TypeVar("T")
LARGE = bytes(range(256)) * 33_000  # more than a block of 8 MiB


def wanted(text: bytes = b"text", large: bytes = b"large") -> Manifest:
    entries = [
        Entry(kind="file", path=name, mode=0o640, size=len(data), content=hashlib.sha256(data).hexdigest())
        for name, data in {"sub/a": text, "large": large}.items()
    ]
    entries.append(Entry(kind="link", path="sub/link", content="a"))
    entries.append(Entry(kind="folder", path="empty/inner"))
    return manifest.make("project", entries)


def result(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def run(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def fill(new: NewTree, text: bytes, large: bytes = b"large") -> NewTree:
    new.make_folders()
    for place, entry in enumerate(new.manifest.entries):
        if entry.kind == "file":
            fd = new.open(place)
            write_all(fd, large if entry.path == "large" else text)
            new.close_file(place, fd)
    return new


def make(store: TreeStore, text: bytes = b"text", large: bytes = b"large") -> HeldTree:
    return fill(NewTree(store.folder, wanted(text, large)), text, large).finish()


def find(store: TreeStore, text: bytes = b"text") -> HeldTree | None:
    return result(store.find(wanted(text).digest))


@pytest.fixture
def store(tmp_path: Path) -> TreeStore:
    return TreeStore(str(tmp_path))


def test_a_copy_is_found_again(store: TreeStore) -> None:
    made = make(store)
    found = find(store)
    assert found is not None and found.path == made.path
    path = Path(made.path)
    assert (path / "sub/link").read_text() == "text" and (path / "empty/inner").is_dir()
    assert (path / "large").read_bytes() == b"large" and (path / "large").stat().st_mode & 0o777 == 0o640
    assert find(store, b"other") is None


def test_a_copy_in_the_making_is_not_found(store: TreeStore) -> None:
    new = fill(NewTree(store.folder, wanted()), b"text")
    run(store.remove_temporary())  # of another agent
    assert find(store) is None and os.listdir(store.folder)
    new.close()
    assert not os.listdir(store.folder)


CHANGES = {
    "written": lambda path: (path / "sub/a").write_text("TEXT"),
    "with its old time": lambda path: rewrite(path / "sub/a"),
    "removed": lambda path: (path / "large").unlink(),
    "replaced": lambda path: os.replace(path / "sub/a", path / "large"),
    "another link": lambda path: ((path / "sub/link").unlink(), (path / "sub/link").symlink_to("b")),
    "no folder": lambda path: (path / "empty/inner").rmdir(),
}


def rewrite(path: Path) -> None:
    there = path.stat()
    path.write_text("TEXT")
    os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_not_used_again(store: TreeStore, change: str) -> None:
    made = make(store)
    time.sleep(0.01)  # more than a tick of the clock of files
    CHANGES[change](Path(made.path))
    assert find(store) is None
    assert os.path.exists(made.path)  # its job may still run


def test_what_a_rank_adds_does_not_matter(store: TreeStore) -> None:
    made = make(store)
    Path(made.path, "checkpoint").write_text("x")
    assert find(store) is not None


def test_files_come_from_other_copies(store: TreeStore) -> None:
    made = make(store, large=LARGE)
    new = NewTree(store.folder, wanted(b"other", LARGE))
    new.make_folders()
    places = {entry.path: place for place, entry in enumerate(made.manifest.entries)}
    large = places["large"]
    assert result(new.copy(large, f"{made.path}/large", made.stamps[large]))
    Path(made.path, "large").write_bytes(b"spoilt")
    assert Path(new.path, "large").read_bytes() == LARGE
    assert not result(new.copy(places["sub/a"], f"{made.path}/large", made.stamps[large]))
    assert not Path(new.path, "sub/a").exists()


def test_a_killed_agent_leaves_nothing_for_long(store: TreeStore) -> None:
    child = os.fork()
    if not child:
        fill(NewTree(store.folder, wanted()), b"text")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.listdir(store.folder) and find(store) is None
    run(store.remove_temporary())
    assert not os.listdir(store.folder)


def used(store: TreeStore, name: str, days: float) -> None:
    when = time.time() - days * 86400
    os.utime(f"{store.folder}/{name}/.lock", (when, when))


def test_old_copies_are_removed(store: TreeStore) -> None:
    """Not the newest, not one that is in use, and not one to which ranks have written, for a month."""
    kinds = [
        *(f"newest{number}" for number in range(NEWEST)),
        "unused",
        "in use",
        "cached",
        "written",
        "added",
        "beside",
        "ancient",
    ]
    os.makedirs(f"{store.folder}/results")  # which a rank has left
    os.utime(f"{store.folder}/results", (0, 0))
    names = {}
    for number, kind in enumerate(kinds):
        held = make(store, kind.encode())
        names[kind] = Path(held.path).parent.name
        used(store, names[kind], 40 if kind == "ancient" else number)
        if kind != "in use":
            held.release()
        path = Path(held.path)
        if kind == "cached":
            (path / "sub/__pycache__").mkdir()
            (path / "sub/__pycache__/a.pyc").write_text("x")
        elif kind == "written":
            (path / "sub/a").write_text("more")
        elif kind == "beside":
            (path.parent / "runs").mkdir()
            (path.parent / "runs/checkpoint").write_text("x")
        elif kind in ("added", "ancient"):
            (path / "empty/inner/checkpoint").write_text("x")
    for _ in range(2):
        run(store.remove_old())
        left = {kind for kind, name in names.items() if name in os.listdir(store.folder)}
        assert left == {*kinds[:NEWEST], "in use", "written", "added", "beside"}
    assert len(os.listdir(store.folder)) == len(left) + 1


def test_what_is_being_removed_is_not_found(store: TreeStore) -> None:
    for number in range(NEWEST + 1):
        make(store, b"%d" % number).release()
        used(store, store.names()[0], NEWEST - number)
    steps = store.remove_old()
    while not any(name.endswith(".tmp") for name in os.listdir(store.folder)):
        next(steps)
    assert find(store, b"0") is None
    steps.close()  # type: ignore[attr-defined]  # the agent that removes it ends
    run(store.remove_temporary())
    assert len(os.listdir(store.folder)) == NEWEST


def test_a_damaged_copy_is_not_found(store: TreeStore) -> None:
    """As after a loss of power."""
    for name, text in ((".stamps", ""), (".manifest", ""), (".stamps", "[1, 2, 3, 4]")):
        made = make(store)
        Path(made.path).parent.joinpath(name).write_text(text)
        made.release()
        assert find(store) is None
