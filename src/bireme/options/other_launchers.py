"""Options of torchrun and accelerate that ``bireme run`` understands, and why some of them are not needed here."""

from __future__ import annotations

from bireme.options.option import Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_BOTH = "the files of --log_dir have both streams of every rank"
_FILTER = "filter the files of --log_dir instead"

TORCHRUN = (
    Option(names=("--standalone",), help="run on this machine only, at a free port"),
    Option(
        names=("--rdzv_backend",),
        help="with --rdzv_endpoint: static, if each node's command has --node_rank; c10d, if PyTorch numbers the nodes",
        kind="choice",
        metavar="NAME",
        choices=("static", "c10d"),
    ),
    Option(
        names=("--rdzv_id",), help="id of the job, in TORCHELASTIC_RUN_ID", kind="word", metavar="ID", field="run_id"
    ),
    Option(names=("--role",), help="role of the ranks, in ROLE_NAME", kind="word", metavar="NAME"),
    Option(
        names=("--virtual_local_rank",),
        help="show each rank only its own device, as device 0, with LOCAL_RANK=0",
        to_torchrun=True,
    ),
    Option(
        names=("--numa_binding",),
        help="same as --bind_cores_to_rank",
        kind="choice",
        metavar="MODE",
        choices=("node", "socket", "exclusive", "core-complex"),
        to_torchrun=True,
    ),
    Option(
        names=("--redirects", "-r"),
        help="write the output of all ranks (3) or of some (1:3,2:3) only to --log_dir",
        kind="word",
        metavar="STREAMS",
        unset=("0",),
        to_torchrun=True,
        shared=False,
    ),
    Option(
        names=("--tee", "-t"),
        help="show the output of all ranks (3) or of some (0:3) despite --redirects",
        kind="word",
        metavar="STREAMS",
        unset=("0",),
        to_torchrun=True,
        shared=False,
    ),
    Option(
        names=("--local_ranks_filter",),
        help="show only these local ranks of each node, e.g. 0,1",
        kind="word",
        metavar="RANKS",
        to_torchrun=True,
        shared=False,
    ),
    Option(
        names=("--rdzv_conf",),
        help="settings of PyTorch's rendezvous",
        kind="word",
        metavar="CONF",
        to_torchrun=True,
        needless="only PyTorch's own rendezvous has settings",
    ),
    Option(
        names=("--local_addr",),
        help="address of this node, for PyTorch's rendezvous",
        kind="word",
        metavar="ADDR",
        to_torchrun=True,
        needless="only PyTorch's own rendezvous needs it",
    ),
    Option(
        names=("--monitor_interval",),
        help="how often PyTorch's agent checks its ranks",
        kind="seconds",
        to_torchrun=True,
        needless="Bireme notices at once when a rank ends",
    ),
    Option(
        names=("--start_method",),
        help="how PyTorch's agent starts functions",
        kind="choice",
        metavar="METHOD",
        choices=("spawn", "fork", "forkserver"),
        to_torchrun=True,
        needless="every rank is a program of its own",
    ),
    Option(
        names=("--event_log_handler",),
        help="where PyTorch's agent records events",
        kind="word",
        metavar="NAME",
        to_torchrun=True,
        needless="--report writes the result of the job to a file",
    ),
    Option(
        names=("--logs_specs",),
        help="torchrun plug-in for log files",
        kind="word",
        metavar="NAME",
        to_torchrun=True,
        needless="--log_dir writes the output of every rank to a file",
    ),
    Option(
        names=("--signals_to_handle",),
        help="signals that PyTorch's agent passes on",
        kind="word",
        metavar="SIGNALS",
        to_torchrun=True,
        needless="SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the ranks; SIGUSR1 and SIGUSR2 reach them",
    ),
    Option(
        names=("--run_path",),
        help="run the script by runpy",
        needless="python runs the script with the same effect",
    ),
    Option(
        names=("--use_env",),
        help="as for torch.distributed.launch: do not pass --local_rank",
        needless="every rank gets LOCAL_RANK, and Bireme passes --local_rank only to a script that takes it",
    ),
    Option(
        names=("--duplicate_stdout_filters",),
        help="copy matching lines to a file",
        kind="word",
        metavar="WORDS",
        to_torchrun=True,
        needless=_FILTER,
    ),
    Option(
        names=("--duplicate_stderr_filters",),
        help="copy matching lines to a file",
        kind="word",
        metavar="WORDS",
        to_torchrun=True,
        needless=_FILTER,
    ),
)

ACCELERATE = (
    Option(
        names=("--num_processes",),
        help="ranks on all nodes together",
        kind="count",
        metavar="N",
        least=1,
        shared=False,
    ),
    Option(names=("--gpu_ids",), help="devices of this machine, e.g. 0,1", kind="word", metavar="IDS", unset=("all",)),
    Option(names=("--cpu",), help="same as --accelerator cpu", field="accelerator", sets="cpu"),
    Option(
        names=("--mixed_precision",),
        help="accelerate's precision, in ACCELERATE_MIXED_PRECISION",
        kind="choice",
        metavar="KIND",
        choices=("no", "fp16", "bf16", "fp8"),
    ),
    Option(
        names=("--num_cpu_threads_per_process",),
        help="OMP_NUM_THREADS of each rank",
        kind="count",
        metavar="N",
        least=1,
    ),
    Option(
        names=("--dynamo_backend",),
        help="accelerate's compiler, in ACCELERATE_DYNAMO_BACKEND",
        kind="word",
        metavar="NAME",
    ),
    Option(names=("--config_file",), help="configuration file of accelerate", kind="word", metavar="FILE"),
    Option(names=("--multi_gpu",), help="one rank for each device", needless="a job has one rank for each device"),
    Option(
        names=("--same_network",),
        help="the nodes are in one network",
        needless="the nodes always meet at --main_process_ip",
    ),
)


def needless(options: Mapping[str, Any], *, torchrun: bool) -> Iterator[str]:
    """One line for each option in use that has no effect, with the reason.

    Args:
        options: the parsed options.
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
