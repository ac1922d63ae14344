"""``--stdin`` on nodes: their ranks read what the command reads."""

from __future__ import annotations

import subprocess
from collections.abc import Collection

import pytest

from tests.cluster.jobs import Jobs, backends

READS = """
import hashlib, os, sys
data = sys.stdin.buffer.read()
print("read", len(data), hashlib.md5(data).hexdigest(), flush=True)
"""
GIVEN = b"\0\xff\n" + bytes(range(256)) * 4000
TALKS = "while (line := input()) != 'end':\n    print('got', line, flush=True)\n"


def read(jobs: Jobs, *options: str) -> list[int]:
    """How many bytes each rank has read."""
    import hashlib

    program = jobs.write("reads.py", READS)
    process = jobs.start("--output", "prefix", *options, program, hosts="node[1-2]:2", stdin=subprocess.PIPE)
    out, err = process.communicate(GIVEN, timeout=60)
    assert process.returncode == 0, err
    words = [line.split() for line in sorted(out.decode().splitlines())]
    assert {digest for *_, number, digest in words if int(number)} <= {hashlib.md5(GIVEN).hexdigest()}
    return [int(word[2]) for word in words]


@pytest.mark.parametrize(
    ("options", "who"), [((), ()), (("--stdin", "0"), (0,)), (("--stdin", "3"), (3,)), (("--stdin", "all"), range(4))]
)
def test_chosen_ranks(jobs: Jobs, options: tuple[str, ...], who: Collection[int]) -> None:
    found = read(jobs, *options)
    assert found == [len(GIVEN) if rank in who else 0 for rank in range(4)]


@pytest.mark.parametrize("backend", [name for name in backends() if name != "ssh"])
def test_every_launcher(jobs: Jobs) -> None:
    """The launcher keeps nothing of it for itself."""
    assert read(jobs, "--stdin", "3") == [0, 0, 0, len(GIVEN)]


def test_line_by_line(jobs: Jobs) -> None:
    words = ("--output", "raw", "--stdin", "all", jobs.write("talks.py", TALKS))
    process = jobs.start(*words, hosts="node[1-2]:1", stdin=subprocess.PIPE)
    assert process.stdin and process.stdout
    for word in (b"one", b"two"):
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == [b"got " + word + b"\n"] * 2
    process.stdin.write(b"end\n")
    process.stdin.flush()
    assert process.wait(60) == 0


def test_what_to_type(jobs: Jobs) -> None:
    """On nodes, rank 0 too reads nothing if nobody says so."""
    done = jobs.run(jobs.write("stops.py", "breakpoint()\n"), hosts="node1:1", stdin=subprocess.PIPE)
    assert "the stdin of rank 0 is /dev/null: to read yours there, as for breakpoint(), type --stdin 0" in done.stderr
    assert jobs.run("--stdin", "7", jobs.shared / "stops.py", hosts="node1:1").returncode == 2
    process = jobs.start("--stdin", "0", jobs.shared / "stops.py", hosts="node1:1", stdin=subprocess.PIPE)
    out, err = process.communicate(b"p 6 * 7\nc\n", timeout=60)
    assert process.returncode == 0 and b"42" in out, err
