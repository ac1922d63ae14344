"""Which environment variables travel to the other nodes, and where each comes from.

From the weakest to the strongest:

1. what this shell has, of the names below: those of DeepSpeed, those of its accelerators, and
   what else steers training. ``PYTHONPATH`` is given the working directory in front, as by DeepSpeed;
2. ``.deepspeed_env`` (or the file that ``DS_ENV_FILE`` names), then ``.bireme_env``, in the home directory;
3. the same in the working directory;
4. ``--export NAME``, ``--export 'PREFIX*'`` and ``--export NAME=VALUE``, in their order.

A file of 2 or 3 is one that we have found, not one that the user has named: it is passed over unless nobody but the
user and root can have written it (`bireme.planning.trust`). What one of the working directory says of variables by
which programs load code is announced.

Those files hold a ``NAME=VALUE`` on a line, perhaps with ``export`` before it and quotes around the value.
``#`` begins a comment where a word could begin. Nothing is expanded: ``$`` is a dollar sign.

What belongs to one process, one rank or one node never travels by way of a prefix: the variables that
a launcher sets for its ranks, the lists of visible devices, a scheduler's variables. Those that
Bireme sets itself cannot be exported by name either; in a file, which is often the dump of a whole
environment, they are passed over.

Values may be secrets: they are for the channel alone. What is logged is names and origins.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.planning.trust import reason_to_pass_over
from bireme.resources.devices import ACCELERATORS, visible_variables
from bireme.resources.hostfile import numbered_lines, quoted, read_text
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENV_FILE = ".bireme_env"
REFERENCE_ENV_FILE = ".deepspeed_env"
REFERENCE_ENV_FILE_VARIABLE = "DS_ENV_FILE"

PREFIXES = (
    # DeepSpeed's, and those that its accelerators add.
    *("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "HCCL", "ASCEND"),
    # The frameworks: torch, DeepSpeed, Hugging Face, TensorFlow, JAX.
    *("TORCH", "PYTORCH", "ATEN_", "DS_", "DEEPSPEED", "ACCELERATE_", "HF_", "HUGGING", "TRANSFORMERS_", "DIFFUSERS_"),
    *("TOKENIZERS_", "DATASETS_", "PL_", "LIGHTNING_", "MEGATRON", "NEMO_", "NVTE_", "FLASH_", "XFORMERS_", "BNB_"),
    *("TF_", "XLA_", "JAX_", "TRITON", "TQDM_", "WANDB", "COMET_", "CLEARML_", "NEPTUNE_"),
    # Accelerators, their compilers and libraries.
    *("CUDA", "CUDNN_", "CUBLAS", "NVIDIA_TF32", "NVSHMEM", "HIP_", "HSA_", "ROCM", "AMD_", "MIOPEN_", "RCCL"),
    *("ROCBLAS", "ZE_", "SYCL_", "ONEAPI_", "CCL_", "HABANA", "PT_HPU", "NPU_"),
    # Threads and mathematics on the CPU. Not "OMP": that would take OMPI_, by which frameworks think they run in MPI.
    *("OMP_", "KMP_", "GOMP_", "MKL", "OPENBLAS", "BLIS_", "NUMEXPR", "DNNL_", "ONEDNN_", "MALLOC_CONF"),
    # Networks below the collectives.
    *("GLOO_", "TP_", "FI_", "OFI_", "I_MPI_", "UCC_", "PSM2_", "PSM3_", "SHARP_", "MLX5_", "IBV_", "RDMAV_"),
)
"""A variable travels when its name begins with one of these."""

NAMES = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"),  # the first two are of DeepSpeed's accelerators
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "HYDRA_FULL_ERROR"),
    }
)
"""... or is one of these."""

_OURS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"),
        *(name for kind in ACCELERATORS for name in visible_variables(kind)),
    }
)
_OURS_PREFIX = "BIREME_"

# Each of these has another value in every process, or on every node.
_BOUND = frozenset(
    {
        *("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "NVIDIA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
        *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "TF_CONFIG", "NCCL_HOSTID", "WANDB_SERVICE"),
    }
)
_BOUND_PREFIXES = (
    *(_OURS_PREFIX, "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "PRTE_", "MPI_LOCAL", "MPIEXEC_", "HYDI_"),
    *("I_MPI_HYDRA_", "MV2_COMM_WORLD_", "CCL_LOCAL_", "SLURM", "SRUN_", "SBATCH_", "SALLOC_", "PBS_"),
    *("LSB_", "LSF_", "LS_", "JSM_", "FLUX_", "PALS_"),
)
# What ``--export '*'`` leaves behind besides: it tells of this login and this machine.
_OF_LOGIN = frozenset(
    {
        *("_", "PWD", "OLDPWD", "SHLVL", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "TERM", "TTY"),
        *("DISPLAY", "MAIL", "TMPDIR", "COLUMNS", "LINES", "LS_COLORS", "STY", "WINDOWID"),
        *("INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
_OF_LOGIN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "TMUX", "WAYLAND_", "GNOME_", "KDE_", "SYSTEMD_")
# Where the key is set, every node sets the others for its own network cards (so DeepSpeed has it).
_SET_BY_SITE = {"AISC_JOB_NAME": ("NCCL_IB_HCA", "UCX_NET_DEVICES")}

_LOADS_CODE = frozenset(
    {
        *("PATH", "BASH_ENV", "ENV", "SHELLOPTS", "GCONV_PATH", "NODE_OPTIONS", "CUDA_INJECTION64_PATH"),
        *("PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONBREAKPOINT", "PYTHONWARNINGS"),
        *("PERL5LIB", "PERL5OPT", "PERL5DB", "RUBYLIB", "RUBYOPT", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN"),
    }
)
_LOADS_CODE_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_")
"""By these, programs load code that they would not load otherwise."""

_WHERE = "--export"
_ESCAPED = frozenset('"\\$`')  # what a backslash stands before within double quotes, as in a shell


class Exports(Value):
    """What the other nodes are to have in their environment.

    Attributes:
        variables: name to value. Values may be secrets: they are neither logged nor put into arguments
            (so beware of ``as_dict()``; ``repr()`` shows names alone).
        origins: name to where it comes from: ``environment``, ``FILE:LINE`` or ``--export``.
        passed_over: ``NAME (FILE:LINE)`` for what a file says of variables that Bireme sets itself.
        distrusted: ``FILE: REASON`` for files that others can have written.
        loading: ``NAME (FILE:LINE)`` for variables by which programs load code, taken from the working directory.
    """

    variables: Mapping[str, str]
    origins: Mapping[str, str]
    passed_over: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()

    def notes(self) -> Iterator[tuple[str, str]]:
        """What is to be said of them before anything starts, each with its level."""
        for file in self.distrusted:
            how = f"mend that, or name the file by {REFERENCE_ENV_FILE_VARIABLE}"
            yield "warning", f"{file}, so it is passed over ({how})"
        if self.passed_over:
            yield "warning", f"set by Bireme itself, so passed over: {', '.join(self.passed_over)}"
        if self.loading:
            yield "info", f"these make programs load code, and travel: {', '.join(self.loading)}"

    def __repr__(self) -> str:
        names = ", ".join(f"{name} from {origin}" for name, origin in sorted(self.origins.items()))
        return f"Exports({names})"


def exports(environ: Mapping[str, str], requests: Sequence[str], home: str, cwd: str) -> Exports:
    """Gather what travels; see above.

    Args:
        environ: this shell's environment.
        requests: the values of ``--export``.
        home: the home directory; empty when there is none.
        cwd: the working directory.

    Raises:
        BadInputError: a request or a line of a file is malformed; what is asked for by name is not
            set, or is set by Bireme itself; a file cannot be read.
    """
    here = {**environ, "PYTHONPATH": python_path(environ.get("PYTHONPATH", ""), cwd)}
    kept_here = {name for key, names in _SET_BY_SITE.items() if key in environ for name in names}
    variables = {name: value for name, value in here.items() if _by_default(name) and name not in kept_here}
    origins = dict.fromkeys(variables, "environment")
    passed_over: list[str] = []
    distrusted: list[str] = []
    loading: dict[str, str] = {}
    for path, variable in _files(environ, home, cwd):
        text, reason = (read_text(path, variable), "") if variable else _found(path)
        if reason:
            distrusted.append(f"{path}: {reason}")
        for name, value, line in parse_env_file(text, path):
            origin = f"{path}:{line}"
            if _is_ours(name):
                passed_over.append(f"{name} ({origin})")
                continue
            variables[name], origins[name] = value, origin
            if not variable and os.path.dirname(path) != home and _loads_code(name):
                loading[name] = f"{name} ({origin})"
    for request in requests:
        for name, value in _requested(request, here):
            variables[name], origins[name] = value, _WHERE
    return Exports(variables, origins, tuple(passed_over), tuple(distrusted), tuple(loading.values()))


def python_path(inherited: str, cwd: str) -> str:
    """The module search path with the working directory in front, where it does not stand there already."""
    if not inherited:
        return cwd
    return inherited if inherited.split(os.pathsep)[0] == cwd else f"{cwd}{os.pathsep}{inherited}"


def parse_env_file(text: str, path: str) -> Iterator[tuple[str, str, int]]:
    """Read ``NAME=VALUE`` lines.

    Args:
        path: what the errors call the file.

    Yields:
        Name, value and line; a name may come again.

    Raises:
        BadInputError: a line is malformed. It is not shown: it may hold a secret.
    """
    for number, line in numbered_lines(text):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        before, equals, value = line.partition("=")
        words = before.split()
        name = words[-1] if words else ""
        where = f"{path}:{number}"
        if not equals or words[:-1] not in ([], ["export"]) or not _is_name(name) or "\0" in value:
            raise BadInputError("this is not NAME=VALUE", hint="a comment begins with '#'", where=where)
        yield name, _unquoted(value.strip(), where), number


def _requested(request: str, here: Mapping[str, str]) -> list[tuple[str, str]]:
    name, equals, value = request.partition("=")
    if not equals and name.endswith("*"):
        prefix = name[:-1]
        if prefix and not _is_name(prefix):
            raise _no_request(name)
        return [(name, value) for name, value in here.items() if name.startswith(prefix) and _may_match(name, prefix)]
    if not _is_name(name):
        raise _no_request(name)
    if _is_ours(name):
        raise BadInputError(f"{name} is set by Bireme itself, on every node and for every rank", where=_WHERE)
    if equals:
        if "\0" in value:
            raise BadInputError(f"the value of {name} has a zero byte", where=_WHERE)
        return [(name, value)]
    if name not in here:
        raise BadInputError(f"{name} is not set", hint=f"--export {name}=VALUE gives it a value", where=_WHERE)
    return [(name, here[name])]


def _files(environ: Mapping[str, str], home: str, cwd: str) -> Iterator[tuple[str, str]]:
    """The files that are there, the weakest first, each with the variable that names it."""
    name = environ.get(REFERENCE_ENV_FILE_VARIABLE) or REFERENCE_ENV_FILE
    if os.sep in name:  # a path: it is looked for nowhere else, and was meant to be there
        yield os.path.join(cwd, name), REFERENCE_ENV_FILE_VARIABLE
    for directory in dict.fromkeys((home, cwd)):
        for file in dict.fromkeys((name, ENV_FILE)):
            path = os.path.join(directory, file)
            if directory and os.sep not in file and os.path.isfile(path):
                yield path, ""


def _found(path: str) -> tuple[str, str]:
    """The text of a file that we have found, or why it is passed over."""
    try:
        reason = reason_to_pass_over(path)  # first: another user's may be one that we cannot open
        if reason:
            return "", reason
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return read_text(path), ""  # says what is wrong
    reason = reason_to_pass_over(path, fd)  # it may have been replaced
    if reason:
        os.close(fd)
        return "", reason
    return read_text(path, fd=fd), ""


def _loads_code(name: str) -> bool:
    return name in _LOADS_CODE or name.startswith(_LOADS_CODE_PREFIXES)


def _unquoted(text: str, where: str) -> str:
    quote = text[:1]
    if quote not in ("'", '"'):
        if "#" in text:
            place = next((at for at, sign in enumerate(text) if sign == "#" and text[at - 1 : at].strip() == ""), None)
            text = text[:place].rstrip()
        return text
    value: list[str] = []
    at = 1
    while text[at : at + 1] not in (quote, ""):
        if quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in _ESCAPED:
            at += 1
        value.append(text[at])
        at += 1
    rest = text[at + 1 :]
    if at >= len(text) or (rest and not rest.lstrip().startswith("#")):
        raise BadInputError(f"the value begins with {quote} but does not end with it", where=where)
    return "".join(value)


def _by_default(name: str) -> bool:
    return (name in NAMES or name.startswith(PREFIXES)) and _may_match(name)


def _may_match(name: str, prefix: str = "-") -> bool:
    """Whether a variable may be taken by a prefix; the empty one takes less."""
    if not _is_name(name) or name in _OURS or name in _BOUND or name.startswith(_BOUND_PREFIXES):
        return False
    return bool(prefix) or not (name in _OF_LOGIN or name.startswith(_OF_LOGIN_PREFIXES))


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(_OURS_PREFIX)


def _is_name(text: str) -> bool:
    return text.isascii() and text.isidentifier()


def _no_request(name: str) -> BadInputError:
    hint = "NAME, 'PREFIX*' or NAME=VALUE, once for each"
    return BadInputError(f"{quoted(name)} is not the name of a variable", hint=hint, where=_WHERE)
