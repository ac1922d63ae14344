"""What a launcher has to provide: a backend turns a launch plan into the command lines that start the agents.

A backend starts one agent on each node. It does no I/O while it makes command lines, and does not know ranks.
"""

from __future__ import annotations

import os
import sys

from bireme.errors import BadInputError
from bireme.job import OWN_NAMES
from bireme.resources.program import find_any_executable
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Literal

_UNQUOTED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"
CONNECT_TIMEOUT = 10
"""Time limit, in seconds, for a connection to a node."""


class HostLaunch(Value):
    """A node to start an agent on.

    Attributes:
        tasks: the number of its slots if it shows no device (see `HostEntry`).
    """

    name: str
    user: str | None = None
    port: int | None = None
    local: bool = False
    tasks: int = 0

    @property
    def target(self) -> str:
        """``user@host`` or ``host``."""
        return f"{self.user}@{self.name}" if self.user else self.name


class LaunchPlan(Value):
    """The input of a backend.

    Attributes:
        agent: the command line of the agent on a node.
        allocation: the name for the allocation that the launcher makes; "": it has no name of ours.
    """

    hosts: tuple[HostLaunch, ...]
    agent: tuple[str, ...]
    program: str = ""
    extra: tuple[str, ...] = ()
    ssh_port: int | None = None
    root: bool = False
    allocation: str = ""
    job_name: str = ""
    connect_timeout: int = CONNECT_TIMEOUT


class Backend:
    """A launcher. Each module of this package has subclasses, and its instances by name in ``BACKENDS``."""

    NAME: str
    PROGRAMS: tuple[str, ...]
    """Names of the executable; any of them will do."""
    CHANNEL: Literal["stdio", "dial"] = "dial"
    """``stdio``: one launcher process per host, whose stdin and stdout are the channel to its agent. ``dial``: one
    launcher process for all hosts; agents connect to the runner."""
    TOKEN_VARIABLE = "BIREME_TOKEN"
    """The variable that has the token in the environment of the launcher process; "" for ``stdio``."""
    SETS: tuple[str, ...] = ()
    """Prefixes of variables that the launcher sets for the agent."""
    FAILED: tuple[str, ...] = ()
    """Patterns of lines on stderr that report one node (group 1) as unreachable or ended, while the launcher process
    continues; empty if it prints no such lines, or is one process per node."""
    ADVICE: tuple[tuple[str, str], ...] = ()
    """Patterns of what it prints when it does not reach a host ("" is nothing), each with what to do about it."""
    PROGRESS = QUEUED = r"(?!)"  # matches nothing
    """Patterns of lines on stderr that only say how far it is; and of that among them which says that its request
    (group 1) waits in a queue, until the next one comes."""
    TEMPLATE = False
    """Whether ``--launcher_args`` is a command with placeholders, instead of more arguments."""
    NO_LABELS = ""
    """What to do if no host has the labels that were asked for."""
    CANCEL: tuple[str, ...] = ()
    """Command that cancels the allocation whose id follows; empty if the launcher makes no allocations."""
    CANCEL_NAMED: tuple[str, ...] = ()
    """The same for the allocation whose name follows."""
    OVER = ""
    """Pattern of the message that the allocation is gone, so that the launcher can start nothing any more; "" if there
    is none."""

    @property
    def rank_variables(self) -> tuple[str, ...]:
        """Prefixes of variables that are removed for the ranks: what the launcher sets, and the token."""
        return (*self.SETS, self.TOKEN_VARIABLE) if self.TOKEN_VARIABLE else self.SETS

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Make the command lines: one per host, in order (``stdio``), or a single one (``dial``)."""
        raise NotImplementedError

    def native(self, plan: LaunchPlan, ranks: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """Make the command line with which the launcher starts every rank itself, if it can (:attr:`starts_ranks`).

        Args:
            plan: its agent is the command of a rank.
            names: the exported variables.
        """
        raise NotImplementedError

    @property
    def starts_ranks(self) -> bool:
        """Whether the launcher can start ranks itself (:meth:`native`)."""
        return type(self).native is not Backend.native

    def one_by_one(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Make one command line per agent, so that nodes can join and leave (elastic training)."""
        what = f"{self.NAME} cannot add or lose single nodes"
        raise BadInputError(what, hint="use --launcher ssh or slurm for elastic training", where="--launcher")

    def query(self, labels: str, extra: tuple[str, ...]) -> tuple[str, ...]:
        """Make the arguments by which the launcher's program lists the hosts with ``labels``, in its own language."""
        raise NotImplementedError

    def found(self, answer: bytes) -> tuple[str, ...]:
        """Read the names of the hosts in the answer to :meth:`query`, in the order of their numbers.

        Raises:
            ValueError: this is not such an answer.
        """
        raise NotImplementedError

    def refuse(self, hosts: Iterable[HostLaunch], *, users: bool = False, ipv6: bool = True) -> None:
        """Refuse hosts with a port of their own, and if told to those with a user of their own and IPv6 addresses."""
        for host in hosts:
            if host.port is not None or (ipv6 and ":" in host.name) or (users and host.user):
                what = "a port for each host" if host.port is not None else "IPv6 addresses"
                what = "another user" if users and host.user else what
                reason = f"{self.NAME} cannot reach {host.target}: it does not support {what}"
                hint = "leave it out" if self.NAME in OWN_NAMES else "use --launcher ssh"
                raise BadInputError(reason, hint=hint, where="--launcher")

    def find_program(self, environ: Mapping[str, str], extra: tuple[str, ...] = ()) -> str:
        """Find the path of the launcher's executable."""
        if path := find_any_executable(self.PROGRAMS, environ):
            return path
        names = " or ".join(self.PROGRAMS)
        raise BadInputError(f"launcher {self.NAME!r} is not installed: {names} not found on PATH", where="--launcher")


class SessionBackend(Backend):
    """A launcher with a process for each host, whose stdin and stdout are the channel to the host's agent."""

    CHANNEL: Literal["stdio", "dial"] = "stdio"
    TOKEN_VARIABLE = ""

    def command(self, plan: LaunchPlan, host: HostLaunch) -> tuple[str, ...]:
        """Make the command line that starts the agent of one host."""
        raise NotImplementedError

    def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
        """Start each agent by a process of its own, and the agent of this machine directly."""
        return tuple(plan.agent if host.local else self.command(plan, host) for host in plan.hosts)

    one_by_one = commands


def shell_command(agent: tuple[str, ...]) -> str:
    """What a shell of a node is told, in one word, to start the agent in its place."""
    return f"exec {joined(agent)}"


def joined(words: Sequence[str]) -> str:
    """Words as a shell reads them. ``shlex`` does the same with ``re``, whose import would delay the first worker."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'" if word.strip(_UNQUOTED) or not word else word


def ssh_options(plan: LaunchPlan) -> tuple[str, ...]:
    """Options for the ssh that a launcher starts: no questions, a time limit, and the port if one is given."""
    port = ("-p", str(plan.ssh_port)) if plan.ssh_port else ()
    return ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={plan.connect_timeout}", *port)


_ONE_ARGUMENT = 32 * os.sysconf("SC_PAGE_SIZE") - 1 if sys.platform == "linux" else sys.maxsize
"""Largest size of one argument on Linux, in bytes (MAX_ARG_STRLEN)."""
_ALL_ARGUMENTS = 6 << 20
"""Largest size of all arguments and the environment on Linux, in bytes, for any limit of the stack."""
_SPARE = 4096
_POINTER = 8


def check_length(name: str, commands: Iterable[tuple[str, ...]], environ: Mapping[str, str]) -> None:
    """Check before the start that the kernel will accept the command lines."""
    limit = os.sysconf("SC_ARG_MAX")
    most = (min(limit, _ALL_ARGUMENTS) if limit > 0 else _ALL_ARGUMENTS) - _SPARE
    around = sum(_size(variable) + _size(value) + _POINTER for variable, value in environ.items())
    for command in commands:
        longest = max(map(_size, command))
        total = sum(map(_size, command)) + _POINTER * len(command) + around
        if longest <= _ONE_ARGUMENT + 1 and total <= most:
            continue
        what = f"{total} bytes with the environment, and the limit is {most}"
        if longest > _ONE_ARGUMENT + 1:
            what = f"one argument has {longest - 1} bytes, and the limit is {_ONE_ARGUMENT}"
        hint = "use fewer nodes, or --launcher ssh, which runs one command per node" if name != "ssh" else ""
        raise BadInputError(f"the command line of {name} is too long: {what}", hint=hint, where="--launcher")


def _size(word: str) -> int:
    return (len(word) if word.isascii() else len(os.fsencode(word))) + 1


def in_pieces(names: Sequence[str], most: int = 1 << 16) -> Iterator[str]:
    """Join names by commas into as few words as possible of at most about ``most`` characters."""
    piece: list[str] = []
    length = 0
    for name in names:
        if piece and length + len(name) > most:
            yield ",".join(piece)
            piece, length = [], 0
        piece.append(name)
        length += len(name) + 1
    yield ",".join(piece)
