"""Hides likely secrets in what is shown of a study: `bireme.planning.masking` decides what is one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from bireme.logs.console import printable
from bireme.planning.masking import MASK, is_secret, masked_words
from bireme.value import Value

_SHORTEST = 4
"""Characters of a value that is hidden wherever it stands: a shorter one would be found in innocent words too."""
_BLANKS = re.compile(r"(\s+)")


class Secrets(Value):
    """The names and values to hide."""

    names: frozenset[str]
    values: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str], parameters: Mapping[str, Iterable[object]]) -> Secrets:
        """Those of command lines, and of parameters with their values."""
        values = {_hidden(word, masked) for word, masked in zip(words, masked_words(words), strict=True)}
        names = frozenset(name for name in parameters if is_secret(name))
        values |= {str(value) for name in names for value in parameters[name]}
        return cls(names, tuple(sorted((each for each in values if len(each) >= _SHORTEST), key=len, reverse=True)))

    def value(self, parameter: str, value: object) -> object:
        """A parameter's value."""
        if parameter in self.names:
            return MASK
        return self.text(value) if isinstance(value, str) else value

    def point(self, point: Mapping[str, object]) -> dict[str, object]:
        """A configuration."""
        return {name: self.value(name, value) for name, value in point.items()}

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line."""
        return masked_words(words)

    def text(self, text: str) -> str:
        """A text of one line or several, printable."""
        for value in self.values:
            text = text.replace(value, MASK)
        return "\n".join(self.line(line) for line in text.split("\n"))

    def line(self, line: str) -> str:
        """A line of a log, printable."""
        for value in self.values:
            line = line.replace(value, MASK)
        pieces = _BLANKS.split(printable(line))
        pieces[::2] = masked_words(pieces[::2])
        return "".join(pieces)


def _hidden(word: str, masked: str) -> str:
    """The part of a word that its masked form hides."""
    if word == masked:
        return ""
    before, _, after = masked.partition(MASK)
    return word.removeprefix(before).removesuffix(after.replace(MASK, ""))
