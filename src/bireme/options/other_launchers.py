"""Options of torchrun and accelerate that ``bireme run`` understands, and why some of them are not needed here."""

from __future__ import annotations

from bireme.options.accelerate import SETTINGS
from bireme.options.option import Option

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
