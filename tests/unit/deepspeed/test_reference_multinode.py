"""The runners' classes: what they refuse, and that the commands they build run a job by themselves."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme import isolated
from bireme.deepspeed import multinode_runner
from bireme.deepspeed.launcher_helper import env_mapping
from bireme.deepspeed.multinode_runner import MultiNodeRunner, PDSHRunner, SlurmRunner, SSHRunner
from bireme.deepspeed.runner import LAUNCHER_CLASSES, encode_world_info, parse_args, parse_inclusion_exclusion
from tests.cluster.basics import PATH
from tests.cluster.conftest import (  # noqa: F401 - fixtures
    _slurm_cluster,
    _ssh_cluster,
    shared_dir,
    slurm_cluster,
    ssh_cluster,
    tool,
)
from tests.cluster.testbed import Testbed
from tests.conftest import PROGRAMS, read_lines

POOL = {"worker-0": 4, "worker-1": 4}
AGENTS = ("pdsh", "ssh")
ENGINES = ("openmpi", "mpich", "impi", "mvapich", "slurm")


def runner_of(launcher: str, *words: str, pool: dict[str, int] | None = None, script: str = "train.py") -> Any:
    """The class's runner for this command line."""
    pool = POOL if pool is None else pool
    args = parse_args([*words, script])
    active = parse_inclusion_exclusion(pool, args.include, args.exclude)
    cls = LAUNCHER_CLASSES[launcher]
    return cls(args, encode_world_info(active), *([] if launcher in AGENTS else [pool]))


def command_of(launcher: str, *words: str, environ: dict[str, str] | None = None, **kwargs: Any) -> list[str]:
    """Its command alone."""
    runner = runner_of(launcher, *words, **kwargs)
    active = parse_inclusion_exclusion(kwargs.get("pool") or POOL, runner.args.include, runner.args.exclude)
    found = runner.get_cmd({} if environ is None else environ, active)
    return found[0] if launcher in AGENTS else found


# -- what they are -----------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHER_CLASSES)
def test_name(launcher: str) -> None:
    runner = runner_of(launcher)
    assert runner.name == launcher
    assert runner.user_script == "train.py"
    assert runner.world_info_base64 == encode_world_info(parse_inclusion_exclusion(POOL, "", ""))


def test_own_class() -> None:
    class Own(MultiNodeRunner):
        def backend_exists(self):
            return True

        def get_cmd(self, environment, active_resources):
            return []

    runner = Own(parse_args(["train.py", "a b"]), "")
    assert (runner.name, runner.user_arguments, runner.exports) == ("Own", ["a b"], {})
    Own.validate_active_resources({"a": [1]})
    with pytest.raises(TypeError):
        MultiNodeRunner(parse_args(["train.py"]), "")  # type: ignore[abstract]


def test_exports_are_quoted_where_a_shell_needs_it() -> None:
    runner = runner_of("pdsh")
    runner.add_export(" SLURM_JOB_CPUS_PER_NODE ", "64(x2)")
    runner.add_export("PYTHONPATH", "/usr/local/lib/python3.9/site-packages\n")
    assert runner.exports["SLURM_JOB_CPUS_PER_NODE"] == '"64(x2)"'
    assert runner.exports["PYTHONPATH"] == "/usr/local/lib/python3.9/site-packages"


BACKEND_PROGRAM = {
    "pdsh": "pdsh",
    "ssh": "ssh",
    "openmpi": "ompi_info",
    "mpich": "mpirun",
    "impi": "mpirun",
    "slurm": "sinfo",
}


@pytest.mark.parametrize("launcher", BACKEND_PROGRAM)
def test_backend_exists(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not runner_of(launcher).backend_exists()
    (tmp_path / BACKEND_PROGRAM[launcher]).touch(mode=0o755)
    assert runner_of(launcher).backend_exists() == str(tmp_path / BACKEND_PROGRAM[launcher])


@pytest.mark.parametrize(("said", "exists"), [("MVAPICH2-GDR 2.3.7", True), ("MPICH 4.0", False), ("", False)])
def test_mvapich_exists(said: str, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if said:
        (tmp_path / "mpiname").write_text(f"#!/bin/sh\necho {said}\n")
        (tmp_path / "mpiname").chmod(0o755)
    runner = runner_of("mvapich")
    if exists:
        assert runner.backend_exists() is True
    else:
        with pytest.warns(UserWarning, match="mpiname"):
            assert runner.backend_exists() is False


# -- what they refuse --------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "impi", "mvapich"])
@pytest.mark.parametrize("words", [["-i", "worker-0"], ["-e", "worker-0"], ["--num_nodes", "1"], ["--num_gpus", "1"]])
def test_engines_do_not_filter(launcher: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=launcher):
        runner_of(launcher, *words)


@pytest.mark.parametrize("launcher", ["mpich", "impi", "mvapich"])
def test_uneven_nodes(launcher: str) -> None:
    with pytest.raises(ValueError, match="same number of slots on every node"):
        command_of(launcher, pool={"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("active", "what"),
    [
        ({"a": [0, 2]}, "specific device ids"),
        ({"a": [1]}, "specific device ids"),
        ({"a": [0, 1], "b": [0]}, "same slot count"),
    ],
)
def test_slots_that_srun_cannot_choose(active: dict[str, list[int]], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        SlurmRunner.validate_active_resources(active)
    for launcher in set(LAUNCHER_CLASSES) - {"slurm"}:
        LAUNCHER_CLASSES[launcher].validate_active_resources(active)


# -- what they say -----------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHER_CLASSES)
def test_no_value_is_in_the_command(launcher: str) -> None:
    """Arguments can be read by everybody: exports go through the environment that the command is run in."""
    runner = runner_of(launcher)
    runner.add_export("WANDB_API_KEY", "canary 1")
    runner.add_export("TORCH_X", "canary2")
    environ = {"PATH": "/bin", "HOME": "/home/canary3"}
    found = runner.get_cmd(environ, parse_inclusion_exclusion(POOL, "", ""))
    commands = found[:2] if launcher in AGENTS else [found]
    assert not [word for command in commands for word in command if "canary" in word]
    if launcher in AGENTS:
        assert found[2] is environ
        assert "export WANDB_API_KEY='canary 1'; export TORCH_X=canary2" in environ["LC_BIREME_EXPORTS"]
    else:
        assert environ.items() >= {"WANDB_API_KEY": "canary 1", "TORCH_X": "canary2"}.items()


def test_pdsh() -> None:
    environ = {"PDSH_SSH_ARGS_APPEND": "-i key"}
    words = ["--master_addr", "10.0.0.1", "--ssh_port", "22022", "--launcher_args", "-t 5", "--no_local_rank"]
    words += ["--enable_each_rank_log", "my logs", "--venv_script", "/v/activate", "--module"]
    runner = runner_of("pdsh", *words, script="pkg.train")
    runner.args.user_args = ["50%", "it's"]
    runner.user_arguments = runner.parse_user_args()
    command, kill, same = runner.get_cmd(environ, parse_inclusion_exclusion(POOL, "", ""))
    assert same is environ
    assert environ == {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": "-i key -p 22022"}
    head = ["pdsh", "-S", "-f", "1024", "-w", "worker-0,worker-1", "-t", "5"]
    assert command[: len(head)] == kill[: len(head)] == head
    shell = command[len(head) :]
    number = next(word for word in shell if word.startswith("--save_pid="))
    expected = ["cd", shlex.quote(os.getcwd()), "&&", "exec", shlex.quote(sys.executable), "-u"]
    expected += map(shlex.quote, isolated.command("bireme.agent")[1:])
    expected += [f"--world_info={runner.world_info_base64}", "--node_rank=%n", "--master_addr=10.0.0.1"]
    expected += ["--master_port=29500", number, "--module", "--no_local_rank", "--venv_script=/v/activate"]
    expected += ["'--enable_each_rank_log=my logs'", "pkg.train", "50%%", shlex.quote("it's")]
    assert sorted(shell) == sorted(expected)
    assert shell[:4] == expected[:4] and shell[-3:] == expected[-3:]


@pytest.mark.parametrize(("given", "said"), [("--grace=0", True), ("--grace=10", False), ("--heartbeat=3", False)])
def test_agents_get_what_was_given_and_differs(given: str, said: bool) -> None:
    """Zero is a value too; what concerns the command alone is none of theirs."""
    told = [word for word in command_of("ssh", given)[2].split() if word.startswith(given.partition("=")[0])]
    assert bool(told) == said


def test_pid_file_of_its_own() -> None:
    """Two jobs never have the same; with --save_pid the user finds it by the number of this process."""
    numbers = {pid_number(command_of("pdsh")) for _ in range(20)}
    assert len(numbers) == 20
    assert min(numbers) > 4_194_304  # the most that Linux gives to a process
    assert pid_number(command_of("pdsh", "--save_pid")) == os.getpid()


def pid_number(command: list[str]) -> int:
    (word,) = [word for word in command if word.startswith("--save_pid=")]
    return int(word.partition("=")[2])


@pytest.mark.parametrize("launcher", AGENTS)
def test_kill_command_names_one_process(launcher: str) -> None:
    """No pattern, no name of a program: the number in this job's own file."""
    command, kill, _ = runner_of(launcher).get_cmd({}, parse_inclusion_exclusion(POOL, "", ""))
    number = " ".join(command).partition("--save_pid=")[2].split()[0]
    text = " ".join(kill)
    assert f'[ ! -O /tmp/{number}.deepspeed ] || kill -TERM "$(cat /tmp/{number}.deepspeed)"' in text
    assert "pkill" not in text and "killall" not in text


def test_first_host_is_where_ranks_meet() -> None:
    assert "--master_addr=worker-0" in command_of("pdsh", pool={"alice@worker-0": 1, "worker-1": 1})
    assert command_of("mpich")[command_of("mpich").index("MASTER_ADDR") + 1] == "worker-0"


def test_openmpi() -> None:
    environ: dict[str, str] = {}
    command = command_of("openmpi", "--hostfile", "hosts", environ=environ)
    head = ["mpirun", "-n", "8", "-hostfile", "hosts", "--mca", "btl", "^openib", "--mca", "btl_tcp_if_include", "eth0"]
    assert command == [*head, "-x", "UCX_TLS", sys.executable, "-u", "train.py"]
    assert environ == {"UCX_TLS": "tcp"}


@pytest.mark.parametrize("flag", ["-mca", "--mca"])
def test_openmpi_with_an_interface(flag: str) -> None:
    command = command_of("openmpi", "--launcher_arg", f"{flag} btl_tcp_if_include eth1")
    assert "eth1" in command and "eth0" not in command
    assert "eth0" in command_of("openmpi", "--launcher_args", "--mca x btl_tcp_if_include")


def test_mpich() -> None:
    command = command_of("mpich", "--master_addr", "h", "--launcher_args", "-x")
    told = "-genv MASTER_ADDR h -genv MASTER_PORT 29500 -genv WORLD_SIZE 8 -genv LOCAL_SIZE 4"
    words = isolated.command("bireme.deepspeed.launcher_helper", "--launcher", "mpich", "train.py")
    helper = " ".join([sys.executable, "-u", *words[1:]])
    assert " ".join(command) == f"mpirun -n 8 -ppn 4 -x {told} -hosts worker-0,worker-1 {helper}"
    assert command_of("mpich", "--module")[-2:] == ["--module", "train.py"]
    assert command_of("mpich", "--no_python")[-2:] == ["--no_python", "train.py"]


def test_impi() -> None:
    command = command_of("impi", pool={"a": 2, "b": 2})
    ends = [place for place, word in enumerate(command) if word == ":"]
    ranks = [command[begin:end] for begin, end in zip([0, *(end + 1 for end in ends)], [*ends, None], strict=True)]
    assert ranks[0][:3] == ["mpirun", "-ppn", "2"]
    assert " ".join(ranks[0]).count("-genv I_MPI_PIN 0 -hosts a,b") == 1
    for rank, words in enumerate(ranks):
        numbers = ["-n", "1", "-env", "RANK", str(rank), "-env", "LOCAL_RANK", str(rank % 2)]
        assert words[-len(numbers) - 3 :] == [*numbers, sys.executable, "-u", "train.py"]


def test_impi_binds_cores_without_numactl_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = command_of("impi", "--bind_cores_to_rank", "--bind_core_list", "0-7,9")
    assert command[command.index("OMP_NUM_THREADS") + 1] == "2"
    lists = [command[place + 2] for place, word in enumerate(command) if word == "numactl"]
    assert lists == ["0-1", "2-3", "4-5", "6-7"] * 2
    scattered = command_of("impi", "--bind_cores_to_rank", "--bind_core_list", "0,2-4,8,9", pool={"a": 1, "b": 1})
    assert scattered[scattered.index("-C") + 1] == "0,2-4,8-9"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"-n": "8"}),
        (["-e", "worker-1"], {"-n": "4", "--nodelist": "worker-0", "--nodes": "1"}),
        (["-i", "worker-0:0,1@worker-1:0,1"], {"-n": "4", "--nodelist": "worker-0,worker-1", "--nodes": "2"}),
        (["--num_gpus", "2"], {"-n": "8", "--gpus-per-node": "2"}),
        (["--num_nodes", "1"], {"-n": "8", "--nodes": "1"}),
    ],
)
def test_slurm(words: list[str], expected: dict[str, str]) -> None:
    """What ``get_cmd`` is given says how many tasks there are, the arguments how srun finds room for them."""
    command = command_of("slurm", *words)
    assert command[0] == "srun"
    flags = ("-n", "--nodelist", "--nodes", "--gpus-per-node")
    assert {word: command[place + 1] for place, word in enumerate(command) if word in flags} == expected
    assert command[-4:] == ["--export=ALL", sys.executable, "-u", "train.py"]


def test_slurm_takes_numbers_for_slots() -> None:
    runner = runner_of("slurm")
    runner.args.slurm_comment = "a job"
    command = runner.get_cmd({}, POOL)
    assert command[:5] == ["srun", "-n", "8", "--comment", "a job"]


def test_mvapich() -> None:
    environ: dict[str, str] = {}
    command = command_of("mvapich", environ=environ)
    assert " ".join(command) == f"mpirun -np 8 -ppn 4 -hosts worker-0,worker-1 {sys.executable} -u train.py"
    assert environ["MV2_ENABLE_AFFINITY"] == "0"


def test_helper_maps_numbers() -> None:
    assert env_mapping({"PMI_RANK": "3", "MPI_LOCALRANKID": "1"})["RANK"] == "3"
    assert env_mapping({"PMI_RANK": "3", "PMIX_RANK": "3", "MPI_LOCALRANKID": "1"})["LOCAL_RANK"] == "1"
    for bad in ({}, {"PMI_RANK": "3"}, {"PMI_RANK": "3", "PMIX_RANK": "4", "MPI_LOCALRANKID": "1"}):
        with pytest.raises(OSError, match="cannot determine"):
            env_mapping(dict(bad))


def test_helper_becomes_the_program() -> None:
    environ = {**os.environ, "PMI_RANK": "3", "MPI_LOCALRANKID": "1"}
    helper = [*isolated.command("bireme.deepspeed.launcher_helper"), "--no_python"]
    done = subprocess.run([*helper, "sh", "-c", "echo $RANK $LOCAL_RANK; exit 7"], env=environ, capture_output=True)
    assert (done.returncode, done.stdout) == (7, b"3 1\n")
    assert subprocess.run([*helper, "/nowhere"], env=environ, capture_output=True).returncode == 127
    del environ["PMI_RANK"]
    done = subprocess.run([*helper, "true"], env=environ, capture_output=True)
    assert done.returncode == 2 and b"PMI_RANK" in done.stderr


# -- alone on real hosts -----------------------------------------------------------------------------

# As a program does that has its commands from DeepSpeed.
ALONE = """
import json, os, subprocess, sys
from bireme.deepspeed import runner

args = runner.parse_args(sys.argv[1:])
pool = runner.fetch_hostfile(args.hostfile)
active = runner.parse_inclusion_exclusion(pool, args.include, args.exclude)
cls = runner.LAUNCHER_CLASSES[args.launcher]
agents = args.launcher in ("pdsh", "ssh")
it = cls(args, runner.encode_world_info(active), *([] if agents else [pool]))
it.add_export("CANARY", os.environ["CANARY_IS"])
it.add_export("LOOK_DIR", os.getcwd())
environ = dict(os.environ)
found = it.get_cmd(environ, active)
if agents:
    with open("kill.json", "w") as file:
        json.dump(found[1], file)
sys.exit(subprocess.call(found[0] if agents else found, env=environ))
"""
LOOK = """
import json, os, sys
names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
rank = next(os.environ[name] for name in names if name in os.environ)
found = {"host": os.uname().nodename, "argv": sys.argv[1:], "environ": dict(os.environ)}
with open(f"{os.environ['LOOK_DIR']}/{rank}.json", "w") as file:
    json.dump(found, file)
"""
HOSTFILE = "node3 slots=2\nnode1 slots=2\n"
CANARY = """it's $HOME "50%n" \\ x"""
ARGUMENTS = ["a b", "it's", "50%n %h", "$HOME", '"', ";", ""]


class Alone:
    """A cluster's login host, with an engine's ``mpirun`` at the front of PATH."""

    def __init__(self, testbed: Testbed, shared: Path, launcher: str, mpirun: str) -> None:
        self.testbed, self.login, self.shared, self.launcher = testbed, testbed["login"], shared, launcher
        (shared / "hosts").write_text(HOSTFILE)
        (shared / "alone.py").write_text(ALONE)
        (shared / "look.py").write_text(LOOK)
        bin_ = shared / "bin"
        bin_.mkdir()
        if mpirun:
            program = shutil.which(mpirun, path=PATH)
            assert program is not None
            (bin_ / "mpirun").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            (bin_ / "mpirun").chmod(0o755)
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.env = {"PATH": f"{bin_}:{PATH}", "CANARY_IS": CANARY, "OMPI_MCA_rmaps_base_oversubscribe": "1", **root}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "alone.py", "--hostfile", "hosts", "--launcher", self.launcher, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.login.popen(command, cwd=str(self.shared), env=self.env, **pipes)

    def run(self, *words: str) -> int:
        process = self.start(*words)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (0, 3), err.decode(errors="replace")
        return process.returncode

    def looks(self) -> list[dict[str, Any]]:
        found = {int(path.stem): json.loads(path.read_text()) for path in self.shared.glob("[0-9]*.json")}
        return [found[rank] for rank in range(len(found))]


pytestmark = pytest.mark.installed  # the classes make commands that start an agent by its name

MPIRUN = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}


@pytest.fixture
def alone(
    request: pytest.FixtureRequest,
    shared_dir: Path,  # noqa: F811
    tool: Callable[[str], str],  # noqa: F811
) -> Alone:
    launcher = request.param
    tool({"slurm": "srun", **MPIRUN}.get(launcher, launcher))
    testbed = request.getfixturevalue("slurm_cluster" if launcher == "slurm" else "ssh_cluster")
    return Alone(testbed, shared_dir, launcher, MPIRUN.get(launcher, ""))


@pytest.mark.slow
@pytest.mark.parametrize("alone", ("pdsh", "ssh", "openmpi", "mpich", "slurm"), indirect=True)
def test_runs_alone(alone: Alone) -> None:
    """Every rank runs, with its arguments and exports unchanged, in the order of the hostfile where that is ours."""
    assert alone.run("look.py", *ARGUMENTS) == 0
    looks = alone.looks()
    # DeepSpeed's launcher of a node passes --local_rank to every script; engines that start ranks themselves do not.
    added = [[f"--local_rank={k}"] for k in (0, 1, 0, 1)] if alone.launcher in AGENTS else [[]] * 4
    assert [found["argv"] for found in looks] == [[*words, *ARGUMENTS] for words in added]
    assert [found["environ"]["CANARY"] for found in looks] == [CANARY] * 4
    assert sorted(found["host"] for found in looks) == ["node1", "node1", "node3", "node3"] or alone.launcher == "slurm"
    if alone.launcher in (*AGENTS, "mpich"):
        assert [found["host"] for found in looks] == ["node3", "node3", "node1", "node1"]
        assert [found["environ"]["LOCAL_RANK"] for found in looks] == ["0", "1", "0", "1"]
        assert {found["environ"]["WORLD_SIZE"] for found in looks} == {"4"}
        assert {found["environ"]["MASTER_ADDR"] for found in looks} == {"node3"}


@pytest.mark.slow
@pytest.mark.parametrize("alone", ("pdsh", "ssh"), indirect=True)
def test_agents_filter_down_to_slots(alone: Alone) -> None:
    assert alone.run("--include", "node1:1", "look.py") == 0
    (found,) = alone.looks()
    assert found["host"] == "node1"


@pytest.mark.slow
@pytest.mark.parametrize("alone", ("pdsh", "ssh"), indirect=True)
def test_exit_code(alone: Alone) -> None:
    (alone.shared / "fail.py").write_text("import os, sys\nsys.exit(3 if os.environ['RANK'] == '2' else 0)\n")
    assert alone.run("fail.py") == 3


@pytest.mark.slow
@pytest.mark.parametrize("alone", ("pdsh", "ssh"), indirect=True)
def test_killed_by_its_kill_command(alone: Alone) -> None:
    """Agents end their ranks in order; another job of the same user, which runs the same, goes on."""
    first, kill_first = scene(alone)
    second, kill_second = scene(alone)
    assert end_by(alone, kill_second, second) == 143
    assert [rank_count(alone, name) for name in ("node1", "node3")] == [2, 2]
    assert end_by(alone, kill_second, second) == 143  # there is nothing left to do
    assert [rank_count(alone, name) for name in ("node1", "node3")] == [2, 2]
    assert end_by(alone, kill_first, first) == 143


def scene(alone: Alone) -> tuple[subprocess.Popen[bytes], list[str]]:
    """A job of four ranks that wait, and its kill command."""
    process = alone.start(str(PROGRAMS / "scene.py"), "wait")
    read_lines(process, 4, "ready")
    return process, json.loads((alone.shared / "kill.json").read_text())


def end_by(alone: Alone, kill: list[str], process: subprocess.Popen[bytes]) -> int:
    """Run a kill command; return the exit code of the job."""
    done = alone.login.run(kill, env={**alone.env, "PDSH_RCMD_TYPE": "ssh"}, check=False)
    assert done.returncode == 0, done.stderr
    return process.wait(30)


def rank_count(alone: Alone, host: str) -> int:
    """Ranks that run on a host, once those that are being stopped have gone."""
    deadline = time.monotonic() + 10
    while True:
        running = [found.argv for found in alone.testbed[host].ps().values()]
        count = sum(argv[1:3] == ["-u", str(PROGRAMS / "scene.py")] and argv[-1] == "wait" for argv in running)
        if count <= 2 or time.monotonic() > deadline:
            return count
        time.sleep(0.05)  # a process of another host sends no event


def test_classes_are_all_named() -> None:
    assert {cls.__name__ for cls in LAUNCHER_CLASSES.values()} | {"MultiNodeRunner"} == set(multinode_runner.__all__)
    assert issubclass(PDSHRunner, MultiNodeRunner) and issubclass(SSHRunner, MultiNodeRunner)
