"""The advice about messages of launchers and login shells that start no agent."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from bireme.cluster.launcher_advice import advice

NOLOGIN = shutil.which("nologin", path="/usr/sbin:/sbin")


@pytest.mark.skipif(NOLOGIN is None, reason="no nologin here")
def test_a_shell_that_runs_no_commands():
    said = subprocess.run([NOLOGIN], capture_output=True, text=True, check=False)
    (what,) = advice((said.stdout + said.stderr).splitlines())
    assert "USER@NODE" in what


def test_other_words_speak_for_themselves():
    assert advice(["ssh: connect to host n port 22: Connection refused"]) == []
