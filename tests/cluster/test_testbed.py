"""Tests of the test cluster itself, of what no job would show: delays, strays, whose environment commands have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.basics import wait_until
from tests.cluster.testbed import Testbed
from tests.conftest import bireme


def connected(testbed: Testbed, seconds: int = 1) -> bool:
    ssh = ["ssh", "-o", f"ConnectTimeout={seconds}", "node1", "true"]
    return testbed["login"].run(ssh, check=False).returncode == 0


def test_delay(ssh_cluster: Testbed) -> None:
    ssh_cluster["node1"].delay(50)
    began = time.monotonic()
    assert connected(ssh_cluster, seconds=10)
    assert time.monotonic() - began > 0.3  # the handshake takes several round trips of 100 ms
    ssh_cluster["node1"].clear()
    assert connected(ssh_cluster, seconds=10)


def test_mended(ssh_cluster: Testbed) -> None:
    """Whatever the tests before this one have done."""
    for node in ssh_cluster.nodes:
        ssh = ["ssh", "-o", "ConnectTimeout=10", node.name, "hostname"]
        assert ssh_cluster["login"].run(ssh).stdout == f"{node.name}\n"


def test_strays_are_found(ssh_cluster: Testbed) -> None:
    node = ssh_cluster["node2"]
    node.run("setsid sleep 1000 >/dev/null 2>&1 & :")
    wait_until("sleep", lambda: list(node.strays().values()) == [["sleep", "1000"]], 30)
    (pid,) = node.strays()
    assert list(ssh_cluster.strays().items()) == [("node2", {pid: ["sleep", "1000"]})]
    os.kill(pid, signal.SIGKILL)
    assert not node.strays(30)


def test_interrupt_reaches_the_group(ssh_cluster: Testbed) -> None:
    login = ssh_cluster["login"]
    shell = ["bash", "-c", 'trap "exit 7" INT; echo ready; sleep 1000']  # its trap waits for sleep to die too
    process = login.popen(shell, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    wait_until("its sleep", lambda: any("sleep" in there.argv[0] for there in login.ps().values()), 30)
    login.kill(process, signal.SIGINT, group=True)
    assert process.wait(60) == 7


def test_a_popen_ends_its_command(ssh_cluster: Testbed) -> None:
    process = ssh_cluster["node1"].popen(["sleep", "1000"])
    wait_until("sleep", lambda: ["sleep", "1000"] in ssh_cluster["node1"].strays().values(), 30)
    process.kill()
    assert not ssh_cluster["node1"].strays(30)


@pytest.mark.installed
@pytest.mark.parametrize("host", ["login", "node1"])
def test_our_command(ssh_cluster: Testbed, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    report = "import bireme, os, socket; print(bireme.__file__, socket.gethostname(), *os.environ, sep=chr(10))"
    path, name, *environ = ssh_cluster[host].run([sys.executable, "-c", report]).stdout.splitlines()
    assert Path(path).is_relative_to(Path(__file__).resolve().parents[2])
    assert name == host
    assert "HOME" in environ and not any(name.startswith("PYTHON") for name in environ)
    assert ssh_cluster[host].run(bireme("--version")).stdout
