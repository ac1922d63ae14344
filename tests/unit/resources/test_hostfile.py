"""The grammar of hostfiles and of ``--hosts``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError
from bireme.resources import hostfile
from bireme.resources.hostfile import HostEntry, parse_hostfile, parse_hosts, read_hostfile, split_outside_brackets

H = HostEntry
IPV6 = "fd00::7"

GOLDEN = [
    ("worker-0 slots=4", [H("worker-0", slots=4, line=1)]),
    ("worker-0 slots=4\nworker-1 slots=2\n", [H("worker-0", slots=4, line=1), H("worker-1", slots=2, line=2)]),
    ("b slots=1\na slots=1", [H("b", slots=1, line=1), H("a", slots=1, line=2)]),
    ("# first\n\n  a\t slots=04  # four\n   \n#a\n", [H("a", slots=4, line=3)]),
    ("a#b slots=9", [H("a", line=1)]),
    ("a slots=1\r\nb slots=2\r\n", [H("a", slots=1, line=1), H("b", slots=2, line=2)]),
    ("a\rb", [H("a", line=1), H("b", line=2)]),
    ("\ufeffa slots=1", [H("a", slots=1, line=1)]),
    ("a\u00a0slots=1", [H("a", slots=1, line=1)]),  # pasted from a web page
    ("a\x0bslots=1\nb", [H("a", slots=1, line=1), H("b", line=2)]),
    ("worker-9", [H("worker-9", line=1)]),
    ("alice@h slots=2 port=22022", [H("h", "alice", 22022, 2, 1)]),
    ("h port=22022", [H("h", port=22022, line=1)]),
    ("h slots=2 max_slots=4", [H("h", slots=2, line=1)]),
    ("h max-slots=2 slots=2 port=7", [H("h", port=7, slots=2, line=1)]),
    ("10.0.0.1 slots=8", [H("10.0.0.1", slots=8, line=1)]),
    ("fd00::7 slots=4", [H(IPV6, slots=4, line=1)]),
    ("[fd00::7] slots=4", [H(IPV6, slots=4, line=1)]),
    ("bob@fd00::7", [H(IPV6, "bob", line=1)]),
    ("bob@[fe80::1%eth0]", [H("fe80::1%eth0", "bob", line=1)]),
    ("n[2-3] slots=1\nn1", [H("n2", slots=1, line=1), H("n3", slots=1, line=1), H("n1", line=2)]),
    ("node[08-10]", [H("node08", line=1), H("node09", line=1), H("node10", line=1)]),
    ("r[1-2]n[1-2]-ib", [H(f"r{r}n{n}-ib", line=1) for r in "12" for n in "12"]),
    ("x@n[1,3]!n3 port=7", [H("n1", "x", 7, None, 1)]),
    ("n[1-5/2]", [H("n1", line=1), H("n3", line=1), H("n5", line=1)]),
]

REFUSED = [  # text, the line that is at fault, what stands in the message
    ("a\na", 2, "a is listed twice: first on line 1"),
    ("a slots=1\n\nb\nx@A slots=2", 4, "A is listed twice: first on line 1"),
    ("fd00::7\n[FD00:0::7]", 2, "first on line 1"),
    ("n[1-3]\nn2", 2, "n2 is listed twice: first on line 1"),
    ("a slots=4x", 1, "slots: '4x' is not a number"),
    ("a slots=", 1, "slots: '' is not a number"),
    ("a slots=1.5", 1, "not a number"),
    ("a slots=\u0664", 1, "not a number"),
    ("a slots=0", 1, "slots: must be at least 1, not '0'"),
    ("a slots=000", 1, "must be at least 1"),
    ("a slots=-2", 1, "slots: must be at least 1, not '-2'"),
    ("a slots=99999999999999999999", 1, "must be at most 4096"),
    ("a port=65536", 1, "port: must be at most 65535, not '65536'"),
    ("a port=0", 1, "must be at least 1"),
    ("a slot=4", 1, "did you mean slots=?"),
    ("a Slots=4", 1, "did you mean slots=?"),
    ("a prt=4", 1, "did you mean port=?"),
    ("a wibble=4", 1, "the keys are slots=, max_slots= and port="),
    ("a max_slots=4", 1, "max_slots=4 needs slots=N of at most 4"),
    ("a slots=5 max_slots=4", 1, "max_slots=4 needs slots=N of at most 4"),
    ("a slots=1 max-slots=1 max_slots=1", 1, "max_slots= is given twice"),
    ("a slots=1 max_slots=x", 1, "max_slots: 'x' is not a number"),
    ("a slots=1 slots=2", 1, "slots= is given twice"),
    ("a slots = 4", 1, "'slots' is not slots=N or port=N"),
    ("a 4", 1, "'4' is not slots=N"),
    ("a b", 1, "'b' is not slots=N"),
    ("a:4", 1, "expected a line such as: HOST slots=N"),
    ("slots=4", 1, "not a host"),
    ("-oProxyCommand=x slots=1", 1, "not a host"),
    ("-l@h", 1, "not a host"),
    ("h;reboot", 1, "not a host"),
    ("$(reboot)", 1, "not a host"),
    ("a@", 1, "not a host"),
    ("@", 1, "names no hosts"),
    ("fd00::g", 1, "not a host"),
    ("[fd00::7", 1, "not a set of hosts"),
    ("fe80::1%", 1, "not a host"),
    ("n[1-", 1, "missing bracket"),
    ("n[3-1]", 1, "not a set of hosts"),
    ("n[]", 1, "not a set of hosts"),
    ("n[1-10000000000]", 1, "more than 100000 hosts"),
    ("n[1-1_000_000_000]", 1, "more than 100000 hosts"),
    ("n[1-1000][1-1000][1-1000]", 1, "more than 100000 hosts"),
    ("n[1-\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669]", 1, "not a host"),
    ("a\nn[1-99990]\nm[1-10]", 3, "more than 100000 hosts"),
    ("a\n" + "x" * 300, 2, "not a host"),
]


@pytest.mark.parametrize(("text", "entries"), GOLDEN)
def test_golden(text: str, entries: list[HostEntry]) -> None:
    assert parse_hostfile(text, "hosts") == tuple(entries)


@pytest.mark.parametrize(("text", "line", "message"), REFUSED)
def test_refused(text: str, line: int, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_hostfile(text, "dir/hosts")
    assert str(caught.value).startswith(f"dir/hosts:{line}: ")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("text", ["", "\n", "\ufeff", "# a slots=1\n\n  \r\n"])
def test_an_empty_hostfile_is_refused(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_hostfile(text, "hosts")
    assert str(caught.value) == "hosts: the hostfile names no hosts\n  expected a line such as: HOST slots=N"


def test_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbf# r\xc3\xa4ume\r\na slots=2\r\n")
    assert read_hostfile(str(path)) == (H("a", slots=2, line=2),)


def test_a_pipe_is_a_hostfile_only_if_somebody_writes_to_it(tmp_path: Path) -> None:
    """As in ``-H <(slurm-hosts)``. Nobody may ever write to one with a name."""
    path = tmp_path / "hosts"
    os.mkfifo(path)
    with pytest.raises(BadInputError, match="cannot be read: not a regular file"):
        read_hostfile(str(path))
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"a slots=2\n")
    os.close(write_fd)
    assert read_hostfile(f"/dev/fd/{read_fd}") == (H("a", slots=2, line=1),)
    os.close(read_fd)


def test_a_named_hostfile_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(BadInputError) as caught:
        read_hostfile(str(path))
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_the_default_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hostfile.DEFAULT_HOSTFILE == "/job/hostfile"
    monkeypatch.setattr(hostfile, "DEFAULT_HOSTFILE", str(tmp_path / "hostfile"))
    assert read_hostfile() is None
    (tmp_path / "hostfile").write_text("a slots=1")
    assert read_hostfile() == (H("a", slots=1, line=1),)
    (tmp_path / "hostfile").write_text("a slots=x")
    with pytest.raises(BadInputError):
        read_hostfile()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a\nb \xff\n", 2),
        (b"\xef\xbb\xbf\n\n\xff", 3),
        ("a\nb".encode("utf-16"), 1),
        (b"a\n\0b", 2),
        (b"\x7fELF\0", 1),
    ],
)
def test_a_binary_file_is_refused(tmp_path: Path, data: bytes, line: int) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(data)
    with pytest.raises(BadInputError) as caught:
        read_hostfile(str(path))
    assert str(caught.value) == f"{path}:{line}: is not UTF-8 text"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for path, message in (
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "a" / "b"), "No such file"),
        ("a\0b", "null byte|null character"),
        ("/dev/zero", "too large"),
    ):
        with pytest.raises(BadInputError, match=message):
            read_hostfile(path)


def test_groups_are_clustershells(tmp_path: Path) -> None:
    """In a process of its own: ClusterShell reads its configuration once."""
    (tmp_path / "groups.conf").write_text("[Main]\ndefault: cluster\nautodir: $CFGDIR\n")
    (tmp_path / "cluster.yaml").write_text("cluster:\n  gpu: 'g[1-2],x'\n  bad: 'a;b'\nother:\n  gpu: 'o1'\n")
    code = """
from bireme.errors import BadInputError
from bireme.resources.hostfile import parse_hostfile, parse_hosts
print([(e.name, e.user, e.slots) for e in parse_hostfile("me@@gpu slots=2\\n@other:gpu", "f")])
print([(e.name, e.slots) for e in parse_hosts("@other:gpu:3,@gpu:2")])
print([(e.name, e.slots) for e in parse_hosts("@gpu!x")])
for text in ("@nobody", "@no:gpu", "@bad"):
    try:
        print(parse_hosts(text))
    except BadInputError as error:
        print(error.what)
"""
    environ = {"CLUSTERSHELL_CFGDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "[('g1', 'me', 2), ('g2', 'me', 2), ('x', 'me', 2), ('o1', None, None)]",
        "[('o1', 3), ('g1', 2), ('g2', 2), ('x', 2)]",
        "[('g1', None), ('g2', None)]",
        "'@nobody' names no hosts",
        "'@no:gpu' is not a set of hosts",
        "'a;b' is not a host",
    ], done.stderr


def test_an_unknown_group(tmp_path: Path) -> None:
    """In the words that are used where no groups are configured either: see `REFUSED`."""
    (tmp_path / "groups.conf").write_text("[Main]\ndefault: one\n[one]\nmap: true\n")
    code = """
from bireme.errors import BadInputError
from bireme.resources.hostfile import parse_hosts
for text in ("@", "@nobody"):
    try:
        print(parse_hosts(text))
    except BadInputError as error:
        print(error)
"""
    environ = {"CLUSTERSHELL_CFGDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "--hosts: '@' names no hosts",
        "  `nodeset --groups` lists the groups",
        "--hosts: '@nobody' names no hosts",
        "  `nodeset --groups` lists the groups",
    ], done.stderr


def test_clustershell_is_imported_only_for_sets() -> None:
    code = """
import sys
from bireme.resources.hostfile import parse_hostfile, parse_hosts
parse_hostfile("a slots=1\\nme@b port=7\\n[fd00::7] slots=1\\nfd00::8", "f")
parse_hosts("a:1,me@b,[fd00::7]:2")
assert not any(name.startswith("ClusterShell") for name in sys.modules)
parse_hosts("a[1-2]")
assert "ClusterShell" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- --hosts ----------------------------------------------------------------------------------

GOLDEN_HOSTS = [
    ("a", [H("a")]),
    ("b:2,a", [H("b", slots=2), H("a")]),
    ("node[1-2]:8,other:2", [H("node1", slots=8), H("node2", slots=8), H("other", slots=2)]),
    ("n[1,3]:8", [H("n1", slots=8), H("n3", slots=8)]),
    (" a:1 , b ", [H("a", slots=1), H("b")]),
    ("alice@a:2,bob@n[1-2]", [H("a", "alice", slots=2), H("n1", "bob"), H("n2", "bob")]),
    ("[fd00::7]:4,[fd00::8]", [H(IPV6, slots=4), H("fd00::8")]),
    ("me@[fe80::1%eth0]:4", [H("fe80::1%eth0", "me", slots=4)]),
    ("10.0.0.1:8", [H("10.0.0.1", slots=8)]),
]


@pytest.mark.parametrize(("text", "entries"), GOLDEN_HOSTS)
def test_golden_hosts(text: str, entries: list[HostEntry]) -> None:
    assert parse_hosts(text) == tuple(entries)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a host"),
        ("a,,b", "'' is not a host"),
        ("a:", "slots: '' is not a number"),
        ("a:x", "slots: 'x' is not a number"),
        ("a:0", "must be at least 1"),
        ("a:-1", "must be at least 1"),
        ("a:2:3", "write an IPv6 address in brackets"),
        ("fd00::7", "write an IPv6 address in brackets"),
        ("a slots=4", "not a host"),
        ("a,b:1,a:2", "--hosts: a is listed twice"),
        ("n[1-2],n2", "n2 is listed twice"),
        ("n[1-2", "missing bracket"),
        ("n[1-100001]", "more than 100000 hosts"),
    ],
)
def test_refused_hosts(text: str, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_hosts(text)
    assert str(caught.value).startswith("--hosts: ")
    assert message in str(caught.value)


def test_split_outside_brackets() -> None:
    assert split_outside_brackets("a[1,2],b,,c]d,e") == ["a[1,2]", "b", "", "c]d", "e"]


# --- any input at all -------------------------------------------------------------------------

NEAR_GRAMMAR = st.text("an109:,@[]-= #%!/_.\t\n\r\0\ufeff\u0661", max_size=30)
PIECES = st.lists(
    st.sampled_from(["a", "node", "[1-3]", "[01-02]", "x@", "slots=", "port=", "4", " ", "\n", "#", "::1", ":", ","])
).map("".join)


@settings(deadline=None)
@given(st.one_of(st.text(), NEAR_GRAMMAR, PIECES, st.text(st.characters(codec=None), max_size=12)))
def test_every_text_is_accepted_or_refused(text: str) -> None:
    for parse in (lambda: parse_hostfile(text, "f"), lambda: parse_hosts(text)):
        try:
            entries = parse()
        except BadInputError as error:
            assert len(str(error).splitlines()) <= 2
            assert max(map(len, str(error).splitlines())) < 250
        else:
            assert entries
            assert len({entry.name for entry in entries}) == len(entries)
            for entry in entries:
                assert entry.name and entry.name.isprintable() and not entry.name.startswith("-")
                assert entry.slots is None or entry.slots > 0
                assert entry.line <= text.count("\n") + text.count("\r") + 1


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200))
def test_every_file_is_accepted_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-hosts"
    path.write_bytes(data)
    try:
        assert read_hostfile(str(path))
    except BadInputError as error:
        assert error.where.startswith(str(path))


NAMES = st.one_of(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True), st.ip_addresses(v=6).map(str))
ENTRIES = st.lists(
    st.builds(
        HostEntry,
        NAMES,
        st.none() | st.from_regex(r"[a-z_][a-z0-9_-]{0,6}", fullmatch=True),
        st.none() | st.integers(1, 65535),
        st.none() | st.integers(1, 4096),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda entry: entry.name,
)


@settings(deadline=None)
@given(ENTRIES)
def test_what_is_written_is_read_back(entries: list[HostEntry]) -> None:
    lines, pieces = [], []
    for entry in entries:
        host = f"[{entry.name}]" if ":" in entry.name else entry.name
        host = f"{entry.user}@{host}" if entry.user else host
        slots = f" slots={entry.slots}" if entry.slots else ""
        lines.append(f"{host}{slots}" + (f" port={entry.port}" if entry.port else ""))
        pieces.append(f"{host}:{entry.slots}" if entry.slots else host)
    assert [entry.replace(line=0) for entry in parse_hostfile("\n".join(lines), "f")] == entries
    assert parse_hosts(",".join(pieces)) == tuple(entry.replace(port=None) for entry in entries)
