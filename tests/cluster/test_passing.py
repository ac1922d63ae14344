"""What reaches the ranks and what does not: arguments, environment, secrets, and variables of the launcher."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.basics import read
from tests.cluster.jobs import LOOK, PROGRAM_OF, Jobs, Looks, backends
from tests.cluster.testbed import Testbed
from tests.conftest import read_lines
from tests.kit.hard_words import HARD, latin

HARD_VALUES = {f"TORCH_HARD_{place}": word for place, word in enumerate(HARD)}


def theirs(environ: Mapping[str, str]) -> dict[str, str]:
    return {latin(name): latin(value) for name, value in environ.items()}


def with_environment(jobs: Jobs, command: list[str], environ: Mapping[str, str]) -> list[str]:
    """A command with more environment, none of which stands in the arguments of anything."""
    path = jobs.write("environment.json", json.dumps(theirs(environ)))
    code = (
        "import json, os, sys\n"
        "for pair in json.load(open(sys.argv[1])).items():\n"
        "    os.environb.__setitem__(*(text.encode('latin-1') for text in pair))\n"
        "os.execv(sys.argv[2], sys.argv[2:])\n"
    )
    return [sys.executable, "-c", code, str(path), *command]


def run_with(jobs: Jobs, environ: Mapping[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    command = with_environment(jobs, jobs.command(*words, hosts="node[1-2]:2"), environ)
    process = jobs.login.popen(command, cwd=str(jobs.shared), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    text = [data.decode(errors="replace") for data in (out, err)]
    return subprocess.CompletedProcess(command, process.returncode, *text)


def look_with(jobs: Jobs, environ: Mapping[str, str], *options: object, args: tuple[str, ...] = ()) -> Looks:
    done = run_with(jobs, environ, *options, jobs.write("look.py", LOOK), *args)
    assert done.returncode == 0, done.stderr
    return jobs.looked(done)


@pytest.mark.parametrize("backend", backends())
def test_arguments_and_environment_byte_for_byte(jobs: Jobs, backend: str) -> None:
    """Every hard word, as an argument and as a value, with 200 kB more of environment.

    No rank variables of the engine; and all cores of the node, although it may pin what it starts.
    """
    large = {f"WANDB_LARGE_{place}": secrets.token_hex(500) for place in range(200)}
    environ = {**HARD_VALUES, **large, "EXPORTED": "by name", "EX_A": "by ", "EX_B": "prefix", "MINE": "alone"}
    assert sum(len(name) + len(value) for name, value in environ.items()) > 200_000
    options = ("--export", "EXPORTED", "--export", "EX_*", "--export", "GIVEN=a value = 1")
    looks = look_with(jobs, environ, *options, args=HARD)
    assert len(looks) == 4
    ask = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    cores = json.loads(jobs.testbed["node1"].run(ask).stdout)
    expected = theirs({**environ, "GIVEN": "a value = 1"})
    del expected["MINE"]
    for found in looks:
        script = str(jobs.shared / "look.py")
        words = found["argv"][found["argv"].index(script) + 1 :]
        assert words == [latin(word) for word in HARD]
        env = found["environ"]
        assert {name: env.get(name) for name in expected} == expected
        assert "MINE" not in env or backend == "slurm"  # srun takes its whole environment along
        assert env["PYTHONPATH"].split(os.pathsep)[0] == str(jobs.shared)
        assert not [name for name in env if RANK_VARIABLES.match(name)]
        assert found["affinity"] == cores
        if backend == "slurm":
            assert env["SLURM_JOB_ID"].isdecimal()


def test_environment_files(jobs: Jobs) -> None:
    home = Path(jobs.testbed.home, ".deepspeed_env")
    home.write_text("FROM_HOME=1\nBOTH=home\n")
    try:
        jobs.write(".deepspeed_env", "# a comment\nBOTH=here\nWITH_EQUALS=a=b=c\nQUOTED='a \"b\" $HOME'\n")
        jobs.write(".bireme_env", 'export OURS="x y" # comment\n')
        looks = jobs.look()
    finally:
        home.unlink()
    expected = {"FROM_HOME": "1", "BOTH": "here", "WITH_EQUALS": "a=b=c", "QUOTED": 'a "b" $HOME', "OURS": "x y"}
    for found in looks:
        assert {name: found["environ"].get(name) for name in expected} == expected


def test_an_environment_script_that_takes_its_time(jobs: Jobs) -> None:
    """It runs once on each node, sees the exports, and while it does nobody thinks that the other one is lost."""
    (jobs.shared / "activate").write_text("echo $HOSTNAME >> began; sleep 6; export STACK=$TORCH_STACK:own\n")
    looks = jobs.look("--heartbeat", "3", "--export", "TORCH_STACK=given", "--venv_script", "activate")
    assert {look["environ"]["STACK"] for look in looks} == {"given:own"}
    assert sorted((jobs.shared / "began").read_text().split()) == ["node1", "node2", "node3"]


def test_bad_line_of_an_environment_file(jobs: Jobs) -> None:
    jobs.write(".bireme_env", "GOOD=1\nthis is my secret\n")
    done = jobs.run(jobs.write("look.py", ""), code=2)
    assert ".bireme_env:2" in done.stderr
    assert "my secret" not in done.stderr


def arguments_of_all(testbed: Testbed) -> dict[str, bytes]:
    """``host pid`` → the arguments of every process on every host."""
    found = {}
    for host in testbed.hosts.values():
        for pid in host.pids():
            try:
                found[f"{host.name} {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                pass
    return found


def tokens(testbed: Testbed) -> set[str]:
    """The dial-back tokens that stand in the environment of any process of the cluster."""
    found = set()
    for host in testbed.hosts.values():
        for pid in host.pids():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().decode("latin-1")
            except OSError:
                continue
            found.update(re.findall(r"(?:^|\0)(?:LC_)?BIREME_TOKEN=([^\0]+)", environ))
    return found


def files_with(words: list[str], *directories: str | Path) -> list[str]:
    """The files below these directories in which any of the words stands."""
    found = []
    for directory in directories:
        for base, _, names in os.walk(directory):
            for name in names:
                path = Path(base, name)
                if path.is_file() and any(word.encode() in path.read_bytes() for word in words):
                    found.append(str(path))
    return found


def ticks(testbed: Testbed) -> dict[int, int]:
    """CPU time of every process that runs on the hosts, as the kernel counts it."""
    found = {}
    for host in testbed.hosts.values():
        for pid in host.strays():
            fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            found[pid] = int(fields[11]) + int(fields[12])
    return found


def none_is_busy(jobs: Jobs, process: subprocess.Popen[bytes]) -> None:
    """Neither agents nor the engine's daemons: hydra's would spin on the descriptor that an agent had closed."""
    for _ in range(3):  # a tick goes to whoever runs when it comes, also if he had to wait for the processor itself
        before = ticks(jobs.testbed)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)  # this time itself is what is looked at
        after = ticks(jobs.testbed)
        busy = {pid: after[pid] - before[pid] for pid in before.keys() & after.keys()}
        if max(busy.values()) <= 10:
            break
    assert len(busy) >= 4  # at least the ranks themselves
    assert max(busy.values()) <= 10, busy  # of the 200 that a spinning one has, or its share of them


@pytest.mark.slow
@pytest.mark.parametrize("backend", backends())
def test_a_secret_stands_in_no_arguments_and_in_no_log(jobs: Jobs, backend: str) -> None:
    """Nor does the token by which agents dial back. And while the ranks work nobody else does."""
    secret, in_file = secrets.token_hex(16), secrets.token_hex(16)
    jobs.write(".bireme_env", f"FROM_FILE={in_file}\n")
    rank = ("--no_python", "sh", "-c", "echo ready; exec sleep 1000")
    words = ("--log_level", "debug", "--log_dir", "logs", "--export", "MY_KEY", *rank)
    environ = {"MY_KEY": secret, "WANDB_API_KEY": secret}
    command = with_environment(jobs, jobs.command(*words, hosts="node[1-2]:2"), environ)
    pipe = subprocess.PIPE
    process = jobs.login.popen(command, cwd=str(jobs.shared), stdout=pipe, stderr=pipe)
    out = "".join(read_lines(process, 4, "ready"))
    found, token = {}, tokens(jobs.testbed)
    while list(found.values()).count(b"sleep\x001000\0") < 4:  # which a shell that is ready becomes in a moment
        found = arguments_of_all(jobs.testbed)
    assert bool(token) == (backend != "ssh"), "else this test looks for nothing"
    for word in (secret, in_file, *token):
        assert not [f"{where}: {argv!r}" for where, argv in found.items() if word.encode() in argv]
    none_is_busy(jobs, process)
    jobs.login.kill(process, signal.SIGTERM)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 143
    said = out + rest.decode() + err.decode()
    for name in ("MY_KEY", "WANDB_API_KEY", "FROM_FILE"):
        assert name in said, "names are logged"
    for word in (secret, in_file, *token):
        assert word not in said
    (jobs.shared / "environment.json").unlink()
    (jobs.shared / ".bireme_env").unlink()
    assert not files_with([secret, in_file, *token], jobs.shared, jobs.testbed.state)


# What engines set for the process that they start, by which MPI libraries and frameworks take it for a rank of theirs.
# Slurm's own variables of the job are the node's business, and stay.
RANK_VARIABLES = re.compile(
    r"(LC_)?BIREME_TOKEN|OMPI_|OPAL_|ORTE_|PRTE_|PMIX_|PMI_|PMI[12]_|MPIR_|MPI_LOCAL|HYDRA_|HYDI_|MV2_COMM_WORLD_|MPIRUN_"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|STEP|STEPID|TASK|GTIDS|CPU_BIND|CPUS_PER_TASK|DISTRIBUTION|SRUN"
    r"|LAUNCH_NODE|UMASK)"
)


PINNED = {
    "openmpi": ("-n", "1", "--host", "node1:1", "--allow-run-as-root", "--bind-to", "core"),
    "slurm": ("-n", "1", "-w", "node1"),
}


@pytest.mark.parametrize("backend", backends(*PINNED))
def test_the_trap_is_there(jobs: Jobs, backend: str) -> None:
    """Without our options these engines do pin, and do leave their variables: else nothing could be found above."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core: nothing to be pinned to")
    code = "import json, os; print(json.dumps([sorted(os.sched_getaffinity(0)), list(os.environ)]))"
    engine = [PROGRAM_OF[backend], *PINNED[backend], sys.executable, "-c", code]
    affinity, names = json.loads(jobs.login.run(engine).stdout)
    assert len(affinity) < (os.cpu_count() or 1)
    assert any(RANK_VARIABLES.match(name) for name in names)
