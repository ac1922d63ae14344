"""The table of all options: each with its names, group, help, kind, commands, and the field of the job that it sets.

Parser, help pages, and the commands ``run``, ``tune``, ``check``, ``drain`` and ``python -m bireme.agent`` are made
from it. :mod:`bireme.options.conflicts` says which options cannot be used together.

Options of torchrun and accelerate that ``bireme run`` understands come first, with the reason if one is not needed.
Many of accelerate's become variables of the ranks (:mod:`bireme.cli.accelerate`). A row of their tables is: type,
default (``-``: the variable is not set), and options without the section's prefix. After a ``=`` stand the variables of
an option whose name does not tell them. Types: ``word``; ``lower``, a word in lower case; ``int``; ``float``; ``bool``,
given to scripts as ``True`` or ``False``; ``bit``, given as ``1`` or ``0``; ``flag``, an option without a value.
Defaults are written as scripts get them.
"""

from __future__ import annotations

from bireme import job
from bireme.options.option import EVERYWHERE, NODES, RANKS, Option
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from bireme.options.option import Groups


_BOTH = "the files of --log_dir have both streams of every rank"
_FILTER = "filter the files of --log_dir instead"

# A row takes one to three lines.
# fmt: off
TORCHRUN = (
    Option("flag", "--standalone", "run on this machine only, at a free port"),
    Option("choice", "--rdzv_backend NAME", "with --rdzv_endpoint: static, if each node's command has --node_rank; "
        "c10d, if PyTorch numbers the nodes", choices=("static", "c10d")),
    Option("word", "--rdzv_id ID", "id of the job, in TORCHELASTIC_RUN_ID", field="run_id"),
    Option("word", "--role NAME", "role of the ranks, in ROLE_NAME", unset=("",)),
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


_TUNE = ("tune",)
_REPORT = ("tune status", "tune report")
OF_JOBS = ("ps", "logs", "attach", "stop", "signal", "preempt", "stacks", "top", "report")
"""The commands about running jobs."""
_ALL = (*EVERYWHERE, "drain", *OF_JOBS, "shim", *_REPORT)

COMMANDS = ("run", "tune", "check", "drain", *OF_JOBS, "shim")
"""The commands of ``bireme`` that have options."""

SUBCOMMANDS = _REPORT
"""Commands of two words, with options of their own."""

# A row takes one to three lines.
# fmt: off
GROUPS: Groups = {
    "world": (
        Option("word", "--world_info BASE64", 'URL-safe base64 of {"host": [slot, …], …}: all nodes of the job',
            ("agent",)),
        Option("count", "--node_rank K", "number of this node in the world info (default: 0)", ("agent",), default=0),
        Option("count", "--save_pid PID", "keep the agent's pid in /tmp/<PID>.deepspeed while it runs", ("agent",),
            default=0),
    ),
    "report": (
        Option("flag", "--json", "print JSON instead", _REPORT),
        Option("flag", "--csv", "print the trials as CSV instead", ("tune report",)),
        Option("word", "--html FILE", "write the report to this file (default: report.html in the study's folder)",
            ("tune report",), default=""),
    ),
    "jobs": (
        Option("flag", "--json", "print JSON instead", ("ps",)),
        Option("flag", "--follow -f", "follow the output until the job ends", ("logs",)),
        Option("count", "--rank K", "show only the lines of this rank", ("logs",), least=0),
        Option("flag", "--once", "print it once, as text", ("top",)),
        Option("word", "--html FILE", "write the page to this file (default: the name of the events, with .html)",
            ("report",), default=""),
        Option("flag", "--now", "kill its ranks at once", ("stop",)),
    ),
    "shim": (
        Option("word", "--install DIR", "write the commands to this folder, e.g. for a container image", ("shim",)),
        Option("choice", "--launch NAME", "run a command line of this launcher, as the installed commands do",
            ("shim",), choices=("torchrun", "accelerate")),
    ),
    "node": (Option("flag", "--back", "use the node again, once it is fit", ("drain",)),),
    "nodes": (
        Option("word", "--hostfile -H --deepspeed_hostfile FILE", "file that lists the nodes, one per line: worker-0 "
            "slots=4 (default: /job/hostfile)", NODES, common=True),
        Option("word", "--hosts HOSTS", "list of nodes, instead of a hostfile: 'node[1-4]:8,other:2'; kubectl:LABELS "
            "selects pods", NODES, common=True),
        Option("range", "--num_nodes --nnodes --num_machines N", "use the first N nodes; MIN:MAX turns on elastic "
            "training", NODES, unset=("-1",), least=1, common=True, shared=False),
        Option("choice", "--launcher NAME", "how to reach the other nodes", NODES, default="auto",
            choices=("auto", *job.LAUNCHERS)),
        Option("word", "--launcher_args ARGS", "extra arguments for the launcher, quoted as one word; for exec: "
            "'COMMAND … {host} …'", NODES, default=""),
        Option("word", "--node_python PATH", "Python of the agents on the nodes, 3.10 or later (default: this one "
            "where it exists, else python3)", NODES, default=""),
        Option("count", "--ssh_port PORT", "port of sshd on the nodes", NODES, least=1, most=65535),
        Option("flag", "--no_ssh_check", "start the job even if the preflight finds a node unfit", field="preflight",
            sets=False),
        Option("flag", "--force_multi", "start an agent even if this machine is the only node", NODES),
        Option("flag", "--native_ranks", "let mpirun or srun start every rank itself, for programs that call MPI",
            NODES),
        Option("flag", "--no_ssh", "start only this node's ranks: run the same command on each node, with its "
            "--node_rank", field="by_hand"),
        Option("count", "--node_rank --machine_rank K", "number of this node, from 0, if the command is typed on each "
            "node"),
        Option("list", "--export WHAT", "also set this environment variable on the nodes: NAME, 'PREFIX*' or "
            "NAME=VALUE", NODES, field="exports", common=True),
        Option("word", "--ship DIR", "send the working tree (what git does not ignore, or all of DIR) to the nodes, "
            "and run the job there", NODES, bare="git", common=True),
        Option("list", "--ship_also FILE", "also send this file of the tree, even though git ignores it", NODES),
        Option("size", "--ship_limit SIZE", "send a tree of up to this size, e.g. 2G (default: 256M)", NODES,
            default=job.DEFAULT_SHIP_LIMIT),
        Option("list", "--fetch PATTERN[:DIR]", "at the end, copy the files that ranks wrote on the nodes to this "
            "machine: 'out/**', or 'out/**:DIR' to put them below DIR", ("run",), common=True),
        Option("seconds", "--heartbeat SECONDS", "seconds of silence after which a node counts as lost (default: 10)",
            NODES, default=job.DEFAULT_HEARTBEAT, least=0.5, most=3600),
    ),
    "resources": (
        Option("word", "--include -i --deepspeed_inclusion_filter FILTER", "use only these nodes and slots: "
            "NODE[:SLOT,…][@NODE…], e.g. localhost:0,2", NODES, default="", common=True, shared=False),
        Option("word", "--exclude -e --deepspeed_exclusion_filter FILTER", "use all nodes and slots except these",
            NODES, default="", shared=False),
        Option("slots", "--num_gpus --num_accelerators --nproc_per_node N", "slots to use on each node; without an "
            "accelerator, the number of ranks on the CPU", NODES, unset=("-1", "auto", "gpu", "all"), least=1,
            common=True, shared=False),
        Option("choice", "--accelerator KIND", "kind of device to use", EVERYWHERE, default="auto",
            choices=("auto", *job.ACCELERATORS), common=True),
        Option("flag", "--bind_cores_to_rank --enable_cpu_affinity", "bind each rank to its own physical cores", RANKS,
            field="bind_cores"),
        Option("word", "--bind_core_list LIST", "cores to divide among the ranks, e.g. 0,2-5 (implies "
            "--bind_cores_to_rank)", RANKS),
    ),
    "rendezvous": (
        Option("word", "--master_addr --main_process_ip ADDR", "address where the ranks meet (default on one machine: "
            "127.0.0.1)", RANKS, common=True, shared=False),
        Option("count", "--master_port --main_process_port PORT", "port where the ranks meet (default: 29500, or a "
            "free one if that is taken)", RANKS, unset=("0",), least=1, most=65535, common=True, shared=False),
        Option("word", "--rdzv_endpoint ADDR[:PORT]", "address and port in one, as for torchrun", shared=False),
    ),
    "program": (
        Option("flag", "--module -m", "run the script as a Python module, like python -m", RANKS, common=True),
        Option("flag", "--no_python", "run the script directly, not with Python", RANKS, common=True),
        Option("flag", "--no_local_rank", "never pass --local_rank to the script", RANKS, field="local_rank_arg",
            sets="never"),
        Option("flag", "--local_rank_arg", "always pass --local_rank (default: only if the script names it in its "
            "code)", RANKS, sets="always"),
        Option("word", "--venv_script FILE", "source this file first, and run the ranks with the python it selects",
            EVERYWHERE),
        Option("word", "--python PATH", "Python that runs the ranks, or the folder of its environment (default: the "
            "active one); {host} is replaced", EVERYWHERE),
        Option("word", "--cwd DIR", "work in this directory, as if the command was typed there", NODES, common=True),
        Option("word", "--preload MODULES", "import these modules, e.g. torch,deepspeed, once on each node, and "
            "fork the ranks from that process; auto: the large ones that the script imports", default="", common=True),
        Option("flag", "--keep", "keep what --preload has imported for ten minutes, for the next job in this directory",
            RANKS),
        Option("word", "--job_name -J NAME", "name of the job, for messages, files, lists of processes and Slurm",
            RANKS, default=""),
        Option("word", "--wrap CMD", "run ranks under this command; {rank}, {local_rank} and {host} are replaced",
            RANKS, default=""),
        Option("word", "--wrap_ranks RANKS", "use --wrap only for these ranks, e.g. 0,3", RANKS, default=""),
    ),
    "output": (
        Option("word", "--stdin RANK", "rank that reads the command's stdin: its number; all: each gets a copy; none "
            "(default: 0 if the ranks run on this machine, else none)", ("run",), default="", shared=False),
        Option("choice", "--output MODE", "prefix: label each line with [host:rank] (default for more than one rank); "
            "raw: leave lines unchanged; rank0: show only rank 0; none: show nothing", RANKS, default="auto",
            choices=job.CHOICES["OutputMode"], common=True, shared=False),
        Option("flag", "--timestamps", "print the time before each line", RANKS, shared=False),
        Option("flag", "--fold", "show a line only once if several ranks write it: [host:0-5] or [*:0-5]", RANKS,
            shared=False),
        Option("word", "--enable_each_rank_log DIR", "also write each rank's output to a file in DIR, on the rank's "
            "node", RANKS, unset=("None",), field="rank_log_dir", shared=False),
        Option("word", "--log_dir DIR", "also write each rank's output to a file in DIR, on this machine", common=True,
            shared=False),
        Option("word", "--report FILE", "write the result of the job to FILE, as JSON", common=True, shared=False),
        Option("word", "--events FILE", "write the events of the job to FILE, as lines of JSON", RANKS, default="",
            shared=False),
        Option("choice", "--log_level LEVEL", "verbosity of Bireme's own messages", RANKS, default="info",
            choices=("debug", "info", "warning", "error", "critical")),
        Option("flag", "--quiet -q", "same as --log_level error", RANKS, field="log_level", sets="error", common=True),
    ),
    "conduct": (
        Option("seconds", "--grace --shutdown_timeout SECONDS", "seconds between SIGTERM and SIGKILL when ranks are "
            "stopped (default: 10)", RANKS, default=job.DEFAULT_GRACE),
        Option("choice", "--stacks WHEN", "auto (the default): show what ranks were doing when the time limit stopped "
            "them, or before they were killed; never: do not", RANKS, choices=("auto", "never"), default="auto"),
        Option("word", "--hang_timeout SECONDS", "check whether the job hangs after this long without output; auto "
            "(the default): after five times its longest pause; off: never", RANKS, default="auto"),
        Option("choice", "--on_hang DO", "what to do with a job that hangs: report it (the default), stop, or restart "
            "(with --restarts or elastic training)", RANKS, choices=("report", "stop", "restart"), default="report"),
        Option("seconds", "--time_limit SECONDS", "stop the job after this many seconds, with exit code 124", RANKS,
            zero="would stop the job at once", common=True, shared=False),
        Option("count", "--restarts --max_restarts R", "restart the whole job after a failure, up to R times (default: "
            "0; elastic: 3)", RANKS, least=0, common=True, shared=False),
        Option("seconds", "--restart_window SECONDS", "seconds without a failure after which earlier restarts no "
            "longer count (default: 3600)", default=job.DEFAULT_RESTART_WINDOW,
            zero="would let a failing job restart forever"),
        Option("word", "--checkpoint_signal SIG", "signal that tells the ranks to save before a preemption, e.g. USR1",
            ("run",), default=""),
        Option("word", "--preempt_signal SIG[@SECONDS]", "signal that the scheduler sends before a preemption, and how "
            "long before (default: TERM, or Slurm's --signal; and 60 s before an allocation ends)",
            ("run",), default=""),
        Option("flag", "--requeue", "after a preemption, ask Slurm to queue the job again", ("run",)),
        Option("flag", "--detach", "let the job run on without this terminal, and print its id", ("run",), common=True),
        Option("flag", "--save_pid", "keep Bireme's pid in /tmp/<pid>.deepspeed while the job runs", shared=False),
        Option("flag", "--dry_run", "print the plan without starting anything", common=True, shared=False),
        Option("flag", "--json", "with --dry_run: print the plan as JSON", shared=False),
        Option("flag", "--help -h", "show this help", _ALL, common=True, shared=False),
        Option("flag", "--help_all", "show all options", common=True, shared=False),
    ),
    "elastic training": (
        Option("flag", "--elastic_training --enable_elastic_training", "let nodes join and leave; the ranks resume "
            "from their checkpoint", RANKS, field="elastic", common=True),
        Option("count", "--min_elastic_nodes N", "wait while fewer nodes are available (default: 1)", RANKS,
            unset=("-1",), least=1, field="min_nodes"),
        Option("count", "--max_elastic_nodes N", "use at most this many nodes (default: all)", RANKS, unset=("-1",),
            least=1, field="max_nodes"),
        Option("seconds", "--elastic_timeout SECONDS", "seconds to wait for enough nodes (default: 600)",
            default=job.DEFAULT_ELASTIC_TIMEOUT),
        Option("seconds", "--elastic_interval SECONDS", "longest time between two probes of a lost node (default: 30)",
            default=job.DEFAULT_ELASTIC_INTERVAL),
    ),
    "tuning any program": (
        Option("list", "--param NAME=VALUES", "a parameter that varies: batch=8..512:log2, lr=1e-4..1e-1:log, "
            "mode=fast,safe. Its value replaces {NAME} in the arguments; --param --batch=8,16 appends the flag", _TUNE),
        Option("list", "--env NAME=VALUES", "an environment variable that varies: OMP_NUM_THREADS=1,2,4", _TUNE),
        Option("list", "--in FILE:KEY=VALUES", "a key of a JSON, YAML, TOML or HJSON file that varies: "
            "config.yaml:training.batch=8,16", _TUNE),
        Option("list", "--when CONDITION", "use a parameter only under a condition: 'offload only if stage >= 2'",
            _TUNE),
        Option("list", "--constraint EXPRESSION", "try only points for which this holds: 'batch * accum == 256'",
            _TUNE),
        Option("list", "--default NAME=VALUE", "what the program does today, the baseline: batch=32 (default: the "
            "first value of each)", _TUNE),
        Option("list", "--maximize --maximise FIGURE", "the figure that should be large: a pattern of the output "
            "('samples/s: {}'), a key of a JSON file (result.json:speed), or a figure of bireme.report", _TUNE),
        Option("list", "--minimize --minimise FIGURE", "the figure that should be small; time is how long the program "
            "runs", _TUNE),
        Option("list", "--limit LIMIT", "a limit that a configuration must meet: 'p99: {} < 200', 'peak_memory < "
            "20GiB'", _TUNE),
        Option("seconds", "--budget TIME", "time for the whole study: 90s, 30m, 1h30m (default: until nothing better "
            "is expected); for a DeepSpeed configuration it bounds only the rounds after the search", _TUNE,
            zero="would leave no time for a trial"),
        Option("count", "--trials N", "run the program at most this many times (for DeepSpeed, the configuration sets "
            "this)", _TUNE, least=1),
        Option("word", "--confidence PERCENT", "how sure the answer must be, in percent (default: 95)", _TUNE),
        Option("word", "--effect PERCENT", "the smallest difference that matters, in percent (default: 2)", _TUNE),
        Option("word", "--confirm PART", "the largest part of the time for running the best points again: 50% (default "
            "without --budget and --trials), off, or sure: until the answer is sure", _TUNE),
        Option("word", "--pruner PRUNER", "when to stop a trial early: certain (default): when it cannot win any more; "
            "halving or halving:FACTOR: after 1, 4, 16, … readings (FACTOR is 4) if it is not among the best; off",
            _TUNE, default=""),
        Option("word", "--search SEARCH", "how points are chosen: model_based (default), gridsearch, random, or "
            "optuna:SAMPLER", _TUNE, default=""),
        Option("count", "--seed N", "seed of the random numbers, which decide the order of trials (default: 0)", _TUNE,
            default=0),
        Option("list", "--warm_start FILE", "begin with earlier results: a table (FILE.csv) with a column for each "
            "parameter and metric, or the folder of a study", _TUNE),
        Option("word", "--results_dir DIR", "folder of the study (default: tuning)", _TUNE, default=""),
        Option("flag", "--ask_tell", "run nothing: propose trials and take results as JSON lines on stdin and stdout",
            _TUNE),
        Option("flag", "--init", "write a commented example of a study file, tune.toml, and exit", _TUNE),
    ),
    "tuning": (
        Option("choice", "--autotuning HOW", "tune: find the fastest DeepSpeed configuration of the job; run: find it, "
            "then run the job with it", default="", choices=("tune", "run"), common=True, shared=False),
        Option("seconds", "--experiment_limit SECONDS", "stop an experiment after this many seconds",
            zero="would let every experiment time out", shared=False),
        Option("choice", "--config_as FORM", "how the script gets an experiment's configuration: as an encoded word, "
            "or as the path of a file", default="word", choices=("word", "file"), shared=False),
        Option("choice", "--order ORDER", "order in which experiments start", default="fifo",
            choices=("fifo", "longest"), shared=False),
    ),
    "as torchrun": TORCHRUN,
    "as accelerate": ACCELERATE,
}
# fmt: on
"""All options by group, in the order of the help pages."""

OPTIONS: tuple[Option, ...] = tuple(option for options in GROUPS.values() for option in options)


def select(command: str) -> Groups:
    """The options of a command, by group; ``agent`` is ``python -m bireme.agent``."""
    chosen = {
        title: tuple(option for option in options if command in option.commands) for title, options in GROUPS.items()
    }
    return {title: options for title, options in chosen.items() if options}


def fields() -> list[tuple[Option, str]]:
    """The options that set a field of the job, each with the name of that field."""
    pairs = [(option, option.field or option.dest) for options in GROUPS.values() for option in options]
    return [(option, field) for option, field in pairs if field in job.JobSpec._fields]
