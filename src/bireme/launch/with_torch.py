"""Finds the interpreter of an elastic job started by hand. It must have PyTorch, whose agent starts the ranks."""

from __future__ import annotations

from bireme.errors import BadInputError
from bireme.process import activation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec

# Does not import torch, which takes seconds, nor look in the working directory.
_HAS_TORCH = (
    "import sys; sys.path[:] = filter(None, sys.path); import importlib.util as u; sys.exit(not u.find_spec('torch'))"
)


def interpreter_with_torch(spec: JobSpec, environ: Mapping[str, str]) -> str:
    """The ranks' interpreter on this machine.

    Raises:
        BadInputError: it cannot be started, or does not have PyTorch.
    """
    import subprocess

    interpreter, activated = activation.interpreter(spec, environ)
    null = subprocess.DEVNULL
    try:
        status = subprocess.call(
            (interpreter, "-c", _HAS_TORCH), env=dict(activated), stdin=null, stdout=null, stderr=null
        )
    except OSError as error:
        raise BadInputError(f"cannot start {interpreter}: {error.strerror}") from None
    if status:
        what = f"elastic training with --no_ssh requires PyTorch, which {interpreter} does not have"
        raise BadInputError(what, hint="install torch, or leave out --no_ssh")
    return interpreter
