"""The Python interface of the options: checks the values of a `JobSpec`, and names its fields in error messages."""

from __future__ import annotations

import contextlib
import os
import re

from bireme import job
from bireme.errors import BadInputError
from bireme.job import JobSpec, Program
from bireme.options import conflicts
from bireme.options.table import fields
from bireme.validate import ShapeError, check_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_PROGRAM = {"module": 'kind="module"', "no_python": 'kind="exec"'}
"""Options that set a field of `Program`, not of `JobSpec`."""


@contextlib.contextmanager
def with_names_of_fields() -> Iterator[None]:
    """Have errors name the fields of a job where they name options."""
    try:
        yield
    except BadInputError as error:
        raise in_python(error) from None


@with_names_of_fields()
def check(spec: object) -> None:
    """Refuse what is not a job, a value of the wrong type or not among the choices, and options that conflict.

    Raises:
        TypeError: a value has the wrong type.
        BadInputError: a value is not among the choices, out of bounds or empty, or excludes another.
    """
    if not isinstance(spec, JobSpec):
        raise TypeError(f"expected bireme.JobSpec(bireme.Program(…), …), not {spec!r}")
    if not isinstance(spec.program, Program):
        raise TypeError(f"program: expected Program, not {spec.program!r}")
    for name, hint in JobSpec.__annotations__.items():
        value = getattr(spec, name)
        try:
            if hint not in ("Program", *job.CHOICES):
                check_of(hint, vars(job))(value)
        except ShapeError:
            raise TypeError(f"{name}: expected {hint}, not {value!r}") from None
    program = spec.program
    for word in (program.target, *program.args):
        if not isinstance(word, str):
            raise TypeError(f"program: expected words of type str, not {word!r}")
    _among(program.kind, ("script", "module", "exec"), "program.kind")
    _among(spec.local_rank_arg, job.CHOICES["LocalRankArg"], "local_rank_arg")
    _among(spec.rendezvous, ("", "static", "c10d"), "rendezvous")
    for option, field in fields():
        value = getattr(spec, field)
        if option.choices:
            _among(value, option.choices, field)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and option.kind != "flag":
            option.bounded(field, value)
        elif value == "" != getattr(JobSpec, field):
            raise BadInputError("must not be empty", where=field)
    conflicts.refuse_name(spec.job_name)
    conflicts.refuse_signals(spec.checkpoint_signal, spec.preempt_signal)
    conflicts.refuse_modules(spec.preload)
    if spec.hostfile is not None and not os.path.exists(spec.hostfile):
        raise BadInputError(f"no such file: {spec.hostfile}", where="hostfile")
    conflicts.refuse(conflicts.of_job(spec))


def _among(value: object, choices: tuple[str, ...], where: str) -> None:
    if value not in choices:
        raise BadInputError(f"{value!r} is not one of {', '.join(choices)}", where=where)


def in_python(error: BadInputError) -> BadInputError:
    """Replace the options in an error's text by the names of fields; return the error."""
    error.what, error.hint, error.where = map(_named, (error.what, error.hint, error.where))
    if error.where and error.where.isidentifier():
        error.what = f"{error.where}{' ' if error.what.startswith('must ') else ': '}{error.what}"
        error.where = ""
    error.args = (error.what,)
    return error


def _named(text: str) -> str:
    text = re.sub(r"(?<![\w-])--([a-z][a-z_-]*)", lambda option: _field(option[1].replace("-", "_")), text)
    return re.sub(r"(?<![\w-])-m(?![\w-])", _OF_PROGRAM["module"], text)


def _field(name: str) -> str:
    for option, field in fields():
        if option.dest == name:
            return field if option.kind != "flag" or option.sets is True else f"{field}={option.sets!r}"
    return _OF_PROGRAM.get(name, name)
