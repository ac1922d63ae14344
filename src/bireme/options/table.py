"""The table of all options: each with its names, group, help, kind, commands, and the field of the job that it sets.

Parser, help pages, and the commands ``run``, ``tune``, ``check``, ``drain`` and ``python -m bireme.agent`` are made
from it. :mod:`bireme.options.conflicts` says which options cannot be used together.
"""

from __future__ import annotations

from bireme import job
from bireme.options.option import EVERYWHERE, NODES, RANKS, Option
from bireme.options.other_launchers import ACCELERATE, TORCHRUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bireme.options.option import Groups

_TUNE = ("tune",)
_REPORT = ("tune status", "tune report")
_ALL = (*EVERYWHERE, "drain", *_REPORT)

COMMANDS = ("run", "tune", "check", "drain")
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
        Option("word", "--ship DIR", "send the working tree to the nodes, and run there: what git does not ignore, or "
            "all of DIR", NODES, bare="git", common=True),
        Option("list", "--ship_also FILE", "also send this file of the tree, though git ignores it", NODES),
        Option("size", "--ship_limit SIZE", "send a tree of up to this size, e.g. 2G (default: 256M)", NODES,
            default=job.DEFAULT_SHIP_LIMIT),
        Option("list", "--fetch PATTERN[:DIR]", "bring what ranks wrote on the nodes home at the end: 'out/**', or "
            "'out/**:DIR' to put it below DIR", ("run",), common=True),
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
        Option("word", "--job_name -J NAME", "name of the job, for messages, files, lists of processes and Slurm",
            RANKS, default=""),
        Option("word", "--wrap CMD", "run ranks under this command; {rank}, {local_rank} and {host} are replaced",
            RANKS, default=""),
        Option("word", "--wrap_ranks RANKS", "use --wrap only for these ranks, e.g. 0,3", RANKS, default=""),
    ),
    "output": (
        Option("word", "--stdin RANK", "which rank reads the command's stdin: its number; all, each a copy; or none "
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
        Option("choice", "--log_level LEVEL", "verbosity of Bireme's own messages", RANKS, default="info",
            choices=("debug", "info", "warning", "error", "critical")),
        Option("flag", "--quiet -q", "same as --log_level error", RANKS, field="log_level", sets="error", common=True),
    ),
    "conduct": (
        Option("seconds", "--grace --shutdown_timeout SECONDS", "seconds between SIGTERM and SIGKILL when ranks are "
            "stopped (default: 10)", RANKS, default=job.DEFAULT_GRACE),
        Option("seconds", "--time_limit SECONDS", "stop the job after this many seconds, with exit code 124", RANKS,
            zero="would stop the job at once", common=True, shared=False),
        Option("count", "--restarts --max_restarts R", "restart the whole job after a failure, up to R times (default: "
            "0; elastic: 3)", RANKS, least=0, common=True, shared=False),
        Option("seconds", "--restart_window SECONDS", "seconds without a failure after which earlier restarts no "
            "longer count (default: 3600)", default=job.DEFAULT_RESTART_WINDOW,
            zero="would let a failing job restart forever"),
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
        Option("list", "--param NAME=VALUES", "what varies: batch=8..512:log2, lr=1e-4..1e-1:log, mode=fast,safe. Its "
            "value stands for {NAME} in the arguments; --param --batch=8,16 appends the flag", _TUNE),
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
        Option("list", "--limit LIMIT", "a limit that a good configuration must keep: 'p99: {} < 200', 'peak_memory < "
            "20GiB'", _TUNE),
        Option("seconds", "--budget TIME", "time for the whole study: 90s, 30m, 1h30m (default: until nothing better "
            "is expected); for a DeepSpeed configuration it bounds only the rounds after the search", _TUNE,
            zero="would leave no time for a trial"),
        Option("count", "--trials N", "run the program this many times at most (a DeepSpeed configuration says that "
            "itself)", _TUNE, least=1),
        Option("word", "--confidence PERCENT", "how sure the answer must be, in percent (default: 95)", _TUNE),
        Option("word", "--effect PERCENT", "the smallest difference that matters, in percent (default: 2)", _TUNE),
        Option("word", "--confirm PART", "the part of the whole time in which the best run again at most: 50% (default "
            "without --budget and --trials), off, or sure: until the answer is", _TUNE),
        Option("word", "--search SEARCH", "how points are chosen: model_based (default), gridsearch, random, or "
            "optuna:SAMPLER", _TUNE, default=""),
        Option("count", "--seed N", "start of the random numbers, which give the order of trials (default: 0)", _TUNE,
            default=0),
        Option("list", "--warm_start FILE", "begin with earlier results: a table (FILE.csv) with a column for each "
            "parameter and metric, or the folder of a study", _TUNE),
        Option("word", "--results_dir DIR", "folder of the study (default: tuning)", _TUNE, default=""),
        Option("flag", "--ask_tell", "run nothing: propose trials and take results as JSON lines on stdin and stdout",
            _TUNE),
        Option("flag", "--init", "write a commented example of a study file, tune.toml, and end", _TUNE),
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
