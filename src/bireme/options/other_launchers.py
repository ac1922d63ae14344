"""Options of torchrun and accelerate that ``bireme run`` understands, and why some of them are not needed here.

Many of accelerate's become variables of the ranks, each with its type, default and variable. A row of their tables is:
type, default (``-``: the variable is not set), and options without the section's prefix. After a ``=`` stand the
variables of an option whose name does not tell them. :mod:`bireme.cli.other_launchers` sets the variables.

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

_BOTH = "the files of --log_dir have both streams of every rank"
_FILTER = "filter the files of --log_dir instead"

# A row takes one to three lines.
# fmt: off
TORCHRUN = (
    Option("flag", "--standalone", "run on this machine only, at a free port"),
    Option("choice", "--rdzv_backend NAME", "with --rdzv_endpoint: static, if each node's command has --node_rank; "
        "c10d, if PyTorch numbers the nodes", choices=("static", "c10d")),
    Option("word", "--rdzv_id ID", "id of the job, in TORCHELASTIC_RUN_ID", field="run_id"),
    Option("word", "--role NAME", "role of the ranks, in ROLE_NAME"),
    Option("flag", "--virtual_local_rank", "show each rank only its own device, as device 0, with LOCAL_RANK=0",
        to_torchrun=True),
    Option("choice", "--numa_binding MODE", "same as --bind_cores_to_rank",
        choices=("node", "socket", "exclusive", "core-complex"), to_torchrun=True),
    Option("word", "--redirects -r STREAMS", "write the output of all ranks (3) or of some (1:3,2:3) only to --log_dir",
        unset=("0",), to_torchrun=True, shared=False),
    Option("word", "--tee -t STREAMS", "show the output of all ranks (3) or of some (0:3) despite --redirects",
        unset=("0",), to_torchrun=True, shared=False),
    Option("word", "--local_ranks_filter RANKS", "show only these local ranks of each node, e.g. 0,1", to_torchrun=True,
        shared=False),
    Option("word", "--rdzv_conf CONF", "settings of PyTorch's rendezvous",
        needless="only PyTorch's own rendezvous has settings", to_torchrun=True),
    Option("word", "--local_addr ADDR", "address of this node, for PyTorch's rendezvous",
        needless="only PyTorch's own rendezvous needs it", to_torchrun=True),
    Option("seconds", "--monitor_interval SECONDS", "how often PyTorch's agent checks its ranks",
        needless="Bireme notices at once when a rank ends", to_torchrun=True),
    Option("choice", "--start_method METHOD", "how PyTorch's agent starts functions",
        choices=("spawn", "fork", "forkserver"), needless="every rank is a program of its own", to_torchrun=True),
    Option("word", "--event_log_handler NAME", "where PyTorch's agent records events",
        needless="--report writes the result of the job to a file", to_torchrun=True),
    Option("word", "--logs_specs NAME", "torchrun plug-in for log files",
        needless="--log_dir writes the output of every rank to a file", to_torchrun=True),
    Option("word", "--signals_to_handle SIGNALS", "signals that PyTorch's agent passes on",
        needless="SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the ranks; SIGUSR1 and SIGUSR2 reach them",
        to_torchrun=True),
    Option("flag", "--run_path", "run the script by runpy", needless="python runs the script with the same effect"),
    Option("flag", "--use_env", "as for torch.distributed.launch: do not pass --local_rank",
        needless="every rank gets LOCAL_RANK, and Bireme passes --local_rank only to a script that takes it"),
    Option("word", "--duplicate_stdout_filters WORDS", "copy matching lines to a file", needless=_FILTER,
        to_torchrun=True),
    Option("word", "--duplicate_stderr_filters WORDS", "copy matching lines to a file", needless=_FILTER,
        to_torchrun=True),
)
# fmt: on


class Setting(Value):
    """An option (without ``--``) and its variables; ``default`` is None if there is none."""

    name: str
    kind: str
    default: str | None
    variables: tuple[str, ...]


class Plugin(Value):
    """The settings of one section of accelerate's configuration file.

    Attributes:
        section: the section, for example ``fsdp_config``.
        prefix: what the names of its options begin with; keys of the file may lack it.
        variable: what comes before the name in a variable.
        switch: the option that turns the section on; "": none.
        distributed_type: the value in the file that turns it on; "": none.
    """

    section: str
    rows: str
    prefix: str = ""
    variable: str = "ACCELERATE_"
    switch: str = ""
    distributed_type: str = ""

    def settings(self) -> Iterator[Setting]:
        """The options of the table."""
        for row in self.rows.strip().splitlines():
            kind, default, *words = row.split()
            for word in words:
                name, _, others = word.partition("=")
                names = others.split(",") if others else [(self.prefix + name).upper()]
                variables = tuple(self.variable + name for name in names)
                text = None if default == "-" else default
                yield Setting(name=self.prefix + name, kind=kind, default=text, variables=variables)


DYNAMO = Plugin(
    section="dynamo_config",
    prefix="dynamo_",
    rows="""
    word   default      mode
    flag   False        use_fullgraph use_dynamic use_regional_compilation
    """,
)
FP8 = Plugin(
    section="fp8_config",
    prefix="fp8_",
    rows="""
    word   -            backend
    word   HYBRID       format
    word   most_recent  amax_compute_algo
    word   O2           opt_level
    int    0            margin
    int    1            interval
    int    1024         amax_history_len
    flag   False        use_autocast_during_eval
    bit    1            enable_fsdp_float8_all_gather pad_inner_dim
    bit    False,False,False override_linear_precision=FP8_OVERRIDE_FPROP,FP8_OVERRIDE_DGRAD,FP8_OVERRIDE_WGRAD
    """,
)
# accelerate itself does not pass on the two NVMe paths, although its plug-in reads them.
DEEPSPEED = Plugin(
    section="deepspeed_config",
    switch="use_deepspeed",
    distributed_type="DEEPSPEED",
    rows="""
    int    -            gradient_accumulation_steps zero_stage=DEEPSPEED_ZERO_STAGE
    float  -            gradient_clipping
    lower  -            zero3_init_flag=DEEPSPEED_ZERO3_INIT
    lower  -            zero3_save_16bit_model=DEEPSPEED_ZERO3_SAVE_16BIT_MODEL
    lower  -            offload_optimizer_device=DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE
    lower  -            offload_param_device=DEEPSPEED_OFFLOAD_PARAM_DEVICE
    word   -            offload_optimizer_nvme_path=DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH
    word   -            offload_param_nvme_path=DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
    word   -            deepspeed_config_file deepspeed_moe_layer_cls_names
    """,
)
FSDP = Plugin(
    section="fsdp_config",
    prefix="fsdp_",
    variable="",
    switch="use_fsdp",
    distributed_type="FSDP",
    rows="""
    int    1            version
    int    100000000    min_num_params
    word   FULL_SHARD   sharding_strategy
    word   -            auto_wrap_policy backward_prefetch state_dict_type ignored_modules
    word   -            transformer_layer_cls_to_wrap=FSDP_TRANSFORMER_CLS_TO_WRAP
    lower  true         reshard_after_forward use_orig_params cpu_ram_efficient_loading sync_module_states
    lower  false        offload_params forward_prefetch activation_checkpointing activation_checkpointing_offload
    """,
)
# accelerate reads any value of a bool on the command line as true, also "false".
MEGATRON = Plugin(
    section="megatron_lm_config",
    prefix="megatron_lm_",
    variable="",
    switch="use_megatron_lm",
    distributed_type="MEGATRON_LM",
    rows="""
    int    1            tp_degree pp_degree
    int    -            num_micro_batches decoder_last_pipeline_num_layers recompute_num_layers context_parallel_size
    int    -            expert_model_parallel_size expert_tensor_parallel_size
    float  1.0          gradient_clipping
    float  -            attention_dropout hidden_dropout
    bool   False        use_custom_fsdp no_load_optim no_save_optim eod_mask_loss optimizer_cpu_offload
    bool   False        overlap_cpu_optimizer_d2h_h2d use_precision_aware_optimizer
    word   -            sequence_parallelism recompute_activations recompute_granularity recompute_method
    word   -            use_distributed_optimizer attention_backend attention_softmax_in_fp32
    word   -            calculate_per_token_loss use_rotary_position_embeddings
    """,
)
PARALLELISM = Plugin(
    section="parallelism_config",
    prefix="parallelism_config_",
    variable="",
    switch="use_parallelism_config",
    rows="""
    int    1            dp_replicate_size dp_shard_size tp_size cp_size sp_size
    word   torch        cp_backend
    word   allgather    cp_comm_strategy
    word   deepspeed    sp_backend
    word   None         sp_seq_length
    bool   True         sp_seq_length_is_variable
    word   sdpa         sp_attn_implementation
    """,
)
PLUGINS = (DYNAMO, FP8, DEEPSPEED, FSDP, MEGATRON, PARALLELISM)
ONLY_ABOVE_1 = {
    "CP_SIZE": "CP_COMM_STRATEGY",
    "SP_SIZE": "SP_SEQ_LENGTH SP_SEQ_LENGTH_IS_VARIABLE SP_ATTN_IMPLEMENTATION",
}
"""Variables (after ``PARALLELISM_CONFIG_``) that are only set if another one is above 1."""


def _settings() -> Iterator[Option]:
    placeholders = {"flag": "", "int": " N", "float": " X", "bool": " BOOL", "bit": " BOOL"}
    for plugin in PLUGINS:
        if plugin.switch:
            yield Option("flag", f"--{plugin.switch}", f"turn on accelerate's {plugin.section}")
        for row in plugin.settings():
            value = placeholders.get(row.kind, " VALUE")
            default = f" (default: {row.default})" if row.default and value else ""
            yield Option("word" if value else "flag", f"--{row.name}{value}", f"{', '.join(row.variables)}{default}")


SETTINGS = tuple(_settings())
"""The options of all tables."""

# fmt: off
ACCELERATE = (
    Option("count", "--num_processes N", "ranks on all nodes together", least=1, shared=False),
    Option("word", "--gpu_ids IDS", "devices of this machine, e.g. 0,1", unset=("all",)),
    Option("flag", "--cpu", "same as --accelerator cpu", field="accelerator", sets="cpu"),
    Option("choice", "--mixed_precision KIND", "accelerate's precision, in ACCELERATE_MIXED_PRECISION",
        choices=("no", "fp16", "bf16", "fp8")),
    Option("count", "--num_cpu_threads_per_process N", "OMP_NUM_THREADS of each rank", least=1),
    Option("word", "--dynamo_backend NAME", "accelerate's compiler, in ACCELERATE_DYNAMO_BACKEND"),
    Option("word", "--config_file FILE", "configuration file of accelerate"),
    Option("flag", "--multi_gpu", "one rank for each device", needless="a job has one rank for each device"),
    Option("flag", "--same_network", "the nodes are in one network",
        needless="the nodes always meet at --main_process_ip"),
    Option("word", "--deepspeed_multinode_launcher NAME", "what starts the ranks on the nodes",
        needless="Bireme starts the ranks on all nodes; --launcher NAME chooses how"),
    Option("flag", "--debug", "accelerate checks the shapes of tensors, by ACCELERATE_DEBUG_MODE"),
    *SETTINGS,
)
# fmt: on


def needless(options: Mapping[str, Any], *, torchrun: bool) -> Iterator[str]:
    """One line for each option in use that has no effect, with the reason.

    Args:
        torchrun: whether PyTorch's agent starts the ranks, so that its own options do have an effect.
    """
    for option in (*TORCHRUN, *ACCELERATE):
        value = options.get(option.dest)
        if value in (None, False) or (torchrun and option.to_torchrun):
            continue
        if option.needless:
            yield f"{option.name} is not needed: {option.needless}"
        elif option.dest == "tee" and value != "3" and not options.get("redirects"):
            yield f"{option.name} {value} is not needed: {_BOTH}"
        elif option.dest == "redirects" and {word[-1:] for word in value.split(",")} & {"1", "2"}:
            yield f"{option.name} {value}: a rank is shown unless both its streams are redirected"


def uses_accelerate(options: Mapping[str, Any]) -> bool:
    """Whether a setting of accelerate is among the parsed options."""
    names = ("config_file", "mixed_precision", "dynamo_backend", *(option.dest for option in SETTINGS))
    return any(options.get(name) for name in names)
