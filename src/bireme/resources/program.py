"""Checks before the start that the program exists and can be run, and whether it wants ``--local_rank``.

A script wants it if a string in its code names it, not a comment or docstring. Its syntax tree is read without
importing ``ast`` or ``tokenize``, which would take longer than the rest of the start.
"""

from __future__ import annotations

import os
import sys

from bireme.errors import BadInputError, similar
from bireme.isolated import find_packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from bireme.job import JobSpec, Program


MISSING_THERE = "every node needs it at this path: in a folder that they share, copied, or sent by `bireme run --ship`"
_ENOUGH = 1 << 20
"""Bytes of a script that are searched for ``--local_rank``."""
_DATA = (
    *(".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".xml", ".txt", ".md", ".rst", ".log"),
    *(".csv", ".tsv", ".html", ".parquet", ".npy", ".npz", ".pt", ".pth", ".ckpt", ".safetensors", ".pkl", ".h5"),
)
"""Endings of files that are no programs. Python runs some of them without a word: JSON is an expression."""
_STARTERS = (
    *("torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "mpiexec.hydra", "srun", "horovodrun", "bireme"),
)


def recognized(spec: JobSpec) -> JobSpec:
    """The job, whose program is executed directly if it is an executable file of another language than Python."""
    program = spec.program
    path = program.target
    if program.kind != "script" or path.endswith((".py", ".pyc", ".pyz")) or not os.path.isfile(path):
        return spec
    if path.endswith(".ipynb"):
        hint = f"make a script of it: jupyter nbconvert --to script {path}"
        raise BadInputError(f"{path} is a notebook, not a script", hint=hint)
    is_data = path.lower().endswith(_DATA)
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
            text = first + file.read(_ENOUGH) if not is_data else b""
    except OSError:
        return spec  # `check` reports it
    by = first[2:].strip().decode(errors="replace") if first.startswith(b"#!") else ""
    if first.startswith(b"\x7fELF"):
        what, command = "a binary", ""
    elif by and "python" not in by:
        what, command = f"a script for {by}", f"{by} "
    elif not by and path.endswith((".sh", ".bash")):
        what, command = "a shell script without #! in its first line", "bash "
    elif not by and is_data:
        script = next((word for word in program.args if word.endswith(".py")), "train.py")
        hint = f"put the script before it: bireme run {script} … {path}"
        raise BadInputError(f"{path} is a data file, not a script", hint=hint)
    elif not by and (wrong := _no_python(text)):
        hint = f"name its interpreter in the first line, such as #!/bin/sh, and type: chmod +x {path}"
        raise BadInputError(f"{path} is not a Python script: {wrong}", hint=hint)
    else:
        return spec
    if not os.access(path, os.X_OK) or (command and not by):
        hint = f"type --no_python {command}{path}" if command else f"make it executable: chmod +x {path}"
        raise BadInputError(f"{path} is {what}, which Python cannot run", hint=hint)
    target = path if os.sep in path else os.path.join(".", path)
    return spec.replace(program=program.replace(target=target, kind="exec"))


def _no_python(text: bytes) -> str:
    """Why a file whose name does not say what it is cannot be Python; "" if it may be."""
    try:
        compile(text if len(text) < _ENOUGH else b"", "", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        return str(error)
    return ""


def check(spec: JobSpec, environ: Mapping[str, str], *, shared: bool = False) -> str:
    """Check that the program can be run; return the flag for its local rank (``--local_rank``), or ``""``.

    Args:
        shared: other nodes run it too, so it may be missing only on this one.
    """
    program = spec.program
    if spec.wrap and "{" not in spec.wrap[0] and not (shared and spec.wrap_ranks):  # of ranks of another node
        try:
            _read_executable(spec.wrap[0], environ)
        except BadInputError as error:
            error.where = "--wrap"
            raise
    if program.kind == "script":
        there = MISSING_THERE if spec.ship is None else "it is not in the tree that --ship sends"
        text = _read_script(program, environ, there if shared else "")
    elif program.kind == "module":
        # Only if this Python runs the ranks is the search path for modules known.
        is_ours = spec.venv_script is None and spec.python in (None, sys.executable)
        text = _read_module(program, environ) if is_ours else b""
    elif program.kind == "function":
        text = b""
    else:
        text = _read_executable(program.target, environ)
    if spec.local_rank_arg == "never":
        return ""
    is_python = program.kind != "exec" or b"python" in text.partition(b"\n")[0]
    flag = _wanted_flag(text, python=is_python)
    return flag or ("--local_rank" if spec.local_rank_arg == "always" else "")


def source(program: Program, environ: Mapping[str, str]) -> bytes:
    """The source of a Python program, as far as it can be found; empty if it cannot, or if it is none."""
    try:
        if program.kind == "module":
            return _read_module(program, environ)
        return _read_script(program, environ, "") if program.kind == "script" else b""
    except BadInputError:
        return b""  # `check` reports it


def _read_script(program: Program, environ: Mapping[str, str], hint: str) -> bytes:
    path = program.target
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
        if not os.path.isfile(path):
            raise BadInputError(f"{path[:-12]} is a directory, not a script", hint="name the Python file to run")
    if not os.path.exists(path):
        kind = "script" if path.endswith(".py") else "file"
        raise BadInputError(f"no such {kind}: {path}", hint=hint or _instead(path, program.args, environ))
    try:
        return _read(path)
    except OSError as error:
        raise BadInputError(f"cannot read the script {path}: {error.strerror}") from None


def _instead(path: str, args: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """What to do about a script that does not exist."""
    is_word = os.sep not in path
    script = args[0] if args and args[0].endswith(".py") and is_word else ""
    is_python, rest = is_word and path.startswith("python"), args[1:] if args[:1] in (("launch",), ("run",)) else args
    command = find_executable(path, environ) if is_word else ""
    for wrong, hint in (
        (os.path.isfile(f"{path}.py"), f"did you mean {path}.py?"),
        (is_python and args[:1] == ("-c",), f"to run an expression, type --no_python {path} -c …"),
        (is_python, f"leave out {path}: type bireme run {_to_script(args)}; --python chooses the Python that runs it"),
        (path in _STARTERS, f"leave out {path}: type bireme run {_to_script(rest)}"),
        (command, f"to run the program {command}, type --no_python {path}"),
        (path == "help", "type bireme run --help"),
        (".py " in path, "leave out the quotation marks around the script and its arguments"),
        (path.startswith("-"), "leave out --, which ends the options"),
        ("=" in path, "put variables first: NAME=VALUE bireme run …, or type --export NAME=VALUE"),
        (script and path.isdecimal(), f"to start this many ranks, type --num_gpus {path} {script}"),
        (script, f"to name the nodes, type --hosts {path} {script}"),
    ):
        if wrong:
            return hint
    folder, name = os.path.split(path)
    try:
        files = [entry.name for entry in os.scandir(folder or os.curdir) if entry.is_file()]
    except OSError:
        files = []
    if near := similar(name, files, 0.75):
        return f"did you mean {os.path.join(folder, near)}?"
    return "name a file that exists or a program on PATH; put options of bireme before it, and -m before a module"


def _to_script(words: Sequence[str]) -> str:
    """A command line up to the script or module: what follows may be secret."""
    words = [word for word in words if not word.startswith("python")]
    ends = (place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1 : place] == ["-m"])
    end = next(ends, len(words)) + 1
    return " ".join((*words[:end], *("…" for _ in words[end:][:1])))


def _read_module(program: Program, environ: Mapping[str, str]) -> bytes:
    """The source of the module, if it can be found without importing its parent packages; else empty."""
    from importlib.machinery import PathFinder

    find_packages()
    if program.target.endswith(".py") and os.path.isfile(program.target):
        hint = f"leave out -m to run the script {program.target}"
        raise BadInputError(f"-m takes the name of a module, not of a file: {program.target}", hint=hint)
    top, _, rest = program.target.partition(".")
    listed = environ.get("PYTHONPATH", "").split(os.pathsep)
    found = PathFinder.find_spec(top, [os.getcwd(), *map(os.path.abspath, listed), *sys.path])
    if found is None and sys.flags.no_user_site:
        found = PathFinder.find_spec(top, _user_site())
    if found is None:
        if top in sys.builtin_module_names:
            return b""
        raise BadInputError(f"no such module: {top}", hint="install its package, or set PYTHONPATH")
    path = found.origin or ""
    for place in found.submodule_search_locations or () if rest or found.submodule_search_locations else ():
        base = os.path.join(place, *rest.split(".")) if rest else place
        for candidate in (f"{base}.py", os.path.join(base, "__main__.py")):
            if os.path.isfile(candidate):
                path = candidate
    return _read(path) if path.endswith(".py") and os.path.isfile(path) else b""


def _user_site() -> list[str]:
    """The user's own site-packages, which an isolated interpreter leaves out of its search path."""
    import site

    path = sys.path[:]
    try:
        site.addsitedir(site.getusersitepackages())
        return sys.path[len(path) :]
    finally:
        sys.path[:] = path


def _read_executable(name: str, environ: Mapping[str, str]) -> bytes:
    """The text of an executable script with a ``#!`` line; empty for a binary. Refuses what cannot be executed."""
    if os.path.isdir(name):
        raise BadInputError(f"{name} is a directory, not a program")
    path = name if os.sep in name else find_executable(name, environ)
    if not os.path.exists(path):
        here = os.sep not in name and os.path.isfile(name)
        what = f"{name} is in this folder, but not on PATH" if here else f"no such program: {name}"
        raise BadInputError(what, hint=_how_to_run(name) if here else "")
    try:
        text = _read(path)
    except OSError:
        text = b""  # it may still be executable
    if text.startswith(b"#!"):
        _check_first_line(path, text.partition(b"\n")[0])
    if not os.access(path, os.X_OK):
        raise BadInputError(f"{name} is not executable", hint=_how_to_run(name))
    return text if text.startswith(b"#!") else b""


def _how_to_run(name: str) -> str:
    path = name if os.sep in name else os.path.join(".", name)
    if name.endswith(".py"):
        return "leave out --no_python: Python runs it"
    return f"type {path}" if os.access(name, os.X_OK) else f"make it executable: chmod +x {name}; type {path}"


def _check_first_line(path: str, line: bytes) -> None:
    """Refuse a ``#!`` that the kernel would answer with "no such file", as if the script itself were missing."""
    words = line[2:].split()
    interpreter = os.fsdecode(words[0]) if words else ""
    if line.endswith(b"\r"):
        what = f"the first line of {path} ends in a carriage return, as on Windows"
        raise BadInputError(what, hint=f"convert the file: sed -i 's/\\r$//' {path}")
    if not os.path.exists(interpreter):
        what = f"there is no {interpreter}" if interpreter else "nothing follows #!"
        raise BadInputError(what, hint="name the program that runs this script after #!", where=f"{path}:1")


def _read(path: str) -> bytes:
    """The beginning of a regular file. A pipe (``<(…)`` in bash) can be read only once, so it is left to the ranks."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(_ENOUGH)


def find_executable(name: str, environ: Mapping[str, str]) -> str:
    """The first executable of that name on ``PATH``, or ``""``; without ``shutil``, which is slow to import."""
    return find_any_executable((name,), environ)


def find_any_executable(names: Sequence[str], environ: Mapping[str, str]) -> str:
    """The first executable on ``PATH`` with any of these names, or ``""``."""
    # Directories first, then names: the installation that `module load` has put in front wins.
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return ""


_SPELLINGS = ("--local_rank", "--local-rank")
_SYNTAX_ONLY = 0x400
"""``ast.PyCF_ONLY_AST``."""


def _wanted_flag(text: bytes, *, python: bool) -> str:
    """The option by which a program takes its local rank, "" if it takes none."""
    if not python:
        code = b"\n".join(line for line in text.splitlines() if not line.lstrip().startswith(b"#"))
        return next((flag for flag in _SPELLINGS if flag.encode() in code), "")
    if not _quoted(text):
        return ""  # parsing takes milliseconds
    named = _strings(text)
    return next((flag for flag in _SPELLINGS if flag in named), "")


def _strings(text: bytes) -> set[str]:
    """The strings in the code, each without what follows a ``=``."""
    tree = syntax_tree(text)
    if tree is None:
        return _quoted(text)
    return {node.value.partition("=")[0] for node in strings(tree)}


def syntax_tree(text: bytes) -> Any:
    """The syntax tree of a script; ``None`` if it cannot be parsed, such as one for a later version of Python."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the script's code: Python gives them again when it runs
        try:
            return compile(text, "script", "exec", _SYNTAX_ONLY, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def strings(tree: Any) -> Iterator[Any]:
    """The strings of a syntax tree, without docstrings and other statements that are only a constant."""
    return (node for node in nodes(tree) if type(node).__name__ == "Constant" and isinstance(node.value, str))


def _quoted(text: bytes) -> set[str]:
    """The spellings that follow a quotation mark anywhere."""
    return {flag for flag in _SPELLINGS for mark in "'\"" if f"{mark}{flag}".encode() in text}


def nodes(tree: Any) -> Iterator[Any]:
    """The nodes of a syntax tree, without statements that are only a constant."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif hasattr(node, "_fields") and not (
            type(node).__name__ == "Expr" and type(node.value).__name__ == "Constant"
        ):
            yield node
            waiting += (getattr(node, name, None) for name in node._fields)
