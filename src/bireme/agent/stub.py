"""The stub of an agent: starts on the node from the command line alone, connects to the runner, and receives the rest.

The command line carries it with the few modules that it imports; :mod:`bireme.agent.sent_code` names them.
"""

from __future__ import annotations

import gc
import os
import sys

from bireme import signal_numbers as signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from bireme.agent.sent_modules import SentModules
    from bireme.control.transport import Transport
    from bireme.errors import BiremeError


_OBJECTS = 20_000
"""How many more objects there may be before Python searches for cycles of garbage. While modules are loaded, there are
none, and it would look dozens of times."""


def command(modules: SentModules, patience: float) -> NoReturn:
    """Run the command line ``-c bireme.agent --channel | --dial ADDRESSES PORT VARIABLE [NAME] | --native PLAN …``.

    Args:
        patience: seconds for the code, and then for the job. Nobody else would end the agent of a runner that is cut
            off from it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(_OBJECTS)
    kind, *words = sys.argv[2:]
    if kind == "--native":
        _be_native_rank(words)
    read_fd, write_fd, transport, early = _stdio() if kind == "--channel" else _dialled(words)
    signal.setitimer(signal.ITIMER_REAL, patience)
    from bireme.control import greeting

    def receive() -> bytes:
        nonlocal early
        data, early = early, b""
        while not data and (received := os.read(read_fd, 65536)):
            data = transport.decode(received)
        return data

    try:
        os.write(write_fd, transport.encode(greeting.greeting(greeting.python_tag())))
        _import_ahead()
        code, early = greeting.receive_code(receive)
    except (EOFError, OSError):
        os._exit(0)  # the runner is gone
    modules.add(code)
    try:
        from bireme.agent.remote import RemoteAgent
        from bireme.one_node.machine import Machine
    except ImportError as error:  # of ctypes, which a Python may have been built without
        from bireme.control.frames import encode_message
        from bireme.control.messages import Unfit

        what = f"{sys.executable} is not complete: {error}\nname another with --node_python"
        os.write(write_fd, transport.encode(encode_message(Unfit(problems=(what,)))))
        os._exit(69)
    from bireme.isolated import keep_the_locale

    signal.setitimer(signal.ITIMER_REAL, 0)
    keep_the_locale()
    agent = RemoteAgent(Machine(), read_fd, write_fd, os.environ, transport, early, patience)
    try:
        agent.run()  # until the runner releases it, or is lost
    finally:
        agent.close()
    os._exit(0)  # exit codes of ranks are sent over the channel


def _be_native_rank(words: Sequence[str]) -> NoReturn:
    from bireme.agent import native_rank
    from bireme.errors import BadInputError

    try:
        os._exit(native_rank.main(words, os.environ))
    except BadInputError as error:
        _fail(error)


def _fail(error: BiremeError) -> NoReturn:
    """Report an error, and exit with its code."""
    sys.stderr.write(f"bireme: {error}\n")
    sys.stderr.flush()
    os._exit(error.code)


def _import_ahead() -> None:
    """Import what the agent needs while its code is on the way. What is missing is reported when that has come."""
    try:
        import _ctypes  # noqa: F401
        import _json  # noqa: F401
    except ImportError:
        pass


def _stdio() -> tuple[int, int, Transport, bytes]:
    """Take stdin and stdout as the channel, which nothing else uses from now on."""
    from bireme.control.transport import Transport

    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return read_fd, write_fd, Transport(), b""


def _dialled(words: Sequence[str]) -> tuple[int, int, Transport, bytes]:
    """Connect to the runner that the words ``ADDRESSES PORT VARIABLE [NAME]`` describe."""
    from bireme.agent import connect
    from bireme.errors import UnfitError

    connect.close_what_leaked(os.environ)
    addresses, port, variable, *name = words
    try:
        fd, transport, early = connect.connect(addresses.split(","), int(port), variable, os.environ, "".join(name))
    except UnfitError as error:
        _fail(error)
    return fd, fd, transport, early
