"""Reads a study file (``tune.toml``), which says the same as a command line of ``bireme tune``.

``docs/study-file.md`` has the keys. Every mistake in a file is reported with its line.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from bireme.errors import BadInputError
from bireme.options.option import Option
from bireme.options.table import select
from bireme.resources.hostfile import read_text
from bireme.tune import requirements
from bireme.tune.define.declarations import Binding, Declaration, Located, ParameterSpec, assemble, choice, nearest
from bireme.tune.metrics import metric as figures
from bireme.tune.space import value_lists
from bireme.tune.space.parameter import Parameter, among
from bireme.value import Value

EXAMPLE = "tune.toml"
"""The file that ``bireme tune --init`` writes."""
_OPTIONS = {"maximize": "maximize", "minimize": "minimize", "limits": "limit"}
_OPTIONS |= {
    name: name
    for name in ("trials", "confidence", "effect", "budget", "confirm", "pruner", "seed", "search", "results_dir")
}
_OPTIONS |= {"warm_start": "warm_start"}
"""Keys that are options of the command line, and their names there."""
_KEYS = ("command", *_OPTIONS, "constraints", "conditions", "launch", "parameters")
_PARAMETER = ("values", "default", "ordered", "memory", "only_if", "flag", "env", "file", "key")
_NOT_LAUNCH = {"help", "help_all", "autotuning", *_OPTIONS.values()}
_NOT_LAUNCH |= {"param", "env", "in", "when", "constraint", "default", "init", "ask_tell"}


class StudyFile(Value):
    """What a study file says.

    Attributes:
        command: the program and its arguments.
        options: of the command line, such as ``--trials=40``, each with its line.
        command_where: the line of the command.
    """

    path: str
    command: tuple[str, ...]
    command_where: str
    declaration: Declaration
    options: tuple[Located, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The options as the words of a command line."""
        return tuple(each.text for each in self.options)

    def without(self, *, goals: bool, limits: Sequence[str]) -> StudyFile:
        """The file without its goals, and without its limits on the figures of other limits."""
        replaced = set(map(_limited, limits))

        def kept(word: str) -> bool:
            name, _, text = word.partition("=")
            return not (goals and name in ("--maximize", "--minimize")) and not (
                name == "--limit" and _limited(text) in replaced
            )

        return self.replace(options=tuple(each for each in self.options if kept(each.text)))

    def located(self, error: BadInputError, typed: Sequence[str] = ()) -> BadInputError:
        """An error with its line: about an option that the file has and the command line has not, or the program.

        Args:
            error: as it was raised; ``where`` begins with the option, and is empty if the program is meant.
            typed: the words of the command line.
        """
        if not error.where and self.command[0] in error.what:
            return BadInputError(error.what, hint=error.hint, where=self.command_where)
        wrong = _option_of(error.where.partition(" ")[0])
        if wrong not in map(_option_of, typed):
            for each in self.options:
                if _option_of(each.text) == wrong:
                    return BadInputError(error.what, hint=error.hint, where=f"{each.where}: {wrong}")
        return error


def _option_of(word: str) -> str:
    return word.partition("=")[0].replace("-", "_").replace("__", "--", 1)


def _limited(text: str) -> str:
    """The name of the figure of a limit."""
    return figures.parse([("minimize", "time")], [text]).limits[0].name


def write_example(path: str = EXAMPLE) -> None:
    """Write an example of a study file, with all keys explained."""
    text = read_text(os.path.join(os.path.dirname(__file__), EXAMPLE))
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInputError("already exists", hint="remove it, or use it: bireme tune " + path, where=path) from None
    except OSError as error:
        raise BadInputError(f"cannot be written: {error.strerror}", where=path) from None


def read_study(path: str) -> StudyFile:
    """Read a study file."""
    return _Reader(_read_toml(path)).study()


class _Reader:
    """Reads the parts of one file."""

    def __init__(self, file: TomlFile) -> None:
        self._file, self._data, self._where = file, file.data, file.where

    def study(self) -> StudyFile:
        self._refuse_unknown(self._data, _KEYS)
        command = self._command()
        options = self._options()
        self._check_goals([each for each in options if each.text.startswith(("--maximize=", "--minimize="))])
        return StudyFile(
            path=self._file.path,
            command=command,
            command_where=self._where("command"),
            declaration=self._declaration(command),
            options=tuple(options),
        )

    def _refuse_unknown(self, table: Mapping[str, object], known: Sequence[str], *above: str) -> None:
        for key in table:
            if key not in known:
                raise BadInputError(f"unknown key: {key!r}", hint=nearest(key, known), where=self._where(*above, key))

    def _refuse(self, what: str, hint: str, *keys: str) -> BadInputError:
        return BadInputError(what, hint=hint, where=self._where(*keys))

    def _texts(self, *keys: str) -> list[Located]:
        """The texts of a key that has one text or a list of them."""
        value: object = self._data
        for key in keys:
            value = value.get(key, []) if isinstance(value, Mapping) else []
        given = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str) for each in given):
            raise self._refuse(f"{keys[-1]!r} must be a string or a list of strings", "put each in quotes", *keys)
        return [Located(each, self._where(*keys, str(index))) for index, each in enumerate(given)]

    def _command(self) -> tuple[str, ...]:
        such = 'write it like: command = "train.py --batch {batch}"'
        if "command" not in self._data:
            raise self._refuse("no command", such)
        given = self._data["command"]
        try:
            words = shlex.split(given) if isinstance(given, str) else [each.text for each in self._texts("command")]
        except BadInputError:
            raise
        except ValueError as error:
            what = "a quote of the command is not closed" if "quotation" in str(error) else f"the command: {error}"
            listed = 'close it, or write a list: command = ["train.py", "--batch", "{batch}"]'
            raise self._refuse(what, listed, "command") from None
        if not words or not words[0]:
            raise self._refuse("the command is empty", such, "command")
        if words[0].startswith("-"):
            hint = "begin with the program; options of the launcher belong to [launch]"
            raise self._refuse(f"the command begins with an option: {words[0]}", hint, "command")
        return tuple(words)

    # -- options -------------------------------------------------------------------------------------

    def _options(self) -> list[Located]:
        """The words of all options; what they may be, the command line decides, but for goals and limits."""
        known = {each.dest: each for group in select("tune").values() for each in group}
        found = [word for key, dest in _OPTIONS.items() if key in self._data for word in self._words(known[dest], key)]
        for each in found:
            self._check_metric(each)
        launch = {name: option for name, option in known.items() if name not in _NOT_LAUNCH}
        for key in self._table("launch"):
            option = launch.get(key.replace("-", "_"))
            if option is None:
                raise self._refuse(f"unknown option: {key!r}", nearest(key, launch), "launch", key)
            found += self._words(option, "launch", key)
        return found

    def _words(self, option: Option, *keys: str) -> list[Located]:
        """The words of one option, each with its line."""
        value, key = (self._table("launch") if len(keys) > 1 else self._data)[keys[-1]], keys[-1]
        if option.kind == "flag":
            if not isinstance(value, bool):
                raise self._refuse(f"{key!r} must be true or false, not {_shown(value)}", f"write {key} = true", *keys)
            return [Located(option.name, self._where(*keys))] if value else []
        if option.kind == "list":
            return [Located(f"{option.name}={each.text}", each.where) for each in self._texts(*keys)]
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            what = f"{key!r} must be a string or a number, not {_shown(value)}"
            raise self._refuse(what, f'write {key} = "…"', *keys)
        return [Located(f"{option.name}={value}", self._where(*keys))]

    def _check_metric(self, word: Located) -> None:
        name, _, text = word.text.partition("=")
        try:
            if name == "--limit":
                figures.parse([("minimize", "time")], [text])
            elif name in ("--maximize", "--minimize"):
                figures.parse([("maximize", text)])
        except BadInputError as error:
            raise BadInputError(error.what, hint=error.hint, where=word.where) from None

    def _check_goals(self, goals: Sequence[Located]) -> None:
        if not 1 <= len(goals) <= 2:
            what = f"{len(goals)} goals, but at most two are allowed" if goals else "no goal"
            where = goals[2].where if goals else self._where()
            raise BadInputError(what, hint="write one like: maximize = 'samples/s: {}'", where=where)

    def _table(self, key: str) -> Mapping[str, object]:
        table = self._data.get(key, {})
        if not isinstance(table, Mapping):
            raise self._refuse(f"{key!r} is not a table", f"write [{key}] on a line of its own", key)
        return table

    # -- what varies ---------------------------------------------------------------------------------

    def _declaration(self, command: Sequence[str]) -> Declaration:
        table = self._table("parameters")
        if not table:
            hint = 'write [parameters], and in it lines like: batch = "8,16,32"'
            raise self._refuse("no parameters: nothing varies", hint, "parameters")
        declared, conditions = [], self._texts("conditions")
        for name, given in table.items():
            one = given if isinstance(given, Mapping) else {"values": given}
            self._refuse_unknown(one, _PARAMETER, "parameters", name)
            declared.append(self._parameter(name, one))
            for each in self._texts("parameters", name, "only_if") if "only_if" in one else ():
                conditions.append(Located(f"{name} only if {each.text}", each.where))
        return assemble(
            declared,
            conditions=conditions,
            constraints=self._texts("constraints"),
            args=command[1:],
            suggest=_as_defaults,
            where=self._where("parameters"),
            args_where=self._where("command"),
        )

    def _parameter(self, name: str, table: Mapping[str, object]) -> ParameterSpec:
        place = ("parameters", name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self._refuse(f"not a name: {name!r}", "use letters, digits and '_'", *place)
        binding = self._binding(name, table)
        parameter = self._values(name, table, binding)
        for key in ("ordered", "memory"):
            if key in table:
                if not isinstance(table[key], bool):
                    raise self._refuse(
                        f"{key!r} must be true or false, not {_shown(table[key])}", f"{key} = true", *place, key
                    )
                parameter = parameter.replace(**{key: table[key]})
        if "default" in table:
            parameter = parameter.replace(default=self._default(parameter, table["default"]))
        return ParameterSpec(parameter, binding, self._where(*place))

    def _values(self, name: str, table: Mapping[str, object], binding: Binding) -> Parameter:
        place, values = ("parameters", name, "values"), table.get("values")
        if isinstance(values, str):
            return value_lists.read(name, values, where=self._where(*place), in_file=binding.how == "file")
        if not isinstance(values, list):
            hint = 'write a list, values = [8, 16], or a string, values = "8..512:log2"'
            raise self._refuse(f"no values for {name!r}", hint, *place)
        for value in values:
            plain = isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
            if not plain and (binding.how != "file" or not isinstance(value, (list, dict))):
                raise self._refuse(f"not a value for {name!r}: {_shown(value)}", "use strings and numbers", *place)
        parameter = Parameter(name=name, choices=tuple(values))
        try:
            parameter.check()
        except BadInputError as error:
            raise BadInputError(error.what, hint=error.hint, where=self._where(*place)) from None
        return parameter

    def _default(self, parameter: Parameter, value: object) -> object:
        if among(value, parameter.choices):
            return parameter.choice(value)
        text = value if isinstance(value, str) else _shown(value)
        return choice(parameter, text, self._where("parameters", parameter.name, "default"))

    def _binding(self, name: str, table: Mapping[str, object]) -> Binding:
        place = ("parameters", name)
        given = [key for key in ("flag", "env", "file") if key in table]
        for key in (*given, *(["key"] if "key" in table else [])):
            value = table[key]
            if not isinstance(value, str) or not re.fullmatch(_FORMS[key], value):
                raise self._refuse(f"not a {_NAMES[key]}: {_shown(value)}", _SUCH[key], *place, key)
        if len(given) > 1:
            hint = "keep one; without either, the value replaces {" + name + "} in the command"
            raise self._refuse(f"both {given[0]!r} and {given[1]!r} for {name!r}", hint, *place, given[1])
        if ("key" in table) != ("file" in table):
            missing, there = ("key", "file") if "file" in table else ("file", "key")
            raise self._refuse(f"{there!r} without {missing!r} for {name!r}", _SUCH[missing], *place, there)
        if not given:
            return Binding(name, "argument")
        if given[0] == "file":
            return Binding(name, "file", str(table["file"]), str(table["key"]))
        return Binding(name, "flag" if given[0] == "flag" else "environment", str(table[given[0]]))


_FORMS = {
    "flag": r"--?[A-Za-z][A-Za-z0-9_.-]*",
    "env": r"[A-Za-z_][A-Za-z0-9_]*",
    "file": r"(?s).+",
    "key": r"[^.\s]+(\.[^.\s]+)*",
}
_NAMES = {"flag": "flag", "env": "variable", "file": "file", "key": "key of a file"}
_SUCH = {
    "flag": 'write it like: flag = "--batch"',
    "env": 'write it like: env = "OMP_NUM_THREADS"',
    "file": 'write it like: file = "config.yaml"',
    "key": 'write it like: key = "training.batch"',
}


def _shown(value: object) -> str:
    """A value as TOML has it, more or less."""
    return json.dumps(value, default=str, ensure_ascii=False)


def _as_defaults(point: Mapping[str, str]) -> str:
    return ", ".join(f"default = {_written(text)} in [parameters.{name}]" for name, text in point.items())


def _written(text: str) -> str:
    value = value_lists.value_of(text)
    return _shown(text) if isinstance(value, str) else text


# -- the lines of keys -------------------------------------------------------------------------------

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_KEY})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*|[\[\]{}\n]''' r"|'''.*?'''|'[^'\n]*'", re.DOTALL
)


class TomlFile(Value):
    """A file. ``lines``: the line of each key by its path; texts in a list count as keys ``0``, ``1``, …"""

    path: str
    data: Mapping[str, object]
    lines: Mapping[tuple[str, ...], int]

    def where(self, *keys: str) -> str:
        """``file:line`` of this key, or of the nearest enclosing one whose line is known."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines.get(keys, 1)}"


def _read_toml(path: str) -> TomlFile:
    """Read a file; the library does not keep the lines of keys, so these are looked for again."""
    text = read_text(path).replace("\r\n", "\n")
    requirements.check("a study file", "tomlkit", where=path)
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        data = tomlkit.parse(text).unwrap()
    except (TOMLKitError, RecursionError) as error:
        line = getattr(error, "line", None) or _first_line(text, type(error))
        said = re.sub(r" at line \d+ col \d+$", "", str(error)).rstrip(".")
        what = f"invalid TOML: {said[:1].lower()}{said[1:]}"
        raise BadInputError(what, where=f"{path}:{line}") from None
    return TomlFile(path, data, key_lines(text))


def _first_line(text: str, kind: type[Exception]) -> int:
    """The line up to which the text must be read for this error, for errors that do not name one."""
    import tomlkit

    lines = text.split("\n")

    def fails(count: int) -> bool:
        try:
            tomlkit.parse("\n".join(lines[:count]))
        except Exception as error:  # of another kind, because the text is cut off
            return type(error) is kind
        return False

    return bisect_left(range(len(lines)), True, key=fails)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key in a text that is valid TOML."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        if header := _HEADER.match(text, at):
            table = _parts(header[1])
            _note(lines, table, line)
            at = header.end()
        elif entry := _ENTRY.match(text, at):
            keys = (*table, *_parts(entry[1]))
            _note(lines, keys, line)
            at = _after_value(text, entry.end(), keys, lines)
            continue
        at = text.find("\n", at) + 1 or len(text)
    return lines


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def _note(lines: dict[tuple[str, ...], int], keys: tuple[str, ...], line: int) -> None:
    for length in range(1, len(keys) + 1):
        lines.setdefault(keys[:length], line)


def _after_value(text: str, at: int, keys: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> int:
    """Where the line after a value begins. Notes the lines of texts in a list."""
    depth = count = 0
    for token in _TOKEN.finditer(text, at):
        word = token[0]
        if word in "[{":
            depth += 1
        elif word in "]}":
            depth -= 1
        elif word == "\n" and depth == 0:
            return token.end()
        elif word[0] in "\"'" and depth == 1:
            element = (*keys, str(count))
            lines[element] = text.count("\n", 0, token.start()) + 1
            count += 1
    return len(text)
