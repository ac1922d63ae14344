"""Nodes whose own name is a loopback address, as in Debian's ``/etc/hosts``: ranks meet over Gloo all the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.jobs import Jobs
from tests.cluster.testbed import Testbed
from tests.conftest import bireme
from tests.kit import needs

NAMES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
TELLS = f"import os\nprint(*(os.environ.get(name, '-') for name in {NAMES}))\n"


@pytest.fixture
def own_names(ssh_cluster: Testbed) -> Iterator[Callable[[str], None]]:
    """A function that makes the names of node1 and node2 this address, each on that node itself."""
    changed = []

    def change(address: str) -> None:
        for host in (ssh_cluster["node1"], ssh_cluster["node2"]):
            hosts = f"127.0.0.1 localhost\n{address} {host.name.upper()}.example.org {host.name} # as Debian has it\n"
            others = "".join(f"{other.ip} {other.name}\n" for other in ssh_cluster.hosts.values() if other != host)
            host.run("cat > /run/hosts && mount --bind /run/hosts /etc/hosts", root=True, input=hosts + others)
            changed.append(host)

    yield change
    for host in changed:
        host.run("umount /etc/hosts", root=True)


def told(jobs: Jobs, *options: str) -> list[str]:
    done = jobs.run("--output", "prefix", *options, jobs.write("tells.py", TELLS), hosts="node[1-3]:1", code=0)
    return sorted(done.stdout.splitlines())


def test_the_interface_is_named(own_names: Callable[[str], None], jobs: Jobs) -> None:
    """Not on a node whose own name others reach, and no variable that the user has set. Not NCCL's."""
    own_names("127.0.1.1")
    assert told(jobs) == ["[node1:0] eth0 eth0 -", "[node2:1] eth0 eth0 -", "[node3:2] - - -"]
    kept = told(jobs, "--export", "GLOO_SOCKET_IFNAME=lo", "--master_addr", "node1")
    assert kept == ["[node1:0] lo eth0 -", "[node2:1] lo eth0 -", "[node3:2] lo - -"]
    done = jobs.run(jobs.shared / "tells.py", hosts="node1:2")
    assert done.stdout.count("- - -") == 2, "one node alone needs no network"
    checked = jobs.testbed["login"].run(bireme("check", "--hosts", "node[1-3]:1"), cwd=str(jobs.shared))
    said = [bool(re.search(r"its own name is 127\.0\.1\.1 there", line)) for line in checked.stdout.splitlines()]
    assert said == [True, True, False], checked.stdout


def test_an_outdated_address(own_names: Callable[[str], None], jobs: Jobs) -> None:
    """Where the machine does not have the address of its name, Gloo takes a loopback address too."""
    own_names("10.99.99.99")
    assert told(jobs)[:2] == ["[node1:0] eth0 eth0 -", "[node2:1] eth0 eth0 -"]


@pytest.mark.installed
def test_typed_on_each_node(own_names: Callable[[str], None], ssh_cluster: Testbed, shared_dir: Path) -> None:
    own_names("127.0.1.1")
    address = ("--master_addr", ssh_cluster["node1"].ip)
    for number in (0, 1):
        place = ("--hosts", "node[1-2]:1", "--no_ssh", "--node_rank", str(number), *address)
        shown = ssh_cluster[f"node{number + 1}"].run(bireme("run", "--dry_run", *place, "--no_python", "true"))
        assert "    GLOO_SOCKET_IFNAME=eth0\n    TP_SOCKET_IFNAME=eth0\n" in shown.stdout, shown.stdout


REDUCES = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("total", total.tolist(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
@needs.modules("torch")
def test_gloo_meets(own_names: Callable[[str], None], jobs: Jobs) -> None:
    own_names("127.0.1.1")
    done = jobs.run(jobs.write("reduces.py", REDUCES), hosts="node[1-2]:1", timeout=250, code=0)
    assert done.stdout.count("total [3.0, 3.0, 3.0]") == 2
