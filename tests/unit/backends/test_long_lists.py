"""More nodes than one argument or one command line can hold: split, folded, or refused before anything starts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from ClusterShell.NodeSet import NodeSet

from bireme.backends import base, choice
from bireme.backends.base import HostLaunch, LaunchPlan, SessionBackend
from bireme.errors import BadInputError
from bireme.job import LAUNCHERS
from tests.conftest import clean_environ
from tests.kit import needs

NAMES = tuple(f"rack{number // 100}-node-with-a-name-{number % 100:02d}" for number in range(6000))
AGENT = ("python", "-m", "bireme.agent")
SLURM = {"SLURM_JOB_ID": "1"}


class Hosts(tuple[HostLaunch, ...]):
    """Counts how often somebody goes through all of them."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


def starts(words, environ):
    """Whether the kernel executes a program with these arguments."""
    try:
        subprocess.run(["/bin/true", *words], env=environ, check=True)
    except OSError as error:
        assert error.errno == errno.E2BIG
        return False
    return True


def allowed(words, environ):
    try:
        base.check_length("mpich", (("/bin/true", *words),), environ)
    except BadInputError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
def test_the_limits_are_the_kernels():
    page = os.sysconf("SC_PAGE_SIZE")
    longest = "x" * (32 * page - 1)
    for words in ([longest], ["é" * (16 * page - 1) + "x"]):
        assert allowed(words, {}) and starts(words, {})
    for words in ([longest + "x"], ["é" * (16 * page)]):
        assert not allowed(words, {}) and not starts(words, {})
    for piece, environ in (("x" * 1000, {}), ("", {}), ("x" * 1000, {"A": "x" * 100_000})):
        most = 0
        for step in (1 << place for place in range(18, -1, -1)):
            if allowed([piece] * (most + step), environ):
                most += step
        assert starts([piece] * most, environ)
        assert not starts([piece] * (most + 4096 // (len(piece) + 9) + 64), environ), (
            "no more is refused than has to be"
        )


@pytest.mark.parametrize("name", LAUNCHERS)
def test_whatever_a_backend_makes_can_be_executed_or_is_refused(name):
    backend = choice.load(name)
    extra = ("rsh", "{host}") if name == "exec" else ()
    plan = LaunchPlan(hosts := Hosts(map(HostLaunch, NAMES)), AGENT, extra=extra)
    made = list(backend.commands(plan, SLURM))
    assert hosts.looks < 10, "not for each host"
    if backend.starts_ranks:
        made.append(backend.native(plan, (1,) * len(NAMES), ()))
    for command in made[-2:]:
        assert allowed(command[1:], {}) == starts(command[1:], {})
        assert allowed(command[1:], {}) == (isinstance(backend, SessionBackend) or name in ("pdsh", "slurm", "mvapich"))


@needs.programs("pdsh")
def test_pdsh_has_all_hosts_of_several_lists():
    names = [f"one-more-node-with-a-name-{number:06d}" for number in range(5000)]
    plan = LaunchPlan(tuple(map(HostLaunch, names)), AGENT, extra=("-q",))  # say what there is to do, and do nothing
    (command,) = choice.load("pdsh").commands(plan, {})
    assert command.count("-w") > 1
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(NodeSet(done.stdout.splitlines()[-1])) == set(names)


def test_few_hosts_stand_in_one_list_and_order_is_kept():
    assert list(base.in_pieces(NAMES[:2])) == [",".join(NAMES[:2])]
    assert ",".join(base.in_pieces(NAMES)) == ",".join(NAMES)
    assert list(base.in_pieces(["a", "bb", "c"], 4)) == ["a,bb", "c"]


def test_slurm_has_all_hosts_of_a_folded_list():
    for names in (NAMES, ("node2", "node1")):
        (command,) = choice.load("slurm").commands(LaunchPlan(tuple(map(HostLaunch, names)), AGENT), SLURM)
        (listed,) = (word.partition("=")[2] for word in command if word.startswith("--nodelist="))
        assert set(NodeSet(listed)) == set(names)
        assert all(one.count("[") <= 1 for one in listed.replace("],", "],\n").splitlines())
    assert listed == "node2,node1"


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "impi"])
@pytest.mark.parametrize("words", [[], ["--dry_run"], ["--native_ranks"]], ids=" ".join)
def test_what_cannot_be_executed_is_refused_before_anything_starts(stage, script, tmp_path, launcher, words):
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=1\n" for name in NAMES))
    for program in ("mpirun", "mpiexec.hydra"):
        (tmp_path / program).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (tmp_path / program).chmod(0o755)
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}")
    arguments = ["--launcher", launcher, "--hostfile", tmp_path / "hostfile", *words, script("")]
    done = stage.run("run", *arguments, env=environ)
    assert done.returncode == 2, done.stderr
    what, mend = done.stderr.splitlines()
    assert what.startswith(f"bireme: --launcher: the command line of {launcher} is too long: one argument has ")
    assert "fewer nodes" in mend
    assert not (tmp_path / "ran").exists()
