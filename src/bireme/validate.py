"""Builds immutable values from plain JSON, checking each field against its annotation.

Data from another process may have any shape: a value is built only if every field has the type of its annotation, and
no field is missing or unknown.
"""

from __future__ import annotations

import sys

from bireme.errors import BiremeError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    V = TypeVar("V", bound=Value)
    Check = Callable[[Any], Any]

_KNOWN: dict[type[Value], tuple[Mapping[str, Check], frozenset[str]]] = {}
_MOST = 1 << 63
"""Bound of the absolute value of numbers; no real value is larger."""


class ShapeError(BiremeError):
    """A plain value does not have the shape that was expected."""


def build(cls: type[V], plain: object) -> V:
    """Build a value from the plain form that `Value.as_dict` returns.

    Args:
        plain: the parsed JSON, with lists for tuples.

    Raises:
        ShapeError: a field is missing, unknown or of the wrong type.
    """
    if not isinstance(plain, dict):
        raise ShapeError(f"{cls.__name__} is {_kind(plain)}, expected an object")
    checks, optional = _fields(cls)
    for name in plain:
        if name not in checks:
            raise ShapeError(f"{cls.__name__} has no field {str(name)[:40]!r}")
    values = {}
    for name, check in checks.items():
        if name in plain:
            try:
                values[name] = check(plain[name])
            except ShapeError as error:
                raise ShapeError(f"{cls.__name__}.{name}: {error}") from None
        elif name not in optional:
            raise ShapeError(f"{cls.__name__} lacks the field {name!r}")
    return cls(**values)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _fields(cls: type[Value]) -> tuple[Mapping[str, Check], frozenset[str]]:
    """The check of each field, and the fields with a default."""
    if cls in _KNOWN:
        return _KNOWN[cls]
    annotations: dict[str, tuple[str, dict[str, Any]]] = {}
    for base in reversed(cls.__mro__):
        scope = vars(sys.modules[base.__module__])
        for name, text in getattr(base, "__annotations__", {}).items():
            annotations[name] = text, scope
    checks = {name: check_of(*annotations[name]) for name in cls._fields}
    _KNOWN[cls] = checks, frozenset(name for name in cls._fields if hasattr(cls, name))
    return _KNOWN[cls]


def check_of(text: str, scope: dict[str, Any]) -> Check:
    """The check for an annotation, which returns the value; ``scope``: the names of the module that contains it.

    A check raises `ShapeError`. Where the annotation is a class of values, it builds one from its plain form.
    """
    if text.endswith(" | None"):
        inner = check_of(text.removesuffix(" | None"), scope)
        return lambda value: None if value is None else inner(value)
    if text.startswith("tuple[") and text.endswith(", ...]"):
        inner = check_of(text[len("tuple[") : -len(", ...]")], scope)
        return _checked(
            lambda value: isinstance(value, (list, tuple)), "a list", lambda value: tuple(map(inner, value))
        )
    if text in _SIMPLE:
        return _SIMPLE[text]
    found = scope.get(text)
    if isinstance(found, type) and issubclass(found, Value):
        return lambda value: build(found, value)
    choices = scope.get("CHOICES", {}).get(text)
    if choices is None:
        raise TypeError(f"no check is known for the annotation {text!r}")
    return _one_of(choices)


def _one_of(choices: tuple[str, ...]) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise ShapeError(f"expected one of {', '.join(choices)}")
        return value

    return check


def _checked(is_right: Callable[[Any], bool], expected: str, convert: Check = lambda value: value) -> Check:
    def check(value: Any) -> Any:
        if not is_right(value):
            raise ShapeError(f"{_kind(value)}, expected {expected}")
        return convert(value)

    return check


_text = _checked(lambda value: isinstance(value, str), "a string")
_SIMPLE: Mapping[str, Check] = {
    "str": _text,
    "bool": _checked(lambda value: isinstance(value, bool), "a boolean"),
    "int": _checked(lambda value: type(value) is int and -_MOST < value < _MOST, "a whole number"),
    "float": _checked(lambda value: type(value) in (int, float) and -_MOST < value < _MOST, "a finite number", float),
    "Mapping[str, str]": _checked(
        lambda value: isinstance(value, dict),
        "an object",
        lambda value: {_text(name): _text(word) for name, word in value.items()},
    ),
}
