"""Reads lists of hosts: hostfiles, and the option ``--hosts``.

A hostfile has the style of MPI and DeepSpeed: one host per line, and ``#`` starts a comment::

    worker-0 slots=4
    alice@worker-1 slots=8 port=22022   # another user, another port of sshd
    node[01-16] slots=8                 # sixteen hosts with eight slots each
    @rack2 slots=8                      # a group of ClusterShell
    fd00::7 slots=4                     # brackets around IPv6 are optional
    worker-9                            # without slots, the host is asked for its devices
    worker-10 slots=4 max_slots=8       # Open MPI's limit: only checked

``--hosts`` gives such a list in one word, without ports: ``node[01-16]:8,alice@other:2,[fd00::7]:4``.

ClusterShell's NodeSet expands brackets and groups. Importing it takes 0.1 s, so it is imported only if such a name
occurs. The hosts of one set have NodeSet's order (``n[3,1]`` is ``n1``, ``n3``); the sets keep the order of the list.
"""

from __future__ import annotations

# Not ``socket``: importing it delays the first worker, because it makes enumerations (docs/architecture.md).
import _socket
import os

from bireme.errors import BadInputError, did_you_mean
from bireme.regular_file import open_regular
from bireme.resources.pool import quoted
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_HOSTFILE = "/job/hostfile"
"""Where DeepSpeed looks for a hostfile, and some clusters provide one."""

MOST_HOSTS = 100_000
"""More than any job can have; a typing error such as ``node[1-10000000000]`` must not fill the memory."""

_MOST_OF_KEY = {"slots": 4096, "max_slots": 4096, "port": 65535}
_MOST_BYTES = 16 << 20
_OPEN_ALREADY = ("/dev/", "/proc/")
"""The begin of the paths of pipes that somebody writes to, such as ``<(...)`` of a shell. Others could make us wait."""
_BOM = b"\xef\xbb\xbf"
_IN_HOSTS = frozenset("._-")
_IN_USERS = frozenset("._-+\\")
_IN_SETS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-[],/!&^@:*")
_SET_SIGNS = frozenset("[],!&^@*")
_KEYS = "the keys are slots=, max_slots= and port="
_ON_LINE = "expected a line such as: HOST slots=N"


class HostEntry(Value):
    """A host of a list.

    Attributes:
        name: the name without the user; an IPv6 address without brackets.
        user: the user to log in as; ``None``: ssh's default.
        port: the port of the host's sshd; ``None``: ssh's default.
        slots: the number of slots; ``None``: the host is asked for its devices.
        line: the line of the hostfile, from 1; 0 if there is no file.
        tasks: where ``slots`` is ``None``: the number of slots if the host shows no device; 0: its own default.
    """

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    line: int = 0
    tasks: int = 0


def read_hostfile(path: str | None = None) -> tuple[HostEntry, ...] | None:
    """The hosts of the file that the user named, or of the default one; ``None``: the default does not exist."""
    if path is None:
        if not os.path.exists(DEFAULT_HOSTFILE):
            return None
        path = DEFAULT_HOSTFILE
    elif os.sep not in path and (":" in path or "," in path) and not os.path.exists(path):
        raise BadInputError(f"no such file: {path}", hint=f"to name the nodes themselves: --hosts {path}", where="-H")
    return parse_hostfile(read_text(path), path)


def parse_hostfile(text: str, path: str) -> tuple[HostEntry, ...]:
    """Parse the text of a hostfile; returns its hosts, in order."""
    entries: list[HostEntry] = []
    for number, line in numbered_lines(text):
        words = line.partition("#")[0].split()
        if words:
            entries += _on_line(words, number, f"{path}:{number}")
            if len(entries) > MOST_HOSTS:
                raise _too_many(f"{path}:{number}")
    if not entries:
        raise BadInputError("the hostfile names no hosts", hint=_ON_LINE, where=path)
    _refuse_doubles(entries, path)
    return tuple(entries)


def parse_hosts(text: str) -> tuple[HostEntry, ...]:
    """Parse the value of ``--hosts``, ``HOST[:SLOTS],…``; returns the hosts, in order."""
    entries: list[HostEntry] = []
    where = "--hosts"
    for piece in split_outside_brackets(text):
        host, slots = and_slots(piece.strip(), where)
        user, names = _hosts(host, where, "hosts are separated by commas, as in node[1-4]:8,other:2")
        entries += (HostEntry(name=name, user=user, port=None, slots=slots) for name in names)
        if len(entries) > MOST_HOSTS:
            raise _too_many(where)
    _refuse_doubles(entries, where)
    return tuple(entries)


def is_host(text: str) -> bool:
    """Whether a text can be a host name or IPv4 address, and is safe in the command lines of ssh and shells."""
    return _is_word(text, _IN_HOSTS) and len(text) < 256


def split_outside_brackets(text: str) -> list[str]:
    """Split a text at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        if sign == "," and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
        depth += (sign == "[") - (sign == "]")
    return [*parts, text[start:]]


def read_text(path: str, variable: str = "", fd: int | None = None) -> str:
    """Read a text file of the user.

    Args:
        variable: the environment variable that names the file, for errors; "" if none does.
        fd: a descriptor of the file, if it is open already; it will be closed.
    """
    of = f"{path if path.isprintable() else ascii(path)} " if variable else ""
    try:
        if fd is None and not path.startswith(_OPEN_ALREADY) and not os.path.isdir(path):
            fd = open_regular(path)
        with open(path if fd is None else fd, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{of}cannot be read: {reason}", where=variable or path) from None
    if len(data) > _MOST_BYTES:
        raise BadInputError(f"{of}is too large: more than {_MOST_BYTES >> 20} MiB", where=variable or path)
    data = data.removeprefix(_BOM)
    zero = data.find(b"\0")
    try:
        if zero < 0:
            return data.decode("utf-8")
    except UnicodeDecodeError as error:
        zero = error.start
    line = data.count(b"\n", 0, zero) + 1
    raise BadInputError(f"{of}is not UTF-8 text", where=variable or f"{path}:{line}")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with their numbers from 1, whichever line ends it has."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return enumerate(lines, start=1)


def _on_line(words: list[str], line: int, where: str) -> Iterable[HostEntry]:
    user, names = _hosts(words[0], where, _ON_LINE)
    given: dict[str, int] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise BadInputError(f"{quoted(word)} is not slots=N or port=N", hint=_ON_LINE, where=where)
        if key not in _MOST_OF_KEY:
            hint = did_you_mean(key, _MOST_OF_KEY, _KEYS, form="{}=")
            raise BadInputError(f"unknown key: {quoted(key)}", hint=hint, where=where)
        if key in given:
            raise BadInputError(f"{key}= is given twice", where=where)
        given[key] = _number(key, value, where)
    most = given.get("max_slots")
    if most is not None and not given.get("slots", most + 1) <= most:
        what = f"max_slots={most} needs slots=N of at most {most}"
        raise BadInputError(what, hint="slots= is the number that is used; max_slots= may be left out", where=where)
    return [
        HostEntry(name=name, user=user, port=given.get("port"), slots=given.get("slots"), line=line) for name in names
    ]


def and_slots(piece: str, where: str) -> tuple[str, int | None]:
    """``node[1-4]:8`` → ``node[1-4]``, 8; colons of an IPv6 address or a group source are not split."""
    host, colon, number = piece.rpartition(":")
    if not colon or "]" in number:
        return piece, None
    if piece.startswith("@") and not number.isdecimal():
        return piece, None
    if ":" in host and not host.endswith("]") and not host.startswith("@"):
        raise _malformed(piece, "write an IPv6 address in brackets, as in [fe80::1]:4", where)
    return host, _number("slots", number, where)


def _hosts(word: str, where: str, hint: str) -> tuple[str | None, tuple[str, ...]]:
    """The user of a word, if it names one, and its hosts."""
    user, at, host = word.partition("@")
    named = bool(at) and _is_word(user, _IN_USERS)
    if not named:
        host = word  # the ``@`` begins a group
    if address := _ipv6(host):
        names: tuple[str, ...] = (address,)
    elif is_host(host):
        names = (host,)
    elif _SET_SIGNS.isdisjoint(host):
        raise _malformed(word, hint, where)
    else:
        names = node_set(host, where, hint)
    return user if named else None, names


def _ipv6(text: str) -> str:
    """An IPv6 address without its brackets; "" if the text is not an IPv6 address."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    address, percent, zone = bare.partition("%")
    if ":" not in address or (percent and not _is_word(zone, _IN_HOSTS)):
        return ""
    try:
        _socket.inet_pton(_socket.AF_INET6, address)
    except (OSError, ValueError):
        return ""
    return bare


def node_set(text: str, where: str, hint: str) -> tuple[str, ...]:
    """Expand a node set such as ``node[01-16]``, in the order of ClusterShell's ``NodeSet``."""
    if not _IN_SETS.issuperset(text):
        raise _malformed(text, hint, where)
    if sum(map(_spread, split_outside_brackets(text))) > MOST_HOSTS:
        raise _too_many(where)
    try:
        from ClusterShell.NodeSet import NodeSet

        names = tuple(NodeSet(text))
    except ModuleNotFoundError as error:  # run from a zip file, or without its dependencies
        what = f"{quoted(text)} is a set of hosts, and the package {error.name} is not installed"
        raise BadInputError(what, hint="install it, or name each host", where=where) from None
    except Exception as error:  # its errors have no common base class; a group source may raise anything
        reason = " ".join(str(error).split())
        if reason != _NO_GROUPS:
            raise BadInputError(f"{quoted(text)} is not a set of hosts", hint=reason[:160], where=where) from None
        names = ()
    if not names:
        raise BadInputError(f"{quoted(text)} names no hosts", hint="`nodeset --groups` lists the groups", where=where)
    for name in names:
        if not is_host(name):
            raise _malformed(name, f"it comes from {quoted(text)}", where)
    return names


_NO_GROUPS = "<default>"
"""The whole message of ClusterShell about a group if no groups are configured: the source that it has not found."""


def _spread(text: str) -> int:
    """An upper bound of the hosts of a node set: NodeSet would create all hosts before we could count them."""
    total = 1
    for rest in text.split("[")[1:]:
        count = 0
        for piece in rest.partition("]")[0].split(","):
            low, _, high = piece.partition("/")[0].partition("-")
            try:
                count += max(int(high) - int(low) + 1, 1)
            except ValueError:
                count += 1
        total *= count
    return total


def _refuse_doubles(entries: Iterable[HostEntry], where: str) -> None:
    lines: dict[str | bytes, int] = {}
    for entry in entries:
        name: str | bytes = entry.name.casefold()
        address, _, zone = entry.name.partition("%")
        if ":" in address:
            name = _socket.inet_pton(_socket.AF_INET6, address) + zone.encode()
        if name in lines:
            raise BadInputError(
                f"{entry.name} is listed twice" + (f": first on line {lines[name]}" if entry.line else ""),
                where=f"{where}:{entry.line}" if entry.line else where,
            )
        lines[name] = entry.line


def _number(key: str, value: str, where: str) -> int:
    most = _MOST_OF_KEY[key]
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise BadInputError(f"{key}: {quoted(value)} is not a number", where=where)
    if value != digits or not digits.strip("0"):
        raise BadInputError(f"{key}: must be at least 1, not {quoted(value)}", where=where)
    digits = digits.lstrip("0")
    if len(digits) > len(str(most)) or int(digits) > most:
        raise BadInputError(f"{key}: must be at most {most}, not {quoted(value)}", where=where)
    return int(digits)


def _is_word(text: str, more: frozenset[str]) -> bool:
    return bool(text) and text[0] != "-" and all(sign.isalnum() or sign in more for sign in text)


def _malformed(text: str, hint: str, where: str) -> BadInputError:
    return BadInputError(f"{quoted(text)} is not a host", hint=hint, where=where)


def _too_many(where: str) -> BadInputError:
    return BadInputError(f"more than {MOST_HOSTS} hosts", where=where)
