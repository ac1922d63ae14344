"""Delivers the values of a point to the program: in its arguments, in its environment, or in files that it reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from bireme import jsontext
from bireme.errors import BadInputError
from bireme.resources.hostfile import read_text
from bireme.tune.define.declarations import TRIAL, Declaration, fill
from bireme.tune.space.points import Point
from bireme.tune.store.resume import digest
from bireme.value import Value

OUTCOME = "outcome.json"


class Delivered(Value):
    """What one trial gets.

    Attributes:
        exports: environment variables, ``NAME=VALUE``.
        files: the content of files, by their paths in the trial's folder.
    """

    args: tuple[str, ...]
    exports: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


class Courier:
    """Knows how each parameter reaches the program.

    Args:
        args: the program's arguments, with ``{name}`` where a value belongs.
    """

    def __init__(self, declaration: Declaration, args: Sequence[str]) -> None:
        self._declaration, self._args = declaration, tuple(args)
        in_files = [each for each in declaration.bindings if each.how == "file"]
        self._documents = {each.where: _Document(each.where) for each in in_files}
        self._copies = _copies(self._documents)
        choices = {each.name: each.choices for each in declaration.space.parameters}
        varied: list[tuple[str, list[str]]] = []
        for each in in_files:
            self._documents[each.where].check(each.key, choices[each.parameter])
            self._must_be_named(each.where)
            way = each.key.split(".")
            for where, other in varied:
                if where == each.where and way[: len(other)] == other[: len(way)]:
                    what = f"{'.'.join(other)!r} and {each.key!r} cannot both vary: one is a part of the other"
                    raise BadInputError(what, hint="keep one of the two", where=where)
            varied.append((each.where, way))

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file in which keys vary, by its path."""
        return {path: document.digest for path, document in self._documents.items()}

    def _must_be_named(self, path: str) -> None:
        if not any(_names(word, path) for word in self._args):
            raise BadInputError(
                f"nothing in the program's arguments names {path}, so a trial cannot get a copy of its own",
                hint=f"let the program read it from an argument, such as --config {path}",
                where="--in",
            )

    def deliver(self, point: Point, folder: str, name: str) -> Delivered:
        """What a trial gets.

        Args:
            point: its values; a parameter that it lacks is not delivered.
            folder: where the files will be.
            name: the trial's name, for ``{trial}`` in the arguments.
        """
        texts = self._declaration.texts(point)
        present = [each for each in self._declaration.bindings if each.parameter in point]
        absent = [each.parameter for each in self._declaration.bindings if each.parameter not in point]
        args = list(fill(self._args, {**texts, TRIAL: name}, absent))
        for each in present:
            if each.how == "flag":
                args += [each.where, texts[each.parameter]]
        exports = [f"{each.where}={texts[each.parameter]}" for each in present if each.how == "environment"]
        files = {}
        for path, document in self._documents.items():
            file = self._copies[path]
            values = {each.key: point[each.parameter] for each in present if each.how == "file" and each.where == path}
            files[file] = document.changed(values)
            args = [_renamed(word, path, os.path.join(folder, file)) for word in args]
        return Delivered(args=tuple(args), exports=tuple(exports), files=files)


def _copies(paths: Iterable[str]) -> dict[str, str]:
    """The path of each file's copy in a trial's folder: its name, in a folder of its own if that name is taken."""
    copies: dict[str, str] = {}
    taken = {OUTCOME}
    for number, path in enumerate(paths, 1):
        name = os.path.basename(path)
        copies[path] = name if name.lower() not in taken else os.path.join(str(number), name)
        taken.add(name.lower())
    return copies


def _names(word: str, path: str) -> bool:
    return word == path or word.endswith(f"={path}")


def _renamed(word: str, path: str, to: str) -> str:
    return word[: len(word) - len(path)] + to if _names(word, path) else word


class _Document:
    """A JSON, YAML, TOML or HJSON file in which some keys vary."""

    def __init__(self, path: str) -> None:
        self._path, self._ending = path, os.path.splitext(path)[1].lower()
        self._text = read_text(path).replace("\r\n", "\n")
        if self._ending not in _FORMATS:
            raise BadInputError(f"is not a file that --in can change ({', '.join(_FORMATS)})", where=path)
        self._load, self._write, module, package = _FORMATS[self._ending]
        if module and find_spec(module) is None:
            raise BadInputError(f"changing it needs {package}", hint=f"install it: pip install {package}", where=path)
        self._read()

    @property
    def digest(self) -> str:
        """Another one if the file is another."""
        return digest(self._text.encode())

    def _read(self) -> Any:
        try:
            return self._load(self._text)
        except Exception as error:  # each library has errors of its own
            raise BadInputError(f"cannot be read: {' '.join(str(error).split())[:200]}", where=self._path) from None

    def check(self, key: str, choices: Sequence[object]) -> None:
        """Check that there is a key, and that the format has these values."""
        self._place(self._read(), key)
        if self._ending == ".toml" and isinstance(choices, tuple) and None in choices:
            raise BadInputError(f"TOML has no null for {key!r}", hint="leave that value out", where=self._path)

    def changed(self, values: Mapping[str, object]) -> str:
        """The text with other values of these keys (``a.b.0``)."""
        data = self._read()
        for key, value in values.items():
            table, last = self._place(data, key)
            table[last] = value
        return self._write(data)

    def _place(self, data: Any, key: str) -> tuple[Any, Any]:
        """The table or list that has a key, and the key in it."""
        *way, last = key.split(".")
        for step in way:
            data = data[self._step(data, step, key)]
        return data, self._step(data, last, key)

    def _step(self, data: Any, step: str, key: str) -> Any:
        known = f"a list of {len(data)}" if isinstance(data, list) else "a value"
        if isinstance(data, Mapping):
            for name in data:
                if str(name) == step:  # YAML has numbers as keys too
                    return name
            known = ", ".join(map(str, data))
        if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
            return int(step)
        raise BadInputError(f"there is no {step!r} in {key!r} (found: {known})", where=self._path)


def _load_hjson(text: str) -> Any:
    import hjson

    return hjson.loads(text)


def _write_json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"


def _load_yaml(text: str) -> Any:
    import yaml

    return _unshared(yaml.safe_load(text))


def _unshared(data: Any) -> Any:
    """A copy in which each alias of YAML has data of its own, so that a change of one does not change the others."""
    if isinstance(data, dict):
        return {key: _unshared(value) for key, value in data.items()}
    return [_unshared(value) for value in data] if isinstance(data, list) else data


def _write_yaml(data: Any) -> str:
    """As YAML; the order of keys stays, comments do not."""
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _load_toml(text: str) -> Any:
    import tomlkit

    return tomlkit.parse(text)


def _write_toml(data: Any) -> str:
    """As TOML, with its comments."""
    import tomlkit

    return tomlkit.dumps(data)


_FORMATS: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str], str, str]] = {
    ".json": (jsontext.loads, _write_json, "", ""),
    ".yaml": (_load_yaml, _write_yaml, "yaml", "PyYAML"),
    ".yml": (_load_yaml, _write_yaml, "yaml", "PyYAML"),
    ".toml": (_load_toml, _write_toml, "tomlkit", "tomlkit"),
    ".hjson": (_load_hjson, _write_json, "", ""),  # plain JSON is HJSON too
}
"""How files are read and written, by their endings; and the module that this takes, with its package."""
