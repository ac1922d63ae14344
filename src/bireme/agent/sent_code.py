"""The agent's code, which is sent to the nodes, and the command line that starts it: only Python has to be there.

A command line carries the stub (:mod:`bireme.agent.stub`) and what it needs to reach the runner. Once the agent has
greeted, the runner sends `AGENT` and what that imports: as bytecode if the agent's Python has the same version as ours,
otherwise as source. Nothing is written to the node's disk.

`python_words` starts the node's Python in place of a shell there, but none that others may have planted at the path of
ours. A virtual environment below ``/tmp`` may exist here only, and anybody can create its path there. So each part of
the path must belong to root, to the user there, or to an owner of a part here; and only groups may write to it that can
write to a part here. What others share with us on purpose is there as it is here, and passes.
"""

from __future__ import annotations

import binascii
import marshal
import os
import stat
import sys
import zlib
from _blake2 import blake2b  # ten times as quick to import as hashlib

from bireme import isolated
from bireme.control.greeting import python_tag
from bireme.errors import BadInputError
from bireme.regular_file import open_regular
from bireme.resources.ownership import cache_folder, keep, reason_to_pass_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any, Literal, TypeAlias

    from bireme.job import JobSpec

    Kind: TypeAlias = Literal["channel", "dial", "native"]

AGENT = ("bireme.agent.remote", "bireme.isolated", "bireme.one_node.machine")
"""What the stub imports once the agent's code has come."""
_FOR_A_TREE, _FOR_FETCH = "bireme.ship.taker", "bireme.ship.fetch_sender"
_FOR_TEMPLATES, _TEMPLATE = ("bireme.process.templates", "bireme.process.keeper"), "bireme.warm.template"
"""What `AGENT` imports only if it is to take a tree (``--ship``), to send files home (``--fetch``), or to start
templates (``--preload``), whose program must be sent as source."""

AHEAD: dict[Kind, tuple[str, ...]] = {
    "channel": ("bireme.control.greeting", "bireme.control.transport"),
    "dial": ("bireme.control.greeting", "bireme.control.transport", "bireme.agent.connect"),
    "native": ("bireme.agent.native_rank",),
}
"""What the stub imports before that, by what it is to do."""
_STUB = ("bireme.agent.stub", "bireme.signal_numbers")

# Without quotes and %, which launchers and shells replace.
_LOADER = (
    "import sys,zlib,binascii,marshal;S=marshal.loads(zlib.decompress(binascii.a2b_base64(sys.argv.pop(1))));exec(S[0])"
)
# Any Python from 2.7 on must be able to read this part, to say that it is too old.
_BEGIN = """\
import sys
if sys.version_info < (3, 10):
    version = sys.version.split()[0]
    sys.stderr.write("bireme: Python 3.10 or later is needed; " + sys.executable + " is " + version + "\\n")
    sys.stderr.write("  name another with --node_python\\n")
    sys.exit(69)
exec(compile(S[2], "sent:bireme.agent.sent_modules", "exec"))
modules = SentModules(S[3])
from bireme.agent import stub
stub.command(modules, S[1])
"""
_PATIENCE = 60.0
_DIGEST = 16
_MOST = 1 << 24
"""Bytes of a digest, and of what the cache keeps."""
_MARSHAL_FORMAT = 2
"""Every version of Python reads it."""


def command(
    kind: Kind, *words: str, python: tuple[str, ...] = (), short: bool = False, patience: float = _PATIENCE
) -> tuple[str, ...]:
    """The command line that starts an agent, or the shim of a native rank, on a node.

    Args:
        python: the words that start Python there (`python_words`); (): this Python.
        short: with a name instead of the stub, to be shown.
        patience: seconds for which the agent waits for its code, and then for the job.
    """
    packed = "<stub>" if short else _stub(kind, patience)
    start = python or (sys.executable,)
    return (*start, "-I", "-S", "-B", "-c", _LOADER, packed, "bireme.agent", f"--{kind}", *words)


def pack(tag: str, *, tree: bool = False, fetch: bool = False, preload: bool = False) -> bytes:
    """Pack the modules of the agent, or take what was packed before from the user's cache.

    Args:
        tag: names the Python that runs it (`greeting.python_tag`); any other than ours gets the source.
    """
    parts = {_FOR_A_TREE: tree, _FOR_FETCH: fetch, **dict.fromkeys(_FOR_TEMPLATES, preload)}
    left_out = [module for module, is_used in parts.items() if not is_used]
    form = f"{'bytecode' if tag == python_tag() else 'source'} {tree} {fetch} {preload}"

    def made(name: str) -> str | bytes:
        return _code(name) if tag == python_tag() and name != _TEMPLATE else _source(name)

    return _kept(form, lambda: needed(AGENT, left_out), lambda names: _compressed({name: made(name) for name in names}))


def needed(modules: Iterable[str], left_out: Collection[str] = ()) -> tuple[str, ...]:
    """These modules of ours and all that they import at any time, but for types; without those that are left out.

    They are found by the lines of their sources that import something.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found and name not in left_out:
            try:
                found[name] = _source(name)
            except OSError:  # it is no module, but a package, or a name in a module
                continue
            waiting += _imported(found[name])
    return tuple(sorted(found))


def _imported(source: str) -> Iterator[str]:
    """What may be modules of ours among what a module imports."""
    for_types = False
    for line in source.split("\n"):
        for_types = line.startswith("if TYPE_CHECKING:") or (for_types and line[:1] in ("", " "))
        words = line.split()
        if not for_types and words[:1] == ["from"] and words[1].partition(".")[0] == "bireme" and "import" in words:
            yield words[1]
            if "(" not in line:
                yield from (f"{words[1]}.{word.rstrip(',')}" for word in words[3:])


def _stub(kind: Kind, patience: float) -> str:
    """The stub as an argument, which `_LOADER` unpacks."""
    finder = "bireme.agent.sent_modules"

    def make(names: tuple[str, ...]) -> bytes:
        ahead = {name: _short(_source(name)) for name in names if name != finder}
        packed = _compressed((_BEGIN, patience, _short(_source(finder)), ahead), 9)
        return binascii.b2a_base64(packed, newline=False)

    return _kept(f"{kind} {patience}", lambda: (finder, *_STUB, *needed(AHEAD[kind], _STUB)), make).decode()


def _compressed(value: Any, level: int = -1) -> bytes:
    return zlib.compress(marshal.dumps(value, _MARSHAL_FORMAT), level)


_KEPT: dict[str, bytes] = {}


def _kept(form: str, find: Callable[[], tuple[str, ...]], make: Callable[[tuple[str, ...]], bytes]) -> bytes:
    """What was made of modules before, in this process or as the user's cache has it; or find and make it."""
    if form not in _KEPT:
        where = f"{python_tag()} {form} {isolated.root()!a}"
        place = os.path.join(cache_folder(os.environ), "agents", f"{zlib.crc32(where.encode()):08x}")
        made = _cached(place, where)
        if not made:
            made = make(names := find())
            if state := _state(where, (*names, __name__)):
                keep(place, state + _digest(made) + made)
        _KEPT[form] = made
    return _KEPT[form]


def _state(where: str, names: Iterable[str]) -> bytes:
    """The times and sizes of these modules, as a line; empty if they are in no folder, as in a zip file."""
    try:
        found = [(name, os.stat(_path(name))) for name in names]
    except OSError:
        return b""
    return f"{' '.join(f'{name}:{it.st_mtime_ns}:{it.st_size}' for name, it in found)} | {where}\n".encode()


def _cached(place: str, where: str) -> bytes:
    """What the cache has there; nothing if a module has changed since, if it is damaged, or not written by us."""
    try:
        with open(open_regular(place, os.O_NOFOLLOW), "rb") as file:
            kept = b"" if reason_to_pass_over(place, file.fileno()) else file.read(_MOST)
    except OSError:
        return b""
    line, end, rest = kept.partition(b"\n")
    names = [word.partition(b":")[0].decode("ascii", "replace") for word in line.partition(b" | ")[0].split()]
    made = rest[_DIGEST:]
    return made if names and line + end == _state(where, names) and rest.startswith(_digest(made)) else b""


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


def _path(name: str) -> str:
    return os.path.join(isolated.root(), *name.split(".")) + ".py"


def _source(name: str) -> str:
    loader: Any = isolated.__loader__  # of a folder or of a zip file
    return bytes(loader.get_data(_path(name))).decode()


def _short(source: str) -> str:
    """The source without docstrings and comments, which are half of it."""
    kept, inside = [], False
    for line in source.split("\n"):
        text = line.lstrip(" ")
        if inside:
            inside = not line.endswith('"""')
        elif text.startswith('"""'):
            inside = text == '"""' or not text.endswith('"""')
            kept += [line.replace(text, "...")] if line != text else []
        elif text and not text.startswith("#"):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _code(name: str) -> bytes:
    """The module as bytecode, without docstrings, which are a sixth of it."""
    return marshal.dumps(compile(_source(name), f"sent:{name}", "exec", dont_inherit=True, optimize=2))


# No quotes but ", and no %, ! or backslash, which launchers and shells replace.
_FIND = 'p=$0;[ -x "$p" ]||p=python3;'
_CHECK = (
    'c(){ set -f;IFS=:;for f in $1;do [ -x "$f" ]&&l="$l:$f";done;[ "$l" ]||return 0;'  # those that exist
    'IFS=/:;q=;set -- ${l#:};for w do shift;[ "$w" ]||q=;q=$q${w:+/$w};set -- "$@" "${q:-/}";done;unset IFS;'  # parts
    'set -- $(ls -ldn "$@" 2>/dev/null);t=$3;'  # the first one is /, whose owner may be "nobody"
    'while [ "$4" ];do case $1 in [dl-][r-][w-]*)'
    'case " <owners> $t " in *" $3 "*);;*)[ "$3" = "${i=$(id -u)}" ]||return 1;;esac;'
    "case $1 in l*);;????????w[x-]*)return <anyone>;;"
    '?????w*)case " <groups> $3 " in *" $4 "*);;*)return 1;;esac;;esac;esac;shift;done;};'
    'c "$1"||{ echo "bireme: others may have planted or can change the Python there: ${1%%:*}" >&2;'
    'echo "  if it is right, name it with --node_python and --python" >&2;exit 69;};unset IFS;set +f;shift;'
)
_EXEC = 'exec "$p" "$@"'
_EXPLICIT = ("--python", "PYTHON_EXEC")


def python_words(spec: JobSpec, *, short: bool = False) -> tuple[str, ...]:
    """The words that start the Python of a job's agents on a node: the one that it names, ours, or any python3.

    What the user has named runs whoever it belongs to, and so does that of a container.

    Args:
        short: without the check, to be shown.
    """
    agent = spec.node_python
    if "{host}" in agent:
        hint = "name a path that is the same on every node, or a name on PATH such as python3.12"
        raise BadInputError("{host} is not replaced in it", hint=hint, where="--node_python")
    implied = [] if agent else [sys.executable]
    if (
        spec.program.kind != "exec"
        and spec.venv_script is None
        and (not spec.python or spec.python_from not in _EXPLICIT)
    ):
        implied.append(spec.python or sys.executable)
    if spec.in_containers or short or not all(map(os.path.isabs, implied)):
        implied = []
    paths = tuple(dict.fromkeys(each for path in implied for each in (path, os.path.realpath(path))))
    if agent and not paths:
        return (agent,)
    check, list_of_paths = (_check(paths), (":".join(paths),)) if paths else ("", ())
    return ("/bin/sh", "-c", f"{'p=$0;' if agent else _FIND}{check}{_EXEC}", agent or sys.executable, *list_of_paths)


def _check(paths: tuple[str, ...]) -> str:
    """The check, with the owners and groups that the parts of these paths have here."""
    owners, groups, anyone = {0}, {0}, 1
    for path in paths:
        while path != "/":
            found, path = os.lstat(path), os.path.dirname(path)
            owners.add(found.st_uid)
            if not stat.S_ISLNK(found.st_mode):
                groups |= {found.st_gid} if found.st_mode & stat.S_IWGRP else set()
                anyone = 0 if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH else anyone
    check = _CHECK.replace("<anyone>", str(anyone))
    return check.replace("<owners>", _listed(owners)).replace("<groups>", _listed(groups))


def _listed(numbers: set[int]) -> str:
    return " ".join(map(str, sorted(numbers)))
