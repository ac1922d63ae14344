"""The tree of ``--ship``: what belongs to it, its manifest, and its contents."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from bireme.ship import inside, manifest, source
from bireme.ship.manifest import Entry, ManifestError
from bireme.ship.source import SourceTree
from tests.conftest import PROGRAMS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the user's cache is beside it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def find(ship: str = "git", limit: int = 1 << 20) -> SourceTree:
    spec = JobSpec(program=Program("x.py"), ship=ship, ship_limit=limit)
    return source.find(spec, os.environ)


@pytest.fixture
def old(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has files whose digests are kept, though they may be new, as in a fresh clone."""
    monkeypatch.chdir(PROGRAMS)
    monkeypatch.setattr(source, "_SETTLED", 0)


def paths(tree: SourceTree) -> list[str]:
    return [entry.path for entry in tree.manifest.entries]


def git(*words: str, cwd: Path | None = None) -> None:
    me = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *me, *words], cwd=cwd, check=True, capture_output=True)


def test_what_git_does_not_ignore(place: Path) -> None:
    git("init")
    (place / ".gitignore").write_text("ignored\n*.log\n")
    for name in ("tracked", "removed", "new", "ignored", "x.log", "sub/räume und\nzeilen"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(name)
    (place / os.fsdecode(b"\xff")).write_text("no text")
    git("add", "tracked", "removed")
    (place / "removed").unlink()
    (place / "tool").symlink_to("tracked")
    other = place / "other"
    git("init", str(other))  # a repository inside, which git shows as one name
    (other / "inner").write_text("x")
    os.chdir(place / "sub")
    tree = find()
    assert paths(tree) == sorted(
        [".gitignore", "new", "other/inner", "sub/räume und\nzeilen", "tool", "tracked", os.fsdecode(b"\xff")]
    )
    assert tree.roots == (str(place),) and tree.manifest.name == "project"
    assert Entry("link", "tool", content="tracked") in tree.manifest.entries
    assert manifest.read(tree.manifest.text) == tree.manifest


@pytest.mark.parametrize("setting", [("core.worktree", "/etc"), ("core.bare", "true")])
def test_a_repository_inside_whose_work_tree_is_elsewhere(place: Path, setting: tuple[str, str]) -> None:
    """Its files are sent as they are there."""
    git("init")
    git("init", "inner")
    git("config", *setting, cwd=place / "inner")
    (place / "inner/file").write_text("x")
    assert paths(find()) == ["inner/file"]


def test_a_damaged_repository_inside_is_named(place: Path) -> None:
    git("init")
    git("init", "in\nner")
    (place / "in\nner/.git/index").write_text("x")
    with pytest.raises(BadInputError, match=r"git ls-files in in\\x0aner: fatal: .*index"):
        find()


def test_a_folder_as_it_is(place: Path) -> None:
    git("init")
    (place / ".gitignore").write_text("ignored\n")
    (place / "ignored").write_text("x")
    (place / "empty/inner").mkdir(parents=True)
    (place / "tool").write_text("x")
    (place / "tool").chmod(0o755)
    tree = find(".")
    assert paths(tree) == [".gitignore", "empty/inner", "ignored", "tool"]
    assert {entry.path: entry.mode & 0o111 for entry in tree.manifest.entries}["tool"]


def test_the_name_that_was_typed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's working directory may have come through a link."""
    (place / "sub").mkdir()
    (place.parent / "link").symlink_to(place)
    monkeypatch.chdir(place / "sub")
    monkeypatch.setenv("PWD", str(place.parent / "link/sub"))
    assert find(str(place)).roots == (str(place), str(place.parent / "link"))


@pytest.mark.parametrize(
    ("ship", "limit", "said"),
    [
        ("git", 1 << 20, "not in a git repository\n  type --ship=. to send the working directory as it is"),
        ("nowhere", 1 << 20, "not a folder: nowhere"),
        ("sub", 1 << 20, "is not inside .*project/sub\n  cd "),
        (
            ".",
            3000,
            "holds 3.906 KiB in 2 files, more than the limit of 2.93 KiB\n  the largest part is sub .*limit 1M$",
        ),
    ],
    ids=["no git", "no folder", "elsewhere", "too large"],
)
def test_refused(place: Path, ship: str, limit: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(place.parent))
    (place / "sub").mkdir()
    (place / "sub/large").write_bytes(bytes(4000))
    with pytest.raises(BadInputError, match=said):
        find(ship, limit)


def test_a_name_does_not_look_like_a_line_of_ours(place: Path) -> None:
    (place / "x\nbireme: all is well").write_bytes(bytes(4000))
    with pytest.raises(BadInputError) as caught:
        find(".", 3000)
    assert r"the largest part is x\x0abireme: all is well (" in str(caught.value)


@pytest.mark.usefixtures("old")
def test_unchanged_files_are_not_read_again(place: Path) -> None:
    """What the cache says of them counts."""
    before = find(".", 1 << 30)
    (cache,) = (place.parent / "cache/bireme/digests").iterdir()
    known = json.loads(cache.read_bytes())
    name = next(iter(known))
    other = next(entry.path for entry in before.manifest.entries if entry.path in known and entry.path != name)
    known[name][4], known[other][0] = "as cached", -1
    cache.write_text(json.dumps(known))
    after = find(".", 1 << 30).manifest.entries
    digests = {entry.path: entry.content for entry in after}
    assert digests[name] == "as cached"
    assert digests == {**{entry.path: entry.content for entry in before.manifest.entries}, name: "as cached"}


def test_a_fresh_file_is_read_again(place: Path) -> None:
    """Its time stamp might not show the next change."""
    (place / "fresh").write_text("1")
    first = find(".").manifest.digest
    there = os.stat(place / "fresh")
    (place / "fresh").write_text("2")
    os.utime(place / "fresh", ns=(there.st_atime_ns, there.st_mtime_ns))
    assert find(".").manifest.digest != first


@given(sizes=st.lists(st.integers(0, 50), max_size=12), most=st.integers(1, 40), data=st.data())
def test_contents(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("tree")
    entries, wanted = [], b""
    for number, size in enumerate(sizes):
        content = bytes([number]) * size
        (folder / f"{number:02}").write_bytes(content)
        entries.append(Entry("file", f"{number:02}", 0o644, size, "0" * 64))
        wanted += content
    end = data.draw(st.integers(0, len(sizes)))
    wanted = wanted[: sum(sizes[:end])]
    tree = SourceTree((str(folder),), manifest.make("x", entries))
    assert contents(tree, range(end), most) == wanted


def contents(tree: SourceTree, places: Iterable[int], most: int) -> bytes:
    """All of it, read by so much at a time."""
    buffer, found = bytearray(most), [b""]
    for size in tree.contents(places, memoryview(buffer)):
        if not isinstance(size, int):
            raise size
        assert len(found[-1]) in (0, most)
        found.append(bytes(buffer[:size]))
    return b"".join(found)


def test_a_file_that_grows(place: Path) -> None:
    """What was there at first is sent."""
    (place / "log").write_bytes(b"0123456789")
    top = os.open(place, os.O_RDONLY)
    found, stats = source._look(top, None, (), {})
    (place / "log").write_bytes(b"0123456789 and more")
    digests = source._digests(top, str(place), found, stats, os.environ)
    os.close(top)
    assert found["log"].size == 10 and digests["log"] == hashlib.sha256(b"0123456789").hexdigest()
    tree = SourceTree((str(place),), manifest.make("x", found.values()))
    assert contents(tree, (0,), 100) == b"0123456789"


def test_a_file_that_goes_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that other programs use for a moment: it does not belong to the tree, and no digest of it is kept."""
    monkeypatch.setattr(source, "_SETTLED", 0)
    (place / "log").touch()
    with inside.Descriptor(os.open(place, os.O_RDONLY)) as top:
        found, stats = source._look(top, None, (), {})
        (place / "log").unlink()
        assert source._digests(top, str(place), found, stats, os.environ) == {"log": ""}
    assert not list(place.parent.glob("cache/bireme/digests/*"))


FIND = """
import os
from bireme.job import JobSpec, Program
from bireme.ship import source
tree = source.find(JobSpec(program=Program("x.py"), ship="."), os.environ)
print([entry.path for entry in tree.manifest.entries])
"""


def test_ones_own_output_is_not_sent(place: Path) -> None:
    (place / "other.log").write_text("x")
    with open(place / "nohup.out", "w") as output:
        subprocess.run([sys.executable, "-c", FIND], stdout=output, stderr=output, check=True)
    assert (place / "nohup.out").read_text() == "['other.log']\n"


def test_where_links_lead(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same place in a copy: what is in the tree there, what is elsewhere where it is."""
    (place.parent / "alias").symlink_to(place)
    monkeypatch.setenv("PWD", str(place.parent / "alias"))
    (place / "sub").mkdir()
    targets = {
        "sub/a": (f"{place}/x", "../x"),
        "sub/b": (f"{place.parent}/alias/sub/x", "x"),
        "sub/c": (str(place), ".."),
        "sub/d": ("../x", "../x"),
        "sub/e": ("../../datasets", f"{place.parent}/datasets"),
        "sub/f": ("/nowhere", "/nowhere"),
        "sub/g": (f"{place}-2", f"{place}-2"),
    }
    for name, (target, _) in targets.items():
        (place / name).symlink_to(target)
    found = {entry.path: entry.content for entry in find(".").manifest.entries}
    assert found == {name: wanted for name, (_, wanted) in targets.items()}


def outside(place: Path) -> Path:
    """A folder beside the project, with a file of the name of a tracked one."""
    (place.parent / "outside").mkdir()
    (place.parent / "outside/data").write_text("a secret")
    (place / "folder").mkdir()
    (place / "folder/data").write_text("data")
    git("init")
    git("add", "folder/data")
    return place.parent / "outside"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_folder_that_a_link_has_replaced(place: Path, ignored: bool) -> None:
    """What it leads to is not sent. The link is, unless git ignores it."""
    elsewhere = outside(place)
    shutil.rmtree(place / "folder")
    (place / "folder").symlink_to(elsewhere)
    if ignored:
        (place / ".gitignore").write_text("folder\n")
    tree = find()
    assert [path for path in paths(tree) if path != ".gitignore"] == ([] if ignored else ["folder"])
    assert tree.notes == ("folder/ is not sent: a link has replaced it",)


@pytest.mark.parametrize("what", ["folder", "folder/data"])
def test_a_link_that_comes_meanwhile(place: Path, what: str) -> None:
    """After the manifest was made, and before the file is read."""
    elsewhere = outside(place)
    (elsewhere / "data").write_text("evil")
    tree = find()
    (place / what).rename(place / "gone")
    (place / what).symlink_to(elsewhere / what.removeprefix("folder").lstrip("/"))
    with pytest.raises(OSError, match="'folder/data'"):
        contents(tree, (0,), 100)


@pytest.mark.parametrize("where", [".", "inner"])
def test_no_program_of_a_repository_is_run(place: Path, where: str) -> None:
    git("init")
    git("init", where)
    (place / "hook").write_text(f"#!/bin/sh\ntouch {place.parent}/ran\n")
    (place / "hook").chmod(0o755)
    (place / where / "file").write_text("x")
    git("add", "file", cwd=place / where)
    for setting in ("core.fsmonitor", "core.sshCommand", "diff.external", "filter.x.clean", "filter.x.process"):
        git("config", setting, str(place / "hook"), cwd=place / where)
    (place / where / ".gitattributes").write_text("* filter=x diff=x\n")
    (place / where / "file").write_text("y")
    (place.parent / "ran").unlink(missing_ok=True)
    assert (f"{where}/file" if where != "." else "file") in paths(find())
    assert not (place.parent / "ran").exists()


def test_a_tree_whose_name_is_one_of_ours(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the tree are a lock and a manifest."""
    (place / ".lock").mkdir()
    (place / ".lock/file").write_text("x")
    monkeypatch.chdir(place / ".lock")
    assert find(".").manifest.name == "lock"


@pytest.mark.parametrize("planted", ["another user's", "writable", "a fifo"])
@pytest.mark.usefixtures("old")
def test_digests_that_others_may_have_written(place: Path, planted: str) -> None:
    """As in a cache on a shared disk: by a digest, an older content could be taken for that of today."""
    before = find(".", 1 << 30)
    (cache,) = (place.parent / "cache/bireme/digests").iterdir()
    known = json.loads(cache.read_bytes())
    known[next(iter(known))][-1] = "0" * 64
    cache.write_text(json.dumps(known))
    if planted == "writable":
        cache.chmod(0o666)
    elif planted == "a fifo":
        cache.unlink()
        os.mkfifo(cache)
    elif os.geteuid() == 0:
        os.chown(cache, 4242, -1)
    else:
        pytest.skip("needs root")
    assert find(".", 1 << 30).manifest == before.manifest


def test_git_does_not_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for somebody who writes to this FIFO."""
    git("init")
    os.mkfifo(place / ".gitignore")
    monkeypatch.setattr(source, "_PATIENCE", 0.2)
    with pytest.raises(BadInputError, match="git ls-files did not finish within"):
        find()


def test_what_is_neither_file_nor_folder_nor_link(place: Path) -> None:
    for number in range(7):
        os.mkfifo(place / f"fifo{number}")
    tree = find(".")
    assert not paths(tree)
    (note,) = tree.notes
    assert note.startswith("fifo") and note.endswith(" and 2 more are not sent: only files, folders and links are")


def test_what_git_does_not_name_is_said_once(place: Path) -> None:
    git("init")
    (place / "b").mkdir()
    for path in ("a", "b/c", "d"):
        (place / path).touch()
    os.mkfifo(place / "fifo")
    os.mkfifo(place / "b" / "fifo")
    assert find("git").notes == ("b/fifo, fifo are not sent: only files, folders and links are",)


def test_holes_count_nothing(place: Path) -> None:
    with (place / "sparse").open("wb") as file:
        file.seek(50 << 30)
        file.write(b"x" * 5000)
        file.truncate(100 << 30)
    tree = find(".", 1 << 20)
    (entry,) = tree.manifest.entries
    assert entry.size == 100 << 30 and 5000 <= entry.data < 1 << 16
    assert contents(tree, (0,), 1 << 20).strip(b"\0") == b"x" * 5000


def test_a_mapped_file_is_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times show one change in half a minute only: as long as they are younger, its digest is not kept."""
    (place / "data").write_bytes(b"before")
    when = time.time_ns() - 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: when + 2 * 60 * 10**9 - 1)
    with (place / "data").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:] = b"middle"
        first = find(".").manifest.digest
        mapped[:] = b"behind"
        assert find(".").manifest.digest != first


MAPPED = """
import mmap, os
from bireme.job import JobSpec, Program
from bireme.ship import source
source._SETTLED = 0
with open("data", "wb") as file:
    file.write(b"before")
found = set()
with open("data", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    for content in (b"middle", b"behind"):
        mapped[:] = content
        found.add(source.find(JobSpec(program=Program("x.py"), ship="."), os.environ).manifest.digest)
print(len(found))
"""


@pytest.mark.needs_programs("unshare", "mount")
@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_a_mapped_file_in_memory_is_read_again(place: Path, kind: str) -> None:
    """No write to it but the first ever changes its times, so its digest is not kept."""
    mount = "mount -t tmpfs tmpfs . && cd ."
    if kind == "overlay":
        mount += " && mkdir l u w m && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m && cd m"
    command = ("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", MAPPED)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.usefixtures("old")
def test_a_wrong_digest_is_forgotten(place: Path) -> None:
    before = find(".", 1 << 30)
    (cache,) = (place.parent / "cache/bireme/digests").iterdir()
    known = json.loads(cache.read_bytes())
    name = next(iter(known))
    known[name][4] = "0" * 64
    cache.write_text(json.dumps(known))
    wrong = find(".", 1 << 30)
    assert wrong.manifest != before.manifest
    said: list[str] = []
    source.Shipment(wrong, lambda *_: None, said.append).wrong(paths(wrong).index(name))
    assert said == [f"{PROGRAMS}/{name} has changed since the job began"]
    assert find(".", 1 << 30).manifest == before.manifest


@pytest.mark.parametrize(
    ("change", "said"), [("shorter", "it is shorter"), ("gone", "No such"), ("fifo", "no longer a regular")]
)
def test_a_file_that_changes_while_it_is_sent(place: Path, change: str, said: str) -> None:
    (place / "x").write_bytes(bytes(10))
    tree = find(".")
    (place / "x").write_bytes(bytes(5))
    if change != "shorter":
        (place / "x").unlink()
    if change == "fifo":
        os.mkfifo(place / "x")
    with pytest.raises(OSError, match=said):
        contents(tree, (0,), 100)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"name": "x"}',
        b'{"name": "..", "entries": []}',
        b'{"name": "x", "entries": [["file", "../x", 420, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "/x", 420, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "a//x", 420, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "x", -1, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "x", 2559, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "x", 420, 1.5, ""]]}',
        b'{"name": "x", "entries": [["fifo", "x", 420, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "x", 420, 1, ""], ["link", "x", 0, 0, "y"]]}',
        b'{"name": "x", "entries": [["link", "x", 0, 0, "/etc"], ["file", "x/y", 420, 1, ""]]}',
        b'{"name": "x", "entries": [["file", "x", 420, 4, "", 2, 1]]}',
        b'{"name": "x", "entries": [["file", "x", 420, 4, "", 2, 5]]}',
        b'{"name": "x", "entries": [["file", "x", 420, 4, "", 2]]}',
        b'{"name": "x", "entries": [["file", "x", 420, 1, "../x"]]}',
    ],
)
def test_malformed_manifest(text: bytes) -> None:
    with pytest.raises(ManifestError):
        manifest.read(text)
