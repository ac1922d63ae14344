"""Ports are leased against real sockets and real processes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

import bireme
from bireme.errors import BadInputError
from bireme.resources.rendezvous_port import TRIED, lease_named_port, lease_port
from tests.conftest import free_ports
from tests.kit import needs

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the lock needs the abstract socket namespace")


def start(script: str, *args: object, close_fds: bool = True) -> subprocess.Popen[str]:
    """Run a script in a process of its own, with pipes to talk to it."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(bireme.__file__)))
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
        close_fds=close_fds,
    )


HOLDER = """
import sys
from bireme.resources.rendezvous_port import lease_named_port
lease = lease_named_port(int(sys.argv[1]))
print(lease.port, flush=True)
sys.stdin.read()
"""


def listener(address: str, port: int, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    other = socket.socket(family)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind((address, port))
    other.listen(1)
    return other


def test_the_default_port_when_it_is_free() -> None:
    base = free_ports(3)
    lease, note = lease_port(base)
    assert (lease.port, note) == (base, "")
    lease.close()


@linux_only
def test_the_next_port_when_another_job_has_it() -> None:
    base = free_ports(3)
    first, _ = lease_port(base)
    second, note = lease_port(base)
    assert (second.port, note) == (base + 1, f"port {base} is taken: using {base + 1}")
    first.close()
    third, note = lease_port(base)
    assert (third.port, note) == (base, "")
    second.close()
    third.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_next_port_when_another_program_listens(address: str) -> None:
    base = free_ports(3)
    with listener(address, base):
        lease, _ = lease_port(base)
        assert lease.port == base + 1
        lease.close()
        with pytest.raises(BadInputError, match="another program") as caught:
            lease_named_port(base)
        assert caught.value.where == "--master_port"
    lease = lease_named_port(base)
    lease.close()


def test_a_listener_on_ipv6_counts_too() -> None:
    base = free_ports(3)
    try:
        other = listener("::1", base, socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with other, pytest.raises(BadInputError, match="another program"):
        lease_named_port(base)


def test_lingering_connections_do_not_matter() -> None:
    base = free_ports(3)
    with listener("127.0.0.1", base) as server:
        client = socket.create_connection(("127.0.0.1", base))
        connection, _ = server.accept()
        connection.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    plain = socket.socket()
    with plain, pytest.raises(OSError) as caught:
        plain.bind(("127.0.0.1", base))
    assert caught.value.errno == errno.EADDRINUSE, "without SO_REUSEADDR the port would be refused"
    lease_named_port(base).close()


@linux_only
def test_when_all_are_taken_any_port_does() -> None:
    base = 65535 - 3  # the row ends with the last port
    leases = []
    for _ in range(5):
        lease, note = lease_port(base)
        leases.append(lease)
    assert leases[-1].port not in range(base, 65536)
    assert note == f"ports {base} to 65535 are taken: using {leases[-1].port}"
    for lease in leases:
        lease.close()


@linux_only
def test_another_process_holds_the_lock() -> None:
    base = free_ports(3)
    with start(HOLDER, base) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == f"{base}\n"
        with pytest.raises(BadInputError, match="another job of Bireme"):
            lease_named_port(base)
        lease, _ = lease_port(base)
        assert lease.port == base + 1
        lease.close()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        lease_named_port(base).close()


@linux_only
def test_a_forked_process_holds_it_on() -> None:
    script = """
import os, sys
from bireme.errors import BadInputError
from bireme.resources.rendezvous_port import lease_named_port
port = int(sys.argv[1])
lease = lease_named_port(port)
read, write = os.pipe()
child = os.fork()
if not child:
    os.close(write)
    os.read(read, 1)
    os._exit(0)
lease.close()
try:
    lease_named_port(port)
except BadInputError as error:
    print(error.what)
os.close(write)
os.waitpid(child, 0)
print(lease_named_port(port).port)
"""
    base = free_ports(3)
    with start(script, base) as process:
        out, _ = process.communicate()
    assert out.splitlines() == [f"port {base} is taken by another job of Bireme", str(base)]


@linux_only
def test_an_executed_program_does_not_hold_it() -> None:
    base = free_ports(3)
    lease = lease_named_port(base)
    assert lease.fds and not any(os.get_inheritable(fd) for fd in lease.fds)
    with start("print(flush=True); input()", close_fds=False) as program:
        assert program.stdout is not None and program.stdout.readline() == "\n"
        lease.close()
        lease_named_port(base).close()
        program.communicate("\n")


def test_closing_twice_is_harmless() -> None:
    lease = lease_named_port(free_ports(3))
    lease.close()
    assert lease.fds == ()
    lease.close()


@linux_only
def test_a_lease_is_not_lost_with_its_object() -> None:
    base = free_ports(3)
    fds = lease_named_port(base).fds  # the object is gone at once
    with pytest.raises(BadInputError, match="another job of Bireme"):
        lease_named_port(base)
    for fd in fds:
        os.close(fd)
    lease_named_port(base).close()


@linux_only
def test_twenty_processes_at_the_same_instant_get_twenty_ports() -> None:
    script = """
import os, sys
from bireme.resources.rendezvous_port import lease_port
go, start = os.pipe()
out, report = os.pipe()
end, hold = os.pipe()
for _ in range(20):
    if not os.fork():
        for fd in (start, out, hold):
            os.close(fd)
        os.read(go, 1)
        lease, _ = lease_port(int(sys.argv[1]))
        os.write(report, b"%d\\n" % lease.port)
        os.close(report)
        os.read(end, 1)
        os._exit(0)
os.close(report)
os.close(start)
print(os.fdopen(out).read(), flush=True)
os.close(hold)
for _ in range(20):
    os.wait()
"""
    with start(script, free_ports(20)) as process:
        out, _ = process.communicate()
    ports = out.split()
    assert len(ports) == len(set(ports)) == 20
    assert TRIED >= 20


@pytest.mark.parametrize("port", [0, -1, 65536, 10**9])
def test_numbers_that_are_no_ports(port: int) -> None:
    with pytest.raises(BadInputError, match="not a port: ") as caught:
        lease_named_port(port)
    assert caught.value.where == "--master_port"


@linux_only
def test_a_port_that_this_user_may_not_have() -> None:
    script = """
import os
from bireme.errors import BadInputError
from bireme.resources.rendezvous_port import lease_named_port, lease_port
with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
    if int(file.read()) < 1024:
        raise SystemExit(print("skip"))
if os.geteuid() == 0:
    os.setuid(65534)
try:
    lease_named_port(1023)
except BadInputError as error:
    print(error)
print(lease_port(1023)[0].port > 1023)
"""
    with start(script) as process:
        out, _ = process.communicate()
    if out == "skip\n":
        pytest.skip("low ports are open to everybody here")
    first, _, last = out.splitlines()
    assert first == "--master_port: this user may not listen on port 1023"
    assert last == "True"


# -- other users -----------------------------------------------------------------------------------

# In a network of its own, where the system gives out a hundred ports, another user takes names; then this user leases.
AMONG_OTHERS = """
import os, signal, socket, sys
from bireme.errors import BiremeError
from bireme.resources.rendezvous_port import lease_named_port, lease_port

def take(names, listening):
    held = []
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            held.append(socket.socket(socket.AF_UNIX, kind))
            held[-1].bind(chr(0) + name)
            if listening and kind == socket.SOCK_STREAM:
                held[-1].listen(0)
    return held

def lease(count):
    leases = [lease_port() for _ in range(count)]
    print([lease.port for lease, _ in leases])

with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
    file.write("40000 40099")
ready, tell = os.pipe()
other = os.fork()
if not other:
    os.setresuid(65534, 65534, 65534)
    held = eval(sys.argv[1])
    os.write(tell, b".")
    signal.pause()
os.close(tell)
try:
    if os.read(ready, 1):
        exec(sys.argv[2])
except BiremeError as error:
    print(error.code, error)
finally:
    os.kill(other, 9)
    os.waitpid(other, 0)
"""
ALL = "[*range(29500, 29600), *range(40000, 40100)]"


def among_others(theirs: str, ours: str) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    home = os.path.dirname(os.path.dirname(os.path.abspath(bireme.__file__)))
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", AMONG_OTHERS, theirs, ours],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
        check=False,
    )
    if "unshare failed" in done.stderr:
        needs.missing(f"there are no network namespaces here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@linux_only
@pytest.mark.parametrize("listening", [False, True])
def test_another_user_who_has_taken_every_name_keeps_nobody_out(listening: bool) -> None:
    names = f"(f'bireme-port-{{port}}{{end}}' for port in {ALL} for end in ('', '-0'))"
    (port,) = json.loads(among_others(f"take({names}, {listening})", "lease(1)"))
    assert 40000 <= port < 40100


@linux_only
def test_jobs_of_one_user_differ_whatever_others_have_taken() -> None:
    ports = json.loads(among_others(f"take((f'bireme-port-{{port}}' for port in {ALL}), True)", "lease(20)"))
    assert len(set(ports)) == 20 and all(40000 <= port < 40100 for port in ports)


@linux_only
@pytest.mark.parametrize("listening", [False, True])
def test_a_name_of_this_user_that_another_has_means_nothing(listening: bool) -> None:
    assert among_others(f"take(['bireme-port-29500-0'], {listening})", "lease(2)") == "[29500, 29501]"


@linux_only
def test_jobs_of_two_users_differ() -> None:
    assert among_others("lease_port()", "lease(2)") == "[29501, 29502]"
    named = among_others("lease_port()", "lease_named_port(29500)")
    assert re.match(r"2 --master_port: port 29500 is taken by a job of (nobody|user 65534)\n", named)
