"""``bireme help --man``: the manual page, in roff, made from the help pages and the table of options."""

from __future__ import annotations

import bireme
from bireme.options.table import COMMANDS, SUBCOMMANDS, select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bireme.options.option import Groups, Option


def man_page(heads: Mapping[str, str]) -> str:
    """The whole page; ``heads``: the text before the options on the help page of each command."""
    return "\n".join(_lines(heads)) + "\n"


def _lines(heads: Mapping[str, str]) -> Iterator[str]:
    yield f'.TH BIREME 1 "" "bireme {bireme.__version__}" "User Commands"'
    yield ".SH NAME"
    yield "bireme \\- launch distributed jobs, and find the configuration in which they run fastest"
    yield ".SH SYNOPSIS"
    for command in (*COMMANDS, *SUBCOMMANDS):
        usage = heads[command].partition("\n")[0].removeprefix("usage: ")
        yield f".B {_text(usage)}"
        yield ".br"
    yield ".SH COMMANDS"
    for command in (*COMMANDS, *SUBCOMMANDS):
        yield f".SS bireme {command}"
        yield from _body(heads[command])
    yield ".SH OPTIONS"
    yield "Each option names the commands that have it. In names, _ and \\- mean the same."
    seen: Groups = {}
    for command in (*COMMANDS, *SUBCOMMANDS):
        for title, options in select(command).items():
            seen[title] = (*seen.get(title, ()), *(option for option in options if option not in seen.get(title, ())))
    for title, options in seen.items():
        yield f".SS {title}"
        for option in options:
            yield from _entry(option)
    yield ".SH EXIT STATUS"
    yield "That of the first rank that failed, or 128 + n if signal n ended it; 0 if none failed."
    yield "2: bad input, and nothing was started; 69: a node is unfit; 74: files were not fetched; 75: a node was lost;"
    yield "76: too few nodes; 124: time limit; 125: Bireme itself failed."


def _body(head: str) -> Iterator[str]:
    """The text of a help page: paragraphs as they are, examples unfilled."""
    yield ".nf"
    yield from map(_text, head.partition("\n\n")[2].rstrip().splitlines())
    yield ".fi"


def _entry(option: Option) -> Iterator[str]:
    commands = ", ".join(command for command in option.commands if command != "agent")
    choices = f" One of {', '.join(option.choices)}." if option.choices else ""
    yield ".TP"
    yield ".B " + _text(", ".join(option.names) + option.usage)
    yield _text(f"{option.help[0].upper()}{option.help[1:]}.{choices} ({commands})")


def _text(text: str) -> str:
    """The text with what roff would interpret escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    escaped = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
