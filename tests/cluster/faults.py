"""Faults of a host: cable, switch port, firewall, a hung kernel, a panic, the power supply.

=====================  ===========================================================================
``cut``, ``heal``      cable out: both ends lose carrier
``blackhole``          switch port dead: carrier stays, frames vanish; ``heal``
``freeze``, ``thaw``   hung machine: its kernel still accepts TCP, no process runs
``panic``, ``boot``    every process dies, sockets send FIN or RST
``poweroff``           every process dies, nothing is sent; ``boot``
``delay``, ``loss``    latency each way, frames lost; ``clear`` ends these and the next
``drop``, ``rate``     a firewall on a TCP port, a slow line
=====================  ===========================================================================
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.cluster.basics import HERE, children, put, read, reap, signal_all, wait_until, write

if TYPE_CHECKING:
    from tests.cluster.host import Process
    from tests.cluster.testbed import Testbed


class Faults:
    """The faults of a host and their cures."""

    testbed: Testbed
    name: str
    dir: str
    started: list[subprocess.Popen[Any]]

    def __init__(self) -> None:
        self.hurt = False  # is there anything to undo?
        self.has_pods = False  # does the stand-in for kubectl reach it?
        self.relay: subprocess.Popen[bytes] | None = None

    if TYPE_CHECKING:

        @property
        def pid(self) -> int | None: ...
        def pids(self) -> list[int]: ...
        def ps(self) -> dict[int, Process]: ...
        def start_kubelet(self) -> None: ...

    # The line

    @property
    def port(self) -> str:
        """The switch's end of the host's cable."""
        return f"v-{self.name}"

    def cut(self) -> None:
        """Cable out: both ends lose carrier."""
        self.hurt = True
        self.testbed.site_run(["ip", "link", "set", self.port, "down"])

    def blackhole(self) -> None:
        """Switch port dead: carrier stays, frames vanish."""
        self.hurt = True
        self.testbed.site_run(["bridge", "link", "set", "dev", self.port, "state", "0"])

    def heal(self) -> None:
        """Undo ``cut`` and ``blackhole``."""
        self.testbed.site_run(["ip", "link", "set", self.port, "up"])
        wait_until("the port's carrier", self._forward, 30, every=0.002)

    def _forward(self) -> bool:
        """Let frames pass; the kernel refuses that until the carrier is back, a moment after the cable."""
        try:
            self.testbed.site_run(["bridge", "link", "set", "dev", self.port, "state", "3"], quiet=True)
        except subprocess.CalledProcessError:
            return False
        return True

    def rate(self, mbit: float) -> None:
        """A slow line towards the host."""
        self.hurt = True
        shape = ["tbf", "rate", f"{mbit}mbit", "burst", "32k", "latency", "200ms"]
        self.testbed.site_run(["tc", "qdisc", "replace", "dev", self.port, "root", *shape])

    def drop(self, tcp_port: int) -> None:
        """Firewall: silently drop TCP to this port of the host."""
        self._filter(f'oifname "{self.port}" tcp dport {tcp_port} drop')

    def loss(self, percent: int) -> None:
        """Lose so many frames, each way."""
        lost = f"numgen random mod 100 < {percent} drop"
        self._filter(f'oifname "{self.port}" {lost}', f'iifname "{self.port}" {lost}')

    def _filter(self, *rules: str) -> None:
        self.hurt = True
        body = "\n".join(["type filter hook forward priority 0;", *rules])
        self.testbed.site_run(["nft", "-f", "-"], stdin=f"table bridge {self.name} {{ chain f {{\n{body}\n}}\n}}\n")

    def delay(self, ms: float, loss: float = 0) -> None:
        """Latency each way, by a relay in user space: the kernel's own needs sch_netem."""
        self.hurt = True
        self.end_delay()
        self.relay = subprocess.Popen(
            [
                *self.testbed.nsenter(self.testbed.site_pid(), "-n", "-p"),
                *("setpriv", "--pdeathsig", "KILL", sys.executable),
                *(f"{HERE}/delay.py", self.port, "br0", str(ms), str(loss)),
            ],
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=open(f"{self.dir}/delay.log", "w"),
        )
        put(f"{self.dir}/delay.pid", str(self.relay.pid))
        assert self.relay.stdout
        if self.relay.stdout.readline() != b"up\n":
            raise RuntimeError(read(f"{self.dir}/delay.log"))

    def end_delay(self) -> None:
        """Undo ``delay``."""
        pid = read(f"{self.dir}/delay.pid")  # a file, for the command line: the relay outlives who has started it
        if not pid:
            return
        signal_all(children(int(pid)), signal.SIGKILL)
        os.unlink(f"{self.dir}/delay.pid")
        if self.relay:
            self.relay.communicate()
            self.relay = None
        time.sleep(0.05)
        back = f"ip link del d-{self.name} 2>/dev/null; ip link set {self.port} master br0 up"
        self.testbed.site_run(["sh", "-c", back])

    def clear(self) -> None:
        """Undo ``delay``, ``loss``, ``drop`` and ``rate``."""
        self.end_delay()
        undo = f"tc qdisc del dev {self.port} root; nft delete table bridge {self.name}; :"
        self.testbed.site_run(["sh", "-c", undo], quiet=True)

    # The machine

    @property
    def _cgroup(self) -> str:
        base = self.testbed.cgroup_base()
        return f"{base}/{self.testbed.id}-{self.name}" if base else ""

    def freeze(self) -> None:
        """Hang the machine: no process of it runs, its kernel still answers TCP.

        By the cgroup freezer, or where we may not have one by SIGSTOP, which a parent on the host would notice.
        """
        self.hurt = True
        if self._cgroup:
            os.makedirs(self._cgroup, exist_ok=True)
            wait_until("processes to join the freezer", self._join_cgroup, 30)
            self._set_freezer(True)
        else:
            wait_until("processes to stop", self._stop_all, 30)

    def thaw(self) -> None:
        """Undo ``freeze``."""
        if os.path.isdir(self._cgroup):
            self._set_freezer(False)
        # An nsenter halts with its child, and wakes it again when it goes on itself.
        halted = [pid for pid, process in self.ps().items() if process.state == "T"]
        signal_all([*(process.pid for process in self.started if process.poll() is None), *halted], signal.SIGCONT)

    def _join_cgroup(self) -> bool:
        """Move all processes there; true when all were there already, so that no new one has escaped."""
        inside = set(read(f"{self._cgroup}/cgroup.procs").split())
        outside = [pid for pid in self.pids() if str(pid) not in inside]
        for pid in outside:
            try:
                write(f"{self._cgroup}/cgroup.procs", str(pid))
            except OSError:
                pass  # it has just ended
        return not outside

    def _stop_all(self) -> bool:
        running = [pid for pid, process in self.ps().items() if process.state not in "TZX"]
        signal_all(running, signal.SIGSTOP)
        return not running

    def _set_freezer(self, on: bool) -> None:
        cgroup = self._cgroup
        if os.path.exists(f"{cgroup}/cgroup.freeze"):  # version 2
            write(f"{cgroup}/cgroup.freeze", str(int(on)))
            wait_until("the freezer", lambda: f"frozen {int(on)}" in read(f"{cgroup}/cgroup.events"), 30)
        else:
            state = "FROZEN" if on else "THAWED"
            write(f"{cgroup}/freezer.state", state)
            wait_until("the freezer", lambda: read(f"{cgroup}/freezer.state").strip() == state, 30)

    def panic(self) -> None:
        """Every process dies, sockets are closed: peers get FIN or RST."""
        self.hurt = True
        if not (pid := self.pid):
            raise RuntimeError(f"{self.name} is off")
        members = self.pids()
        os.unlink(f"{self.dir}/ready")
        os.kill(pid, signal.SIGKILL)
        self.thaw()  # the frozen die only when thawed, and then without running on

        def dead() -> bool:
            reap(members)
            return not os.path.exists(f"/proc/{pid}")

        wait_until(f"{self.name} to die", dead, 30)

    def poweroff(self) -> None:
        """Every process dies, and peers hear nothing more."""
        self.blackhole()
        self.panic()

    def boot(self, timeout: float = 30) -> None:
        """Switch it on again after ``panic`` or ``poweroff``: nothing is left of before."""
        self.end_delay()
        self.testbed.site_run(["sh", "-c", f"ip link del {self.port} 2>/dev/null; :"])
        self.testbed.start([self.name])
        self.testbed.wait_ready([self.name], timeout)
        if self.has_pods:
            self.start_kubelet()
