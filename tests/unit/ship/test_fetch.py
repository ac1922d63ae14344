"""``--fetch``: which paths match, what agents may say, and that nothing is written through a link."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.control.messages import Fetch, Message, Piece, Want
from bireme.errors import BadInputError, ProtocolError
from bireme.ship.conversation import Digests, Found, Skipped
from bireme.ship.fetch import Coming, Fetching, HomeDraft, HomeError
from bireme.ship.fetch_sender import first_match, parse
from bireme.ship.manifest import Entry

PATHS = ("a.pt", "out/a.pt", "out/b/c/a.pt", "out/log", "other/out/a.pt")


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("out/**", [1, 2, 3]),
        ("out", [1, 2, 3]),
        ("./out/", [1, 2, 3]),
        ("*.pt", [0]),
        ("**/*.pt", [0, 1, 2, 4]),
        ("out/**/*.pt", [1, 2]),
        ("**/out", [1, 2, 3, 4]),
        ("out/[a-b]*", [1, 2]),
        ("out/?/**/a.pt", [2]),
        ("**", [0, 1, 2, 3, 4]),
        (".", [0, 1, 2, 3, 4]),
        ("OUT/**", []),
    ],
)
def test_patterns(pattern: str, matches: list[int]) -> None:
    wanted = [parse(pattern)]
    assert [place for place, path in enumerate(PATHS) if first_match(wanted, path)] == matches


def test_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse("a/b:c/d").folder == "c/d" and parse("a:b:").parts == ("a:b",) and parse("a:b:").folder == ""
    assert parse("out:~/results").folder == "/home/me/results"


@pytest.mark.parametrize("text", ["", ":home", "/etc/passwd", "../x", "out/../../x:home", "a\0b"])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(BadInputError, match=r"^--fetch: "):
        parse(text)


def test_the_hint_for_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"type 'out/\*\*'"):
        parse(f"{tmp_path}/out/**")


# -- what agents say -------------------------------------------------------------------------------


class Agent:
    """What the runner tells an agent."""

    channel = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.heard.append(message)


class Job:
    """One run of ``--fetch`` with these agents, into the working directory."""

    def __init__(self, *agents: Agent, patterns: tuple[str, ...] = ("out/**",)) -> None:
        self.said: list[str] = []
        self.problem: str | None = None
        self.fetching = Fetching(
            patterns, agents, False, {}, lambda _, text: self.said.append(text), lambda _: None, self.end
        )
        self.fetching.start()

    def end(self, problem: str) -> None:
        self.problem = problem


def file(path: str, size: int = 1, mtime: int = 10**18, **values: object) -> Entry:
    return Entry(kind="file", path=path, size=size, mtime=mtime, mode=0o644, **values)  # type: ignore[arg-type]


def link(path: str, target: str) -> Entry:
    return Entry(kind="link", path=path, content=target, mtime=10**18)


def listed(*files: Entry) -> Found:
    return Found(files=files, last=True)


def contents(*files: bytes) -> Piece:
    return Piece(b"".join(files))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp") or ".bireme" in path.name]


@pytest.mark.parametrize("path", ["/etc/x", "out/../x", "../x", "out//x", "out/./x", "", "out/a\0b", "out/\ud800"])
def test_hostile_paths(path: str) -> None:
    assert listed(file(path)).check()


@pytest.mark.parametrize("found", [listed(file("in/x")), listed(file("out/a"), file("out/a"))])
def test_files_that_were_not_asked_for(here: Path, found: Found) -> None:
    agent = Agent("a")
    job = Job(agent)
    with pytest.raises(ProtocolError, match="not asked for"):
        job.fetching.found(agent, found)
    job.fetching.close()


def test_more_names_than_memory(here: Path) -> None:
    agent = Agent("a")
    job = Job(agent)
    with pytest.raises(ProtocolError, match="more files than there can be"):
        for number in range(100):
            names = (f"out/{number}/{place}/{'/'.join(['x' * 250] * 15)}" for place in range(256))
            job.fetching.found(agent, Found(files=tuple(map(file, names))))
    job.fetching.close()


@pytest.mark.parametrize(
    "entry",
    [
        file("out/a", -1),
        file("out/a", 1 << 63),
        file("out/a", 10, parts=(4, 2)),
        file("out/a", 10, parts=(4, 12)),
        file("out/a", 10, parts=(4,)),
        file("out/a", content="x" * 5000),
        link("out/a", "a\0b"),
        Entry(kind="folder", path="out/a"),
    ],
)
def test_hostile_sizes(entry: Entry) -> None:
    assert listed(entry).check()


def test_hostile_contents(here: Path) -> None:
    """More than was asked for, however it is cut into pieces, or before it was."""
    for step in (1, 5):
        agent, other = Agent("a"), Agent("b")
        job = Job(agent, other)
        with pytest.raises(ProtocolError, match=r"^it sent "):
            job.fetching.piece(agent, contents(b"x"))
        with pytest.raises(ProtocolError, match=r"^it sent "):
            job.fetching.skipped(agent, Skipped(why="x"))
        job.fetching.found(agent, listed(file("out/a"), file("out/b")))
        job.fetching.found(other, listed(file("out/c")))
        with pytest.raises(ProtocolError, match=r"^it sent "):
            for start in range(0, 5, step):
                job.fetching.piece(agent, Piece(b"xxxxx"[start : start + step]))
        job.fetching.close()


def test_other_contents_than_were_announced(here: Path) -> None:
    agents = Agent("a"), Agent("b")
    job = Job(*agents)
    for agent in agents:
        job.fetching.found(agent, listed(file("out/a")))
    for agent in agents:
        job.fetching.digests(agent, Digests(digests=(digest("x"),)))
    job.fetching.piece(agents[0], contents(b"y"))
    assert job.problem == "not all files were fetched: out/a of a: it was changed meanwhile"


def test_contents_in_the_least_pieces(here: Path) -> None:
    agent = Agent("a")
    job = Job(agent)
    files = file("out/a", 3), file("out/empty", 0), file("out/gone"), file("out/holes", 9, parts=(1, 2, 4, 6))
    job.fetching.found(agent, listed(*files))
    for byte in b"abc":
        job.fetching.piece(agent, Piece(bytes([byte])))
    job.fetching.skipped(agent, Skipped(why="No such file or directory"))
    for byte in b"xyz":
        job.fetching.piece(agent, Piece(bytes([byte])))
    assert (here / "out/holes").read_bytes() == b"\0x\0\0yz\0\0\0"
    assert (here / "out/a").read_bytes() == b"abc" and (here / "out/empty").read_bytes() == b""
    assert job.problem == "not all files were fetched: out/gone of a: No such file or directory"
    assert os.stat(here / "out/a").st_mtime_ns == 10**18


def test_the_same_on_two_nodes(here: Path) -> None:
    """One of them sends what both have; two nodes of one name, and of hostile ones, do not overwrite each other."""
    agents = Agent("a"), Agent(".."), Agent("a")
    job = Job(*agents)
    for agent in agents:
        job.fetching.found(agent, listed(file("out/same"), file("out/other")))
    for number, agent in enumerate(agents):
        assert agent.heard[-1] == Want(places=(0, 1), digests=True)
        job.fetching.digests(agent, Digests(digests=(digest("s"), digest(str(number)))))
    assert agents[0].heard[-1] == Want(places=(0, 1), digests=False)
    job.fetching.piece(agents[0], contents(b"s", b"0"))
    job.fetching.piece(agents[1], contents(b"1"))
    job.fetching.piece(agents[2], contents(b"2"))
    found = {str(path.relative_to(here)): path.read_text() for path in here.rglob("*") if path.is_file()}
    assert found == {"out/same": "s", "a/out/other": "0", "node1/out/other": "1", "a-2/out/other": "2"}


def test_links(here: Path) -> None:
    """Only those that stay inside, whatever other links there are."""
    agent = Agent("a")
    job = Job(agent)
    targets = {
        "out/d/up": "../../x",
        "out/name": "x",
        "out/far": "../..",
        "out/root": "/",
        "out/d/way": "s/../../../x",
        "out/s": "s/..",
    }
    job.fetching.found(agent, listed(*(link(path, target) for path, target in targets.items())))
    assert {str(path.relative_to(here)) for path in here.rglob("*") if path.is_symlink()} == {"out/d/up", "out/name"}
    assert job.problem == "" and any("left on the nodes: links" in line for line in job.said)


def written(entry: Entry, data: bytes, names: set[tuple[int, int]]) -> None:
    draft = HomeDraft(Coming(0, entry, ".", entry.path))
    try:
        if data:
            draft.write(memoryview(data), 0)
        draft.finish(0o22, names)
    finally:
        draft.close()


def test_a_file_that_is_too_large_here(here: Path) -> None:
    """The error is that of the file, nothing of it is left, and no descriptor is closed twice."""
    entry = file("out/x").replace(size=1 << 62, parts=(0, 1))
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="File too large"):
        written(entry, b"", set())
    assert not list((here / "out").iterdir()) and set(os.listdir("/proc/self/fd")) == before


def test_nothing_is_written_through_a_link(here: Path, tmp_path: Path) -> None:
    """Neither through one that was here, nor through one that has come."""
    (tmp_path / "elsewhere").mkdir()
    (here / "out").mkdir()
    (here / "out/way").symlink_to(tmp_path / "elsewhere")
    for path in ("out/way/x", "out/new/x"):
        if "new" in path:
            written(link("out/new", "way"), b"", set())
        with pytest.raises(HomeError, match="is a link or a file here"):
            written(file(path), b"x", set())
    written(file("out/way", mtime=10**19 // 2), b"x", set())
    assert (here / "out/way").read_text() == "x" and not list((tmp_path / "elsewhere").iterdir())


def test_a_file_is_not_written_over_another_of_the_job(here: Path) -> None:
    """As on a file system that knows no upper case."""
    names: set[tuple[int, int]] = set()
    written(file("out/a"), b"0", names)
    with pytest.raises(HomeError, match="another file of the job"):
        written(file("out/a"), b"1", names)
    assert (here / "out/a").read_text() == "0"


def test_the_mark_is_gone_when_all_have_looked(here: Path) -> None:
    agent = Agent("a")
    job = Job(agent)
    (fetch,) = agent.heard
    assert isinstance(fetch, Fetch) and (here / fetch.mark).exists()
    job.fetching.found(agent, Found(files=(file("out/a"),), last=True, shared=True))
    assert not list(here.iterdir()) and job.said == ["fetched nothing; 1 file here already"]
