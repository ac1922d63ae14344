"""``bireme.launch`` and ``bireme.Executor`` with ranks on nodes, where nothing of them is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.jobs import Jobs, backends
from tests.command.test_functions import BEGIN
from tests.conftest import wait_for

PYTHON = str(Path(sys.base_prefix) / "bin/python3")
"""Has nothing of Bireme, and no packages."""

LAUNCHED = """
def task(size):
    return bireme.rank(), bireme.node(), os.uname().nodename, len(bytes(size)), os.path.basename(os.getcwd())
results = launch(task, 3 << 20, hosts="node[1-2]:2"{more})
print([result[:4] for result in results] == [
    (0, 0, "node1", 3 << 20), (1, 0, "node1", 3 << 20), (2, 1, "node2", 3 << 20), (3, 1, "node2", 3 << 20)])
print(results.on("node2") == list(results)[2:], results[0][4])
"""


def program(jobs: Jobs, text: str) -> list[str]:
    """Run a program on the login host; the lines that it prints."""
    begin = BEGIN.replace("num_gpus=ranks, accelerator", "launcher=LAUNCHER, accelerator")
    path = jobs.write("main.py", f"LAUNCHER = {jobs.backend!r}\n{begin}{text}")
    done = jobs.login.run([sys.executable, path.name], cwd=str(jobs.shared), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("backend", backends())
def test_results_come_from_all_nodes(jobs: Jobs) -> None:
    assert program(jobs, LAUNCHED.format(more="")) == ["True", f"True {jobs.shared.name}"]


def test_code_that_is_sent(jobs: Jobs) -> None:
    """The function's module is in the tree that is sent, and is imported from there."""
    jobs.write(
        "tasks.py", "import os\ndef place():\n    return os.path.dirname(os.path.abspath(__file__)) == os.getcwd()\n"
    )
    lines = program(
        jobs,
        f"""
import tasks
results = launch(tasks.place, hosts="node[1-2]:1", ship={str(jobs.shared)!r})
print(list(results))
""",
    )
    assert lines == ["[True, True]"]


def test_ranks_whose_python_has_nothing_of_it(jobs: Jobs) -> None:
    """No Bireme, and no cloudpickle or one of another version: the call brings both."""
    there = subprocess.run([PYTHON, "-c", "import bireme"], capture_output=True, check=False, cwd="/")
    assert b"ModuleNotFoundError" in there.stderr
    lines = program(
        jobs,
        f"""
factor = 10
def task():
    return bireme.rank.__code__.co_filename, sys.prefix != {sys.prefix!r}, factor * bireme.world_size()
print(list(launch(task, hosts="node[1-2]:1", python={PYTHON!r})))
""",
    )
    assert lines == ["[('<sent>/bireme/rank_numbers.py', True, 20), ('<sent>/bireme/rank_numbers.py', True, 20)]"]


@pytest.mark.parametrize(
    "how",
    ["launch(task, **fields)", "start(task, **fields).results()", "pool(**fields).launch(task)"],
    ids=["launch", "start", "Executor"],
)
def test_a_node_that_is_lost(jobs: Jobs, how: str) -> None:
    """One of three, on which nothing is installed."""
    begin = BEGIN.replace("num_gpus=ranks, accelerator", "launcher=LAUNCHER, accelerator")
    text = f"""LAUNCHER = 'ssh'\n{begin}
fields = dict(hosts="node[1-3]:1", heartbeat=2, python={PYTHON!r})
def task():
    open("began" + str(bireme.rank()), "w").close()
    time.sleep(1000)
try:
    {how}
except bireme.NodeLostError as error:
    print(error.outcome.hosts)
"""
    path = jobs.write("main.py", text)
    process = jobs.login.popen([sys.executable, path.name], cwd=str(jobs.shared), stdout=subprocess.PIPE)
    wait_for(lambda: all((jobs.shared / f"began{rank}").exists() for rank in range(3)), "the ranks run")
    jobs.testbed["node2"].poweroff()
    try:
        assert process.communicate(timeout=60)[0] == b"('node2',)\n"
    finally:
        jobs.testbed["node2"].boot()
    assert not any(jobs.testbed[node].strays() for node in ("login", "node1", "node3"))


@pytest.mark.parametrize("function", ["lambda: __import__('cloudpickle.nosuch')", "xdist.get_xdist_worker_id, 1"])
def test_what_the_function_needs_is_missing_on_the_nodes(jobs: Jobs, function: str) -> None:
    lines = program(
        jobs,
        f"""
import xdist
try:
    launch({function}, hosts="node[1-3]:1", python={PYTHON!r})
except ModuleNotFoundError as error:
    print(error.name, *error.__notes__[:2], sep="|")
""",
    )
    name, missing, where = lines[0].split("|")
    assert name == ("xdist" if "xdist" in function else "cloudpickle.nosuch")
    assert missing == f"it is missing in the ranks' Python, {PYTHON}"
    assert where.startswith("raised on rank ") and " on node" in where


def test_ranks_that_stay(jobs: Jobs) -> None:
    lines = program(
        jobs,
        """
with pool(hosts="node[1-2]:2") as ranks:
    print(sorted(set(ranks.map(lambda _: os.uname().nodename, range(200)))))
    print(list(ranks.launch(bireme.node)), ranks.launch(os.getppid).on("node1") != [])
    try:
        ranks.submit(os.kill, 0, 9).result()
    except bireme.RankKilledError as error:
        print("SIGKILL" in str(error))
    print(list(ranks.map(abs, [-1, -2])))
""",
    )
    assert lines == ["['node1', 'node2']", "[0, 0, 1, 1] True", "True", "[1, 2]"]
