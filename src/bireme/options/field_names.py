"""Rewrites error messages for the Python interface: ``num_gpus`` instead of ``--num_gpus``."""

from __future__ import annotations

import re

from bireme.errors import BadInputError
from bireme.options.table import fields

_OF_PROGRAM = {"module": 'kind="module"', "no_python": 'kind="exec"'}
"""Options that set a field of `Program`, not of `JobSpec`."""


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
