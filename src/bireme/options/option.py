"""A row of the table of options (names, help, kind, bounds, commands), and how values are read: ``500M``, ``1h30m``."""

from __future__ import annotations

import os

from bireme.errors import BadInputError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["flag", "word", "count", "range", "slots", "seconds", "size", "choice", "list"]
    Groups: TypeAlias = dict[str, tuple["Option", ...]]


RANKS = ("run", "tune", "agent")
"""The commands that have options about ranks."""
NODES = ("run", "tune", "check")
"""The commands that have options about nodes."""
EVERYWHERE = (*NODES, "agent")


class Option(Value):
    """One option of the command line.

    Attributes:
        kind: ``flag`` takes no value; ``word`` any text; ``count`` an integer; ``range`` an integer, or a tuple of two
            from ``MIN:MAX``; ``slots`` an integer, or ``cpu``; ``seconds`` a duration such as 1h30m; ``size`` a
            number of bytes such as 500M; ``choice`` one of ``choices``; ``list`` words, one each time it is given.
        spelling: all names, first the long one that is the key of the value, then what the help page calls the value:
            ``--module -m``, ``--hosts HOSTS``. ``_`` and ``-`` mean the same in a name.
        default: the value if the option is not given. For a flag it is ``False``, for a list ``()``.
        field: the field of `JobSpec` that gets the value, if it has another name than the option.
        sets: the value of that field if this flag is given.
        bare: the value if the option is given without one; then a value can only follow ``=``. "": it needs one.
        unset: values that mean the same as leaving the option out, mostly because they are DeepSpeed's defaults.
        least, most: bounds of a number; ``None``: none.
        zero: why a number of seconds cannot be 0; "": it can.
        needless: why this option of another launcher is not needed; "": it has an effect.
        to_torchrun: whether PyTorch's agent gets the option if that agent starts the ranks.
        common: whether the short help page has the option.
        shared: whether ``bireme tune`` passes the option on to every experiment.
    """

    kind: Kind
    spelling: str
    help: str
    commands: tuple[str, ...] = ("run", "tune")
    default: Any = None
    choices: tuple[str, ...] = ()
    field: str = ""
    sets: Any = True
    bare: str = ""
    unset: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None
    zero: str = ""
    needless: str = ""
    to_torchrun: bool = False
    common: bool = False
    shared: bool = True

    @property
    def dest(self) -> str:
        """The option's key in the result."""
        return self.name[2:]

    @property
    def name(self) -> str:
        """The first long name."""
        return self.spelling.partition(" ")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(word for word in self.spelling.split() if word[0] == "-")

    @property
    def placeholder(self) -> str:
        """What the help page calls the value; "": it takes none."""
        return "" if self.kind == "flag" else self.spelling.rpartition(" ")[2]

    @property
    def usage(self) -> str:
        """What follows the option's name on the help page; "": nothing."""
        return f"[={self.placeholder}]" if self.bare else f" {self.placeholder}" if self.placeholder else ""

    @property
    def takes_next(self) -> bool:
        """Whether the next word of a command line is the option's value, if none is attached."""
        return self.kind != "flag" and not self.bare

    @property
    def may_be_empty(self) -> bool:
        """Whether an empty value is allowed. It means the same as leaving the option out."""
        return self.kind == "word" and self.default == ""

    @property
    def absent(self) -> Any:
        """The value if the option is not given."""
        return False if self.kind == "flag" else () if self.kind == "list" else self.default

    def bounded(self, name: str, number: Any) -> Any:
        """The number, if it is within the option's bounds."""
        if number == 0 and self.zero:
            raise BadInputError(f"0 {self.zero}", hint="give a number of seconds above 0", where=name)
        least, most = 0 if self.kind == "seconds" and self.least is None else self.least, self.most
        if (least is None or number >= least) and (most is None or number <= most):
            return number
        expected = f"at least {least:g}" if most is None else f"between {least:g} and {most:g}"
        raise BadInputError(f"must be {expected}, not {number:g}", where=name)


_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def whole(text: str, where: str) -> int:
    """Read a whole number of fewer than ten digits; ``where`` is the option, for the error."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise BadInputError(f"{text[:40]!r} is not a whole number", hint=missing_value(text, where), where=where)
    if len(digits) >= 10:
        shown = text if len(text) <= 40 else f"{text[:12]}… ({len(digits)} digits)"
        raise BadInputError(f"{shown} is too large", hint="expected fewer than 10 digits", where=where)
    return int(text)


def missing_value(text: str, where: str, placeholder: str = "N") -> str:
    """The hint for a script in the place of a value, which was left out; "" for any other text."""
    is_script = text.endswith(".py") or (os.sep in text and os.path.isfile(text))
    return f"the value is missing: {where} {placeholder} {text}" if is_script else ""


def bytes_of(text: str, where: str) -> int:
    """Read a number of bytes: ``500M``, ``2GiB``, ``1000000``."""
    digits = text.upper().removesuffix("B").removesuffix("I")
    factor = _BYTES.get(digits[-1:], 1)
    digits = digits[:-1] if factor > 1 else digits
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16 and int(digits)):
        raise BadInputError(f"{text[:40]!r} is not a size", hint="expected e.g. 500M or 2G", where=where)
    return int(digits) * factor


def seconds_of(text: str, where: str) -> float:
    """Seconds from a duration, which may be 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _with_units(text)
    if not 0 <= seconds < float("inf"):
        raise BadInputError(f"{text[:40]!r} is not a duration (e.g. 90s, 30m or 2h)", where=where)
    return seconds


def _with_units(text: str) -> float:
    """Seconds from numbers with units; -1: it is something else."""
    import re  # takes milliseconds, which a plain number does not need

    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", text.lower())
    if not parts or not whole or any(unit not in _SECONDS for _, unit in parts):
        return -1.0
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
