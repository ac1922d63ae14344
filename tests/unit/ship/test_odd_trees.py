"""Odd trees from two hosts and two users into one shared cache, while agents are killed at random moments."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.job import JobSpec, Program
from bireme.ship import inside as ship_files
from bireme.ship import source
from tests.unit.ship.test_taker import Taken

MOMENTS = int(os.environ.get("BIREME_TEST_MOMENTS", "6"))
OTHER = 4242


def write(path: Path, data: bytes = b"data", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def odd_name(top: Path, *names: bytes) -> None:
    for number, name in enumerate(names):
        with open(os.path.join(os.fsencode(top), name), "wb") as file:
            file.write(b"%d" % number)


def links(top: Path, *targets: str) -> None:
    write(top / "sub/file")
    for number, target in enumerate(targets):
        (top / f"sub/link{number}").symlink_to(target)


def repository(top: Path, name: str = ".") -> None:
    subprocess.run(["git", "init", "-q", str(top / name)], check=True)
    write(top / name / "inner/file")


def submodule(top: Path) -> None:
    repository(top.parent / "module")
    me = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always")
    module = str(top.parent / "module")
    for words in (["-C", module, "add", "."], ["-C", module, "commit", "-qm", "x"], ["init", "-q", str(top)]):
        subprocess.run(["git", *me, *words], check=True)
    subprocess.run(["git", *me, "-C", str(top), "submodule", "add", "-q", module, "sub"], check=True)


def sparse(top: Path) -> None:
    with (top / "sparse").open("wb") as file:
        file.seek(30 << 30)
        file.write(b"x" * 10_000)
        file.truncate(100 << 30)


def hard_links(top: Path) -> None:
    write(top / "one", b"one inode" * 1000)
    os.link(top / "one", top / "two")


def special(top: Path) -> None:
    write(top / "file")
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(top)
        listener.bind("socket")
        os.chdir(here)


def read_only(top: Path) -> None:
    write(top / "sub/file", mode=0o444)
    (top / "sub").chmod(0o555)


def many(top: Path) -> None:
    for number in range(200):
        write(top / f"folder{number % 7}/file{number}", b"%d" % (number % 50))


ODD: tuple[Callable[[Path], object], ...] = (
    lambda top: odd_name(top, b"new\nline", b" ", b"tab\t", b"-rf", b"\\", b"'\""),
    lambda top: odd_name(top, b"\xff\xfe", b"\xc3", "ä".encode(), "a\u0308".encode()),
    lambda top: odd_name(top, b".lock", b".manifest", b".stamps", b".changed", b"spare.x", b"x.tmp", b"x.old"),
    lambda top: odd_name(top, b"n" * 255, *(b"%03d" % number for number in range(20))),
    lambda top: links(top, "link0", "link2", "link1", ".", ".."),
    lambda top: links(top, "/etc/passwd", "/", "/nowhere", "/proc/self/fd/0"),
    lambda top: links(top, "nothing", "file/x", "../../outside/secret", str(top / "sub/file")),
    read_only,
    hard_links,
    lambda top: (write(top / "suid", mode=0o4755), write(top / "sgid", mode=0o2711), write(top / "none", mode=0o400)),
    lambda top: (repository(top), repository(top, "nested"), repository(top, "nested/deeper")),
    submodule,
    sparse,
    lambda top: write(top / "huge", random.randbytes(6 << 20)),
    lambda top: (write(top / "/".join("d" * 60)), write(top / "empty", b""), (top / "no/thing").mkdir(parents=True)),
    special,
    lambda top: write(top / "sub", b"a file where others have a folder"),
    many,
)


def shape(top: Path) -> dict[str, tuple[object, ...]]:
    """All that a copy has of a tree, and what its files hold; links by where they lead from here."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(top):
        if ".git" in folders:
            folders.remove(".git")
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            there, key = os.lstat(path), os.path.relpath(path, top)
            if name == ".git":
                continue
            if stat.S_ISLNK(there.st_mode):
                place = os.path.normpath(os.path.join(folder, os.readlink(path)))
                found[key] = ("link", f"{place}/".replace(f"{top}/", "TOP/"))
            elif stat.S_ISREG(there.st_mode):
                fd = os.open(path, os.O_RDONLY)
                parts = ship_files.parts_of(fd, there.st_size) or (0, there.st_size)
                digest = hashlib.sha256()
                for begin, end in zip(parts[::2], parts[1::2], strict=True):
                    digest.update(os.pread(fd, end - begin, begin))
                os.close(fd)
                found[key] = ("file", there.st_size, there.st_mode & 0o777, digest.hexdigest())
    return found


def killed(actions: list[Callable[[], object]], after: float) -> None:
    """Do this in processes of their own, which are killed after so many seconds."""
    children = []
    for action in actions:
        children.append(os.fork())
        if not children[-1]:
            try:
                action()
            finally:
                os._exit(0)
    time.sleep(after)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def attack(cache: Path, project: Path) -> None:
    """Try to get a tree where the first user has theirs, and to put something there."""
    os.chdir(project)
    for path in (cache / "bireme", cache / "bireme/ship"):
        for change in (path.rmdir, lambda path=path: path.rename(cache / "mine"), lambda path=path: os.listdir(path)):
            with pytest.raises(OSError, match=r"Permission|permitted"):
                change()
    problem = Taken(project).problem
    assert "Permission denied\n--export XDG_CACHE_HOME=DIR names another place" in problem


def as_another_user(action: Callable[[], object]) -> int:
    """Do this as another user; return the exit code, 0 where only this user is known."""
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setuid(OTHER)
                action()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user can enter; those of pytest are private."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_each_odd_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent, and then from what is here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, make in enumerate(ODD):
        project = tmp_path / f"tree{number}/project"
        project.mkdir(parents=True)
        make(project)
        monkeypatch.chdir(project)
        for _ in range(2):
            taken = Taken(project)
            assert not taken.problem and shape(taken.path) == shape(project), number
        assert not taken.sent


def test_a_folder_that_cannot_be_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git passes over is named."""
    project = place / "shared/project"
    project.parent.mkdir()
    project.parent.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.setenv("HOME", str(place))

    def look() -> None:
        project.mkdir()
        os.chdir(project)
        subprocess.run(["git", "init", "-q"], check=True)
        write(project / "closed/file")
        write(project / "file")
        (project / "closed").chmod(0)
        spec = JobSpec(program=Program("x.py"), ship="git")
        assert source.find(spec, os.environ).notes == ("closed/ is not sent: it cannot be read",)

    assert as_another_user(look) == 0


@pytest.mark.slow
def test_odd_trees_in_a_shared_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job ever runs in anything but its tree, nothing outside is read or written, no result is lost."""
    outside = place / "outside"
    write(outside / "secret", b"not to be read")
    cache = place / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    cache.mkdir()
    cache.chmod(0o1777)
    before = shape(outside)
    projects = []
    for number, make in enumerate(ODD):
        projects.append(place / f"tree{number}/project")
        projects[-1].mkdir(parents=True)
        make(projects[-1])
    results: list[Path] = []
    shapes = [shape(project) for project in projects]

    for moment in range(MOMENTS):
        number = random.randrange(len(projects))
        project, job = projects[number], f"job{moment}"
        monkeypatch.chdir(project)
        node = lambda: Taken(project, job=job, until=lambda _: False)  # noqa: E731, B023
        killed([node, node], random.random() * 0.3)
        if (made := cache / "bireme/ship" / job).exists():
            assert shape(made / "project") == shapes[number], (moment, number)
        taken = Taken(project, job=job)
        assert not taken.problem
        assert shape(taken.path) == shapes[number], (moment, number)
        assert not (taken.path / "project/.git").exists()
        if random.random() < 0.5:
            (taken.path / f"result{moment}").write_text("x")
            results.append(taken.path / f"result{moment}")
        else:
            for path in (path for path in taken.path.rglob("*") if path.is_file() and not path.is_symlink()):
                with path.open("ab") as file:  # which spoils no other tree
                    file.write(b"spoilt")
        assert all(result.read_text() == "x" for result in results)
        assert [shape(project) for project in projects] == shapes and shape(outside) == before
    assert (outside / "secret").read_bytes() == b"not to be read"
    assert as_another_user(lambda: attack(cache, projects[-1])) == 0


def test_a_folder_that_cannot_be_entered_hides_nothing_beside_it(tmp_path: Path) -> None:
    """It is named, and the files beside it are found; here it goes while others are listed."""
    for name in "abcdefgh":
        write(tmp_path / "tree" / name / "file")
    gone = ("b", "f")

    def enters(path: str) -> bool:
        if path in gone:
            (tmp_path / "tree" / path).rename(tmp_path / path)
        return True

    errors: list[str] = []
    top = os.open(tmp_path / "tree", ship_files.FOLDER)
    try:
        items = ship_files.walk(top, enters=enters, on_error=lambda path, _: errors.append(path))
        found = {path for path, *_ in items}
    finally:
        os.close(top)
    assert sorted(errors) == sorted(gone)
    assert {f"{name}/file" for name in "acdegh"} <= found
