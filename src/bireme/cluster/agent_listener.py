"""Accepts connections from agents whose stdin and stdout belong to the launcher (pdsh, mpirun, srun), by TLS if it can.

The token is passed in the launcher's environment, never in arguments. Both sides prove that they know it before
anything else is sent, and what follows is protected (:mod:`bireme.control.handshake`).

Anyone who can reach the port can connect. A connection whose first line has not yet proved that it knows the token is a
*stranger*. The number of strangers is bounded, and each has a few seconds; when there are too many, the oldest is
dropped. An agent that is dropped this way tries again.

The job's certificate is self-signed: agents learn its fingerprint from a message that only the job's runner can have
made. The system's ``openssl`` command makes it in about 10 ms, while the launcher starts; without that command, the
package ``cryptography`` does. The key exists only in memory and pipes.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from functools import partial
from subprocess import DEVNULL, PIPE, Popen, SubprocessError

from bireme.control.handshake import MOST_BYTES
from bireme.control.runner_handshake import Runner, Security
from bireme.errors import UnfitError
from bireme.resources.addresses import own_addresses
from bireme.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bireme.control.runner_handshake import Security
    from bireme.control.transport import Transport
    from bireme.loop import Loop, Timer

    OnAgent = Callable[[dict[str, str], int, Transport], None]

_ARGUMENTS = (
    *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "-"),
    *("-subj", "/CN=bireme", "-days", "3650", "-config", "/dev/stdin"),
)
_CONFIG = b"[req]\ndistinguished_name=name\n[name]\n"
"""Replaces the system's configuration, which may be missing or ask for anything."""
_PATIENCE = 5.0
"""Seconds that ``openssl`` may take."""
NO_TLS_HERE = "the runner's Python has no ssl module with TLS 1.3"
NO_CERTIFICATE = "the runner has neither the openssl command nor the Python package cryptography"


class CertificateMaker:
    """Makes a certificate in the background; :meth:`finish` waits for it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # First the system's openssl, without configuration and libraries from the user's environment.
        self._left: list[Mapping[str, str]] = [{"PATH": os.defpath}, environ]
        self._process = self._start()

    def _start(self) -> Popen[bytes] | None:
        while self._left:
            environ = self._left.pop(0)
            try:
                process = Popen(("openssl", *_ARGUMENTS), env=environ, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            except OSError:
                continue
            assert process.stdin is not None
            try:
                with process.stdin as file:
                    file.write(_CONFIG)
            except OSError:  # it has ended already; its empty output shows the failure
                pass
            process.stdin = None
            return process
        return None

    def finish(self) -> Security:
        """Wait for the certificate; return what the runner can offer to agents."""
        try:
            from bireme.control import tls
        except ImportError:
            self.close()
            return Security(why_not=NO_TLS_HERE)
        context = tls.server_context()
        while self._process is not None:
            process, self._process = self._process, None
            made = tls.loaded(context, _output(process))
            if made:
                return Security(context, made)
            self._process = self._start()
        made = tls.loaded(context, _by_cryptography())
        return Security(context, made) if made else Security(why_not=NO_CERTIFICATE)

    def close(self) -> None:
        """End openssl if it is still running."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _output(process: Popen[bytes]) -> bytes:
    try:
        return process.communicate(timeout=_PATIENCE)[0]
    except (SubprocessError, OSError):
        process.kill()
        process.communicate()
        return b""


def _by_cryptography() -> bytes:
    """Key and certificate (PEM) from the package ``cryptography``; empty if it is missing or broken."""
    try:
        from datetime import datetime, timedelta, timezone

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except Exception:  # its binary modules may raise anything
        return b""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bireme")])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    dated = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=3650))
    secret: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public: bytes = dated.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return secret + public


_MOST_STRANGERS = 256
"""Strangers held at a time; fewer where the limit of open files is low."""
_HANDSHAKE_WAIT = 10.0
"""Seconds from the connection to a valid first line, and again from there to the proof."""
_SWEEP = 1.0
"""Seconds between two checks for connections that take longer."""
_REST = 0.25
"""Seconds without accepting when no descriptor is left and there is no stranger to drop."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOOPBACK = ("127.0.0.1", "::1")
_BACKLOG = 1024
_PORTS = 50
"""How many ports to try: one that is free at one address may be taken at another."""


class _Caller(Value):
    """A connection that has not yet completed the handshake, and when its present phase began."""

    connection: socket.socket
    handshake: Runner
    since: float


class AgentListener:
    """The listening sockets for the agents of one job.

    Args:
        only_here: whether every node is this machine, so that loopback is enough.
    """

    def __init__(self, variable: str, environ: Mapping[str, str], *, only_here: bool) -> None:
        self._variable = variable
        self._token = os.urandom(32).hex()
        self._sockets = _listening(_LOOPBACK if only_here else (*own_addresses(), _LOOPBACK[0]))
        self._certificate = CertificateMaker(environ)
        self._security: Security | None = None
        self._loop: Loop | None = None
        self._nonces: set[str] = set()
        self._strangers: dict[int, _Caller] = {}
        self._known: dict[int, _Caller] = {}
        """Connections whose first line was valid."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST_STRANGERS if files == resource.RLIM_INFINITY else min(_MOST_STRANGERS, max(16, files // 4))
        self._sweeping: Timer | None = None

    def environment(self) -> dict[str, str]:
        """The variables to add to the launcher's environment."""
        return {self._variable: self._token}

    def arguments(self) -> tuple[str, ...]:
        """The agent's arguments: where to connect, and the *name* of the token's variable."""
        places = [listening.getsockname() for listening in self._sockets]
        return ",".join(place[0] for place in places), str(places[0][1]), self._variable

    def listen(self, loop: Loop, on_agent: OnAgent) -> None:
        """Accept agents from now on.

        Args:
            on_agent: called with what the agent says about itself, its socket's descriptor, and the transport that
                protects it.
        """
        self._loop, self._on_agent = loop, on_agent
        self._security = self._certificate.finish()
        self._watch()

    def _watch(self) -> None:
        assert self._loop is not None
        for listening in self._sockets:
            self._loop.watch(listening.fileno(), partial(self._accept, listening))

    def _accept(self, listening: socket.socket) -> None:
        assert self._security is not None
        try:
            connection, _ = listening.accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                self._make_room()
            return
        if len(self._strangers) >= self._most:
            self._drop(next(iter(self._strangers))).close()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = connection.fileno()
        self._strangers[fd] = _Caller(connection, Runner(self._token, self._security, self._nonces), time.monotonic())
        assert self._loop is not None
        self._loop.watch(fd, lambda: self._readable(fd))
        if self._sweeping is None:
            self._sweeping = self._loop.after(_SWEEP, self._sweep)
        self._readable(fd)  # an agent speaks first, so its line may be here already

    def _make_room(self) -> None:
        """No descriptor is left for a new connection: drop the oldest stranger, or stop polling for a moment.

        Left in the poll, the listening sockets would stay readable and keep the loop spinning.
        """
        assert self._loop is not None
        if self._strangers:
            self._drop(next(iter(self._strangers))).close()
            return
        for listening in self._sockets:
            self._loop.unwatch(listening.fileno())
        self._loop.after(_REST, lambda: self._watch() if self._sockets else None)

    def _readable(self, fd: int) -> None:
        caller = self._strangers.get(fd) or self._known[fd]
        connection, handshake = caller.connection, caller.handshake
        try:
            data = connection.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        answer = handshake.feed(data) if data else None
        if answer is None:
            self._drop(fd).close()
            return
        try:
            connection.sendall(answer)
        except OSError:
            self._drop(fd).close()
            return
        if handshake.transport is not None and fd in self._strangers:
            self._known[fd] = self._strangers.pop(fd).replace(since=time.monotonic())
        if handshake.agent is not None and handshake.transport is not None:
            self._on_agent(handshake.agent, self._drop(fd).detach(), handshake.transport)

    def _sweep(self) -> None:
        """Drop connections that take too long, after reading what arrived while this process was busy or suspended."""
        assert self._loop is not None
        self._sweeping = None
        end = time.monotonic() - _HANDSHAKE_WAIT
        for callers in (self._strangers, self._known):
            for fd, caller in tuple(callers.items()):
                if caller.since > end:
                    break
                self._readable(fd)
                if fd in callers:
                    self._drop(fd).close()
        if self._strangers or self._known:
            self._sweeping = self._loop.after(_SWEEP, self._sweep)

    def _drop(self, fd: int) -> socket.socket:
        assert self._loop is not None
        self._loop.unwatch(fd)
        callers = self._strangers if fd in self._strangers else self._known
        return callers.pop(fd).connection

    def close(self) -> None:
        """Stop accepting agents."""
        self._certificate.close()
        if self._loop is not None:
            for listening in self._sockets:
                self._loop.unwatch(listening.fileno())
            for fd in (*self._strangers, *self._known):
                self._drop(fd).close()
            if self._sweeping is not None:
                self._sweeping.cancel()
        for listening in self._sockets:
            listening.close()
        self._sockets = []


def _listening(addresses: Sequence[str]) -> list[socket.socket]:
    """Listen on each of these addresses, all on the same port."""
    for _ in range(_PORTS):
        sockets: list[socket.socket] = []
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            port = sockets[0].getsockname()[1] if sockets else 0
            try:
                sockets.append(socket.create_server((address, port), family=family, backlog=_BACKLOG))
                sockets[-1].setblocking(False)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and sockets:
                    break
        else:
            if sockets:
                return sockets
        for listening in sockets:
            listening.close()
    raise UnfitError(f"no free port to listen on at {', '.join(addresses)}")
