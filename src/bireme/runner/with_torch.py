"""The interpreter of an elastic job, which must have PyTorch: its rendezvous is what the nodes meet in."""

from __future__ import annotations

from bireme.elastic import has_torch
from bireme.errors import BadInputError
from bireme.supervise import activation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bireme.job import JobSpec


def with_torch(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """The interpreter here, and the environment that it is to have.

    Raises:
        BadInputError: it has no torch.
    """
    interpreter, activated = activation.interpreter(spec, environ)
    try:
        found = has_torch(interpreter, activated)
    except OSError as error:
        raise BadInputError(f"cannot start {interpreter}: {error.strerror}") from None
    if not found:
        what = f"elastic training needs PyTorch, and {interpreter} has none"
        raise BadInputError(what, mend="pip install torch, or --restarts for a job of fixed size")
    return interpreter, activated
