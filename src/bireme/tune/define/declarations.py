"""What varies and how it reaches the program: the words of ``--param``, ``--env``, ``--in``, ``--when``,
``--constraint`` and ``--default``, and the places ``{name}`` in the program's arguments.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from bireme.errors import BadInputError, similar
from bireme.tune.space import expressions, value_lists
from bireme.tune.space.parameter import Parameter, Point, among
from bireme.tune.space.points import Condition, Points, Space
from bireme.value import Value

_How: TypeAlias = Literal["argument", "flag", "environment", "file"]

TRIAL = "trial"
"""``{trial}`` in the program's arguments is the name of the trial; no parameter can have that name."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PLACE = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")
"""``{{name}}``, which is a literal ``{name}``, or ``{name}``. All other braces are left alone: they are JSON."""


class Binding(Value):
    """How a parameter's value reaches the program.

    Attributes:
        how: ``argument``: where ``{name}`` stands; ``flag``: appended to the arguments; ``environment``; ``file``: as a
            key of a file that the program reads.
        where: the flag, the variable or the file.
        key: the key in the file, with dots between its parts.
    """

    parameter: str
    how: _How
    where: str = ""
    key: str = ""


class Declaration(Value):
    """All that varies, and how it reaches the program."""

    space: Points
    bindings: tuple[Binding, ...]

    def text(self, name: str, value: object) -> str:
        """A parameter's value as the user wrote it."""
        return next(each for each in self.space.parameters if each.name == name).text(value)

    def texts(self, point: Point) -> dict[str, str]:
        """A point's values as the user wrote them."""
        return {name: self.text(name, value) for name, value in point.items()}

    def as_record(self) -> dict[str, object]:
        """The declaration for a journal: the same declaration has the same record."""
        space = self.space
        return {
            "parameters": [each.as_dict() for each in space.parameters],
            "conditions": [[each.parameter, each.only_if.text] for each in getattr(space, "conditions", ())],
            "constraints": [each.text for each in getattr(space, "constraints", ())],
            "deliveries": [each.as_dict() for each in self.bindings],
        }


class ParameterSpec(Value):
    """One declared parameter; ``where`` is shown before errors about it."""

    parameter: Parameter
    binding: Binding
    where: str


class Located(Value):
    """A text, and where it is written, which is shown before errors about it."""

    text: str
    where: str


def declare(
    *,
    params: Sequence[str] = (),
    envs: Sequence[str] = (),
    files: Sequence[str] = (),
    conditions: Sequence[str] = (),
    constraints: Sequence[str] = (),
    defaults: Sequence[str] = (),
    args: Sequence[str] = (),
) -> Declaration:
    """Make a declaration of the words of the command line: of ``--param``, ``--env``, ``--in``, ``--when``, …"""
    declared = [
        *map(read_param, params),
        *map(read_env, envs),
        *_with_short_names([read_in(text) for text in files]),
    ]
    return assemble(
        _with_defaults(_unlike(declared), [Located(text, "--default") for text in defaults]),
        conditions=[Located(text, "--when") for text in conditions],
        constraints=[Located(text, "--constraint") for text in constraints],
        args=args,
        suggest=lambda point: f"--default {shlex.quote(','.join(f'{name}={text}' for name, text in point.items()))}",
    )


def assemble(
    declared: Sequence[ParameterSpec],
    *,
    conditions: Sequence[Located],
    constraints: Sequence[Located],
    args: Sequence[str],
    suggest: Callable[[Mapping[str, str]], str],
    where: str = "",
    args_where: str = "",
) -> Declaration:
    """Make a declaration of its parts, and check it as a whole.

    Args:
        conditions: ``NAME only if EXPRESSION``.
        suggest: makes from texts of values what the user types to make them the defaults.
        where: shown before errors about the whole.
        args_where: shown before errors about the arguments.
    """
    if not declared:
        raise BadInputError("no parameters: nothing varies", hint="declare one: --param batch=8,16,32", where=where)
    choices = {each.parameter.name: each.parameter.choices for each in declared}
    found = [condition for each in conditions for condition in _conditions(each, choices)]
    bounds = [expressions.parse(each.text, choices, where=each.where) for each in constraints]
    parameters = {each.parameter.name: each.parameter for each in _unlike(declared)}

    def texts(point: Point) -> str:
        return suggest({name: parameters[name].text(value) for name, value in point.items()})

    try:
        space = Space(tuple(parameters.values()), found, bounds)
        space.check(texts)
    except BadInputError as error:
        place = constraints[0].where if constraints else conditions[0].where if conditions else where
        raise BadInputError(error.what, hint=error.hint, where=error.where or place) from None
    bindings = tuple(each.binding for each in declared)
    _check_places(declared, args, args_where)
    return Declaration(space, bindings)


def fill(args: Sequence[str], values: Mapping[str, str], absent: Collection[str] = ()) -> tuple[str, ...]:
    """The program's arguments, with each ``{name}`` replaced.

    A word that names an absent parameter is left out, and with ``--flag {name}`` the flag too.

    Args:
        values: the texts of the point's values.
        absent: names of parameters that the point does not have.
    """
    filled: list[str] = []
    for word in args:
        if any(name in absent for name in _names(word)):
            if _PLACE.fullmatch(word) and filled and re.fullmatch(r"--?[A-Za-z][^=]*", filled[-1]):
                filled.pop()
            continue
        filled.append(_PLACE.sub(lambda found: f"{{{found[1]}}}" if found[1] else values.get(found[2], found[0]), word))
    return tuple(filled)


# -- the words ---------------------------------------------------------------------------------------


def read_param(text: str) -> ParameterSpec:
    """Read ``NAME=VALUES`` or ``--FLAG=VALUES``."""
    left, values = _halves(text, "--param", "batch=8,16,32")
    if left.startswith("-"):
        if not re.fullmatch(r"--?[A-Za-z][A-Za-z0-9_.-]*", left):
            raise BadInputError(f"not a flag: {left!r}", hint="write it like: --batch=8,16,32", where="--param")
        name = _as_name(left.lstrip("-"))
        binding = Binding(name, "flag", left)
    else:
        name = left
        binding = Binding(_name(left, "--param"), "argument")
    return ParameterSpec(value_lists.read(name, values, where="--param"), binding, "--param")


def read_env(text: str) -> ParameterSpec:
    """Read ``VARIABLE=VALUES``."""
    name, values = _halves(text, "--env", "OMP_NUM_THREADS=1,2,4")
    parameter = value_lists.read(_name(name, "--env"), values, where="--env")
    return ParameterSpec(parameter, Binding(name, "environment", name), "--env")


def read_in(text: str) -> ParameterSpec:
    """Read ``FILE:KEY=VALUES``; the parameter's name is the whole key."""
    left, values = _halves(text, "--in", "config.yaml:training.batch=8,16")
    file, _, key = left.rpartition(":")
    if not file or not all(key.split(".")):
        raise BadInputError(
            f"no file and key before '=': {text!r}", hint="write it like: config.yaml:training.batch=8,16", where="--in"
        )
    name = _as_name(key)
    parameter = value_lists.read(name, values, where="--in", in_file=True)
    return ParameterSpec(parameter, Binding(name, "file", file, key), "--in")


def _halves(text: str, where: str, such: str) -> tuple[str, str]:
    left, sign, values = text.partition("=")
    if not sign or not left.strip():
        raise BadInputError(f"no name and values: {text!r}", hint=f"write it like: {such}", where=where)
    return left.strip(), values.strip()


def _name(name: str, where: str) -> str:
    if not re.fullmatch(_NAME, name):
        hint = f"use letters, digits and '_', such as {_as_name(name)}"
        raise BadInputError(f"not a name: {name!r}", hint=hint, where=where)
    return name


def _as_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if re.fullmatch(_NAME, name) else f"_{name}"


def _with_short_names(declared: Sequence[ParameterSpec]) -> list[ParameterSpec]:
    return [_renamed(each, _as_name(each.binding.key.rpartition(".")[2])) for each in declared]


def _renamed(declared: ParameterSpec, name: str) -> ParameterSpec:
    return declared.replace(
        parameter=declared.parameter.replace(name=name), binding=declared.binding.replace(parameter=name)
    )


def _unlike(declared: Sequence[ParameterSpec]) -> list[ParameterSpec]:
    """The parameters, where those in files have their whole key as a name if its last part is taken."""
    counts = Counter(each.parameter.name for each in declared)
    found: list[ParameterSpec] = []
    for each in declared:
        if each.binding.how == "file" and counts[each.parameter.name] > 1:
            each = _renamed(each, _as_name(each.binding.key))
        if each.parameter.name == TRIAL:
            raise BadInputError(f"{TRIAL!r} stands for the trial's name", hint="rename the parameter", where=each.where)
        if each.parameter.name in {other.parameter.name for other in found}:
            name = each.parameter.name
            raise BadInputError(
                f"the parameter {name!r} is declared twice", hint="rename one of the two", where=each.where
            )
        found.append(each)
    return found


def _with_defaults(declared: Sequence[ParameterSpec], defaults: Sequence[Located]) -> list[ParameterSpec]:
    known = {each.parameter.name: each for each in declared}
    for default in defaults:
        for item in re.split(rf",(?={_NAME}=)", default.text):
            name, text = _halves(item, default.where, "batch=16,accum=4")
            if name not in known:
                raise BadInputError(f"no parameter {name!r}", hint=nearest(name, known), where=default.where)
            value = choice(known[name].parameter, text, default.where)
            known[name] = known[name].replace(parameter=known[name].parameter.replace(default=value))
    return list(known.values())


def choice(parameter: Parameter, text: str, where: str) -> object:
    """The choice that a text means."""
    if text in parameter.texts:
        return parameter.choices[parameter.texts.index(text)]
    unquoted = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    for value in (value_lists.value_of(text), value_lists.value_of(text, in_file=True), unquoted):
        if among(value, parameter.choices):
            return parameter.choice(value)
    hint = f"choose: {parameter.shown}"
    raise BadInputError(f"{text!r} is not a choice of {parameter.name!r}", hint=hint, where=where)


def _conditions(written: Located, choices: Mapping[str, Sequence[object]]) -> list[Condition]:
    names, found, text = written.text.partition(" only if ")
    if not found:
        hint = "write it like: offload only if stage >= 2"
        raise BadInputError(f"no 'only if' in {written.text!r}", hint=hint, where=written.where)
    conditions = []
    for name in map(str.strip, names.split(",")):
        if name not in choices:
            raise BadInputError(f"no parameter {name!r}", hint=nearest(name, choices), where=written.where)
        conditions.append(Condition(name, expressions.parse(text, choices, where=written.where)))
    return conditions


def nearest(name: str, known: Collection[str]) -> str:
    """The hint of an error about an unknown name."""
    near = similar(name, known)
    return f"did you mean {near!r}?" if near else f"there are: {', '.join(list(known)[:12])}"


# -- the places --------------------------------------------------------------------------------------


def _names(word: str) -> list[str]:
    return [found[2] for found in _PLACE.finditer(word) if found[2]]


def _check_places(declared: Sequence[ParameterSpec], args: Sequence[str], where: str) -> None:
    named = [name for word in args for name in _names(word)]
    known = [each.parameter.name for each in declared]
    for name in named:
        if name not in (*known, TRIAL):
            near = similar(name, known)
            meant = f"did you mean {{{near}}}? " if near else ""
            hint = f"{meant}{'W' if meant else 'w'}rite {{{{{name}}}}} for a literal {{{name}}}"
            raise BadInputError(f"no parameter for {{{name}}} in the program's arguments", hint=hint, where=where)
    for each in declared:
        if each.binding.how == "argument" and each.parameter.name not in named:
            name = each.parameter.name
            raise BadInputError(
                f"{name!r} does not reach the program",
                hint=f"write {{{name}}} in the program's arguments, or append it to them: --param --{name}=…",
                where=each.where,
            )
