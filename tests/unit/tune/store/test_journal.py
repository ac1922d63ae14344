"""The journal: what was appended is there, whatever happened to the writer, the disk or the file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.errors import BadInputError, BiremeError
from bireme.tune.store.journal import Journal
from tests.conftest import TIMES
from tests.kit import needs

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIRST = b'fdaaf0a0426fb7a9 {"journal":"bireme","version":1}\n'
RECORDS = st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5)


def written(path, records):
    journal = Journal.open(str(path))
    for record in records:
        journal.append(record)
    journal.close()


def read(path):
    journal = Journal.open(str(path))
    records = list(journal.records)
    journal.close()
    return records, journal.note


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(RECORDS)
def test_what_was_appended_is_there(tmp_path, records):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    written(path, records)
    assert read(path) == (records, "")


def test_cut_at_every_byte_it_gives_whole_records_and_goes_on(tmp_path):
    path, records = tmp_path / "journal", [{"end": f"e{number}", "ünï": [number, None]} for number in range(3)]
    written(path, records)
    data = path.read_bytes()
    ends = [number + 1 for number, byte in enumerate(data) if byte == 10]
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        got, note = read(path)
        whole = sum(1 for end in ends if end <= size)
        assert got == records[: max(0, whole - 1)]
        torn = size - max([0, *(end for end in ends if end <= size)])
        assert (f"an incomplete record of {torn} bytes" in note) == (torn > 0)
        written(path, [{"after": size}])
        assert read(path) == ([*got, {"after": size}], "")


def test_every_changed_byte_is_found(tmp_path):
    path, records = tmp_path / "journal", [{"end": "e0"}, {"end": "e1"}, {"end": "e2"}]
    written(path, records)
    data = path.read_bytes()
    # A bit, several, and the bytes that mean something to us: ends of lines, blanks, what a power cut leaves.
    for place, value in [
        (p, v) for p, byte in enumerate(data) for v in (byte ^ 1, byte ^ 0x11, byte ^ 0x80, 10, 32, 0)
    ]:
        if data[place] == value:
            continue
        changed = bytearray(data)
        changed[place] = value
        path.write_bytes(changed)
        if place == len(data) - 1 and value == 0:  # what a power cut can leave of the last append
            assert read(path) == (
                records[:-1],
                f"cut off an incomplete record of {len(data.splitlines()[-1]) + 1} bytes at the end of {path}",
            )
            continue
        with pytest.raises(BadInputError):
            read(path)
        assert path.read_bytes() == bytes(changed), "a damaged file is left alone"


def test_damage_in_the_middle_names_the_line(tmp_path):
    path = tmp_path / "journal"
    written(path, [{"end": "e0"}, {"end": "e1"}])
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"e0", b"eX")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(BadInputError) as raised:
        Journal.open(str(path))
    assert str(raised.value).startswith(f"{path}:2: the journal is damaged")


LINE = b'0123456789abcdef {"end":"e2"}'
"""A record whose digest is wrong."""


@pytest.mark.parametrize(
    "tail",
    [
        b"garbage\n" * 100_000,
        b"garbage",
        b"\n",
        LINE + b"\n",
        LINE,
        LINE[:-2] + b"\x1b[31m",
        LINE[:-2] + "ü".encode(),
        LINE[:16] + LINE[17:-2],
        LINE[:17] + b"[1, 2",
        b"0123456789abcdefg",
        b"\0" * 20 + b"0",
        b"\0" * 20 + b"\n",
        b"x" * (17 << 20),
    ],
    ids=lambda tail: repr(tail[:30]),
)
def test_what_no_append_can_have_left_is_refused_and_nothing_is_cut_off(tmp_path, tail):
    path = tmp_path / "journal"
    written(path, [{"end": "e0"}, {"end": "e1"}])
    data = path.read_bytes() + tail
    path.write_bytes(data)
    with pytest.raises(BadInputError) as raised:
        Journal.open(str(path))
    assert path.read_bytes() == data
    what, mend = str(raised.value).split("\n")
    assert what.startswith(f"{path}:4: the journal is damaged: ")
    assert "sed -i '4,$d'" in mend
    path.write_bytes(b"".join(data.splitlines(keepends=True)[:3]))  # as the second line says
    assert read(path) == ([{"end": "e0"}, {"end": "e1"}], "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=3), st.data(), st.integers(0, 5000))
def test_what_an_append_that_is_cut_short_leaves_is_cut_off(tmp_path, record, data, zeros):
    """By a kill or a full disk at any byte, or by a power cut: then zeros may stand for what had not come yet."""
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    written(path, [{"first": 1}])
    whole = path.stat().st_size
    written(path, [record])
    size = data.draw(st.integers(whole, path.stat().st_size - 1))
    path.write_bytes(path.read_bytes()[:size] + b"\0" * zeros)
    torn = size - whole + zeros
    assert read(path) == (
        [{"first": 1}],
        f"cut off an incomplete record of {torn} bytes at the end of {path}" if torn else "",
    )
    assert path.stat().st_size == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path, content):
    path = tmp_path / "journal"
    for data in (content, FIRST + content):
        path.write_bytes(data)
        try:
            read(path)
        except BadInputError:
            assert path.read_bytes() == data


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"n":' + b"9" * 5000 + b"}", b'{"a":' * 100_000, b"[]"])
def test_a_line_with_a_right_digest_that_is_no_record_is_damage(tmp_path, text):
    path = tmp_path / "journal"
    line = hashlib.blake2b(text, digest_size=8).hexdigest().encode() + b" " + text
    path.write_bytes(FIRST + line + b"\n")
    with pytest.raises(BadInputError, match="journal:2: the journal is damaged"):
        Journal.open(str(path))


def test_many_records_take_little_memory(tmp_path):
    """Peak resident memory over that of the interpreter with the module loaded."""
    path = tmp_path / "journal"
    end = {"cause": "ok", "seconds": 12.5, "metrics": {"throughput": 123.4, "latency": 5000.1}, "hosts": []}
    text = json.dumps({"end": "z1_gas1_tmbspg16", "ending": end, "script": "0" * 32}, separators=(",", ":")).encode()
    line = hashlib.blake2b(text, digest_size=8).hexdigest().encode() + b" " + text + b"\n"
    path.write_bytes(FIRST + line * 30_000)
    program = textwrap.dedent(f"""
        from bireme.tune.store.journal import Journal
        def peak():
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
        before = peak()
        journal = Journal.open({str(path)!r})
        print(sum(1 for record in journal.records), peak() - before)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    number, kilobytes = map(int, done.stdout.split())
    assert number == 30_000
    assert kilobytes < 18 * 1024


def test_records_are_read_while_others_are_appended_and_not_after_the_end(tmp_path):
    path = tmp_path / "journal"
    written(path, [{"number": 0}, {"number": 1}])
    journal = Journal.open(str(path))
    seen = []
    for record in journal.records:
        seen.append(record)
        journal.append({"number": 2})
    assert seen == list(journal.records) == [{"number": 0}, {"number": 1}]
    journal.close()
    with pytest.raises(BiremeError, match="is closed"):
        next(journal.records)
    assert len(read(path)[0]) == 4


def test_a_second_writer_is_refused_and_told_who_is_first(tmp_path):
    path = tmp_path / "journal"
    program = f"from bireme.tune.store.journal import Journal; j = Journal.open({str(path)!r}); "
    program += "print('up', flush=True); input()"
    first = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with first:
        assert first.stdout.readline() == b"up\n"
        with pytest.raises(BadInputError) as raised:
            Journal.open(str(path))
        assert f"another tuner is using this folder: pid {first.pid} on {os.uname().nodename}" in str(raised.value)
        first.stdin.close()
    assert read(path) == ([], "")


def test_a_second_in_the_same_process_too_and_the_first_keeps_its_lock(tmp_path):
    path = tmp_path / "journal"
    journal = Journal.open(str(path))
    with pytest.raises(BadInputError, match="another tuner"):
        Journal.open(str(path))
    program = f"from bireme.tune.store.journal import Journal; Journal.open({str(path)!r})"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "another tuner is using this folder" in other.stderr
    journal.append({"still": "ours"})
    journal.close()
    assert read(path)[0] == [{"still": "ours"}]


def test_a_child_that_outlives_the_writer_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "journal"
    program = textwrap.dedent(f"""
        import os, time
        from bireme.tune.store.journal import Journal
        journal = Journal.open({str(path)!r})
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
        os.kill(os.getpid(), 9)
    """)
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    child = int(writer.stdout.readline())
    writer.wait()
    try:
        assert read(path) == ([], "")
    finally:
        os.kill(child, signal.SIGKILL)
        writer.stdout.close()


@pytest.mark.slow
def test_killed_at_random_moments_it_has_all_that_append_had_returned_for(tmp_path):
    path, chance = tmp_path / "journal", random.Random(3)
    program = textwrap.dedent(f"""
        from bireme.tune.store.journal import Journal
        journal = Journal.open({str(path)!r})
        number = sum(1 for record in journal.records)
        while True:
            journal.append({{"number": number, "pad": "x" * 3000}})
            print(number, flush=True)
            number += 1
    """)
    promised = 0
    for _ in range(4 * TIMES):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            time.sleep(chance.uniform(0, 0.02))
            writer.kill()
            said = writer.stdout.read().split()
            promised = max([promised, *(int(word) + 1 for word in said[:-1])])
        records, _ = read(path)
        assert [record["number"] for record in records] == list(range(len(records)))
        assert len(records) >= promised


def test_a_full_disk_is_said_and_the_file_stays_whole(tmp_path):
    path = tmp_path / "journal"
    program = textwrap.dedent(f"""
        import resource, signal
        from bireme.errors import BiremeError
        from bireme.tune.store.journal import Journal
        journal = Journal.open({str(path)!r})
        journal.append({{"first": 1}})
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
        for number in range(3):
            try:
                journal.append({{"large": "x" * 300}})
                raise SystemExit("written")
            except BiremeError as error:
                print(error)
        journal.append({{"small": 2}})
    """)
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN, "Python turns the signal into an error"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count(f"{path} cannot be written: File too large") == 3
    assert read(path) == ([{"first": 1}, {"small": 2}], "")


def test_what_json_cannot_write_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "journal"
    journal = Journal.open(str(path))
    for wrong, error in (({"x": float("nan")}, ValueError), ({"x": {1, 2}}, TypeError)):
        with pytest.raises(error):
            journal.append(wrong)
    journal.append({"x": 1})
    journal.close()
    assert read(path) == ([{"x": 1}], "")


def test_another_version_is_refused(tmp_path):
    path = tmp_path / "journal"
    written(path, [])
    newer = path.read_bytes()
    program = "import bireme.tune.store.journal as j, sys; j.FORMAT['version'] = 2; "
    program += "j.Journal.open(sys.argv[1]).append({'new': 1})"
    path.unlink()
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert path.read_bytes() != newer
    with pytest.raises(BadInputError, match="another version"):
        Journal.open(str(path))


@pytest.mark.parametrize("content", [b"something else\n", b"\0\1\2", b"{}"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path, content):
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match="is not a journal of Bireme"):
        Journal.open(str(path))
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_opened(tmp_path):
    with pytest.raises(BadInputError, match="Is a directory"):
        Journal.open(str(tmp_path))
    with pytest.raises(BadInputError, match="No such file"):
        Journal.open(str(tmp_path / "none" / "journal"))
    assert issubclass(BadInputError, BiremeError)
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="Not a directory"):
        Journal.open(str(tmp_path / "file" / "journal"))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    for path in (str(tmp_path / "pipe"), os.devnull):
        with pytest.raises(BadInputError, match="is not a regular file"):
            Journal.open(path)


@needs.programs("setpriv")
def test_a_file_that_may_not_be_read_or_written(tmp_path):
    path = tmp_path / "journal"
    written(path, [{"x": 1}])
    data = path.read_bytes()
    program = textwrap.dedent(f"""
        from bireme.errors import BiremeError
        from bireme.tune.store.journal import Journal
        try:
            Journal.open({str(path)!r})
        except BiremeError as error:
            print(error.code, error)
    """)
    # Root may read everything by this capability alone.
    can = "-dac_override,-dac_read_search"
    drop = ["setpriv", f"--bounding-set={can}", f"--inh-caps={can}"] if os.geteuid() == 0 else []
    for mode in (0o000, 0o444):
        path.chmod(mode)
        done = subprocess.run([*drop, sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"2 {path}: cannot be opened: Permission denied\n  "), done.stdout
    path.chmod(0o644)
    assert path.read_bytes() == data


def test_a_first_line_that_a_power_cut_has_left_empty_is_begun_anew(tmp_path):
    """The size can reach the disk before the bytes, which then are zeros."""
    path = tmp_path / "journal"
    written(path, [])
    first = path.read_bytes()
    for kept in (0, 10, len(first) - 1):
        path.write_bytes(first[:kept].ljust(len(first), b"\0"))
        assert read(path) == ([], f"cut off an incomplete record of {len(first)} bytes at the end of {path}")
        assert path.read_bytes() == first
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(BadInputError, match="is not a journal"):
        Journal.open(str(path))


def test_a_closed_journal_touches_no_other_file(tmp_path):
    journal = Journal.open(str(tmp_path / "journal"))
    journal.close()
    with (tmp_path / "other").open("wb+", buffering=0) as other:  # by the same number, most likely
        with pytest.raises(BiremeError, match="is closed"):
            journal.append({"x": 1})
        journal.close()
        assert os.fstat(other.fileno()).st_size == 0


def test_a_fork_of_the_writer_may_not_write(tmp_path):
    path = tmp_path / "journal"
    program = textwrap.dedent(f"""
        import os
        from bireme.errors import BiremeError
        from bireme.tune.store.journal import Journal
        journal = Journal.open({str(path)!r})
        parent = os.getpid()
        if os.fork() == 0:
            try:
                journal.append({{"by": "the child"}})
            except BiremeError as error:
                print(str(error).replace(str(parent), "PARENT"), flush=True)
            journal.close()
            os._exit(0)
        os.wait()
        journal.append({{"by": "the parent"}})
        journal.close()
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path} is written by process PARENT, not by a fork of it\n"
    assert read(path)[0] == [{"by": "the parent"}]


def test_names_that_json_would_change_are_refused(tmp_path):
    path = tmp_path / "journal"
    journal = Journal.open(str(path))
    for wrong in ({1: "a"}, {"m": {1: "a", "1": "b"}}, {"m": [{None: 0}]}):
        with pytest.raises(TypeError, match="names must be strings"):
            journal.append(wrong)
    journal.close()
    assert read(path)[0] == []


def test_an_append_that_is_interrupted_leaves_nothing_and_loses_nothing(tmp_path):
    """Whatever a signal handler raises, and wherever: what follows is appended where the last whole record ends."""

    class HandlerError(Exception):
        pass

    def interrupt(*_):
        raise HandlerError

    path, chance, number = tmp_path / "journal", random.Random(5), 0
    journal = Journal.open(str(path))
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for _ in range(10 * TIMES):
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, chance.uniform(1e-5, 1e-3))
                while True:
                    journal.append({"number": number, "pad": "x" * 5000}, sync=False)
                    number += 1
            except HandlerError:
                pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    whole = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 100, hard))
    try:
        with pytest.raises(BiremeError, match="File too large"):  # is cut back, and to the right place
            journal.append({"large": "x" * 300})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == whole
    journal.close()
    records, note = read(path)
    # A record may have been written whole, and its append interrupted on the way out.
    assert not note and set(range(number)) <= {record["number"] for record in records}


def sealed(data):
    """A path to a file in memory that can grow but not shrink: what a cut needs is refused by the kernel."""
    fd = os.memfd_create("journal", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd, f"/proc/self/fd/{fd}"


def test_a_journal_that_cannot_be_cut_back_takes_no_more(tmp_path):
    written(tmp_path / "journal", [{"first": 1}])
    fd, path = sealed((tmp_path / "journal").read_bytes())
    journal = Journal.open(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.fstat(fd).st_size + 50, hard))
    try:
        with pytest.raises(BiremeError, match="cannot be written: File too large"):
            journal.append({"large": "x" * 300})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    size = os.fstat(fd).st_size
    with pytest.raises(BiremeError, match="cannot be cut back to its last whole record: Operation not permitted\n  "):
        journal.append({"small": 2})
    assert os.fstat(fd).st_size == size
    journal.close()
    (tmp_path / "copy").write_bytes(os.pread(fd, size, 0))
    os.close(fd)
    assert read(tmp_path / "copy")[0] == [{"first": 1}], "the next start goes on"


def test_a_torn_tail_that_cannot_be_cut_is_said(tmp_path):
    written(tmp_path / "journal", [{"first": 1}])
    fd, path = sealed((tmp_path / "journal").read_bytes()[:-5])
    with pytest.raises(BadInputError, match="cannot be opened: Operation not permitted"):
        Journal.open(path)
    os.close(fd)


@needs.programs("unshare")
def test_a_disk_that_is_really_full(tmp_path):
    program = textwrap.dedent(f"""
        import json, sys
        from bireme.errors import BiremeError
        from bireme.tune.store.journal import Journal
        path = {str(tmp_path / "journal")!r}
        journal, kept = Journal.open(path), 0
        try:
            while True:
                journal.append({{"number": kept, "pad": "x" * 1000}})
                kept += 1
        except BiremeError as error:
            said = str(error)
        journal.close()
        again = Journal.open(path)
        print(json.dumps([kept, [r["number"] for r in again.records], again.note, said]))
    """)
    mount = f'mount -t tmpfs -o size=32k none {tmp_path} || exit 77; exec "$@"'
    own = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    done = subprocess.run([*own, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        needs.missing("file systems cannot be mounted here")
    kept, numbers, note, said = json.loads(done.stdout)
    assert kept > 10 and numbers == list(range(kept)) and not note
    assert "cannot be written: No space left on device\n  free some space" in said


@pytest.mark.slow
def test_a_pipe_in_place_of_the_name_of_who_writes_it(tmp_path):
    """It would let whoever opens it wait for ever: the one that writes it, and the one that reads it."""
    os.mkfifo(tmp_path / "journal.owner")
    program = f"""
        from bireme.tune.store.journal import Journal
        journal = Journal.open({str(tmp_path / "journal")!r})
        print("open", flush=True)
        input()
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert select.select([first.stdout], [], [], 20)[0]
        second = subprocess.run(["timeout", "20", *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert second.returncode == 1 and "another tuner is using this folder: an unknown process" in second.stderr
    finally:
        first.kill()
        first.communicate()
