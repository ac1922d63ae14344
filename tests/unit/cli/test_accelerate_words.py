"""accelerate's options and configuration files as jobs of ours; `command/test_accelerate.py` compares the ranks."""

from __future__ import annotations

import json

import pytest

from bireme.cli.accelerate import without_effect
from bireme.cli.defaults import parse_run
from bireme.cli.job_options import job_spec
from bireme.errors import BadInputError
from bireme.options.table import select

PDSH = """\
deepspeed_config:
  deepspeed_hostfile: /nodes
  deepspeed_inclusion_filter: a@b
  deepspeed_multinode_launcher: pdsh
  offload_param_nvme_path: /nvme
distributed_type: DEEPSPEED
machine_rank: 0
num_machines: 2
num_processes: 8
"""


def parsed(*words):
    return parse_run(select("run"), [*map(str, words), "s.py"], {})


def variables(*words):
    return dict(word.split("=", 1) for word in job_spec(parsed(*words)).exports)


def test_without_accelerates_options_no_variable_is_set():
    assert variables("--num_gpus", "2") == {}


def test_one_command_starts_all_nodes_of_deepspeed(tmp_path):
    path = tmp_path / "ds.yaml"
    path.write_text(PDSH)
    spec = job_spec(parsed("--config_file", path))
    assert (spec.hostfile, spec.include, spec.node_rank) == ("/nodes", "a@b", None)
    assert "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH=/nvme" in spec.exports
    path.write_text(PDSH.replace("pdsh", "nossh").replace("  deepspeed_inclusion_filter: a@b\n", ""))
    spec = job_spec(parsed("--config_file", path))
    assert (spec.by_hand, spec.node_rank, spec.num_nodes, spec.num_gpus) == (True, 0, 2, 4)


def test_a_file_in_json(tmp_path):
    path = tmp_path / "fsdp.json"
    section = {"fsdp_version": 2, "offload_params": False, "fsdp_backward_prefetch": None, "later": [1]}
    path.write_text(json.dumps({"distributed_type": "FSDP", "fsdp_config": section}))
    found = variables("--config_file", path, "--fsdp_min_num_params", "5")
    assert (found["FSDP_VERSION"], found["FSDP_OFFLOAD_PARAMS"], found["FSDP_MIN_NUM_PARAMS"]) == ("2", "false", "5")
    assert not {"FSDP_BACKWARD_PREFETCH", "FSDP_LATER"} & found.keys()
    assert "FSDP_VERSION" not in variables("--config_file", path, "--use_deepspeed"), "what is typed counts more"


def test_what_is_exported_counts_more():
    words = ("--use_fsdp", "--export", "FSDP_VERSION=2")
    assert variables(*words)["FSDP_VERSION"] == "2"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--zero_stage", "two"], "--zero_stage: must be a whole number, not 'two'"),
        (["--gradient_clipping", "x"], "--gradient_clipping: must be a number, not 'x'"),
        (["--megatron_lm_no_load_optim", "maybe"], "--megatron_lm_no_load_optim: must be true or false, not 'maybe'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_values_of_a_wrong_type(words, says):
    with pytest.raises(BadInputError) as caught:
        job_spec(
            parsed("--use_deepspeed" if "zero" in words[0] or "gradient" in words[0] else "--use_megatron_lm", *words)
        )
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--zero_stage", "2"], ["--zero_stage has no effect without --use_deepspeed"]),
        (["--fp8_margin", "2"], ["--fp8_margin has no effect without --mixed_precision fp8"]),
        (["--use_deepspeed", "--dynamo_mode", "x"], ["--dynamo_mode has no effect with DeepSpeed"]),
        (["--use_fsdp", "--fsdp_version", "2"], []),
    ],
    ids=lambda value: " ".join(value) if value and value[0].count(" ") == 0 else "",
)
def test_settings_without_effect(words, says):
    assert list(without_effect(parsed(*words).options)) == says
