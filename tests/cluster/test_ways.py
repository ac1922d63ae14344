"""Pods by a stand-in for kubectl, and namespaces by nsenter: a way in that carries no signals, and ends nothing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import ways
from tests.cluster.basics import PATH, wait_until
from tests.cluster.jobs import Jobs
from tests.cluster.test_containers import example_of_pods
from tests.cluster.test_losses import end, found, start
from tests.cluster.test_unfit import table_of
from tests.cluster.testbed import Testbed
from tests.conftest import PROGRAMS, bireme, clean_environ, read_lines

SCENE = PROGRAMS / "scene.py"


def cluster(jobs: Jobs, *pods: dict[str, Any]) -> dict[str, str]:
    """The environment in which kubectl knows these pods."""
    text = json.dumps([{"namespace": "ns", "labels": {"app": "train"}, **pod} for pod in pods])
    path = jobs.write("pods.new", text).replace(jobs.shared / "pods")
    return {"KUBECONFIG": str(path), "PATH": f"{ways.FAKE}:{PATH}"}


def pod(number: int, **more: Any) -> dict[str, Any]:
    return {"host": f"node{number}", **more, "name": f"train-{number}"}


def test_pods_by_their_labels(request: pytest.FixtureRequest) -> None:
    """Their names cannot be resolved; the ranks meet at an address all the same."""
    jobs = Jobs.on(request, "kubectl")
    env = cluster(jobs, pod(2), pod(1), pod(3, phase="Failed"), pod(4, labels={}))
    jobs.backend = "auto"
    looks = jobs.look("--launcher_args", "-n ns -c main", hosts="kubectl:app=train:2", env=env)
    assert [look["host"] for look in looks] == ["node1", "node1", "node2", "node2"]
    assert {look["environ"]["MASTER_ADDR"] for look in looks} == {jobs.testbed["node1"].ip}


def test_what_is_wrong_with_pods(request: pytest.FixtureRequest) -> None:
    jobs = Jobs.on(request, "kubectl")
    pods = pod(1), pod(2, phase="Pending"), pod(3, phase="Succeeded"), pod(4, containers=["other"])
    hosts = "train-1:1,train-2:1,train-3:1,train-4:1,train-5:1"
    done = jobs.run("--launcher_args", "-n ns -c main", SCENE, "wait", hosts=hosts, env=cluster(jobs, *pods), code=69)
    assert table_of(done.stderr) == {
        "train-2": ["Error from server (BadRequest): pod train-2 does not have a host assigned"],
        "train-3": ["error: cannot exec into a container in a completed pod; current phase is Succeeded"],
        "train-4": ["Error from server (BadRequest): container main is not valid for pod train-4"],
        "train-5": ['Error from server (NotFound): pods "train-5" not found'],
    }


ADVICE = {
    "kubectl exec {host} -- {argv}": "it printed nothing: does it pass on stdin and stdout?",
    "kubectl exec -i {host} -- {command}": "write {argv} instead of {command}",
    "ssh {host} {argv}": "write {command} instead of {argv}",
}


@pytest.mark.slow
@pytest.mark.parametrize("template", ADVICE)
def test_a_command_that_does_not_fit(request: pytest.FixtureRequest, template: str) -> None:
    jobs = Jobs.on(request, "kubectl")
    command = bireme("check", "--launcher", "exec", "--launcher_args", template, "--hosts", "node1:1")
    done = jobs.login.run(command, env={"PATH": f"{ways.FAKE}:{PATH}"}, check=False)
    said = table_of(done.stderr)["node1"]
    assert done.returncode == 1 and ADVICE[template] in said[-1]
    assert all(len(line) < 400 for line in said)


@pytest.mark.slow
def test_client_is_killed_and_nobody_tells_the_agent(request: pytest.FixtureRequest) -> None:
    """Its stdin stays open: it hears nothing for as long as the heartbeat, and then ends its ranks."""
    jobs = Jobs.on(request, "kubectl")
    env = cluster(jobs, *(pod(number, hold=True) for number in (1, 2, 3)))
    command = bireme("run", "--launcher", "kubectl", "--launcher_args", "-n ns", "--hosts", "kubectl:app=train:2")
    options = ("--heartbeat", "2", "--grace", "0.5", str(SCENE), "grandchild", "go")
    pipe = subprocess.PIPE
    process = jobs.login.popen([*command, *options], cwd=str(jobs.shared), env=env, stdout=pipe, stderr=pipe)
    read_lines(process, 6, "ready")
    (client,) = found(jobs.login, "train-2")
    os.kill(client, signal.SIGKILL)
    assert "agent lost on train-2" in end(jobs, process, 75)


@pytest.mark.slow
def test_stream_is_dropped(request: pytest.FixtureRequest) -> None:
    """What carries it on the node is gone, without the exit code of what it has started."""
    jobs = Jobs.on(request, "exec")
    process = start(jobs)
    for pid, there in jobs.testbed["node2"].ps().items():
        if there.argv[0] == "testbed-kubelet":
            os.kill(pid, signal.SIGKILL)
    assert "agent lost on node2" in end(jobs, process, 75)


@pytest.mark.slow
def test_example_of_a_job(request: pytest.FixtureRequest) -> None:
    """Pod 0 fetches kubectl, waits for another pod, and runs the job; the other waits until it is told to end."""
    jobs = Jobs.on(request, "kubectl")
    pods_begin, ranks_run = example_of_pods()
    script = jobs.write("start.py", pods_begin)
    jobs.write("train.py", ranks_run)
    hosts, more = ("login", "node2"), {"namespace": "default", "labels": {"batch.kubernetes.io/job-name": "train"}}
    pods = [pod(index, **more, host=host) for index, host in enumerate(hosts)]
    env = cluster(jobs, pods[0]) | {"JOB": "train", "KUBECTL": f"file://{jobs.shared}", "NODES": "2"}
    kind = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    (jobs.shared / kind).mkdir()
    shutil.copy(ways.KUBECTL, jobs.shared / kind)
    jobs.write(f"{kind}/kubectl.sha256", hashlib.sha256(ways.KUBECTL.read_bytes()).hexdigest() + "\n")

    def started(index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), "--num_gpus", "1", "train.py"]
        host, own = jobs.testbed[hosts[index]], {**env, "JOB_COMPLETION_INDEX": str(index)}
        return host.popen(command, cwd=str(jobs.shared), env=own, stdout=subprocess.PIPE)

    leading = started(0)
    wait_until("pod 0 to wait", lambda: found(jobs.login, "kubectl", "wait"), 30)
    waiting = started(1)
    cluster(jobs, *pods)
    out, _ = leading.communicate(timeout=60)
    ranks = [line for line in out.decode().splitlines() if "rank" in line]
    assert sorted(ranks) == ["[train-0:0] rank 0 of 2 on login", "[train-1:1] rank 1 of 2 on node2"]
    assert leading.returncode == 0 and waiting.poll() is None  # until it is told: test_containers.py
    jobs.testbed["node2"].kill(waiting, signal.SIGKILL)
    waiting.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a rank fails", "the command is killed"])
def test_namespaces(ssh_cluster: Testbed, shared_dir: Path, how: str) -> None:
    """By nsenter, from this machine; the names of the hosts are numbers of processes."""
    enter = shlex.join(ssh_cluster.nsenter("{host}", "-m", "-u", "-i", "-n", "-p"))
    hosts = ",".join(f"{ssh_cluster[name].pid}:2" for name in ("node1", "node2"))
    go = shared_dir / "go"
    options = ("--launcher", "exec", "--launcher_args", enter, "--hosts", hosts, "--grace", "0.5")
    pipe = subprocess.PIPE
    command = bireme("run", *options, SCENE, "grandchild", go)
    process = subprocess.Popen(command, cwd=shared_dir, env=clean_environ(), stdout=pipe, stderr=pipe)
    read_lines(process, 4, "ready")
    if how == "a rank fails":
        go.touch()
    else:
        process.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == (3 if how == "a rank fails" else -signal.SIGKILL), err
    assert not ssh_cluster.strays(30)
