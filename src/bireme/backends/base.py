"""What every backend offers: it turns a launch plan into command lines, and nothing more.

A backend starts one agent on each node. It does no I/O while rendering, and knows nothing of ranks.
"""

from __future__ import annotations

import importlib
import os
import sys

from bireme.errors import BadInputError
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Literal, Protocol

    class Backend(Protocol):
        """A module of this package, as seen from outside."""

        NAME: str
        CANCEL: tuple[str, ...]
        """The words before an allocation's id that give it back; empty where the engine has no allocations."""
        FAILED: tuple[str, ...]
        """Patterns of the lines by which an engine of all nodes says that one of them (group 1) cannot be reached, or
        has ended, while it goes on itself; none where it does not, or has a session for each."""
        PROGRAMS: tuple[str, ...]
        """Executables, any of which will do."""
        CHANNEL: Literal["stdio", "dial"]
        """``stdio``: one session a host, which is the channel. ``dial``: one engine; agents dial back."""
        TOKEN_VARIABLE: str
        """The name under which the token travels in the engine's own environment."""
        RANK_VARIABLES: tuple[str, ...]
        """Beginnings of the names that the engine leaves in the agent's environment and no worker may see."""

        NATIVE: Callable[[LaunchPlan, tuple[int, ...], tuple[str, ...]], tuple[str, ...]] | None
        """The command line by which the engine starts every rank itself: (plan, ranks of each host, names of the
        variables that travel); ``None`` where it cannot."""

        ONE_BY_ONE: Callable[[LaunchPlan, Mapping[str, str]], tuple[tuple[str, ...], ...]] | None
        """The command lines that start the agents one by one, so that a node may come or go without the others;
        ``None`` where the engine cannot."""
        OVER: str
        """A pattern of the words by which the engine says that it will never start anything again, since the
        allocation is gone; "" where there is none."""

        def commands(self, plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
            """The command lines: one for each host, in order (``stdio``), or a single one (``dial``)."""


NAMES = ("ssh", "pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm")
"""The backends, as ``--launcher`` knows them."""

CONNECT_TIMEOUT = 10
"""Seconds that a node may take to accept a connection."""


class HostLaunch(Value):
    """A node to be reached: its name in the pool, and how a login there differs from the default."""

    name: str
    user: str | None = None
    port: int | None = None
    local: bool = False

    @property
    def target(self) -> str:
        """``user@host`` or ``host``."""
        return f"{self.user}@{self.name}" if self.user else self.name


class LaunchPlan(Value):
    """What a backend is given.

    ``agent``: the words that start an agent there. ``program``: the backend's executable, where it was looked up.
    ``extra``: ``--launcher_args``. ``root``: the command runs as root. ``connect_timeout`` in seconds.
    """

    hosts: tuple[HostLaunch, ...]
    agent: tuple[str, ...]
    program: str = ""
    extra: tuple[str, ...] = ()
    ssh_port: int | None = None
    root: bool = False
    connect_timeout: int = CONNECT_TIMEOUT


def load(name: str) -> Backend:
    """The backend of that name.

    Raises:
        BadInputError: there is none.
    """
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise BadInputError(f"there is no launcher {name!r}", hint=f"it is auto or one of {known}", where="--launcher")
    module: Backend = importlib.import_module(f"bireme.backends.{name}")
    return module


def one_by_one(backend: Backend) -> Callable[[LaunchPlan, Mapping[str, str]], tuple[tuple[str, ...], ...]]:
    """How this backend starts agents that may come and go.

    Raises:
        BadInputError: it cannot.
    """
    if backend.ONE_BY_ONE is None:
        what = f"{backend.NAME} loses all nodes when it loses one, and takes none in"
        raise BadInputError(what, hint="elastic training needs --launcher ssh or slurm", where="--launcher")
    return backend.ONE_BY_ONE


def refuse(plan: LaunchPlan, name: str, *, users: bool = False) -> None:
    """For engines that know neither a host's own port nor IPv6 addresses, and maybe no users.

    Raises:
        BadInputError: a host of the plan has what the engine does not know.
    """
    for host in plan.hosts:
        if host.port is not None or ":" in host.name or (users and host.user):
            what = "a host's own port" if host.port is not None else "IPv6 addresses"
            what = "another user" if users and host.user else what
            reason = f"{name} cannot reach {host.target}: it does not know {what}"
            raise BadInputError(reason, hint="--launcher ssh does", where="--launcher")


_ONE_ARGUMENT = 32 * os.sysconf("SC_PAGE_SIZE") - 1 if sys.platform == "linux" else sys.maxsize
"""Bytes that Linux takes in one argument (MAX_ARG_STRLEN)."""
_ALL_ARGUMENTS = 6 << 20
"""Bytes that it takes at most in all arguments and the environment, however large a stack may be."""
_SPARE = 4096
_POINTER = 8


def check_length(name: str, commands: Iterable[tuple[str, ...]], environ: Mapping[str, str]) -> None:
    """Whether the system can execute command lines: the kernel takes no longer ones, and says so only then.

    Args:
        name: the backend's.
        commands: its command lines.
        environ: the environment that they are executed in.

    Raises:
        BadInputError: one is too long.
    """
    limit = os.sysconf("SC_ARG_MAX")
    most = (min(limit, _ALL_ARGUMENTS) if limit > 0 else _ALL_ARGUMENTS) - _SPARE
    around = sum(_size(variable) + _size(value) + _POINTER for variable, value in environ.items())
    for command in commands:
        longest = max(map(_size, command))
        total = sum(map(_size, command)) + _POINTER * len(command) + around
        if longest <= _ONE_ARGUMENT + 1 and total <= most:
            continue
        what = f"{total} bytes with the environment, and the system takes {most}"
        if longest > _ONE_ARGUMENT + 1:
            what = f"an argument of {longest - 1} bytes, and the system takes {_ONE_ARGUMENT}"
        hint = "fewer nodes, or --launcher ssh, which has a command for each" if name != "ssh" else ""
        raise BadInputError(f"the command line of {name} is too long: {what}", hint=hint, where="--launcher")


def _size(word: str) -> int:
    return (len(word) if word.isascii() else len(os.fsencode(word))) + 1


def in_pieces(names: Sequence[str], most: int = 1 << 16) -> Iterator[str]:
    """The names, joined by commas, in as many words as it takes for none to be longer than so many characters."""
    piece: list[str] = []
    length = 0
    for name in names:
        if piece and length + len(name) > most:
            yield ",".join(piece)
            piece, length = [], 0
        piece.append(name)
        length += len(name) + 1
    yield ",".join(piece)


def find_program(backend: Backend, environ: Mapping[str, str]) -> str:
    """The path of the backend's executable.

    Raises:
        BadInputError: it is not installed.
    """
    # Directory by directory: what `module load` has put in front wins, under whichever of its names.
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        for program in backend.PROGRAMS:
            path = os.path.join(directory, program)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    names = " or ".join(backend.PROGRAMS)
    raise BadInputError(f"launcher {backend.NAME!r} is not installed: there is no {names} on PATH", where="--launcher")
