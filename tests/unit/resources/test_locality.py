"""Which host is this machine, and its addresses, in a real network within a namespace."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.resources.addresses import own_addresses
from bireme.resources.locality import TIMEOUT, find_this_machine, is_this_machine
from tests.conftest import ROOT
from tests.kit import needs

DOCS = ROOT / "docs"
NODE = os.uname().nodename

NETWORK = """
set -e
ip link set lo up
for n in 0 1 2; do ip link add d$n type veth peer name e$n; done
ip link set d0 up; ip link set e0 up; ip link set d1 up; ip link set e1 up
ip addr add 169.254.7.7/16 dev d0
ip addr add 10.8.0.1/24 dev d1
ip addr add 10.9.0.5/24 dev d0
ip addr add 10.9.0.6/24 dev d0 label d0:1
ip addr add 10.10.0.1/32 dev lo
ip addr add 10.7.0.1/24 dev d2
"""
ROUTE = "ip route add default via 10.9.0.1\n"
IPV6 = "ip -6 addr add fd00:8::1/64 dev d1 nodad\nip -6 addr add fd00:9::5/64 dev d0 nodad\n"
RESOLVER = """
printf 'nameserver 10.9.0.99\\noptions timeout:30\\n' > "$1"
printf '10.9.0.6 alias\\n10.9.0.7 other\\n127.0.1.1 loop\\n' > "$2"
printf 'hosts: files dns\\n' > "$3"
mount --bind "$1" /etc/resolv.conf; mount --bind "$2" /etc/hosts; mount --bind "$3" /etc/nsswitch.conf
"""


def in_network(tmp_path: Path, setup: str, code: str) -> object:
    """The value of an expression, in a machine with this network and nothing else."""
    unshare, _ = needs.program("unshare"), needs.program("ip")
    able = subprocess.run(
        [unshare, "-rnm", "ip", "link", "add", "d0", "type", "veth"], capture_output=True, check=False
    )
    if able.returncode:
        needs.missing(f"no network of our own: {able.stderr.decode()}")
    imports = "from bireme.resources.locality import *\nfrom bireme.resources.addresses import own_addresses"
    program = f"{imports}\nprint(repr({code}))"
    files = [str(tmp_path / name) for name in ("resolv", "hosts", "nsswitch")]
    argv = [unshare, "-rnm", "sh", "-c", f'{setup}\nexec "{sys.executable}" -c "$4"', "sh", *files, program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


def test_names_of_this_machine() -> None:
    for name in (NODE, NODE.upper(), f"{NODE}.", "localhost", "LocalHost", "ip6-localhost", "a.localhost"):
        assert is_this_machine(name)
        assert find_this_machine(("192.0.2.99", name)) == name
    for name in ("", ".", "no-such-host.invalid", "x" * 300, "a..b", "a b", "-x", "host\0name", "\udcff"):
        assert not is_this_machine(name), name


def test_a_full_name_is_not_known_by_its_beginning() -> None:
    assert not is_this_machine(f"{NODE.partition('.')[0]}.no-such-domain.invalid")


def test_numeric_addresses() -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "0:0::1", "::ffff:127.0.0.1", "0.0.0.0", "::", *own_addresses()):
        assert is_this_machine(address), address
    for address in ("224.0.0.1", "255.255.255.255", "ff02::1", "240.0.0.1", "2001:db8::1", "0.0.0.1", "::2"):
        assert not is_this_machine(address), address


def test_nothing_of_several() -> None:
    assert find_this_machine(()) is None
    assert find_this_machine((f"no-such-host-{number}.invalid" for number in range(100)), 0.2) is None


def test_own_addresses_of_this_machine() -> None:
    for address in own_addresses():
        assert not address.startswith(("127.", "fe80:")) and address != "::1"
    assert len(set(own_addresses())) == len(own_addresses())


def test_a_kernel_that_lists_no_addresses(tmp_path: Path) -> None:
    """As in a sandbox: the address towards other networks is known all the same."""
    ask_nonsense = "__import__('sys').modules['bireme.resources.addresses'].__dict__.update(_GETADDR=9999)"
    assert in_network(tmp_path, NETWORK + ROUTE, f"{ask_nonsense} or own_addresses()") == ("10.9.0.5",)


def test_order_of_addresses(tmp_path: Path) -> None:
    known = ("10.9.0.5", "10.9.0.6", "10.10.0.1", "10.8.0.1", "169.254.7.7", "10.7.0.1")
    assert in_network(tmp_path, NETWORK + ROUTE, "own_addresses()") == known
    without_route = in_network(tmp_path, NETWORK, "own_addresses()")
    assert sorted(without_route) == sorted(known)  # type: ignore[call-overload]
    assert without_route[-2:] == known[-2:]  # type: ignore[index]


def test_ipv6_addresses(tmp_path: Path) -> None:
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6")
    default = "ip -6 route add default via fd00:9::1 dev d0\n"
    found = in_network(tmp_path, NETWORK + ROUTE + IPV6 + default, "own_addresses()")
    assert found[:5] == ("10.9.0.5", "fd00:9::5", "10.9.0.6", "10.10.0.1", "10.8.0.1")  # type: ignore[index]
    assert found[5:] == ("fd00:8::1", "169.254.7.7", "10.7.0.1")  # type: ignore[index]
    assert in_network(tmp_path, NETWORK + IPV6, "is_this_machine('FD00:9:0::5')") is True


def test_a_machine_without_a_network(tmp_path: Path) -> None:
    assert in_network(tmp_path, ":", "own_addresses()") == ()
    assert in_network(tmp_path, ":", "is_this_machine('10.9.0.5')") is False


def test_addresses_count_not_names(tmp_path: Path) -> None:
    names = ("alias", "loop", "other", "10.9.0.5", "10.9.0.6", "10.10.0.1", "10.9.0.255", "10.9.0.7", "10.7.0.1")
    code = f"[name for name in {names} if is_this_machine(name)]"
    found = in_network(tmp_path, NETWORK + ROUTE + RESOLVER, code)
    assert found == ["alias", "loop", "10.9.0.5", "10.9.0.6", "10.10.0.1", "10.7.0.1"]
    assert in_network(tmp_path, NETWORK + RESOLVER, "find_this_machine(('other', 'alias', 'x'), 20)") == "alias"


def test_addresses_that_may_be_bound_although_they_are_not_ours(tmp_path: Path) -> None:
    setup = NETWORK + "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind\n"
    assert in_network(tmp_path, setup, "[is_this_machine(a) for a in ('10.9.0.5', '10.9.0.7')]") == [True, False]


def test_a_resolver_that_does_not_answer(tmp_path: Path) -> None:
    names = tuple(f"host{number}.example" for number in range(50))
    code = f"(__import__('time').monotonic(), find_this_machine({names}, 0.3), __import__('time').monotonic())"
    began = time.monotonic()
    first, found, last = in_network(tmp_path, NETWORK + ROUTE + RESOLVER, code)  # type: ignore[misc]
    assert found is None
    assert 0.25 < last - first < 20
    assert time.monotonic() - began < 28, "what hangs does not hold up the end of the program"


@pytest.mark.slow
def test_names_have_three_seconds(tmp_path: Path) -> None:
    """For all of them together, where nothing else is said; this resolver would take a minute for each."""
    names = tuple(f"host{number}.example" for number in range(50))
    code = f"(__import__('time').monotonic(), find_this_machine({names}), __import__('time').monotonic())"
    first, found, last = in_network(tmp_path, NETWORK + ROUTE + RESOLVER, code)  # type: ignore[misc]
    assert found is None
    assert 2.9 < last - first < 20
    assert f"resolution takes at most {TIMEOUT:g} s" in " ".join(
        (DOCS / "nodes.md").read_text(encoding="utf-8").split()
    )


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.text("ab01:.%/[]- \0", max_size=20), st.ip_addresses().map(str)))
def test_every_name_has_an_answer(name: str) -> None:
    assert is_this_machine(name, 0.2) in (True, False)
