"""The agent's code, which is sent to the nodes: only Python itself has to be there.

A command line carries the stub (:mod:`bireme.agent.stub`) and what it needs to reach the runner. Once the agent has
greeted, the runner sends the modules of `MODULES`: as bytecode if the agent runs on a Python of the same version as
ours, otherwise as source. Nothing is written to the node's disk.
"""

from __future__ import annotations

import binascii
import marshal
import os
import sys
import zlib
from _blake2 import blake2b  # ten times as quick to import as hashlib

from bireme import isolated
from bireme.control.greeting import python_tag
from bireme.planning.trust import reason_to_pass_over
from bireme.regular_file import open_regular
from bireme.resources.cache import cache_folder, keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["channel", "dial", "native"]

MODULES = (
    "bireme.agent.facts",
    "bireme.agent.machine",
    "bireme.agent.node",
    "bireme.agent.node_preflight",
    "bireme.agent.pipes",
    "bireme.agent.rank_input",
    "bireme.agent.remote",
    "bireme.control.channel",
    "bireme.control.frames",
    "bireme.control.greeting",
    "bireme.control.messages",
    "bireme.control.silence",
    "bireme.control.transport",
    "bireme.errors",
    "bireme.isolated",
    "bireme.job",
    "bireme.jsontext",
    "bireme.logs.rankfiles",
    "bireme.loop",
    "bireme.planning.environment",
    "bireme.planning.start",
    "bireme.planning.start_facts",
    "bireme.process.activation",
    "bireme.process.cgroup",
    "bireme.process.ends",
    "bireme.process.guardian",
    "bireme.process.helper",
    "bireme.process.kernel",
    "bireme.process.oom",
    "bireme.process.open_files",
    "bireme.process.process_tree",
    "bireme.process.stop_ladder",
    "bireme.process.watcher",
    "bireme.process.worker",
    "bireme.regular_file",
    "bireme.resources.active_environment",
    "bireme.resources.allocation",
    "bireme.resources.cores",
    "bireme.resources.devices",
    "bireme.resources.extension_locks",
    "bireme.resources.hostfile",
    "bireme.resources.local_rank_option",
    "bireme.resources.nvidia",
    "bireme.resources.own_addresses",
    "bireme.resources.own_name",
    "bireme.resources.pool",
    "bireme.resources.program",
    "bireme.resources.reach",
    "bireme.resources.rendezvous_port",
    "bireme.resources.users",
    "bireme.result.outcome",
    "bireme.result.wait_status",
    "bireme.signal_numbers",
    "bireme.validate",
    "bireme.value",
)
"""All modules that an agent may import, at any time."""

FOR_A_TREE = (
    "bireme.drafts",
    "bireme.resources.cache",
    "bireme.resources.owned_folder",
    "bireme.ship.files",
    "bireme.ship.manifest",
    "bireme.ship.messages",
    "bireme.ship.taker",
    "bireme.ship.trees",
)
"""What else it may import if it is to take a tree (``--ship``)."""

FOR_FETCH = (
    "bireme.ship.fetch_sender",
    "bireme.ship.files",
    "bireme.ship.manifest",
    "bireme.ship.messages",
)
"""The same if it is to send files home (``--fetch``)."""

AHEAD: dict[Kind, tuple[str, ...]] = {
    "channel": ("bireme.agent.stub", "bireme.control.greeting", "bireme.control.transport", "bireme.signal_numbers"),
    "dial": (
        "bireme.agent.connect",
        "bireme.agent.stub",
        "bireme.control.greeting",
        "bireme.control.handshake",
        "bireme.control.mac",
        "bireme.control.tls",
        "bireme.control.transport",
        "bireme.errors",
        "bireme.resources.own_addresses",
        "bireme.signal_numbers",
    ),
    "native": (
        "bireme.agent.native_rank",
        "bireme.agent.stub",
        "bireme.errors",
        "bireme.isolated",
        "bireme.planning.environment",
        "bireme.signal_numbers",
    ),
}
"""The modules in the command line, by what the stub is to do."""

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
        kind: how it reaches the runner, or that it is a shim.
        words: the arguments of the stub.
        python: the words that start Python there (`python_there.words`); (): this Python.
        short: with a name instead of the stub, to be shown.
        patience: seconds for which the agent waits for its code, and then for the job.
    """
    packed = "<stub>" if short else _stub(kind, patience)
    start = python or (sys.executable,)
    return (*start, "-I", "-S", "-B", "-c", _LOADER, packed, "bireme.agent", f"--{kind}", *words)


def pack(tag: str, *, tree: bool = False, fetch: bool = False) -> bytes:
    """Pack the modules of the agent, or take what was packed before from the user's cache.

    Args:
        tag: names the Python that runs it (`greeting.python_tag`); any other than ours gets the source.
        tree: whether it is to take a tree.
        fetch: whether it is to send files home.
    """
    names = MODULES + FOR_A_TREE * tree + FOR_FETCH * fetch
    if tag == python_tag():
        return _kept(tag, names, lambda: _compressed({name: _code(name) for name in names}))
    return _kept("source", names, lambda: _compressed({name: _source(name) for name in names}))


def _stub(kind: Kind, patience: float) -> str:
    """The stub as an argument, which `_LOADER` unpacks."""
    finder, names = "bireme.agent.sent_modules", AHEAD[kind]

    def make() -> bytes:
        ahead = {name: _short(_source(name)) for name in names}
        packed = _compressed((_BEGIN, patience, _short(_source(finder)), ahead), 9)
        return binascii.b2a_base64(packed, newline=False)

    return _kept(f"{kind} {patience}", (finder, *names), make).decode()


def _compressed(value: Any, level: int = -1) -> bytes:
    return zlib.compress(marshal.dumps(value, _MARSHAL_FORMAT), level)


_KEPT: dict[tuple[str, tuple[str, ...]], bytes] = {}


def _kept(form: str, names: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """What was made of these modules before, in this process or as the user's cache has it; or make it."""
    if (form, names) not in _KEPT:
        state = _state(form, names)
        place = os.path.join(cache_folder(os.environ), "agents", f"{zlib.crc32(state):08x}")
        made = _cached(place, state) if state else b""
        if not made:
            made = make()
            if state:
                keep(place, state + _digest(made) + made)
        _KEPT[form, names] = made
    return _KEPT[form, names]


def _state(form: str, names: tuple[str, ...]) -> bytes:
    """The times and sizes of these modules, as a line; empty if they are in no folder, as in a zip file."""
    try:
        found = [os.stat(_path(name)) for name in (*names, __name__)]
    except OSError:
        return b""
    return f"{isolated.root()!a} {python_tag()} {form} {[(it.st_mtime_ns, it.st_size) for it in found]}\n".encode()


def _cached(place: str, state: bytes) -> bytes:
    """What the cache has there for this state of the modules; nothing if it is damaged, or not written by us."""
    try:
        with open(open_regular(place, os.O_NOFOLLOW), "rb") as file:
            kept = b"" if reason_to_pass_over(place, file.fileno()) else file.read(_MOST)
    except OSError:
        return b""
    made = kept[len(state) + _DIGEST :]
    return made if kept.startswith(state + _digest(made)) else b""


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
