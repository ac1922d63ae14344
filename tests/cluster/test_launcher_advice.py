"""The advice about messages of launchers and login shells that start no agent."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from bireme.backends import choice
from bireme.cluster.node_answers import advice
from tests.cluster.jobs import Jobs

NOLOGIN = shutil.which("nologin", path="/usr/sbin:/sbin")


@pytest.mark.skipif(NOLOGIN is None, reason="no nologin here")
def test_a_shell_that_runs_no_commands():
    said = subprocess.run([NOLOGIN], capture_output=True, text=True, check=False)
    (what,) = advice((said.stdout + said.stderr).splitlines(), choice.load("ssh"))
    assert "USER@NODE" in what


@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ("echo home is missing >&2; exec /usr/sbin/nologin", "name another user, as USER@NODE"),
        (
            "exit 1",
            "node2  ssh ended with exit code 1\nbireme:          the login shell there printed nothing: try ssh",
        ),
    ],
    ids=["nologin", "silent"],
)
def test_a_node_whose_login_shell_runs_nothing(jobs: Jobs, shell: str, says: str) -> None:
    node, jobs = jobs.testbed["node2"], jobs
    path = jobs.write("shell", f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    change = f"s#^\\({jobs.testbed.user}:.*:\\)[^:]*$#\\1{path}#"
    node.run(f"sed '{change}' /etc/passwd > /run/passwd && mount --bind /run/passwd /etc/passwd", root=True)
    try:
        done = jobs.run(jobs.write("hello.py", "print(1)"), hosts="node1:1,node2:1")
    finally:
        node.run("umount /etc/passwd", root=True)
    assert done.returncode == 69
    assert says in done.stderr, done.stderr


SAID = {
    'runc: exec failed: unable to start process: exec: "python3": executable file not found in $PATH': "Python",
    'OCI runtime exec failed: exec failed: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown': "Python",
    "Error: crun: executable file `python3` not found in $PATH: No such file or directory": "Python",
    "exec: \"exec /bin/sh -c 'python3' bireme.agent --channel\": stat: no such file": "{argv}",
    "nsenter: failed to execute exec /bin/sh -c python3 bireme.agent --channel: File name too long": "{argv}",
    "bash: -c: line 1: syntax error near unexpected token `('": "{command}",
}


@pytest.mark.parametrize("line", SAID)
def test_containers_without_what_is_started(line: str) -> None:
    (what,) = advice([line], choice.load("exec"))
    assert SAID[line] in what


def test_other_words_speak_for_themselves():
    assert advice(["ssh: connect to host n port 22: Connection refused"], choice.load("ssh")) == []
