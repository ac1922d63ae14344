"""Which rank runs where, with which variables: the same golden table for every backend, down to single slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.jobs import GOLDEN, LOOK, UNEVEN, Jobs, backends, gpus, rows, table, without_ssh
from tests.cluster.testbed import Testbed


# The filters choose before a launcher is asked: all of them on one.
@pytest.mark.parametrize(("backend", "name"), [("ssh", name) for name in GOLDEN])
def test_golden_table(jobs: Jobs, name: str) -> None:
    options, expected = GOLDEN[name]
    looks = jobs.look(*options, hosts=UNEVEN)
    assert rows(looks) == table(expected)
    for found in looks:
        env = found["environ"]
        assert env["LOCAL_SIZE"] == env["LOCAL_WORLD_SIZE"]
        assert env["CROSS_RANK"] == env["GROUP_RANK"] == env["NODE_RANK"]
        assert env["CROSS_SIZE"] == env["GROUP_WORLD_SIZE"] == str(len({row[0] for row in table(expected)}))
        for name_of_all in ("MASTER_ADDR", "MASTER_PORT"):
            assert env[name_of_all] == looks[0]["environ"][name_of_all]
        assert found["cwd"] == str(jobs.shared)


# What else filters refuse: `tests/unit/resources/test_filters.py`.
REFUSED = {
    "unknown slot": (("--include", "node3:1"), "node3"),
    "nothing is left": (("--exclude", "node[1-3]"), ""),
    "too many nodes": (("--num_nodes", "4"), "4"),
    "number and filter": (("--num_gpus", "1", "--include", "node1"), "--num_gpus"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_connection(jobs: Jobs, name: str) -> None:
    options, word = REFUSED[name]
    done = jobs.run(*options, jobs.write("look.py", LOOK), hosts=UNEVEN, env=without_ssh(jobs), code=2)
    assert word in done.stderr and len(done.stderr.splitlines()) <= 2
    assert not (jobs.shared / "ssh-was-run").exists()


@pytest.mark.parametrize("backend", backends("ssh", "pdsh", "openmpi", "mpich"))
def test_hosts_that_are_listed_by_address(jobs: Jobs) -> None:
    addresses = [jobs.testbed[name].ip for name in ("node3", "node1")]
    looks = jobs.look(hosts=f"{addresses[0]} slots=1\n{addresses[1]} slots=2\n")
    expected = """
        node3 0 0 0 3 1 0
        node1 1 0 1 3 2 0,1
        node1 2 1 1 3 2 0,1
        """
    assert rows(looks) == table(expected)


@pytest.mark.parametrize("backend", backends())
def test_order_of_the_hostfile_not_of_the_names(jobs: Jobs) -> None:
    """Slurm sorts the nodes that it is given; so may the others. What is left of their slots is uneven."""
    hosts = "node3 slots=1\nnode1 slots=2\nnode2 slots=3\n"
    looks = jobs.look("--exclude", "node1:0@node2:1", hosts=hosts)
    expected = """
        node3 0 0 0 4 1 0
        node1 1 0 1 4 1 1
        node2 2 0 2 4 2 0,2
        node2 3 1 2 4 2 0,2
        """
    assert rows(looks) == table(expected)


@pytest.mark.parametrize("backend", backends("ssh", "pdsh", "mpich"))
def test_nodes_whose_slots_are_not_declared(jobs: Jobs) -> None:
    """They are asked; without accelerators there, ``--num_gpus`` says how many ranks run on their CPUs."""
    looks = jobs.look("--num_gpus", "2", hosts="node2\nnode1\n")
    places = [(found["host"], found["environ"]["LOCAL_RANK"]) for found in looks]
    assert places == [("node2", "0"), ("node2", "1"), ("node1", "0"), ("node1", "1")]


def test_no_slot_of_the_first_node_is_left(jobs: Jobs) -> None:
    """Known only once the nodes have said what they have: nothing was started then."""
    program = jobs.write("up.py", "open('up', 'w')")
    with gpus(jobs.testbed.nodes[:2], 1):
        done = jobs.run("--exclude", "node1:0", program, hosts="node1\nnode2\n", code=2)
        assert "no slots on node1" in done.stderr and "--exclude node1" in done.stderr
        assert not (jobs.shared / "up").exists()
        done = jobs.run("--exclude", "node2:0", program, hosts="node1\nnode2\n", code=0)
    assert (jobs.shared / "up").exists()


@pytest.mark.parametrize("backend", backends("ssh", "openmpi", "slurm"))
def test_nodes_are_asked_for_their_devices(jobs: Jobs) -> None:
    """Where no slots are declared: as many ranks as the node has GPUs, less what the filters take away."""
    one, two = (jobs.testbed[name] for name in ("node1", "node2"))
    with gpus([one], 2), gpus([two], 3):
        looks = jobs.look("--exclude", "node2:1", hosts="node1\nnode2\n")
    expected = """
        node1 0 0 0 4 2 0,1
        node1 1 1 0 4 2 0,1
        node2 2 0 1 4 2 0,2
        node2 3 1 1 4 2 0,2
        """
    assert rows(looks) == table(expected)


def test_declared_slots_that_are_not_there(jobs: Jobs) -> None:
    with gpus([jobs.testbed["node1"]], 2), gpus([jobs.testbed["node2"]], 1):
        done = jobs.run(jobs.write("look.py", LOOK), hosts="node1 slots=2\nnode2 slots=2\nnode3 slots=2\n")
    assert done.returncode == 69, done.stderr
    assert "node2" in done.stderr and "no such device: 1" in done.stderr
    assert "node1" not in done.stderr and not list(jobs.shared.glob("*.json"))


def test_devices_that_the_node_itself_names(jobs: Jobs) -> None:
    """``CUDA_VISIBLE_DEVICES`` of a start-up file there, by UUIDs."""
    rc = Path(jobs.testbed.home, ".bashrc")
    rc.write_text('[ "$(hostname)" != node2 ] || export CUDA_VISIBLE_DEVICES=GPU-aaaa,GPU-bbbb\n')
    try:
        with gpus([jobs.testbed["node1"], jobs.testbed["node2"]], 2):
            looks = jobs.look(hosts="node1\nnode2\n")
    finally:
        rc.unlink()
    devices = [found["environ"]["CUDA_VISIBLE_DEVICES"] for found in looks]
    assert devices == ["0,1", "0,1", "GPU-aaaa,GPU-bbbb", "GPU-aaaa,GPU-bbbb"]


def test_local_or_remote_is_decided_by_the_host(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """One host in the hostfile, another one: it runs there."""
    looks = Jobs(ssh_cluster, "auto", shared_dir).look(hosts="node2 slots=2\n")
    assert [found["host"] for found in looks] == ["node2", "node2"]


def test_a_stale_lock_of_pytorch_is_named_with_its_node(ssh_cluster: Testbed, shared_dir: Path) -> None:
    lock = shared_dir / "extensions" / "adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    jobs = Jobs(ssh_cluster, "auto", shared_dir)
    looks = jobs.look("--export", f"TORCH_EXTENSIONS_DIR={lock.parent.parent}", hosts="node2 slots=2\n")
    assert f"bireme: node2: {lock} is a stale lock of PyTorch: " in looks.done.stderr


@pytest.mark.parametrize("name", ["login", "LOGIN", "10.77.0.1", "localhost", "127.0.0.1"])
def test_this_machine_under_any_of_its_names(ssh_cluster: Testbed, shared_dir: Path, name: str) -> None:
    jobs = Jobs(ssh_cluster, "auto", shared_dir)
    looks = jobs.look(hosts=f"{name} slots=2\n", env=without_ssh(jobs))
    assert [found["host"] for found in looks] == ["login", "login"]
    assert not (shared_dir / "ssh-was-run").exists()


@pytest.mark.parametrize("order", [("login", "node1"), ("node1", "10.77.0.1", "node2")])
def test_this_machine_among_others(jobs: Jobs, order: tuple[str, ...]) -> None:
    """It needs no sshd of its own."""
    jobs.testbed["login"].kill_sshd()
    looks = jobs.look(hosts="".join(f"{name} slots=2\n" for name in order))
    hosts = ["login" if name == "10.77.0.1" else name for name in order]
    assert [found["host"] for found in looks] == [host for host in hosts for _ in range(2)]
    assert looks[0]["environ"]["MASTER_ADDR"] == jobs.testbed[hosts[0]].ip


@pytest.mark.parametrize("backend", backends("pdsh", "openmpi", "mpich"))
def test_this_machine_among_others_by_an_engine(jobs: Jobs) -> None:
    looks = jobs.look(hosts="node1 slots=1\nlogin slots=2\n")
    assert [found["host"] for found in looks] == ["node1", "login", "login"]


def test_force_multi_starts_an_agent_for_the_only_node(jobs: Jobs) -> None:
    looks = jobs.look("--force_multi", hosts="login slots=2\n")
    assert [found["host"] for found in looks] == ["login", "login"]


@pytest.mark.parametrize("name", ["ssh", "pdsh"])
def test_user_and_port(ssh_cluster: Testbed, shared_dir: Path, tool: Callable[[str], str], name: str) -> None:
    """``user@host``, and on ssh ``port=``: an sshd that listens on another port only."""
    jobs = Jobs(ssh_cluster, tool(name), shared_dir)
    node, user = ssh_cluster["node2"], ssh_cluster.user
    port = ""
    if name == "ssh":
        node.kill_sshd()
        node.start_sshd("-o", "Port=2222")
        port = " port=2222"
    looks = jobs.look(hosts=f"node1 slots=1\n{user}@node2 slots=1{port}\n")
    assert [found["host"] for found in looks] == ["node1", "node2"]
