"""The tree that an agent gets: fresh for each job, the same again for its attempts, never with what others did."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import pytest

from bireme.control.messages import Ask, Message, TreeOffer
from bireme.job import JobSpec, Program
from bireme.loop import Loop
from bireme.ship import inside, source, taker
from bireme.ship import trees as trees_module
from bireme.ship.conversation import Need, Shipped
from bireme.ship.taker import TreeTaker
from bireme.ship.trees import NEWEST, STOCK, Trees
from tests.unit.control.examples import ASK

T = TypeVar("T")
MOMENTS = int(os.environ.get("BIREME_TEST_MOMENTS", "8"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project; the working directory is a folder in it."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "data.txt").write_text("some data")
    (root / "other.txt").write_text("other data")
    (root / "link").symlink_to("data.txt")
    monkeypatch.chdir(root / "sub")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


class Taken:
    """What came of an offer of the project: the message as it is in the tree, why there is none, and what was sent."""

    def __init__(
        self,
        project: Path,
        *args: str,
        job: str = "",
        logs: str = "",
        altered: Callable[[bytes], bytes] = bytes,
        until: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        spec = JobSpec(program=Program("x.py", args), ship=str(project), rank_log_dir=logs or None)
        self.tree = source.find(spec, os.environ)
        self.asked: list[Message] = []
        self.sent = b""
        self._altered, self._until = altered, until
        text = self.tree.manifest.text
        job = job or self.tree.job
        offer = TreeOffer(digest=self.tree.manifest.digest, length=len(text), roots=self.tree.roots, cache="", job=job)
        self._loop = Loop()
        self._taker = TreeTaker(
            self._loop, ASK.replace(spec=spec, cwd=os.getcwd(), tree=offer), os.environ, self._send, self._done
        )
        self._loop.after(0, self._taker.start)
        try:
            self._loop.run()
        finally:
            self._taker.close()
            self._loop.close()

    def _send(self, message: Message) -> None:
        self.asked.append(message)
        if isinstance(message, Need):
            pieces = [self.tree.manifest.text]
            if message.places:
                buffer = bytearray(1 << 20)
                pieces = []
                for size in self.tree.contents(message.places, memoryview(buffer)):
                    assert isinstance(size, int), size
                    pieces.append(self._altered(bytes(buffer[:size])))
                self.sent += b"".join(pieces)
            for piece in pieces:
                self._loop.after(0, lambda piece=piece: self._taker.take(piece))

    def _done(self, ask: Ask, problem: str) -> None:
        self.ask, self.problem = ask, problem
        self.path = Path(ask.cwd.removesuffix("/sub"))
        self._wait()

    def _wait(self) -> None:
        if self.problem or self._until(self.path):
            self._loop.stop()
        else:
            self._loop.after(0.01, self._wait)


def take(project: Path, *args: str, **kwargs: str) -> tuple[Ask, str]:
    taken = Taken(project, *args, **kwargs)  # type: ignore[arg-type]
    return taken.ask, taken.problem


def trees(project: Path) -> list[Path]:
    """The trees of jobs."""
    return [path.parent for path in (project.parent / "cache/bireme/ship").glob("[!.]*/.lock")]


def stock(project: Path) -> dict[bytes, Path]:
    """The files of the stock, by what they hold."""
    return {path.read_bytes(): path for path in stock_folder(project).iterdir() if path.is_file()}


def stock_folder(project: Path) -> Path:
    return project.parent / "cache/bireme/ship" / STOCK


def content(tree: Path) -> dict[str, bytes | str]:
    """All files and links."""
    found = {path.relative_to(tree): path for path in tree.rglob("*") if path.is_symlink() or not path.is_dir()}
    return {str(name): os.readlink(path) if path.is_symlink() else path.read_bytes() for name, path in found.items()}


def test_where_arguments_lead(project: Path) -> None:
    """To the copy if they name something in the tree, else to where they lead without it."""
    outside = project.parent
    wanted = {
        "../data.txt": "../data.txt",
        "..": "..",
        "s/../x/": "s/../x/",
        "../../runs": f"{outside}/runs",
        "--out=../../runs": f"--out={outside}/runs",
        "../../project-2": f"{outside}/project-2",
        "../../project/data.txt": "../../project/data.txt",
        f"{project}/data.txt": "COPY/data.txt",
        f"--in={project}/data.txt": "--in=COPY/data.txt",
        f"{project}/sub/../data.txt": "COPY/data.txt",
        str(project): "COPY",
        f"{project}/..": str(outside),
        f"{project}/../runs": f"{outside}/runs",
        f"{project}-2/data.txt": f"{project}-2/data.txt",
        f"{project}/new": f"{project}/new",
    }
    ask, problem = take(project, *wanted, logs="../../logs")
    assert not problem
    copy, found = ask.cwd.removesuffix("/sub"), ask.spec.program.args
    assert {word: now.replace(copy, "COPY") for word, now in zip(wanted, found, strict=True)} == wanted
    assert ask.spec.rank_log_dir == f"{outside}/logs"
    assert take(project, logs="logs")[0].spec.rank_log_dir == "logs"


WHOLE: dict[str, bytes | str] = {"data.txt": b"some data", "other.txt": b"other data", "link": "data.txt"}


def test_a_job_gets_its_tree_again(project: Path) -> None:
    """With what its ranks have written, also to files that were sent."""
    first = Taken(project, job="one")
    assert content(first.path) == WHOLE and first.sent == b"some dataother data"
    (first.path / "data.txt").write_text("more data than before")
    second = Taken(project, job="one")
    assert second.path == first.path and not second.asked
    assert content(second.path) == {**WHOLE, "data.txt": b"more data than before"}


def test_another_tree_for_the_same_job(project: Path) -> None:
    """It does not run in the one that is there."""
    Taken(project, job="one")
    (project / "data.txt").write_text("new data")
    assert "Directory not empty" in Taken(project, job="one").problem


def result_of(steps: Generator[object, None, T]) -> T:
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_a_tree_that_is_about_to_be_removed(project: Path) -> None:
    """Nobody gets it. The lock goes last: it says that what is left belongs to nobody."""
    path = Taken(project, job="one").path.parent
    found = Trees(str(path.parent.parent))
    with (path / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert found.hold("one") is None
    for _ in trees_module._remove(str(path)):
        assert (path / ".lock").exists()
    assert not path.exists()


def test_a_result_that_comes_while_a_tree_is_removed(project: Path) -> None:
    """It stays, with the manifest, which tells what was sent; no job runs there."""
    path = Taken(project, job="one").path.parent
    found = Trees(str(path.parent.parent))
    held, old = found.hold("one", fcntl.LOCK_EX), path.with_suffix(".old")
    assert held is not None
    for _ in trees_module._remove_unchanged(held):
        if old.exists():
            (old / "project/sub/result").write_text("x")
    os.close(held.lock)
    assert {each.name for each in old.iterdir()} == {".lock", ".manifest", "project"} and not path.exists()
    assert [each.name for each in old.rglob("*") if each.is_file()][-1] == "result"


def test_what_is_written_while_a_tree_is_removed(tmp_path: Path) -> None:
    """It stays, though all was as it was made a moment before."""
    same, changed, new = (tmp_path / "tree" / name / "file" for name in ("same", "changed", "new"))
    for path in (same, changed):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    known = {f"{path.parent.name}/file": inside.stamp_of(os.lstat(path)) for path in (same, changed)}
    changed.write_text("a result")
    new.parent.mkdir()
    new.touch()
    with inside.Descriptor(os.open(tmp_path, inside.FOLDER)) as top:
        for _ in inside.remove(top, "tree", known):
            pass
    assert not same.parent.exists() and changed.read_text() == "a result" and new.exists()


def by_mmap(path: Path) -> None:
    """Without another time of change, as of a file that is mapped for longer."""
    before = path.stat()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:4] = b"SOME"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda tree: None,
    "more": lambda tree: (tree / "sub/checkpoint").write_text("x"),
    "written": lambda tree: (tree / "data.txt").write_text("DATA"),
    "mapped": lambda tree: by_mmap(tree / "data.txt"),
    "removed": lambda tree: (tree / "data.txt").unlink(),
    "another link": lambda tree: ((tree / "link").unlink(), (tree / "link").symlink_to("/etc/passwd")),
    "a folder as a link": lambda tree: ((tree / "sub").rmdir(), (tree / "sub").symlink_to("/etc")),
    "beside": lambda tree: (tree.parent / "result").write_text("x"),
    "a link as the tree": lambda tree: (shutil.rmtree(tree), tree.symlink_to("/etc")),
    "all": lambda tree: shutil.rmtree(tree),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_one_job_reaches_another(project: Path, change: str) -> None:
    """Whether it gets what is in the stock, or copies of what older ones have."""
    first = Taken(project)
    CHANGES[change](first.path)
    for number in range(3):
        other = Taken(project, until=(lambda _: len(stock(project)) == 2) if number == 1 else lambda _: True)
        assert content(other.path) == WHOLE and other.path != first.path
        assert all(tree.stat().st_mode & 0o777 == 0o700 for tree in trees(project))
        CHANGES[change](other.path)


@pytest.mark.parametrize("copies", ["by the kernel", "by hand"])
def test_what_is_here_is_not_sent_again(project: Path, copies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if copies == "by hand":  # as where the system cannot
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    Taken(project)
    assert {*stock(project)} == {b"other data", b"some data"}
    assert not Taken(project).asked and not stock(project)
    assert not Taken(project, until=lambda _: len(stock(project)) == 2).asked  # by copies
    (project / "data.txt").write_text("new data")
    (project / "link").unlink()
    (project / "sub/deep").mkdir()
    (project / "sub/deep/file").write_text("deep")
    changed = Taken(project)
    assert changed.sent == b"new datadeep" and {*stock(project)} == {b"deep", b"new data", b"some data"}
    assert content(changed.path) == {"data.txt": b"new data", "other.txt": b"other data", "sub/deep/file": b"deep"}


@pytest.mark.parametrize("booted", [False, True])
def test_what_is_damaged_is_sent_again(project: Path, booted: bool) -> None:
    """As after a loss of power, which leaves files of the right size, and with their times."""
    first = Taken(project)
    for path in (first.path / "data.txt", stock(project)[b"some data"]):
        when = path.stat().st_mtime_ns
        path.write_bytes(bytes(9) if booted else b"half")
        if booted:
            os.utime(path, ns=(when + 10**9, when + 10**9))
    second = Taken(project)
    assert content(second.path) == WHOLE and second.sent == b"some data"


def test_a_file_with_holes(project: Path) -> None:
    with (project / "sparse").open("wb") as file:
        file.seek(10 << 30)
        file.write(b"in the middle")
        file.truncate(100 << 30)
    with (project / "elsewhere").open("wb") as file:
        file.seek(20 << 30)
        file.write(b"in the middle")
        file.truncate(100 << 30)
    with (project / "all hole").open("wb") as file:
        file.truncate(1 << 30)
    for _ in range(3):
        taken = Taken(project)
        assert len(taken.sent) < 1 << 16
        for name in ("sparse", "elsewhere", "all hole"):
            there, here = (taken.path / name).stat(), (project / name).stat()
            assert there.st_size == here.st_size and there.st_blocks <= here.st_blocks
        with (taken.path / "elsewhere").open("rb") as copy:
            copy.seek(20 << 30)
            assert copy.read(13) == b"in the middle"
        with (taken.path / "sparse").open("r+b") as copy:
            copy.seek(10 << 30)
            assert copy.read(14) == b"in the middle\0"
            copy.seek(50 << 30)
            assert copy.read(9) == bytes(9)
            copy.seek(50 << 30)
            copy.write(b"in a hole")
        held = Trees(str(project.parent / "cache/bireme")).hold(taken.path.parent.name)
        assert held is not None and result_of(held.known()) is None
        os.close(held.lock)
    (project / "elsewhere").unlink()  # another one of this content, but for the holes
    with (Taken(project).path / "sparse").open("rb") as copy:
        copy.seek(10 << 30)
        assert copy.read(13) == b"in the middle"


def test_what_ranks_leave_is_kept(project: Path) -> None:
    """Whatever the clock says, and however much it is; a tree that is as it was made goes."""
    kept = []
    for change in CHANGES.values():
        kept.append(Taken(project))
        change(kept[-1].path)
        os.utime(kept[-1].path.parent / ".lock", (0, 0))
    cached = Taken(project)
    (cached.path / "__pycache__").mkdir()
    (cached.path / "__pycache__/x.cpython-311.pyc").write_text("x")
    os.utime(cached.path.parent / ".lock", (0, 0))
    held = Taken(project)
    os.utime(held.path.parent / ".lock", (0, 0))
    with (held.path.parent / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # a job runs there
        for number in range(2 * NEWEST + 2):
            (project / "data.txt").write_text(f"data {number}")
            assert not Taken(project).problem
    left = {change: taken.path.exists() for taken, change in zip(kept, CHANGES, strict=True)}
    assert left == {change: change not in ("nothing", "all", "removed") for change in CHANGES}
    assert not cached.path.exists() and held.path.exists()
    assert len(trees(project)) == sum(left.values()) + 1 + NEWEST + 1
    assert (kept[1].path / "sub/checkpoint").read_text() == "x" and content(held.path) == WHOLE


def test_a_link_in_place_of_a_tree(project: Path) -> None:
    """What a user has put elsewhere is not removed, complete or not."""
    Taken(project, job="old")
    folder, elsewhere = project.parent / "cache/bireme/ship", project.parent / "elsewhere"
    (folder / "old").rename(elsewhere)
    os.utime(elsewhere / ".lock", (0, 0))
    for name in ("old", "x.tmp"):
        (folder / name).symlink_to(elsewhere)
    for number in range(NEWEST + 1):
        (project / "data.txt").write_text(f"data {number}")
        assert not Taken(project).problem
    assert content(elsewhere / "project") == WHOLE and len(list(elsewhere.iterdir())) == 3


CLEAN = """
import os, subprocess, sys
from pathlib import Path
from tests.unit.ship.test_taker import NEWEST, Taken
project, outside = Path(sys.argv[1]), Path(sys.argv[2])
first = Taken(project)
for place in sys.argv[3:]:
    what = outside / "__pycache__/data.pyc" if place == "data.txt" else outside
    subprocess.run(["mount", "--bind", what, first.path / place], check=True)
os.utime(first.path.parent / ".lock", (0, 0))
for number in range(NEWEST + 2):
    (project / "new.txt").write_text(f"{number}")
    assert not Taken(project).problem
print(first.path.exists(), sorted(os.listdir(outside)), os.listdir(outside / "__pycache__"))
"""


@pytest.mark.needs_programs("unshare", "mount")
@pytest.mark.parametrize("place", ["sub", "data.txt", "."])
def test_what_is_mounted_in_a_tree_stays(project: Path, place: str) -> None:
    """Also a mount of the same file system, which looks like any folder."""
    outside = project.parent / "outside"
    outside.mkdir()
    (outside / "__pycache__").mkdir()
    (outside / "__pycache__/data.pyc").write_text("some data")  # whose folder would be removed if it were in the tree
    command = [sys.executable, "-c", CLEAN, str(project), str(outside), place]
    done = subprocess.run(
        ["unshare", "-rm", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if "unshare: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == "True ['__pycache__'] ['data.pyc']\n", done.stderr


FULL = """
import sys
from pathlib import Path
from tests.unit.ship.test_taker import Taken, content, stock
project = Path(sys.argv[1])
taken = Taken(project)
print(taken.problem, len(stock(project)), taken.problem or content(taken.path) == content(project))
"""


@pytest.mark.needs_programs("unshare", "mount")
@pytest.mark.parametrize(
    "room", ["size=4200k", "size=8236k", "size=8240k", "size=20m,nr_inodes=26", "size=20m,nr_inodes=27"]
)
def test_room_for_one_tree_only(project: Path, room: str) -> None:
    """Then nothing is left for the next one."""
    (project / "large").write_bytes(random.randbytes(4 << 20))
    for number in range(8):
        (project / f"z{number}").write_text("at the end")
    cache = project.parent / "cache"
    cache.mkdir()
    command = 'mount -t tmpfs -o "$1,mode=700" tmpfs "$2" && shift 2 && exec "$@"'
    words = ("unshare", "-rm", "sh", "-c", command, "sh", room, cache, sys.executable, "-c", FULL, project)
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    if "unshare: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == " 0 True\n", done.stdout + done.stderr


def test_half_a_tree_is_never_used(project: Path) -> None:
    """An agent is killed at random moments; the next one removes what it has left, but for an empty folder."""
    for number in range(300):
        (project / f"file{number}").write_text(f"{number}")
    whole, folder = content(project), project.parent / "cache/bireme/ship"
    begin = time.monotonic()
    Taken(project)
    lasts = time.monotonic() - begin
    for moment in range(MOMENTS):
        if moment % 2:
            shutil.rmtree(project.parent / "cache")
        child = os.fork()
        if not child:
            try:
                Taken(project, job=f"job{moment}", until=lambda _: False)
            finally:
                os._exit(1)
        time.sleep(random.random() * 1.5 * lasts)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for tree in trees(project):
            if tree.suffix != ".tmp":
                assert content(tree / "project") == whole
        again = Taken(project, job=f"job{moment}")
        assert not again.problem and content(again.path) == whole
        assert content(Taken(project).path) == whole
        assert not list(folder.glob("*.tmp/*"))


def test_agents_that_share_a_folder(project: Path) -> None:
    """One of them gets the contents, the others its tree."""
    (project / "large").write_bytes(bytes(20 << 20))
    begin, go = os.pipe()
    told, tell = os.pipe()
    children = []
    for _ in range(3):
        children.append(os.fork())
        if not children[-1]:
            os.close(go)
            os.read(begin, 1)  # until all are there
            taken = Taken(project, job="one")
            os.write(tell, f"{taken.path} {len(taken.sent)}\n".encode())
            os._exit(0)
    for fd in (begin, go, tell):
        os.close(fd)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    with open(told) as file:
        found = sorted(line.split() for line in file)
    (tree,) = trees(project)
    assert found == [[f"{tree}/project", sent] for sent in ("0", "0", str((20 << 20) + len("some dataother data")))]


def test_an_agent_that_neither_goes_on_nor_dies(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node that is gone, whose locks its file server keeps: another one makes the tree in the end."""
    monkeypatch.setattr(taker, "_PATIENCE", 0.2)
    draft = project.parent / "cache/bireme/ship/one.tmp"
    Taken(project)
    draft.mkdir()
    with (draft / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert content(Taken(project, job="one").path) == WHOLE and draft.exists()
    Taken(project)
    assert not draft.exists()


def test_no_locks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: each job gets its tree, and none is removed."""

    def flock(*_: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    first = Taken(project, job="one")
    assert Taken(project, job="one").path == first.path
    for number in range(NEWEST + 1):
        (project / "data.txt").write_text(f"data {number}")
        assert not Taken(project).problem
    assert len(trees(project)) == NEWEST + 2 and content(first.path) == WHOLE


def test_what_somebody_does_to_the_stock(project: Path) -> None:
    """It is in no tree of a job, whatever it is; nor is a file that a killed agent has not completed."""
    (project / "half").write_text("half of it")
    Taken(project)
    there = stock(project)
    when = there[b"some data"].stat().st_mtime_ns
    (there[b"some data"].parent / "added").write_text("some data")
    there[b"some data"].unlink()
    there[b"some data"].mkdir()
    there[b"other data"].unlink()
    there[b"other data"].symlink_to("/etc/passwd")
    os.utime(there[b"other data"], ns=(when, when), follow_symlinks=False)
    there[b"half of it"].write_bytes(bytes(10))
    second = Taken(project)
    assert content(second.path) == content(project) and second.sent == b"some data"
    assert sorted(os.listdir(second.path.parent)) == [".lock", ".manifest", "project"]


def test_an_older_project(project: Path) -> None:
    """A folder is a file or a link now, a file a folder, or as large as before; the same is neither sent nor copied."""
    for name in ("a", "c", "d"):
        (project / name).mkdir()
        (project / name / "b").write_text("in a folder")
    (project / "b").write_text("a file")
    Taken(project)
    same = stock(project)[b"other data"].stat().st_ino
    for name in ("a", "c", "d"):
        shutil.rmtree(project / name)
    (project / "a").write_text("was a folder")
    (project / "c").touch()
    (project / "d").symlink_to("sub")
    (project / "b").unlink()
    (project / "b").mkdir()
    (project / "b/c").write_text("was a file")
    (project / "data.txt").write_text("some DATA")
    (project / "other.txt").rename(project / "moved")
    second = Taken(project)
    assert content(second.path) == content(project) and second.sent == b"was a folderwas a filesome DATA"
    assert (second.path / "moved").stat().st_ino == same


def test_files_of_one_content(project: Path) -> None:
    """Each tree has files of its own, with the permissions of its own."""
    (project / "tool").write_text("some data")
    (project / "tool").chmod(0o755)
    for number in range(3):
        taken = Taken(project, until=lambda _: number != 1 or len(os.listdir(stock_folder(project))) == 3)  # noqa: B023
        assert taken.sent == b"some dataother datasome data" * (not number) and content(taken.path) == content(project)
        assert os.access(taken.path / "tool", os.X_OK) and not os.access(taken.path / "data.txt", os.X_OK)
        assert not (taken.path / "tool").samefile(taken.path / "data.txt")


def test_what_no_tree_has_leaves_the_stock(project: Path) -> None:
    for number in range(NEWEST + 1):
        (project / "data.txt").write_text(f"data {number}")
        last = number == NEWEST
        Taken(project, until=(lambda _: b"data 0" not in stock(project)) if last else lambda _: True)
    assert {*stock(project)} >= {f"data {number}".encode() for number in range(1, NEWEST + 1)}


MOUNTED = """
import subprocess, sys
from pathlib import Path
from tests.unit.ship.test_taker import Taken, content, stock
project, what = Path(sys.argv[1]), Path(sys.argv[2])
Taken(project)
place = stock(project)[b"some data"]
subprocess.run(["mount", "--bind", what, place if what.is_file() else place.parent], check=True)
second = Taken(project)
print(second.problem or content(second.path) == content(project))
"""


@pytest.mark.needs_programs("unshare", "mount")
@pytest.mark.parametrize("what", ["file", "."])
def test_what_is_mounted_in_the_stock(project: Path, what: str) -> None:
    """It is left alone, and the job gets its tree."""
    outside = project.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("DATA some")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", MOUNTED, str(project), str(outside / what)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if "unshare: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == "True\n", done.stderr
    assert (outside / "file").read_text() == "DATA some"


def test_a_store_that_others_can_replace(project: Path) -> None:
    cache = project.parent / "cache"
    Taken(project)
    cache.chmod(0o777)
    _, problem = take(project)
    assert problem.endswith(f"/bireme: everyone can write to {cache}\n  chmod go-w {cache}")
    cache.chmod(0o1777)
    assert not take(project)[1]
    (cache / "bireme/ship").chmod(0o755)
    assert not take(project)[1] and stat.S_IMODE((cache / "bireme/ship").stat().st_mode) == 0o700
    if os.geteuid() == 0:
        os.chown(cache / "bireme", 4242, -1)
        _, problem = take(project)
        assert "/cache/bireme belongs to user 4242, not to this user or root\n  --export XDG_CACHE_HOME=DIR" in problem


def test_a_wrong_digest(project: Path) -> None:
    """The runner is told which file it is."""
    taken = Taken(project, altered=lambda data: b"x" * len(data))
    assert taken.problem.endswith("/bireme: data.txt has changed since the job began")
    assert Shipped(wrong=0) in taken.asked and not trees(project)


def test_another_place_is_named_where_that_helps(project: Path) -> None:
    cache = project.parent / "cache/bireme"
    cache.mkdir(parents=True)
    (cache / "ship").write_text("no folder")
    _, problem = take(project)
    assert problem.endswith(": Not a directory\n--export XDG_CACHE_HOME=DIR names another place")
