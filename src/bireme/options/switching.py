"""What to type instead of an option or a command of another launcher that Bireme does not have.

`answer` is called for an unknown option. :mod:`bireme.options.other_launchers` has the options of other launchers that
``bireme run`` understands as they are.
"""

from __future__ import annotations

_SIZE = "use --num_nodes N for the nodes and --num_gpus N for the ranks on each node"
_EACH = "use --num_gpus N, the number of ranks on each node"
_SLURM = "give it to sbatch or salloc; bireme run uses the allocation"
_BIND = "use --bind_cores_to_rank"
_RAW = "output is labelled with ranks already; --output raw removes the labels"
_TPU = "Bireme does not support TPUs"

ANSWERS = {
    # DeepSpeed and torch.distributed.launch
    "--deepspeed": "it is an option of the script: write it after the script",
    "--deepspeed_config": "it is an option of the script: write it after the script",
    "--local_rank": "Bireme passes it to scripts that take it; use --local_rank_arg to pass it always",
    "--nproc": _EACH,
    "--world_size": _SIZE,
    "--gpus": _EACH,
    "--num_workers": _EACH,
    "--elastic": "use --elastic_training",
    "--slurm_comment": "use --launcher_args='--comment=…' with --launcher slurm",
    # accelerate
    "--tpu": _TPU,
    "--tpu_cluster": _TPU,
    "--no_tpu_cluster": _TPU,
    "--tpu_use_sudo": _TPU,
    "--vm": _TPU,
    "--main_training_function": "Bireme runs the whole script, not one function of it",
    "--env": "use --export NAME=VALUE",
    "--aws_*": "Bireme does not start jobs in Amazon SageMaker",
    "--mpirun_hostfile": "use --launcher openmpi --hostfile FILE",
    "--mpirun_ccl": "use --export CCL_WORKER_COUNT=N",
    "--downcast_bf16": _TPU,
    # srun and sbatch
    "--nodes": "use --num_nodes N",
    "-N": "use --num_nodes N",
    "--ntasks": _SIZE,
    "-n": _SIZE,
    "--tasks": _SIZE,
    "--ntasks_per_node": _EACH,
    "--tasks_per_node": _EACH,
    "--gpus_per_node": _EACH,
    "--gpus_per_task": "every rank gets one device; " + _EACH,
    "--gres": _SLURM,
    "-G": _EACH,
    "--cpus_per_task": "cores are divided among the ranks; set OMP_NUM_THREADS for another number of threads",
    "-c": "cores are divided among the ranks; set OMP_NUM_THREADS for another number of threads",
    "--comment": _SLURM,
    "--exclusive": _SLURM,
    "--overlap": _SLURM,
    "--qos": _SLURM,
    "--reservation": _SLURM,
    "--partition": _SLURM,
    "-p": _SLURM,
    "--account": _SLURM,
    "-A": _SLURM,
    "--time": "use --time_limit SECONDS for the job; " + _SLURM,
    "--mem": _SLURM,
    "--constraint": _SLURM,
    "-C": _SLURM,
    "--nodelist": "use --include 'node1@node2', or --hosts for a list of your own",
    "-w": "use --include 'node1@node2', or --hosts for a list of your own",
    "-x": "use --exclude 'node1@node2' for nodes, or --export NAME for variables",
    "--cpu_bind": _BIND,
    "--gpu_bind": "every rank gets one device; use --include to choose them",
    "--distribution": "ranks are numbered node by node, in the order of the list of nodes",
    "--label": _RAW,
    "-l": _RAW,
    "--unbuffered": "not needed: Python writes each line at once",
    "-u": "not needed: Python writes each line at once",
    "--chdir": "use --cwd DIR",
    "-D": "use --cwd DIR",
    "--error": "use --log_dir DIR for the output of each rank",
    "-o": "use --log_dir DIR for the output of each rank, or a shell's > FILE",
    "--kill_on_bad_exit": "not needed: when one rank fails, all are stopped",
    "-K": "not needed: when one rank fails, all are stopped",
    "--mpi": "use --native_ranks for programs that call MPI",
    # mpirun, mpiexec
    "-np": _SIZE,
    "--np": _SIZE,
    "--npernode": _EACH,
    "-npernode": _EACH,
    "-ppn": _EACH,
    "--ppn": _EACH,
    "--map_by": "ranks are numbered node by node, one for each slot",
    "-map_by": "ranks are numbered node by node, one for each slot",
    "--bind_to": _BIND,
    "-bind_to": _BIND,
    "--host": "use --hosts 'node1:4,node2:4'",
    "-host": "use --hosts 'node1:4,node2:4'",
    "-hosts": "use --hosts 'node1:4,node2:4'",
    "--machinefile": "use --hostfile FILE",
    "-machinefile": "use --hostfile FILE",
    "-hostfile": "use --hostfile FILE",
    "-f": "use --hostfile FILE",
    "--mca": "use --launcher_args='--mca …' with --launcher openmpi",
    "-mca": "use --launcher_args='--mca …' with --launcher openmpi",
    "-genv": "use --export NAME=VALUE",
    "-genvlist": "use --export NAME, once for each variable",
    "-env": "use --export NAME=VALUE",
    "--allow_run_as_root": "not needed: Bireme passes it where mpirun requires it",
    "--oversubscribe": "not needed: declare as many slots as you want ranks",
    "--tag_output": _RAW,
    "-tag_output": _RAW,
    "--timeout": "use --time_limit SECONDS",
    "--wdir": "use --cwd DIR",
    "--output_filename": "use --log_dir DIR",
    "-wdir": "use --cwd DIR",
    "--devices": "use --num_gpus N, or --include localhost:0,1 to choose devices",
    "--cuda": "use --include localhost:0,1 to choose devices, or set CUDA_VISIBLE_DEVICES",
    "-V": "bireme --version prints it",
    # values
    "--output *": "use --log_dir DIR for the output of each rank, or a shell's > FILE",
    "--accelerator gpu": "leave it out to use the GPUs that there are; cuda means NVIDIA's, rocm AMD's, xpu Intel's",
    "--accelerator tpu": _TPU,
    "--accelerator mps": "Bireme does not use Apple's GPUs; use cpu",
    "--launcher srun": "use --launcher slurm",
    "--launcher mpirun": "use --launcher openmpi, mpich, impi or mvapich",
    "--launcher mpi": "use --launcher openmpi, mpich, impi or mvapich",
    "--launcher k8s": "use --launcher kubectl",
    "--launcher kubernetes": "use --launcher kubectl",
    "--launcher local": "leave it out: this machine needs no launcher",
    "--launcher torchrun": "leave it out: Bireme starts the ranks itself",
    "--rdzv_backend *": "leave it out: c10d and static are the only ones, and Bireme finds the nodes itself",
    # common
    "--workers": _EACH,
    "--dir": "use --log_dir DIR for the ranks' output",
    "--port": "use --master_port PORT",
    "--addr": "use --master_addr ADDR",
    "--rank": "ranks are numbered by Bireme; --node_rank K numbers this node",
    "--verbose": "use --log_level debug",
    "-v": "use --log_level debug",
    "--version": "bireme --version prints it",
}
"""Option → what to type. Names are written with ``_``; a ``*`` at the end matches anything."""

COMMANDS = (
    "launch",
    "train",
    "start",
    "exec",
    "submit",
    "torchrun",
    "deepspeed",
    "accelerate",
    "mpirun",
    "mpiexec",
    "srun",
)
"""Words that people type instead of ``run``."""

_FOREGROUND = "a job ends with its command: bireme run stays in the foreground, and Ctrl+C stops the job"
SUBJECTS = {
    **dict.fromkeys(("status", "report"), "of a study: bireme tune status DIR, or bireme tune report DIR"),
    **dict.fromkeys(("ps", "ls", "list", "jobs", "stop", "kill", "cancel", "down", "attach"), _FOREGROUND),
    **dict.fromkeys(("test", "doctor", "env", "nodes"), "type bireme check"),
    **dict.fromkeys(("config", "init", "configure"), "nothing to set up: type bireme run SCRIPT"),
    **dict.fromkeys(("logs", "log"), "bireme run --log_dir DIR writes the output of each rank to a file in DIR"),
    **dict.fromkeys(("autotune", "study", "sweep", "optimize"), "type bireme tune"),
    **dict.fromkeys(("version", "-V", "-v"), "type bireme --version"),
    "python": "type bireme run SCRIPT, or bireme run -m MODULE",
}
"""What to type instead of a command that Bireme does not have."""


def answer(name: str) -> str:
    """What to type instead of an unknown option; "" if no launcher is known to have it."""
    if name in ANSWERS:
        return ANSWERS[name]
    if not name.startswith("--"):
        return ANSWERS.get("-" + name[1:].replace("-", "_"), "") or ANSWERS.get(name[:2], "")
    for known, text in ANSWERS.items():
        if known.endswith("*") and name.startswith(known[:-1]):
            return text
    return ""
