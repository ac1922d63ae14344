"""Jobs inside an allocation: a real one of Slurm, and the environment that PBS and LSF set."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.basics import signal_all, wait_until
from tests.cluster.jobs import LOOK, Jobs, Looks, far, gpus, rows, table
from tests.cluster.testbed import Testbed
from tests.conftest import bireme

pytestmark = pytest.mark.installed


@pytest.fixture
def jobs(slurm_cluster: Testbed, shared_dir: Path) -> Jobs:
    return Jobs(slurm_cluster, "slurm", shared_dir)


def in_allocation(jobs: Jobs, options: list[str], *words: object, after: str = ":") -> Looks:
    """``salloc OPTIONS bireme run WORDS look.py``, and what a shell in the allocation does after that."""
    command = shlex.join(bireme("run", *map(str, words), jobs.write("look.py", LOOK)))
    salloc = ["salloc", "--quiet", *options, "sh", "-c", f"{command}; code=$?; {after}; exit $code"]
    done = jobs.login.run(salloc, cwd=str(jobs.shared), check=False)
    assert done.returncode == 0, done.stderr
    return jobs.looked(done)


def hosts(looks: Looks) -> list[str]:
    return [found["host"] for found in looks]


def in_batch(jobs: Jobs, options: list[str], command: list[str]) -> str:
    """What ``sbatch OPTIONS`` of a script with this command has written, and the code of the command."""
    script = jobs.write("job.sh", f"#!/bin/sh\ncd {jobs.shared}\n{shlex.join(command)}\necho code $?\n")
    out = jobs.shared / "job.out"
    jobs.login.run(["sbatch", *options, "--output", str(out), "--chdir", str(jobs.shared), str(script)])
    wait_until("its end", lambda: not jobs.testbed.slurm_jobs(), 200)  # --wait would look ever less often
    return out.read_text()


def test_salloc(jobs: Jobs) -> None:
    """The launcher is Slurm's own, the job number the allocation's, which is still there at the end."""
    after = "echo state $(squeue --noheader --job $SLURM_JOB_ID --format %T) in $SLURM_JOB_ID"
    looks = in_allocation(jobs, ["-N3"], "--log_level", "debug", "--num_gpus", "2", after=after)
    assert hosts(looks) == ["node1", "node1", "node2", "node2", "node3", "node3"]
    _, state, _, number = looks.done.stdout.splitlines()[-1].split()
    assert state == "RUNNING"
    assert {found["environ"]["SLURM_JOB_ID"] for found in looks} == {number}
    assert "slurm" in looks.done.stderr


def test_salloc_with_gpus(jobs: Jobs) -> None:
    """As many ranks as the allocation has GPUs, of more that the nodes have."""
    with gpus(jobs.testbed.nodes):
        looks = in_allocation(jobs, ["-N2", "--gres=gpu:3"])
    assert hosts(looks) == ["node1"] * 3 + ["node2"] * 3
    assert [found["environ"]["LOCAL_RANK"] for found in looks] == ["0", "1", "2"] * 2
    assert {found["environ"]["CUDA_VISIBLE_DEVICES"] for found in looks} == {"0,1,2"}


def test_gpus_of_an_allocation_that_are_not_the_first(jobs: Jobs) -> None:
    """Another job has the first two GPUs of each node: ours are 2 and 3."""
    other = jobs.login.popen(["srun", "-N2", "-n2", "-w", "node[1-2]", "--gres=gpu:2", "sleep", "1000"])
    wait_until("the other job", lambda: any("RUNNING" in job for job in jobs.testbed.slurm_jobs()), 30)
    with gpus(jobs.testbed.nodes):
        looks = in_allocation(jobs, ["-N2", "-w", "node[1-2]", "--gres=gpu:2"])
    assert hosts(looks) == ["node1", "node1", "node2", "node2"]
    assert {found["environ"]["CUDA_VISIBLE_DEVICES"] for found in looks} == {"2,3"}
    jobs.login.kill(other, signal.SIGTERM)
    other.wait(60)


def test_filters_inside_an_allocation(jobs: Jobs) -> None:
    with gpus(jobs.testbed.nodes):
        looks = in_allocation(jobs, ["-N4", "--gres=gpu:2"], "--include", "node2@node4:1")
    assert rows(looks) == table("node2 0 0 0 3 2 0,1\n node2 1 1 0 3 2 0,1\n node4 2 0 1 3 1 1")


def test_the_name_of_a_job_in_lists(jobs: Jobs) -> None:
    """In an allocation of the user the step has it, elsewhere the allocation too."""
    lists = "squeue --noheader --format 'job %j'; squeue --steps --noheader --format 'step %j'"
    script = jobs.write("lists.py", f"import subprocess\nsubprocess.run(['sh', '-c', {lists!r}], check=True)")
    command = bireme("run", "--job_name", "llama", "--output", "raw", str(script))
    done = jobs.login.run(["salloc", "--quiet", "-N1", "-J", "mine", *command], cwd=str(jobs.shared), check=False)
    assert {"job mine", "step llama"} <= set(map(str.strip, done.stdout.splitlines())), done
    done = jobs.run("--job_name", "llama", "--output", "raw", script, hosts="node1:1")
    assert "step llama" in done.stdout and "job llama-" in done.stdout, done


IMPATIENT = """
from bireme.__main__ import command
from bireme.cluster import node_answers
node_answers._ANSWER_WAIT = 2.0
command()
"""
"""The command, which waits 2 s instead of 30 s for a node that does not answer."""


@pytest.mark.slow
def test_a_job_waits_in_the_queue(jobs: Jobs) -> None:
    """Outside an allocation: nodes need not answer before Slurm has given them."""
    words = [*jobs.command("--no_python", "echo", "ran", hosts="node[1-2]:1")]
    words[1:3] = ["-c", IMPATIENT]
    other = jobs.login.popen(["srun", "-N4", "--exclusive", "sleep", "1000"], stderr=subprocess.DEVNULL)
    wait_until("the other job", lambda: any("RUNNING" in job for job in jobs.testbed.slurm_jobs()), 30)
    pipe = subprocess.PIPE
    process = jobs.login.popen(words, cwd=str(jobs.shared), stdout=pipe, stderr=pipe)
    assert process.stderr and process.stderr.readline().startswith(b"bireme: waiting for nodes: job ")
    time.sleep(4)  # it would give up after 2
    assert process.poll() is None
    jobs.login.kill(other, signal.SIGTERM)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out.count(b"ran"), err) == (0, 2, b"")
    other.wait(60)


def test_named_hosts_win(jobs: Jobs) -> None:
    """``--hosts`` names fewer nodes than the allocation has; by ssh too."""
    for launcher in ("auto", "ssh"):
        looks = in_allocation(jobs, ["-N3"], "--hosts", "node3:2", "--launcher", launcher)
        assert hosts(looks) == ["node3", "node3"]


@pytest.mark.parametrize("launcher", ["ssh", "pdsh", "openmpi", "mpich"])
def test_other_launchers_inside_an_allocation(
    slurm_cluster: Testbed, shared_dir: Path, tool: object, launcher: str
) -> None:
    """MPI's own way to start daemons there is srun: our agents are unbound, and see the whole node, all the same."""
    jobs = Jobs(slurm_cluster, launcher, shared_dir)
    looks = in_allocation(jobs, ["-N2", "--exclusive"], "--launcher", launcher, "--num_gpus", "2")
    assert hosts(looks) == ["node1", "node1", "node2", "node2"]


def test_sbatch(jobs: Jobs) -> None:
    """The command runs on the allocation's first node, which is one of its own."""
    said = in_batch(jobs, ["-N3"], bireme("run", "--num_gpus", "2", jobs.write("look.py", LOOK)))
    assert "code 0" in said, said
    looks = jobs.looked(subprocess.CompletedProcess((), 0))
    assert hosts(looks) == ["node1", "node1", "node2", "node2", "node3", "node3"]
    assert looks[0]["environ"]["MASTER_ADDR"] == jobs.testbed["node1"].ip


@pytest.mark.parametrize("tasks", [("-N2", "-n4"), ("-N2", "--ntasks-per-node=1"), ("-N1", "-n2")], ids=" ".join)
def test_the_same_ranks_under_sbatch_and_salloc(jobs: Jobs, tasks: tuple[str, ...]) -> None:
    """The shell of salloc is on the login host, and cannot see what the nodes have; that of sbatch is on a node."""
    interactive = in_allocation(jobs, list(tasks))
    for old in jobs.shared.glob("[0-9]*.json"):
        old.unlink()
    wait_until("the end of the allocation", lambda: not jobs.testbed.slurm_jobs(), 200)  # else others are chosen
    said = in_batch(jobs, list(tasks), bireme("run", str(jobs.shared / "look.py")))
    assert "code 0" in said, said
    batch = jobs.looked(subprocess.CompletedProcess((), 0))
    # Without the devices: slots that are declared are named there even where no device is found.
    assert [row[:-1] for row in rows(batch)] == [row[:-1] for row in rows(interactive)]
    if "-n4" in tasks or "-n2" in tasks:
        count = len(interactive)
        assert count == int(tasks[1][2:])
        assert f"its {count} tasks are the slots" in interactive.done.stderr and f"its {count} tasks are" in said


def test_native_ranks_of_tasks_by_another_python(jobs: Jobs) -> None:
    """The tasks are the ranks also where no node is asked what it has; ``--python`` runs these ranks too."""
    (python := jobs.shared / "python").symlink_to(sys.executable)
    program = jobs.write("by.py", "import os, sys\nos.write(1, (sys.executable + '\\n').encode())")
    for options, count in (((), 4), (("--num_gpus", "1"), 2)):
        words = bireme("run", "--native_ranks", "--python", str(python), *options, str(program))
        done = jobs.login.run(["salloc", "--quiet", "-N2", "-n4", *words], cwd=str(jobs.shared))
        assert done.stdout.splitlines() == [str(python)] * count, done.stderr


def test_salloc_with_gpus_and_tasks(jobs: Jobs) -> None:
    """The nodes show devices, which count, and not the tasks."""
    with gpus(jobs.testbed.nodes):
        looks = in_allocation(jobs, ["-N2", "-n2", "--overcommit", "--ntasks-per-node=2", "--gres=gpu:3"])
    assert hosts(looks) == ["node1"] * 3 + ["node2"] * 3


# -- an allocation that Bireme has made ------------------------------------------------------------


@pytest.mark.parametrize("who", ["salloc", "the command too"])
def test_killed_before_an_agent_tells_its_allocation(jobs: Jobs, who: str) -> None:
    """What was granted to a salloc that is dead is given back, by the name that we have given it."""
    with far(jobs.testbed["login"], 200):
        process = jobs.start("--no_python", "sleep", "1000")
        wait_until("our allocation", lambda: any("RUNNING" in job for job in jobs.testbed.slurm_jobs()), 30)
        slurms = [pid for pid, found in jobs.login.ps().items() if found.argv[0].endswith(("salloc", "srun"))]
        signal_all(slurms, signal.SIGKILL)
        if who != "salloc":
            jobs.login.kill(process, signal.SIGKILL)
        process.communicate(timeout=60)
    assert slurms and not jobs.testbed.slurm_jobs(30)


# -- a command that srun starts once for each task -------------------------------------------------


def under_srun(jobs: Jobs, tasks: list[str], *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``salloc -N2 srun TASKS bireme run WORDS``, which ends with this code."""
    command = ["salloc", "--quiet", "-N2", "srun", *tasks, *bireme("run", *map(str, words))]
    done = jobs.login.run(command, cwd=str(jobs.shared), check=False)
    assert done.returncode == code, done.stderr
    return done


def test_srun_starts_it_several_times(jobs: Jobs) -> None:
    """Each task would run the whole job: none does, and one of them says what to type."""
    look = jobs.write("look.py", LOOK)
    done = under_srun(jobs, ["-N2", "-n3", "--overcommit"], "--num_gpus", "2", look, code=2)
    assert done.stderr.count("srun has started this command 3 times") == 1, done.stderr
    assert f"type it without srun: bireme run --num_gpus 2 {look}" in done.stderr
    assert not list(jobs.shared.glob("*.json"))


def test_srun_starts_it_once(jobs: Jobs) -> None:
    """On a node of the allocation, in a step of one task; its agents are tasks of a step of their own."""
    look = jobs.write("look.py", LOOK)
    done = under_srun(jobs, ["-N1", "-n1"], "--num_gpus", "2", look)
    assert hosts(jobs.looked(done)) == ["node1", "node1", "node2", "node2"]


def test_srun_starts_a_job_on_each_node(jobs: Jobs) -> None:
    """That is what ``--hosts localhost`` asks for."""
    say = jobs.write("say.py", "import os\nopen('on-' + os.uname().nodename, 'w').write(os.environ['WORLD_SIZE'])\n")
    under_srun(jobs, ["-N2", "-n2"], "--hosts", "localhost:2", say)
    assert {path.name: path.read_text() for path in jobs.shared.glob("on-*")} == {"on-node1": "2", "on-node2": "2"}


@pytest.mark.slow
@pytest.mark.torch
def test_srun_starts_a_part_on_each_node(jobs: Jobs) -> None:
    """The usual line of batch scripts, ``srun torchrun --nnodes N --rdzv_endpoint A:P``, with one word changed."""
    meet = ("--rdzv_id", "7", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{jobs.testbed['node1'].ip}:29511")
    words = ("--nnodes", "2", "--nproc_per_node", "2", *meet, jobs.write("look.py", LOOK))
    looks = jobs.looked(under_srun(jobs, ["-N2", "-n2"], *words))
    assert sorted(hosts(looks)) == ["node1", "node1", "node2", "node2"]
    assert {found["environ"]["WORLD_SIZE"] for found in looks} == {"4"}


@pytest.mark.slow
def test_scancel_stops_everything(jobs: Jobs) -> None:
    wait = jobs.write("wait.py", "import os, time\nopen('up-' + os.environ['RANK'], 'w')\ntime.sleep(1000)\n")
    script = jobs.write(
        "job.sh", f"#!/bin/sh\ncd {jobs.shared}\n{shlex.join(bireme('run', '--num_gpus', '2', wait))}\n"
    )
    words = ["sbatch", "--parsable", "-N3", "--output", f"{jobs.shared}/job.out", "--chdir", str(jobs.shared)]
    number = jobs.login.run([*words, str(script)]).stdout.strip()
    wait_until("the ranks", lambda: len(list(jobs.shared.glob("up-*"))) == 6, 30)
    jobs.login.run(["scancel", number])
    wait_until("the job to go", lambda: not jobs.testbed.slurm_jobs(), 30)
    jobs.testbed.leaves_nothing()


# -- other schedulers, by their variables ----------------------------------------------------------


def scheduler(shared: Path, name: str) -> dict[str, str]:
    """What the scheduler leaves in the environment of an allocation: two slots on node1, one on node3."""
    listed = shared / "listed"
    listed.write_text("node1\nnode1\nnode3\n")
    return {
        "PBS": {"PBS_NODEFILE": str(listed), "PBS_JOBID": "17.server"},
        "LSF hostfile": {"LSB_DJOB_HOSTFILE": str(listed), "LSB_JOBID": "17"},
        "LSF list": {"LSB_MCPU_HOSTS": "node1 2 node3 1", "LSB_JOBID": "17"},
    }[name]


# MPI's own launchers look for such variables too.
@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        *((name, launcher) for name in ("PBS", "LSF list") for launcher in ("auto", "openmpi", "mpich")),
        ("LSF hostfile", "auto"),
        ("LSF hostfile", "pdsh"),
    ],
)
def test_other_schedulers(ssh_cluster: Testbed, shared_dir: Path, name: str, launcher: str) -> None:
    jobs = Jobs(ssh_cluster, launcher, shared_dir)
    looks = jobs.look(hosts="", env=scheduler(shared_dir, name))
    assert [row[:4] for row in rows(looks)] == table("node1 0 0 0\n node1 1 1 0\n node3 2 0 1")


def test_hostfile_wins_over_an_allocation(ssh_cluster: Testbed, shared_dir: Path) -> None:
    jobs = Jobs(ssh_cluster, "auto", shared_dir)
    looks = jobs.look(hosts="node2 slots=1\n", env=scheduler(shared_dir, "PBS"))
    assert hosts(looks) == ["node2"]


def test_allocation_that_cannot_be_read(ssh_cluster: Testbed, shared_dir: Path) -> None:
    """Never a silent local run."""
    jobs = Jobs(ssh_cluster, "auto", shared_dir)
    env = {"PBS_NODEFILE": str(shared_dir / "missing"), "PBS_JOBID": "17"}
    done = jobs.run(jobs.write("look.py", LOOK), hosts="", env=env, code=2)
    assert "missing" in done.stderr
    assert not list(shared_dir.glob("*.json"))
