"""Options of torchrun and accelerate after ``bireme run``: real ranks, and what they find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.options.table import ACCELERATE, TORCHRUN
from tests.command.conftest import LOOK
from tests.conftest import clean_environ, free_ports
from tests.kit import needs

SHOW = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "ROLE_RANK",
         "ROLE_NAME", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ACCELERATE_MIXED_PRECISION")
with open(os.path.join(os.environ["LOOK_DIR"], os.environ["RANK"] + ".json"), "x") as file:
    json.dump({name: os.environ.get(name) for name in names}, file)
print("rank", os.environ["RANK"], flush=True)
"""


@pytest.fixture
def shown(stage, script, tmp_path):
    """Run a command; return what each rank found, and how the command ended."""
    path = script(SHOW)

    def run(*words, ranks, env=()):
        environ = clean_environ(LOOK_DIR=str(tmp_path), **dict(env))
        done = stage.run("run", *words, path, env=environ, code=0)
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)], done

    return run


def test_what_torchrun_tells_every_rank(shown):
    found, _ = shown("--nproc-per-node", "2", "--rdzv-id", "my job", "--role", "actor", ranks=2)
    for rank, env in enumerate(found):
        assert (env["ROLE_NAME"], env["ROLE_RANK"], env["ROLE_WORLD_SIZE"]) == ("actor", str(rank), "2")
        assert (env["TORCHELASTIC_RUN_ID"], env["TORCHELASTIC_RESTART_COUNT"]) == ("my job", "0")
        assert env["TORCHELASTIC_MAX_RESTARTS"] == "0"


def test_standalone_means_this_machine_whatever_list_of_nodes_there_is(shown):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "elsewhere[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    found, _ = shown("--standalone", "--nproc_per_node=2", ranks=2, env=slurm)
    assert [env["WORLD_SIZE"] for env in found] == ["2", "2"]


@pytest.mark.parametrize(
    ("words", "shows", "files"),
    [
        (["-r", "3", "--log-dir"], set(), True),
        (["-r", "3", "-t", "3", "--log-dir"], {"rank 0", "rank 1"}, True),
        (["-r", "3", "-t", "0:3", "--log-dir"], {"rank 0"}, True),
        (["-r", "0:3", "--log-dir"], {"rank 1"}, True),
        (["-r", "0:3", "--local-ranks-filter", "0", "--log-dir"], set(), True),
        (["-r", "0:1,1:2", "--log-dir"], {"rank 0", "rank 1"}, True),
        (["--tee", "3", "--log-dir"], {"rank 0", "rank 1"}, True),
        (["-t", "0", "-r", "0"], {"rank 0", "rank 1"}, False),
        (["--local-ranks-filter", "1"], {"rank 1"}, False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_where_output_goes(shown, tmp_path, words, shows, files):
    folder = tmp_path / "logs"
    words = [*words, str(folder)] if files else words
    _, done = shown("--nproc_per_node", "2", *words, ranks=2)
    assert {line.partition("] ")[2] for line in done.stdout.splitlines()} == shows
    texts = {file.read_text().strip().rpartition("] ")[2] for file in folder.rglob("*") if file.is_file()}
    assert texts == ({"rank 0", "rank 1"} if files else set())


@pytest.mark.parametrize("value", ["4", "3,0:1", "0:9", "all", "0:", ":3"])
def test_streams_that_cannot_be_read(stage, script, value):
    done = stage.run("run", "--tee", value, script("print(1)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--tee: " in done.stderr and len(done.stderr.splitlines()) <= 2


def test_files_need_a_folder(stage, script):
    assert stage.run("run", "--tee", "3", script("print(1)")).stdout == "1\n"
    done = stage.run("run", "-r", "3", script("print(1)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--redirects only works with --log_dir\n  add --log_dir DIR" in done.stderr


def test_a_virtual_local_rank(shown):
    found, _ = shown("--nproc_per_node", "2", "--virtual-local-rank", ranks=2)
    assert [env["LOCAL_RANK"] for env in found] == ["0", "0"]


NEEDLESS = [option for option in (*TORCHRUN, *ACCELERATE) if option.needless]


@pytest.mark.parametrize("dash", ["_", "-"])
def test_what_is_not_needed_is_accepted_with_the_reason(stage, dash):
    words = []
    for option in NEEDLESS:
        value = [] if option.kind == "flag" else [option.choices[0] if option.choices else "1"]
        for name in option.names:
            words += ["--" + name.removeprefix("--").replace("_", dash), *value]
    done = stage.run("run", "--dry_run", *words, LOOK, code=0)
    for option in NEEDLESS:
        assert f"{option.name} is not needed: {option.needless}" in done.stderr
    assert "not needed" not in stage.run("run", "-q", "--dry_run", *words, LOOK).stderr


# -- variables ---------------------------------------------------------------------------------------------


def test_variables_of_torchrun_count_where_nothing_is_typed(shown):
    env = {"PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "from-pet", "PET_STANDALONE": "1", "PET_NO_PYTHON": "0"}
    found, _ = shown(ranks=2, env=env)
    assert found[0]["TORCHELASTIC_RUN_ID"] == "from-pet"


def test_what_is_typed_counts_more_than_variables(shown):
    found, _ = shown("--num_gpus", "1", ranks=1, env={"PET_NPROC_PER_NODE": "2"})
    assert found[0]["WORLD_SIZE"] == "1"


def test_a_variable_that_cannot_be_read(stage, script):
    done = stage.run("run", script("print(1)"), env=clean_environ(PET_NNODES="many"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "PET_*: --nnodes: 'many' is not a whole number" in done.stderr


# -- typed on each node, without a list of nodes ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "address", "says"),
    [
        ("1", "no.such.host", "--master_addr: no such address: 'no.such.host'"),
        ("0", "192.0.2.1", "--master_addr: 192.0.2.1 is not an address of this machine"),
        ("1", "192.0.2.1", ""),
    ],
)
def test_an_address_where_the_nodes_cannot_meet(stage, script, node, address, says):
    """A warning: in Kubernetes a name may be known only a little later."""
    words = ("--nnodes=2", "--node_rank", node, "--output=raw")
    done = stage.run("run", *words, "--master_addr", address, script("print(1)"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr == (f"bireme: {says}\n" if says else "")


def typed_twice(stage, script, tmp_path, *words) -> tuple[list[dict[str, str]], list[str]]:
    """As on two nodes with two ranks each: what each rank has found, and what each command has said."""
    path, env = script(SHOW), clean_environ(LOOK_DIR=str(tmp_path))
    commands = [stage.start("run", *words, "--node_rank", str(node), path, env=env) for node in range(2)]
    said = [b"".join(command.communicate(timeout=200)).decode() for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)], said


def test_numbered_nodes(stage, script, tmp_path):
    """``--nnodes 2 --node_rank K --master_addr A`` on each: two commands, one world."""
    port = free_ports(1)
    common = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "2")
    found, outputs = typed_twice(stage, script, tmp_path, *common)
    assert [(env["RANK"], env["WORLD_SIZE"], env["NODE_RANK"], env["LOCAL_RANK"]) for env in found] == [
        *(("0", "4", "0", "0"), ("1", "4", "0", "1")),
        *(("2", "4", "1", "0"), ("3", "4", "1", "1")),
    ]
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"], env["CUDA_VISIBLE_DEVICES"]) for env in found} == {
        ("127.0.0.1", str(port), None)
    }
    assert "rank 3" in outputs[1] and "rank 3" not in outputs[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--nnodes", "2", "--node_rank", "2", "--master_addr", "a"],
            "--node_rank: no such node: 2\n  expected 0 to 1",
        ),
        (["--nnodes", "2", "--node_rank", "1"], "only this machine is known"),
        (["--nnodes", "2"], "2 nodes requested, but only this machine is known"),
        (["--nnodes", "2", "--hosts", "a,b", "--node_rank", "1", "--master_addr", "a"], "--node_rank"),
        (["--standalone", "--hosts", "a,b"], "--standalone cannot be used with --hosts"),
        (["--rdzv_backend", "etcd"], "'etcd' is not one of static, c10d"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant(stage, script, words, says):
    done = stage.run("run", *words, script("print(1)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and len(done.stderr.splitlines()) <= 2


AGENT = ("--nnodes", "2", "--nproc_per_node", "2", "--rdzv-id", "x1", "--role", "r")


@pytest.mark.slow
@pytest.mark.torch
@needs.modules("torch")
def test_nodes_of_pytorchs_own_agent(stage, script, tmp_path):
    """PyTorch may restart the nodes: its agent starts the ranks, and gets its own options."""
    where = (*AGENT, "--master_addr", "localhost", "--master_port", str(free_ports(1)), "--max-restarts", "1")
    found, said = typed_twice(stage, script, tmp_path, *where)
    assert all("bireme: PyTorch's agent starts the ranks of this node, as under torchrun\n" in text for text in said)
    assert {(env["WORLD_SIZE"], env["TORCHELASTIC_RUN_ID"], env["ROLE_NAME"]) for env in found} == {("4", "x1", "r")}
    assert sorted(env["GROUP_RANK"] for env in found) == ["0", "0", "1", "1"]


@needs.modules("torch")
def test_nodes_that_pytorchs_own_agent_numbers(stage, script):
    """Real ones meet so in ``tests/cluster/test_allocations.py``."""
    where = ("--rdzv-endpoint", "localhost:29511", "--rdzv-conf", "join_timeout=60")
    done = stage.run("run", "--dry_run", *AGENT, *where, script("pass"), code=0)
    words = "--rdzv-backend=c10d --rdzv-endpoint=localhost:29511 --rdzv-id=x1 --role=r --max-restarts=0"
    assert f" -m torch.distributed.run --nnodes=2:2 --nproc-per-node=2 {words} " in done.stdout
    assert " --rdzv-conf=join_timeout=60 " in done.stdout
    nameless = stage.run("run", "--dry_run", *AGENT[:4], *where, script("pass"))
    assert " --rdzv-id=bireme " in nameless.stdout, "the same on every node"


# -- accelerate --------------------------------------------------------------------------------------------

CONFIG = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: true
"""


def test_words_of_accelerate(shown):
    words = ("--num_processes", "2", "--num_machines=1", "--machine_rank", "0", "--main_process_port", "0", "--cpu")
    found, _ = shown(*words, "--mixed_precision", "fp16", "--num_cpu_threads_per_process", "3", ranks=2)
    for env in found:
        assert (env["WORLD_SIZE"], env["CUDA_VISIBLE_DEVICES"]) == ("2", "")
        assert (env["ACCELERATE_MIXED_PRECISION"], env["OMP_NUM_THREADS"]) == ("fp16", "3")


def test_a_configuration_file_of_accelerate(shown, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    found, _ = shown("--config_file", tmp_path / "config.yaml", ranks=2)
    assert [(env["WORLD_SIZE"], env["ACCELERATE_MIXED_PRECISION"]) for env in found] == [("2", "bf16")] * 2


def test_a_configuration_file_in_json(shown, tmp_path):
    """``accelerate config default`` makes such a file."""
    values = {"debug": False, "num_processes": 2, "use_cpu": True, "gpu_ids": None, "tpu_env": []}
    (tmp_path / "config.json").write_text(json.dumps({**values, "section": {"mixed_precision": "bf16"}}))
    found, _ = shown("--config_file", tmp_path / "config.json", ranks=2)
    assert {(env["ACCELERATE_MIXED_PRECISION"], env["CUDA_VISIBLE_DEVICES"]) for env in found} == {("bf16", "")}


def test_switches_of_a_configuration_file(stage, tmp_path):
    text = CONFIG.replace("debug: false", "debug: true\ndynamo_config:\n  dynamo_backend: inductor\n  dynamo_mode: x")
    (tmp_path / "config.yaml").write_text(text)
    names = ("DEBUG_MODE", "DYNAMO_BACKEND", "DYNAMO_MODE")
    shows = "echo " + " ".join(f"$ACCELERATE_{name}" for name in names)
    words = ("--config_file", tmp_path / "config.yaml", "--num_processes", "1", "--no_python", "sh", "-c", shows)
    assert stage.run("run", *words).stdout == "true INDUCTOR x\n"


def test_what_is_typed_counts_more_than_the_file(shown, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    found, _ = shown("--config_file", tmp_path / "config.yaml", "--num_processes", "1", ranks=1)
    assert found[0]["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("distributed_type: XLA\n", "distributed_type: XLA is not supported"),
        ("tpu_use_cluster: true\n", "tpu_use_cluster: true is not supported"),
        ("num_processes: two\n", "--num_processes: 'two' is not a whole number"),
        ("{num_processes: 2}", "config.yaml: not JSON: Expecting property name"),
        ('{"a":' * 100_000, "config.yaml: not JSON: nested more than 100 deep"),
        ("what is this\n", "config.yaml:1: expected key: value"),
    ],
)
def test_a_configuration_file_that_cannot_be_followed(stage, script, tmp_path, text, says):
    path = Path(tmp_path / "config.yaml")
    path.write_text(text)
    done = stage.run("run", "--config_file", path, script("print(1)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and len(done.stderr.splitlines()) <= 2
