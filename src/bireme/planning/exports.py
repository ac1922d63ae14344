"""Selects the variables that ``--export`` and environment files set, and those that are sent to other nodes.

They come from these sources; a later one overrides an earlier one:

1. this shell's variables of the names below: those of DeepSpeed and its accelerators, and others that control
   training. The working directory is put in front of ``PYTHONPATH``, as by DeepSpeed;
2. ``.deepspeed_env`` (or the file that ``DS_ENV_FILE`` names), then ``.bireme_env``, in the home directory;
3. the same in the working directory;
4. ``--export NAME``, ``--export 'PREFIX*'`` and ``--export NAME=VALUE``, in their order.

The files of 2 and 3 are found, not named by the user, so they are ignored if anybody except the user and root can have
written them (`bireme.resources.ownership`). Variables that make programs load code are reported if they come from the
working directory.

These files have one ``NAME=VALUE`` per line, optionally with ``export`` in front and quotes around the value. ``#``
starts a comment where a word could start. Nothing is expanded. DeepSpeed has the nodes' shells expand ``$NAME``, so a
value in which a shell would expand something is refused, unless it is in single quotes or the ``$`` is escaped.

Variables that belong to one process, rank or node are never exported by a prefix: those that a launcher sets for its
ranks, the lists of visible devices, and those of a scheduler. Variables that Bireme sets itself cannot be exported by
name either; in a file, which often is a dump of a whole environment, they are ignored.

Values may be secrets: they are sent only through the control channel, and only names and origins are logged.
"""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.job import ACCELERATORS
from bireme.planning.environment import DEEPSPEED_ENV_FILE, DEEPSPEED_ENV_FILE_VARIABLE, ENV_FILE, TRIAL, TUNER
from bireme.resources.devices import visible_variables
from bireme.resources.hostfile import numbered_lines, read_text
from bireme.resources.ownership import reason_to_pass_over
from bireme.resources.pool import quoted
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
"""Variables whose names begin with one of these are exported."""

OF_FILES = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"),  # the first two are of DeepSpeed's accelerators
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    }
)
"""Variables that are exported to nodes with the files of this machine, but not to containers, which set their own."""

NAMES = OF_FILES | {"HYDRA_FULL_ERROR"}
"""Variables that are exported besides those with a prefix."""

_OURS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"),
        *(name for kind in ACCELERATORS for name in visible_variables(kind)),
    }
)
_OURS_PREFIX = "BIREME_"
# These have different values in every process, or on every node.
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
# Also left out by ``--export '*'``: these describe this login and this machine.
_OF_LOGIN = frozenset(
    {
        *("_", "PWD", "OLDPWD", "SHLVL", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "TERM", "TTY"),
        *("DISPLAY", "MAIL", "TMPDIR", "COLUMNS", "LINES", "LS_COLORS", "STY", "WINDOWID"),
        *("INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
_OF_LOGIN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "TMUX", "WAYLAND_", "GNOME_", "KDE_", "SYSTEMD_")
SET_BY_SITE = {"AISC_JOB_NAME": ("NCCL_IB_HCA", "UCX_NET_DEVICES")}
"""If the key is set, every node sets the other variables for its own network cards (as in DeepSpeed)."""

_LOADS_CODE = frozenset(
    {
        *("PATH", "BASH_ENV", "ENV", "SHELLOPTS", "GCONV_PATH", "NODE_OPTIONS", "CUDA_INJECTION64_PATH"),
        *("PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONBREAKPOINT", "PYTHONWARNINGS"),
        *("PERL5LIB", "PERL5OPT", "PERL5DB", "RUBYLIB", "RUBYOPT", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN"),
    }
)
_LOADS_CODE_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_")
"""Variables that make programs load additional code."""

_WHERE = "--export"
_INHERITED = "environment"
_ESCAPED = frozenset('"\\$`')  # characters that a backslash escapes within double quotes, as in a shell


class Exports(Value):
    """The variables for the environment of the other nodes.

    Attributes:
        variables: name to value. Values may be secrets, so they are never logged or put into arguments
            (``as_dict()`` has them; ``repr()`` shows only names).
        origins: name to origin: ``environment``, ``FILE:LINE`` or ``--export``.
        passed_over: ``NAME (FILE:LINE)`` of ignored variables in files, which Bireme sets itself.
        distrusted: ``FILE: REASON`` of ignored files, which others can have written.
        loading: ``NAME (FILE:LINE)`` of variables that make programs load code, from files of the working directory.
    """

    variables: Mapping[str, str]
    origins: Mapping[str, str]
    passed_over: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()

    def chosen(self) -> dict[str, str]:
        """Those of ``--export`` and of the files: on this machine, the ranks inherit the others anyway."""
        return {name: value for name, value in self.variables.items() if self.origins[name] != _INHERITED}

    def notes(self) -> Iterator[tuple[str, str]]:
        """Messages for the user, each with its log level."""
        for file in self.distrusted:
            yield "warning", f"ignoring {file} (fix that, or name the file in {DEEPSPEED_ENV_FILE_VARIABLE})"
        if self.passed_over:
            yield "warning", f"ignoring variables that Bireme sets itself: {', '.join(self.passed_over)}"
        if self.loading:
            yield "info", f"exporting variables that make programs load code: {', '.join(self.loading)}"

    def __repr__(self) -> str:
        names = ", ".join(f"{name} from {origin}" for name, origin in sorted(self.origins.items()))
        return f"Exports({names})"


def exports(
    environ: Mapping[str, str], requests: Sequence[str], home: str, cwd: str, *, same_files: bool = True
) -> Exports:
    """Collect the variables from all sources.

    Args:
        home: the home directory; "" if there is none.
        same_files: whether the nodes have the files of this machine, so that its search paths mean something there.
    """
    here = {**environ, "PYTHONPATH": python_path(environ.get("PYTHONPATH", "") if same_files else "", cwd)}
    kept_here = {name for key, names in SET_BY_SITE.items() if key in environ for name in names}
    if not same_files:
        kept_here |= OF_FILES
    travels = [name for name in here if (name in NAMES or name.startswith(PREFIXES)) and _may_match(name)]
    variables = {name: here[name] for name in travels if name not in kept_here}
    origins = dict.fromkeys(variables, _INHERITED)
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
            loads_code = name in _LOADS_CODE or name.startswith(_LOADS_CODE_PREFIXES)
            if not variable and os.path.dirname(path) != home and loads_code:
                loading[name] = f"{name} ({origin})"
    for request in requests:
        for name, value in _requested(request, here):
            variables[name], origins[name] = value, _WHERE
    return Exports(
        variables=variables,
        origins=origins,
        passed_over=tuple(passed_over),
        distrusted=tuple(distrusted),
        loading=tuple(loading.values()),
    )


def python_path(inherited: str, cwd: str) -> str:
    """The value of ``PYTHONPATH`` with the working directory in front, unless it is there already."""
    if not inherited:
        return cwd
    return inherited if inherited.split(os.pathsep)[0] == cwd else f"{cwd}{os.pathsep}{inherited}"


def parse_env_file(text: str, path: str) -> Iterator[tuple[str, str, int]]:
    """Parse an environment file.

    Yields:
        Name, value and line number; a name may occur several times.

    Raises:
        BadInputError: a line is malformed. The error does not show it: it may contain a secret.
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
            raise BadInputError("expected NAME=VALUE", hint="start a comment with '#'", where=where)
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
        raise BadInputError(f"{name} is not set", hint=f"set it with --export {name}=VALUE", where=_WHERE)
    return [(name, here[name])]


def _files(environ: Mapping[str, str], home: str, cwd: str) -> Iterator[tuple[str, str]]:
    """The existing files, the weakest first, each with the variable that names it, or ""."""
    name = environ.get(DEEPSPEED_ENV_FILE_VARIABLE) or DEEPSPEED_ENV_FILE
    if os.sep in name:  # a path: it must exist, and no other folder is searched
        yield os.path.join(cwd, name), DEEPSPEED_ENV_FILE_VARIABLE
    for directory in dict.fromkeys((home, cwd)):
        for file in dict.fromkeys((name, ENV_FILE)):
            path = os.path.join(directory, file)
            if directory and os.sep not in file and os.path.isfile(path):
                yield path, ""


def _found(path: str) -> tuple[str, str]:
    """(text of a file that we have found, reason to ignore it); one of them is empty."""
    try:
        reason = reason_to_pass_over(path)  # before opening: another user's file may not be readable
        if reason:
            return "", reason
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return read_text(path), ""  # raises the error
    reason = reason_to_pass_over(path, fd)  # again: it may have been replaced
    if reason:
        os.close(fd)
        return "", reason
    return read_text(path, fd=fd), ""


def _unquoted(text: str, where: str) -> str:
    quote = text[:1]
    if quote not in ("'", '"'):
        if "#" in text:
            place = next((at for at, sign in enumerate(text) if sign == "#" and text[at - 1 : at].strip() == ""), None)
            text = text[:place].rstrip()
        if _is_expanded(text):
            raise _would_be_expanded(where)
        return text
    value: list[str] = []
    at = 1
    while text[at : at + 1] not in (quote, ""):
        if quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in _ESCAPED:
            at += 1
        elif quote == '"' and _is_expanded(text[at : at + 2]):
            raise _would_be_expanded(where)
        value.append(text[at])
        at += 1
    rest = text[at + 1 :]
    if at >= len(text) or (rest and not rest.lstrip().startswith("#")):
        raise BadInputError(f"the value begins with {quote} but does not end with it", where=where)
    return "".join(value)


def _is_expanded(text: str) -> bool:
    """Whether a shell would expand a part of this text: ``$NAME``, ``${NAME}``, ``$(command)``, ``$$``, a backquote."""
    after = (piece[:1] for piece in text.split("$")[1:])
    return (
        "`" in text
        or "$$" in text
        or any(sign.isascii() and (sign.isalnum() or sign in "{(_") for sign in after if sign)
    )


def _would_be_expanded(where: str) -> BadInputError:
    hint = "write the value itself, or in single quotes to keep it as it is"
    return BadInputError("a shell would expand a part of this value; Bireme does not", hint=hint, where=where)


def _may_match(name: str, prefix: str = "-") -> bool:
    """Whether a prefix may select a variable; the empty prefix also leaves out those of the login."""
    if not _is_name(name) or name in _OURS or name in _BOUND or name.startswith(_BOUND_PREFIXES):
        return False
    return bool(prefix) or not (name in _OF_LOGIN or name.startswith(_OF_LOGIN_PREFIXES))


def _is_ours(name: str) -> bool:
    return name in _OURS or (name.startswith(_OURS_PREFIX) and name not in (TRIAL, TUNER))


def _is_name(text: str) -> bool:
    return text.isascii() and text.isidentifier()


def _no_request(name: str) -> BadInputError:
    hint = "expected NAME, 'PREFIX*' or NAME=VALUE; repeat the option for more"
    return BadInputError(f"not a variable name: {quoted(name)}", hint=hint, where=_WHERE)
