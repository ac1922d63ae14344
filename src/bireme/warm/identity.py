"""Which ranks may be forked from one template: those that would have imported their modules in the same way."""

from __future__ import annotations

from bireme.planning.environment import RAS_ADDRESS, RECORDED, RECORDER_PIPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    Identity: TypeAlias = tuple[object, ...]

# What differs between ranks, jobs and connections. A template has none of these; a library that reads one of them while
# it is imported is not for templates, and ranks start cold. Every other variable is part of a template's identity:
# OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, DS_ACCELERATOR, LD_*, PYTHON*, and whatever else a library may read.
_OF_RANKS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "CROSS_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("LOCAL_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"),
        *(RECORDER_PIPE, RECORDED, RAS_ADDRESS),
    }
)
_OF_SESSIONS = frozenset(["SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "XDG_SESSION_ID", "OLDPWD", "SHLVL", "_"])
_PREFIXES = ("BIREME_", "TORCHELASTIC_")

DURING_IMPORTS = {
    "OPENBLAS_NUM_THREADS": "1",  # it starts its threads when it is loaded; a rank starts them after its fork
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() would initialize CUDA, for good
}
"""Variables that a template has only while it imports."""


def differs_between_ranks(name: str) -> bool:
    """Whether a variable is not part of a template's identity."""
    return name in _OF_RANKS or name in _OF_SESSIONS or name.startswith(_PREFIXES)


def program(argv: Sequence[str]) -> tuple[str, ...]:
    """The words that name the program of a rank's command line, which `planning.start` has made; (): not Python's."""
    if argv[1:2] != ("-u",):
        return ()
    return tuple(argv[2:4] if argv[2] == "-m" else argv[2:3])


def identity(argv: Sequence[str], env: Mapping[str, str], cwd: str, cores: Sequence[int]) -> Identity:
    """Ranks with the same identity may be forked from one template."""
    lasting = tuple(sorted(pair for pair in env.items() if not differs_between_ranks(pair[0])))
    return (argv[0], program(argv), cwd, tuple(cores), lasting)
