"""Tests of the test cluster itself: every launcher works on it, faults look real, and strays are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.basics import wait_until
from tests.cluster.testbed import Testbed
from tests.conftest import bireme

HOSTS = ["node1", "node2", "node3", "node4"]
Tool = Callable[[str], str]


def test_ssh(ssh_cluster: Testbed) -> None:
    assert ssh_cluster["login"].run(["ssh", "node2", "hostname"]).stdout == "node2\n"


def test_pdsh(ssh_cluster: Testbed, tool: Tool) -> None:
    out = ssh_cluster["login"].run([tool("pdsh"), "-R", "ssh", "-w", "node[1-4]", "hostname"]).stdout
    assert sorted(out.splitlines()) == [f"{host}: {host}" for host in HOSTS]


def test_open_mpi(ssh_cluster: Testbed, tool: Tool) -> None:
    mpirun = [tool("mpirun.openmpi"), "--allow-run-as-root", "--host", ",".join(HOSTS), "-n", "4"]
    assert sorted(ssh_cluster["login"].run([*mpirun, "hostname"]).stdout.split()) == HOSTS


def test_mpich(ssh_cluster: Testbed, tool: Tool) -> None:
    mpirun = [tool("mpirun.mpich"), "-hosts", ",".join(HOSTS), "-n", "4"]
    assert sorted(ssh_cluster["login"].run([*mpirun, "hostname"]).stdout.split()) == HOSTS


def test_srun_with_gpus(slurm_cluster: Testbed) -> None:
    print_gpus = ["sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"]
    out = slurm_cluster["login"].run(["srun", "-N2", "-n2", "--gpus-per-node=2", *print_gpus]).stdout
    assert sorted(out.splitlines()) == ["node1 0,1", "node2 0,1"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: nothing to be pinned to")
def test_slurm_pins_by_default(slurm_cluster: Testbed) -> None:
    out = slurm_cluster["login"].run(["srun", "-N2", "-n2", "nproc"]).stdout
    assert out.split() == ["1", "1"]


def test_slurm_after_power_off(slurm_cluster: Testbed) -> None:
    slurm_cluster["node3"].poweroff()
    slurm_cluster["node3"].boot()
    slurm_cluster.slurm_ready()
    assert sorted(slurm_cluster["login"].run(["srun", "-N4", "-n4", "hostname"]).stdout.split()) == HOSTS


def test_power_off(ssh_cluster: Testbed) -> None:
    ssh = ["ssh", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2", "node3"]
    process = ssh_cluster["login"].popen([*ssh, "echo ready; sleep 1000"], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    ssh_cluster["node3"].poweroff()
    assert process.wait(60) == 255
    ssh_cluster["node3"].boot()
    assert ssh_cluster["login"].run(["ssh", "node3", "hostname"]).stdout == "node3\n"


def connected(testbed: Testbed, seconds: int = 1) -> bool:
    ssh = ["ssh", "-o", f"ConnectTimeout={seconds}", "node1", "true"]
    return testbed["login"].run(ssh, check=False).returncode == 0


@pytest.mark.parametrize(("fault", "cure"), [("cut", "heal"), ("blackhole", "heal"), ("freeze", "thaw")])
def test_unreachable_and_back(ssh_cluster: Testbed, fault: str, cure: str) -> None:
    getattr(ssh_cluster["node1"], fault)()
    assert not connected(ssh_cluster)
    getattr(ssh_cluster["node1"], cure)()
    wait_until("node1", lambda: connected(ssh_cluster), 30)


def test_refused(ssh_cluster: Testbed) -> None:
    ssh_cluster["node1"].kill_sshd()

    def refused() -> bool:  # one that was just being accepted is reset
        done = ssh_cluster["login"].run(["ssh", "node1", "true"], check=False)
        return done.returncode == 255 and "refused" in done.stderr

    wait_until("a refusal", refused, 30)


def test_firewall(ssh_cluster: Testbed, tool: Tool) -> None:
    tool("nft")
    ssh_cluster["node1"].drop(22)
    assert not connected(ssh_cluster)


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
        assert (
            ssh_cluster["login"].run(["ssh", "-o", "ConnectTimeout=10", node.name, "hostname"]).stdout.strip()
            == node.name
        )


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
@pytest.mark.parametrize("host", ["login", *HOSTS])
def test_our_command(ssh_cluster: Testbed, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    report = "import bireme, os, socket; print(bireme.__file__, socket.gethostname(), *os.environ, sep=chr(10))"
    path, name, *environ = ssh_cluster[host].run([sys.executable, "-c", report]).stdout.splitlines()
    assert Path(path).is_relative_to(Path(__file__).resolve().parents[2])
    assert name == host
    assert "HOME" in environ and not any(name.startswith("PYTHON") for name in environ)
    assert ssh_cluster[host].run(bireme("--version")).stdout


def test_shared_directory(ssh_cluster: Testbed, shared_dir: Path) -> None:
    ssh_cluster["login"].run("echo hello > greeting; echo mine > /tmp/of-login", cwd=str(shared_dir))
    assert ssh_cluster["node4"].run(["cat", f"{shared_dir}/greeting"]).stdout == "hello\n"
    assert (shared_dir / "greeting").read_text() == "hello\n"
    assert ssh_cluster["node4"].run(["cat", "/tmp/of-login"], check=False).returncode
