"""The base class of immutable values, like frozen dataclasses but cheap to import.

Importing ``dataclasses`` and ``typing`` would take a large part of the time between the command and the first worker
(``docs/architecture.md`` has the costs). Type checkers treat this base class like a dataclass (:pep:`681`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_):
        """At run time, the decorator does nothing."""
        return lambda cls: cls


class _Signature:
    """The signature of a class of values, for ``help()`` and editors; made when somebody asks."""

    def __get__(self, _: object, cls: type[Value]) -> object:
        from inspect import Parameter, Signature

        hints = {
            name: hint for base in reversed(cls.__mro__) for name, hint in vars(base).get("__annotations__", {}).items()
        }
        return Signature(
            [
                Parameter(
                    name=name,
                    kind=Parameter.POSITIONAL_OR_KEYWORD,
                    default=getattr(cls, name, Parameter.empty),
                    annotation=hints.get(name, Parameter.empty),
                )
                for name in cls._fields
            ]
        )


@dataclass_transform(frozen_default=True, kw_only_default=False)
class Value:
    """Base of frozen values: annotated names are the fields, in order, with optional defaults.

    Fields are given by position or by name. Instances share the defaults, so these must be immutable.

    Raises:
        TypeError: a field is missing, unknown or given twice.
        AttributeError: a field is changed.
    """

    _fields: tuple[str, ...] = ()
    _names: frozenset[str] = frozenset()
    _required: frozenset[str] = frozenset()
    __signature__ = _Signature()

    def __init_subclass__(cls) -> None:
        own = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        cls._fields = (*cls._fields, *(name for name in own if name not in cls._fields))
        cls._names = frozenset(cls._fields)
        cls._required = frozenset(name for name in cls._fields if not hasattr(cls, name))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls, values = type(self), self.__dict__
        if len(args) > len(cls._fields):
            raise TypeError(
                f"{cls.__name__}() takes {len(cls._fields)} positional arguments but {len(args)} were given"
            )
        for name in cls._fields[: len(args)] if kwargs else ():
            if name in kwargs:
                raise TypeError(f"{cls.__name__}() got multiple values for argument {name!r}")
        values.update(zip(cls._fields, args, strict=False))
        values.update(kwargs)
        if not cls._required <= values.keys() <= cls._names:
            raise TypeError(_wrong_fields(cls, values))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: make another with .replace({name}=...)")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        mine, yours = self.__dict__, other.__dict__
        if mine.keys() == yours.keys():
            return mine == yours
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self._fields)))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({inside})"

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**{**{name: getattr(self, name) for name in self._fields}, **changes})

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, in order, for JSON; nested values become dicts too, and tuples lists."""
        return {name: _plain(getattr(self, name)) for name in self._fields}


def _wrong_fields(cls: type[Value], values: dict[str, Any]) -> str:
    """The message about a field that is unknown or missing."""
    for name in values:
        if name not in cls._fields:
            from bireme.errors import similar  # only for a mistake

            near = similar(name, cls._fields)
            meant = f". Did you mean {near!r}?" if near else ""
            return f"{cls.__name__}() got an unexpected keyword argument {name!r}{meant}"
    missing = next(name for name in cls._fields if name in cls._required and name not in values)
    return f"{cls.__name__}() missing a required argument: {missing!r}"


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value
