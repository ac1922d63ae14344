"""The class of a row in the table of options: an option's names, help, type, bounds and commands."""

from __future__ import annotations

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
