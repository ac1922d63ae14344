"""What to type instead of an option or a command of another launcher that Bireme does not have.

`answer` is called for an unknown option. :mod:`bireme.options.table` has the options of other launchers that
``bireme run`` understands as they are.
"""

from __future__ import annotations

_EACH = "use --num_gpus N, the number of ranks on each node"
_SLURM = "give it to sbatch or salloc; bireme run uses the allocation"
_ONE_DEVICE = "every rank gets one device"

_OPTIONS = {
    # of the script, the job and its size
    "it is an option of the script: write it after the script": "--deepspeed --deepspeed_config",
    "Bireme passes it to scripts that take it; use --local_rank_arg to pass it always": "--local_rank",
    "use --num_nodes N for the nodes and --num_gpus N for the ranks on each node": "--world_size --ntasks --tasks -n"
    " -np --np",
    "use --num_nodes N": "--nodes -N",
    _EACH: "--nproc --gpus --num_workers --workers --ntasks_per_node --tasks_per_node --gpus_per_node -G"
    " --npernode -npernode -ppn --ppn",
    f"{_ONE_DEVICE}; {_EACH}": "--gpus_per_task",
    "not needed: declare as many slots as you want ranks": "--oversubscribe",
    "use --elastic_training": "--elastic",
    "Bireme runs the whole script, not one function of it": "--main_training_function",
    "use --native_ranks for programs that call MPI": "--mpi",
    # where ranks run
    "use --hosts 'node1:4,node2:4'": "--host -host -hosts",
    "use --hostfile FILE": "--machinefile -machinefile -hostfile -f",
    "use --launcher openmpi --hostfile FILE": "--mpirun_hostfile",
    "use --include 'node1@node2', or --hosts for a list of your own": "--nodelist -w",
    "use --exclude 'node1@node2' for nodes, or --export NAME for variables": "-x",
    "ranks are numbered by Bireme; --node_rank K numbers this node": "--rank",
    "ranks are numbered node by node, in the order of the list of nodes": "--distribution",
    "ranks are numbered node by node, one for each slot": "--map_by -map_by",
    "use --bind_cores_to_rank": "--cpu_bind --bind_to -bind_to",
    f"{_ONE_DEVICE}; use --include to choose them": "--gpu_bind",
    "use --num_gpus N, or --include localhost:0,1 to choose devices": "--devices",
    "use --include localhost:0,1 to choose devices, or set CUDA_VISIBLE_DEVICES": "--cuda",
    "Bireme does not support TPUs": "--tpu --tpu_cluster --no_tpu_cluster --tpu_use_sudo --vm --downcast_bf16",
    "Bireme does not start jobs in Amazon SageMaker": "--aws_*",
    "use --master_port PORT": "--port",
    "use --master_addr ADDR": "--addr",
    # what they get, and how long
    "use --export NAME=VALUE": "--env -env -genv",
    "use --export NAME, once for each variable": "-genvlist",
    "use --export CCL_WORKER_COUNT=N": "--mpirun_ccl",
    "cores are divided among the ranks; set OMP_NUM_THREADS for another number of threads": "--cpus_per_task -c",
    "use --cwd DIR": "--chdir -D --wdir -wdir",
    "use --time_limit SECONDS": "--timeout",
    f"use --time_limit SECONDS for the job; {_SLURM}": "--time",
    # what they write
    "use --log_dir DIR": "--output_filename",
    "use --log_dir DIR for the ranks' output, --results_dir DIR for a study": "--dir",
    "use --log_dir DIR for the output of each rank": "--error",
    "use --log_dir DIR for the output of each rank, or a shell's > FILE": "-o",
    "output is labelled with ranks already; --output raw removes the labels": "--label -l --tag_output -tag_output",
    "not needed: Python writes each line at once": "--unbuffered -u",
    "not needed: output is shown as it comes; for a study: bireme tune status": "--watch",
    "use --log_level debug": "--verbose -v",
    "bireme --version prints it": "--version -V",
    # of tuners
    "bireme tune has --maximize FIGURE and --minimize FIGURE": "--metric --objective --direction --goal --target",
    "bireme tune has --trials N": "--n_trials --num_trials --max_trials --num_samples --max_evals --n_iter",
    "bireme tune has --budget TIME": "--time_budget --time_budget_s --max_time --max_duration",
    "bireme tune has --param NAME=VALUES": "--params --parameter --parameters --space --grid --search_space",
    # of launchers and schedulers
    _SLURM: "--gres --comment --exclusive --overlap --qos --reservation --partition -p --account -A --mem --constraint"
    " -C",
    "use --launcher_args='--comment=…' with --launcher slurm": "--slurm_comment",
    "use --launcher_args='--mca …' with --launcher openmpi": "--mca -mca",
    "not needed: Bireme passes it where mpirun requires it": "--allow_run_as_root",
    "not needed: when one rank fails, all are stopped": "--kill_on_bad_exit -K",
}
_VALUES = {
    "--output *": "use --log_dir DIR for the output of each rank, or a shell's > FILE",
    "--accelerator gpu": "leave it out to use the GPUs that there are; cuda means NVIDIA's, rocm AMD's, xpu Intel's",
    "--accelerator tpu": "Bireme does not support TPUs",
    "--accelerator mps": "Bireme does not use Apple's GPUs; use cpu",
    "--launcher srun": "use --launcher slurm",
    **dict.fromkeys(("--launcher mpirun", "--launcher mpi"), "use --launcher openmpi, mpich, impi or mvapich"),
    **dict.fromkeys(("--launcher k8s", "--launcher kubernetes"), "use --launcher kubectl"),
    "--launcher local": "leave it out: this machine needs no launcher",
    "--launcher torchrun": "leave it out: Bireme starts the ranks itself",
    "--rdzv_backend *": "leave it out: c10d and static are the only ones, and Bireme finds the nodes itself",
}
ANSWERS = {name: text for text, names in _OPTIONS.items() for name in names.split()} | _VALUES
"""Option, or option and value → what to type. Names are written with ``_``; a ``*`` at the end matches anything."""

COMMANDS = (
    *("launch", "train", "start", "exec", "submit"),
    *("torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "srun"),
)
"""Words that people type instead of ``run``."""

SUBJECTS = {
    "status": "for running jobs: bireme ps; for a study: bireme tune status DIR",
    "report": "for a study: bireme tune report DIR",
    **dict.fromkeys(("ls", "list", "jobs"), "type bireme ps"),
    **dict.fromkeys(("kill", "cancel", "down"), "type bireme stop JOB; bireme ps lists the jobs"),
    **dict.fromkeys(("test", "doctor", "env", "nodes"), "type bireme check"),
    **dict.fromkeys(("config", "init", "configure"), "nothing to set up: type bireme run SCRIPT"),
    **dict.fromkeys(("log",), "bireme logs JOB; bireme run --log_dir DIR writes a file for each rank"),
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
