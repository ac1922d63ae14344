"""``--launcher exec`` and ``--hosts kubectl:LABELS``: what the user writes, and what is refused before a start."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bireme.backends.base import HostLaunch, LaunchPlan
from bireme.backends.choice import load
from bireme.cluster import node_selection
from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from tests.cluster.basics import reap, wait_until
from tests.cluster.ways import FAKE
from tests.conftest import bireme, clean_environ

AGENT = ("/opt/my env/python", "-c", "it's; one")
SHELL = "exec " + shlex.join(AGENT)


def words(template: str, user: str | None = None) -> list[str]:
    plan = LaunchPlan((HostLaunch("c1", user),), AGENT, extra=tuple(shlex.split(template)))
    return list(load("exec").commands(plan, {})[0])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("docker exec -i {host}", ["docker", "exec", "-i", "c1", *AGENT]),
        ("on {host} {argv} --end", ["on", "c1", *AGENT, "--end"]),
        ("ssh {host} {command}", ["ssh", "c1", SHELL]),
        ("gcloud ssh x-{host}.y --command={command}", ["gcloud", "ssh", "x-c1.y", f"--command={SHELL}"]),
        ("sh -c '${name} {} {{x}} {1} $1' sh {host}", ["sh", "-c", "${name} {} {{x}} {1} $1", "sh", "c1", *AGENT]),
    ],
)
def test_placeholders(template: str, expected: list[str]) -> None:
    assert words(template) == expected


def test_user() -> None:
    assert words("ssh {host}", "alice")[1] == "alice@c1"


BAD = {
    "": "needs a command",
    "docker exec -i": "{host} does not occur",
    "docker {argv}": "{host} does not occur",
    "{host} -i": "the first word is the program",
    "./reach-{host} {argv}": "the first word is the program, so it cannot have placeholders: ./reach-{host}",
    "{command} {host}": "the first word is the program",
    "{argv} {host}": "the first word is the program",
    "docker exec {hots} {host}": "unknown placeholder: {hots}",
    "ssh {host} exec={argv}": "{argv} is several words",
    "ssh {host} {argv} {command}": "{argv} and {command}",
    "ssh {host} {command} {command}": "started once",
}


@pytest.mark.parametrize("template", BAD)
def test_refused_template(template: str) -> None:
    with pytest.raises(BadInputError) as error:
        words(template)
    assert error.value.where.startswith("--launcher") and error.value.hint
    assert BAD[template].replace("{command} and {command}", "") in str(error.value)


def test_options_of_exec_alone_are_not_passed_to_get() -> None:
    given = ("-n", "ns", "-c", "main", "--container=x", "-cx", "-q", "--pod-running-timeout", "5s", "--context=dev")
    flags = ("-i", "--stdin", "-it", "--tty=false", "-itc", "main")
    assert load("kubectl").query("app=x", (*flags, *given)) == (
        "get",
        "pods",
        "--selector=app=x",
        "--output=json",
        "-n",
        "ns",
        "--context=dev",
    )


PODS = [{"name": name, "labels": {"app": "train"}} for name in ("train-10", "train-9", "train-0-x7b2")]
ENDED = {"phase": "Succeeded"}, {"phase": "Failed"}, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The stand-in for kubectl, and a cluster of three pods beside some that have ended."""
    gone: list[dict[str, Any]] = [
        {"name": f"gone-{n}", "labels": {"app": "train"}, **why} for n, why in enumerate(ENDED)
    ]
    other = [{"name": "other", "labels": {"app": "web"}}, {**PODS[0], "name": "train-3", "namespace": "ns"}]
    (tmp_path / "pods").write_text(json.dumps([*PODS, *gone, *other]))
    return clean_environ(PATH=f"{FAKE}:/usr/bin:/bin", KUBECONFIG=str(tmp_path / "pods"))


def test_pods_in_the_order_of_their_numbers(environ: dict[str, str]) -> None:
    def found(labels: str, *extra: str) -> list[str]:
        spec = JobSpec(Program("train.py"), hosts=f"kubectl:{labels}", launcher_args=extra)
        pool = node_selection.find(spec, environ)
        assert pool is not None
        return [entry.name for entry in pool.entries]

    assert found("app=train") == ["train-0-x7b2", "train-9", "train-10"]
    assert found("app", "-n", "ns", "-c", "main") == ["train-3"]


EXIT_CODES = {
    ("--hosts", "kubectl:"): (2, "no labels"),
    ("--hosts", "kubectl:app=nothing"): (2, "nothing with the labels app=nothing is running"),
    ("--hosts", "kubectl:app=train:x"): (2, "'x' is not a number"),
    ("--hosts", "kubectl:app=train", "--launcher", "ssh"): (2, "is for --launcher kubectl"),
    ("--hosts", "kubectl:app=train,=x"): (69, "unable to parse requirement"),
    ("--hosts", "kubectl:app=train", "--launcher_args=--nonsense"): (69, "unknown flag: --nonsense"),
    ("--hosts", "a:1,b:1", "--launcher", "exec", "--launcher_args", "reach {host}"): (2, "'reach' not found on PATH"),
    ("--hosts", "localhost:1,b:1", "--launcher_args", "docker exec -i {host}"): (2, "add --launcher exec"),
    ("--hosts", "a:1,b:1", "--launcher", "docker", "--ssh_port", "22"): (2, "--ssh_port cannot be used with"),
    ("--hosts", "a:1,b:1", "--launcher", "exec", "--native_ranks", "--launcher_args", "sh {host}"): (2, "start ranks"),
}


@pytest.mark.parametrize("options", EXIT_CODES, ids=" ".join)
def test_refused_command(options: tuple[str, ...], environ: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = subprocess.run(bireme("run", *options, script), env=environ, capture_output=True, text=True, timeout=30)
    code, what = EXIT_CODES[options]
    assert done.returncode == code and what in done.stderr, done
    assert len(done.stderr.splitlines()) <= 2 and not done.stdout
    assert not (tmp_path / "ran").exists()


def test_the_question_ends_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho $$ > asked.tmp; mv asked.tmp asked; exec sleep 1000\n")
    (tmp_path / "kubectl").chmod(0o755)
    command = bireme("check", "--hosts", "kubectl:app=train")
    process = subprocess.Popen(command, cwd=tmp_path, env=clean_environ(PATH=f"{tmp_path}:/usr/bin:/bin"))
    wait_until("the question", (tmp_path / "asked").exists, 30)
    process.terminate()
    process.wait(30)
    asked = int((tmp_path / "asked").read_text())

    def ended() -> bool:
        reap([asked])  # it may be ours by now
        return not Path(f"/proc/{asked}").exists()

    wait_until("its end", ended, 30)


def test_nobody_else_resolves_the_names(environ: dict[str, str], tmp_path: Path) -> None:
    """A container may be called localhost: it is not this machine."""
    command = ("--launcher", "podman", "--hosts", "localhost:1", "--dry_run", "train.py")
    (tmp_path / "train.py").touch()
    done = subprocess.run(
        bireme("run", *command), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30
    )
    assert "podman exec -i localhost" in done.stdout, done
