"""Which descriptors our own processes hold: one too many keeps another from seeing the end of a file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LIST = """
import os, sys
def show(*words):
    print(*words, *(fd for fd in range(1000) if os.path.exists(f"/proc/self/fd/{fd}")))
"""
CLOSES = """
from bireme.process import kernel
keep = [os.dup(0), os.dup(0), os.dup(0)]
kernel.close_all_but({keep[2], keep[0]})
show(os.readlink("/proc/self/fd/0"))
"""
LEAKED = """
from bireme.agent.connect import close_what_leaked
for fd in range(3, 7):
    os.dup2(0, fd)
close_what_leaked({"PMI_FD": sys.argv[1]})
assert not any(os.get_inheritable(fd) for fd in range(3, 7) if os.path.exists(f"/proc/self/fd/{fd}"))
show()
"""


def shown(code: str, *words: str, held: tuple[int, ...] = ()) -> list[str]:
    argv = [sys.executable, "-c", LIST + code, *words]
    return subprocess.run(argv, pass_fds=held, capture_output=True, text=True, check=True).stdout.split()


def test_a_guardian_holds_none_that_is_not_its_own() -> None:
    """Otherwise what reads from a pipe of the program that embeds us would wait for its end for as long as the job."""
    ours, theirs = os.pipe()
    kept = [str(fd) for fd in range(3, 100) if fd not in (ours, theirs)]
    assert shown(CLOSES, held=(ours, theirs)) == ["/dev/null", "0", "1", "2", kept[0], kept[2]]
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("named", "kept"), [("", []), ("2", []), ("none", []), ("5", ["5"])])
def test_an_agent_closes_what_hydra_leaks_and_not_its_own(named: str, kept: list[str]) -> None:
    assert shown(LEAKED, named) == ["0", "1", "2", *kept]


def test_an_agent_speaks_to_its_runner_by_nothing_that_others_use() -> None:
    """What a library prints would be noise on the channel."""
    words = [sys.executable, "-m", "bireme.agent", "--channel"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as agent:
        assert agent.stdout is not None and agent.stdout.read(1)
        assert [os.readlink(f"/proc/{agent.pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
