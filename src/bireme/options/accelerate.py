"""Options of ``accelerate launch`` that become variables of the ranks, each with its variable, type and default.

A row of a table is: option, type, default (``-``: the variable is not set), and the variable if the option's name does
not tell it. :mod:`bireme.cli.accelerate` makes the variables.

Types: ``word``; ``lower``, a word in lower case; ``int``; ``float``; ``bool``, given to scripts as ``True`` or
``False``; ``bit``, given as ``1`` or ``0``; ``flag``, an option without a value. Defaults are written as scripts get
them.
"""

from __future__ import annotations

from bireme.options.option import Option
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


class Setting(Value):
    """One row: an option (without ``--``) and its variables; ``default`` is None if there is none."""

    name: str
    kind: str
    default: str | None
    variables: tuple[str, ...]


class Plugin(Value):
    """The settings of one section of accelerate's configuration file.

    Attributes:
        section: the section, for example ``fsdp_config``.
        rows: the table.
        prefix: what the names of its options begin with; keys of the file may lack it. "": they have no such prefix.
        switch: the option that turns the section on; "": none.
        distributed_type: the value in the file that turns it on; "": none.
    """

    section: str
    rows: str
    prefix: str = ""
    switch: str = ""
    distributed_type: str = ""

    def settings(self) -> Iterator[Setting]:
        """The rows of the table."""
        before = "" if self.section in ("fsdp_config", "megatron_lm_config", "parallelism_config") else "ACCELERATE_"
        for row in self.rows.strip().splitlines():
            name, kind, default, *others = row.split()
            variables = others[0].split(",") if others else [before + name.upper()]
            yield Setting(name=name, kind=kind, default=None if default == "-" else default, variables=tuple(variables))


# fmt: off
DYNAMO = Plugin(section="dynamo_config", prefix="dynamo_", rows="""
dynamo_mode                                    word   default
dynamo_use_fullgraph                           flag   False
dynamo_use_dynamic                             flag   False
dynamo_use_regional_compilation                flag   False
""")

FP8 = Plugin(section="fp8_config", prefix="fp8_", rows="""
fp8_backend                                    word   -
fp8_use_autocast_during_eval                   flag   False
fp8_margin                                     int    0
fp8_interval                                   int    1
fp8_format                                     word   HYBRID
fp8_amax_history_len                           int    1024
fp8_amax_compute_algo                          word   most_recent
fp8_override_linear_precision                  bit    False,False,False \
ACCELERATE_FP8_OVERRIDE_FPROP,ACCELERATE_FP8_OVERRIDE_DGRAD,ACCELERATE_FP8_OVERRIDE_WGRAD
fp8_opt_level                                  word   O2
fp8_enable_fsdp_float8_all_gather              bit    1
fp8_pad_inner_dim                              bit    1
""")

# accelerate itself does not pass on the two NVMe paths, although its plug-in reads them.
DEEPSPEED = Plugin(section="deepspeed_config", switch="use_deepspeed", distributed_type="DEEPSPEED", rows="""
deepspeed_config_file                          word   -
deepspeed_moe_layer_cls_names                  word   -
gradient_accumulation_steps                    int    -
gradient_clipping                              float  -
zero_stage                                     int    -  ACCELERATE_DEEPSPEED_ZERO_STAGE
zero3_init_flag                                lower  -  ACCELERATE_DEEPSPEED_ZERO3_INIT
zero3_save_16bit_model                         lower  -  ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
offload_optimizer_device                       lower  -  ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE
offload_optimizer_nvme_path                    word   -  ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH
offload_param_device                           lower  -  ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE
offload_param_nvme_path                        word   -  ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
""")

FSDP = Plugin(section="fsdp_config", prefix="fsdp_", switch="use_fsdp", distributed_type="FSDP", rows="""
fsdp_version                                   int    1
fsdp_sharding_strategy                         word   FULL_SHARD
fsdp_reshard_after_forward                     lower  true
fsdp_offload_params                            lower  false
fsdp_min_num_params                            int    100000000
fsdp_auto_wrap_policy                          word   -
fsdp_transformer_layer_cls_to_wrap             word   -  FSDP_TRANSFORMER_CLS_TO_WRAP
fsdp_backward_prefetch                         word   -
fsdp_state_dict_type                           word   -
fsdp_forward_prefetch                          lower  false
fsdp_use_orig_params                           lower  true
fsdp_cpu_ram_efficient_loading                 lower  true
fsdp_sync_module_states                        lower  true
fsdp_activation_checkpointing                  lower  false
fsdp_activation_checkpointing_offload          lower  false
fsdp_ignored_modules                           word   -
""")

# accelerate reads any value of a bool here as true, also "false".
MEGATRON = Plugin(section="megatron_lm_config", switch="use_megatron_lm", distributed_type="MEGATRON_LM", rows="""
megatron_lm_tp_degree                          int    1
megatron_lm_pp_degree                          int    1
megatron_lm_gradient_clipping                  float  1.0
megatron_lm_num_micro_batches                  int    -
megatron_lm_use_custom_fsdp                    bool   False
megatron_lm_no_load_optim                      bool   False
megatron_lm_no_save_optim                      bool   False
megatron_lm_eod_mask_loss                      bool   False
megatron_lm_optimizer_cpu_offload              bool   False
megatron_lm_overlap_cpu_optimizer_d2h_h2d      bool   False
megatron_lm_use_precision_aware_optimizer      bool   False
megatron_lm_decoder_last_pipeline_num_layers   int    -
megatron_lm_sequence_parallelism               word   -
megatron_lm_recompute_activations              word   -
megatron_lm_recompute_granularity              word   -
megatron_lm_recompute_method                   word   -
megatron_lm_recompute_num_layers               int    -
megatron_lm_use_distributed_optimizer          word   -
megatron_lm_attention_backend                  word   -
megatron_lm_attention_dropout                  float  -
megatron_lm_attention_softmax_in_fp32          word   -
megatron_lm_hidden_dropout                     float  -
megatron_lm_expert_model_parallel_size         int    -
megatron_lm_expert_tensor_parallel_size        int    -
megatron_lm_context_parallel_size              int    -
megatron_lm_calculate_per_token_loss           word   -
megatron_lm_use_rotary_position_embeddings     word   -
""")

PARALLELISM = Plugin(section="parallelism_config", switch="use_parallelism_config", rows="""
parallelism_config_dp_replicate_size           int    1
parallelism_config_dp_shard_size               int    1
parallelism_config_tp_size                     int    1
parallelism_config_cp_size                     int    1
parallelism_config_cp_backend                  word   torch
parallelism_config_cp_comm_strategy            word   allgather
parallelism_config_sp_size                     int    1
parallelism_config_sp_backend                  word   deepspeed
parallelism_config_sp_seq_length               word   None
parallelism_config_sp_seq_length_is_variable   bool   True
parallelism_config_sp_attn_implementation      word   sdpa
""")

# fmt: on
PLUGINS = (DYNAMO, FP8, DEEPSPEED, FSDP, MEGATRON, PARALLELISM)
ONLY_ABOVE_1 = {
    "PARALLELISM_CONFIG_CP_SIZE": ("PARALLELISM_CONFIG_CP_COMM_STRATEGY",),
    "PARALLELISM_CONFIG_SP_SIZE": tuple(
        f"PARALLELISM_CONFIG_SP_{name}" for name in ("SEQ_LENGTH", "SEQ_LENGTH_IS_VARIABLE", "ATTN_IMPLEMENTATION")
    ),
}
"""Variables that are only set if another one is above 1."""


def _options() -> Iterator[Option]:
    for plugin in PLUGINS:
        if plugin.switch:
            yield Option("flag", f"--{plugin.switch}", f"turn on accelerate's {plugin.section}")
        for row in plugin.settings():
            value = "" if row.kind == "flag" else {"int": " N", "float": " X", "bool": " BOOL"}.get(row.kind, " VALUE")
            default = f" (default: {row.default})" if row.default and value else ""
            yield Option("word" if value else "flag", f"--{row.name}{value}", f"{', '.join(row.variables)}{default}")


SETTINGS = tuple(_options())
"""The options of all tables."""


def uses_accelerate(options: Mapping[str, Any]) -> bool:
    """Whether a setting of accelerate is among the parsed options."""
    names = ("config_file", "mixed_precision", "dynamo_backend", *(option.dest for option in SETTINGS))
    return any(options.get(name) for name in names)
