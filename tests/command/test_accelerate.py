"""accelerate's options and configuration files after `bireme run`: ranks find what its own launcher gives them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environ
from tests.kit.clean_install import once

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]

# Starts each of the command lines by accelerate's own launcher, in a child, because one import takes seconds, and so
# does the end of an interpreter that has imported all this.
THEIRS = """
import json, os, sys
before = dict(os.environ)
from accelerate.commands import accelerate_cli
import accelerate.utils, deepspeed.launcher.runner, torch.distributed.run
os.environ.clear()
os.environ.update(before)  # without what imports have set
for words in json.loads(sys.stdin.read()):
    if os.fork() == 0:
        sys.argv = ["accelerate", "launch", *words]
        accelerate_cli.main()
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"accelerate refuses {words}")
"""
SHOW = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + os.environ.get('RANK', '0'), 'w'))"

# Not compared. PyTorch's agent and the port differ in each job. Threads and cores are divided by Bireme's own rules.
# accelerate starts a single process on the CPU without the variables of ranks, and tunes Intel's OpenMP for it.
OURS = ("MASTER_PORT", "OMP_NUM_THREADS", "PYTHONPATH", "ACCELERATE_USE_CPU", "LINES", "COLUMNS")
OURS_PREFIXES = ("TORCHELASTIC_", "TORCH_", "ROLE_", "KMP_", "PET_", "BIREME_", "CUDA_")

FP8 = ("--mixed_precision", "fp8")
WORDS = {
    "plain": ("--mixed_precision", "bf16"),
    "dynamo": ("--dynamo_backend", "inductor", "--dynamo_mode", "max-autotune", "--dynamo-use-dynamic", "--debug"),
    "deepspeed": ("--use_deepspeed", "--zero_stage", "2"),
    "deepspeed, all": (
        *("--use_deepspeed", "--zero_stage=3", "--zero3_init_flag", "True", "--zero3_save_16bit_model", "false"),
        *("--offload_optimizer_device", "CPU", "--offload_param_device", "none", "--gradient_clipping", "1"),
        *("--gradient_accumulation_steps", "4", "--deepspeed_moe_layer_cls_names", "A,B"),
        *("--deepspeed_config_file", "ds.json", "--deepspeed_multinode_launcher", "standard"),
    ),
    "fsdp": ("--use_fsdp",),
    "fsdp 2": (
        *("--use_fsdp", "--fsdp_version", "2", "--fsdp_reshard_after_forward", "False", "--fsdp-offload-params=TRUE"),
        *("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "Block,Head"),
        *("--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--fsdp_activation_checkpointing", "true"),
        *("--use_parallelism_config", "--parallelism_config_tp_size", "2", "--parallelism_config_cp_size", "2"),
    ),
    "sequences": (
        *("--use_fsdp", "--fsdp_version=2", "--use_parallelism_config", "--parallelism_config_sp_size", "2"),
        *("--parallelism_config_sp_seq_length", "64"),
    ),
    "megatron": ("--use_megatron_lm", "--megatron_lm_tp_degree", "2", "--megatron_lm_gradient_clipping", "2"),
    "fp8": (*FP8, "--multi_gpu", "--fp8_backend", "te", "--fp8_margin", "3", "--fp8_use_autocast_during_eval"),
    "fp8 bits": (*FP8, "--multi_gpu", "--fp8_override_linear_precision", "true,no,1", "--fp8_pad_inner_dim", "off"),
}
FILES = {
    "deepspeed": """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1
  offload_optimizer_device: none
  zero3_init_flag: true
  zero_stage: 2
distributed_type: DEEPSPEED
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 2
""",
    "fsdp": """\
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: false
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_shard_size: 2
num_processes: 2
use_cpu: false
""",
    "megatron": """\
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: 'true'
num_processes: 2
""",
    "fp8": """\
distributed_type: MULTI_GPU
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_use_fullgraph: true
fp8_config:
  amax_history_length: 32
  backend: TE
  fp8_format: E4M3
  override_linear_precision:
  - true
  - false
  - false
mixed_precision: fp8
num_processes: 2
""",
}


def environ_in(folder: Path) -> dict[str, str]:
    return clean_environ(PYTHONPATH=str(folder), HF_HOME=str(folder))


@pytest.fixture(scope="session")
def environments(tmp_path_factory):
    """For each command line, by name: its words, and the environment of rank 0 under accelerate."""
    pytest.importorskip("accelerate", reason="accelerate is not installed: see the Makefile")
    lines = {name: ("--num_processes", "2", *words) for name, words in WORDS.items()}
    lines |= {f"{name}.yaml": ("--config_file", f"{name}.yaml") for name in FILES}
    words = [["--main_process_port=0", *line, "show.py", f"theirs-{name}-"] for name, line in lines.items()]

    def make(folder: Path) -> None:
        fp8 = folder / "torchao-1.0.dist-info"  # so that accelerate believes that it could use FP8
        for path in (fp8, folder / "torchao"):
            path.mkdir(parents=True)
        (fp8 / "METADATA").write_text("Metadata-Version: 2.1\nName: torchao\nVersion: 1.0\n")
        (folder / "torchao" / "__init__.py").touch()
        (folder / "show.py").write_text(SHOW)
        for name, text in FILES.items():
            (folder / f"{name}.yaml").write_text(text)
        (folder / "environ.json").write_text(json.dumps(environ_in(folder)))
        words_of_all = {"input": json.dumps(words).encode(), "cwd": folder, "env": environ_in(folder)}
        done = subprocess.run([sys.executable, "-c", THEIRS], capture_output=True, check=False, **words_of_all)
        assert done.returncode == 0, done.stderr[-3000:]

    folder = once(tmp_path_factory, "accelerate", make)
    # Another worker may have made it, whose environment is what its tests have imported.
    return folder, json.loads((folder / "environ.json").read_text()), lines


@pytest.mark.parametrize("name", [*WORDS, *(f"{name}.yaml" for name in FILES)])
def test_the_ranks_get_what_accelerates_launcher_gives_them(stage, environments, name):
    folder, environ, lines = environments
    stage.run("run", *lines[name], "show.py", f"ours-{name}-", cwd=folder, env=environ, code=0)
    theirs, ours = (json.loads((folder / f"{who}-{name}-0").read_text()) for who in ("theirs", "ours"))
    compared = [key for key in theirs if key not in OURS and not key.startswith(OURS_PREFIXES)]
    assert {key: ours.get(key) for key in compared} == {key: theirs[key] for key in compared}
    settings = ("ACCELERATE_", "FSDP_", "MEGATRON_", "PARALLELISM_")
    assert {key for key in ours if key.startswith(settings)} - set(OURS) <= theirs.keys()


def test_accelerates_own_script(stage):
    pytest.importorskip("accelerate", reason="accelerate is not installed: see the Makefile")
    script = importlib.util.find_spec("accelerate.test_utils.scripts.test_script")
    assert script is not None and script.origin is not None
    done = stage.run(
        *("run", "--num_processes", "2", "--num_machines", "1", "--cpu", "--mixed_precision", "no"),
        script.origin,
        env=clean_environ(),
        timeout=240,
        code=0,
    )
    assert "Test reinstantiated state" in done.stdout
    assert "distributed" in done.stdout.lower()
