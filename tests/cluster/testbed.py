"""A cluster of hosts inside Linux namespaces: login and node1 to nodeN.

    with Testbed(4, slurm=True) as testbed:
        testbed["login"].run(["ssh", "node2", "hostname"])

Each host has its own net, pid, mount, uts, ipc and time namespace, and with them its own address, process table,
hostname, /tmp, /run, /dev/shm and monotonic clock; the rest of the file system is shared, as over NFS. All hosts live
in one outer net and pid namespace, the site, whose bridge leads nowhere: one kill ends everything, and no packet
leaves. Works as root, and as any user where user namespaces are allowed.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence

from tests.cluster import configs
from tests.cluster.basics import HERE, PATH, put, read, reap, sh, wait_until
from tests.cluster.host import Host

TOOLS = ("unshare", "nsenter", "setpriv", "ip", "bridge", "ssh", "ssh-keygen", "/usr/sbin/sshd")
PRIVATE = ("/tmp", "/run", "/dev/shm")
CLOCKS = (50_000, 1_000, 90_000, 20_000, 70_000)
"""Seconds by which the monotonic clock of login, node1, node2 … is ahead of this machine's: machines that were switched
on at different times. Nodes whose clock is behind login's alternate with such whose clock is ahead of it."""
COMPLETING = 2.0
"""Seconds after which a node whose last job has ended is idle again, unless it was away."""
HAVE_CLOCKS = os.path.exists("/proc/self/ns/time")
PROBE = """
ip link add br0 type bridge && ip link add v0 type veth peer name v1 && mount -t tmpfs tmpfs /mnt && hostname probe
"""


def unavailable(*tools: str) -> str | None:
    """Why this machine cannot carry a cluster, or lacks one of the tools; None if it can."""
    for tool in (*TOOLS, *tools):
        if not shutil.which(tool, path=PATH):
            return f"{tool} is not installed"
    user = ["--user", "--map-root-user"] if os.getuid() else []
    clock = ["--time", "--monotonic", "1"] if HAVE_CLOCKS else []
    unshare = ["unshare", *user, "--net", "--mount", "--uts", "--ipc", "--pid", *clock, "--fork", "--mount-proc"]
    probe = subprocess.run([*unshare, "sh", "-c", f"PATH={PATH}\n{PROBE}"], stderr=subprocess.PIPE, text=True)
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else None


class Testbed:
    """The cluster; ``testbed["node1"]`` is a host of it."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(
        self,
        nodes: int,
        state: str = "",
        share: Iterable[str] = (),
        hide: Iterable[str] = (),
        slurm: bool = False,
        gpus: int = 4,
        cpus: int = 8,
        task: str = "task/none",
        owned: bool = True,
    ) -> None:
        """Describe a cluster of so many nodes; ``up`` starts it.

        ``state`` is a directory of its own, ``share`` are directories that all hosts see although they lie in one
        that each host has for itself, such as /tmp. ``hide`` are directories that are empty on all nodes. An
        owned cluster ends with this process, even by SIGKILL.
        ``gpus``, ``cpus`` and ``task`` (its TaskPlugin) are what Slurm is told of the nodes.
        """
        self.count = nodes
        self.state = state or tempfile.mkdtemp(prefix="testbed-")
        self.share = [path for path in (self.state, HERE, *share) if path.startswith(tuple(f"{p}/" for p in PRIVATE))]
        self.hide = tuple(hide)
        self.slurm, self.gpus, self.cpus, self.task, self.owned = slurm, gpus, cpus, task, owned
        self.userns = os.getuid() != 0
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.home = f"{self.state}/home"
        self.hosts = {
            name: Host(self, name, address(number), CLOCKS[number % len(CLOCKS)] if HAVE_CLOCKS else "")
            for number, name in enumerate(names(nodes))
        }
        self.site: int | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def nodes(self) -> list[Host]:
        """All hosts but login."""
        return [host for host in self.hosts.values() if host.name != "login"]

    @property
    def id(self) -> str:
        """A name for it that no other cluster of this machine has."""
        return f"testbed-{self.site}"

    # Up and down

    def __enter__(self) -> Testbed:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(self, *exc: object) -> None:
        self.down()

    def up(self, timeout: float = 120) -> Testbed:
        """Start the site and boot all hosts."""
        self._write_files()
        self._start_site()
        self.start(self.hosts)
        self.wait_ready(self.hosts, timeout)
        return self

    def down(self) -> None:
        """End every process of it and remove its files."""
        if self.site:
            for host in self.hosts.values():
                host.end_started()
                host.thaw()
                host.end_delay()
            self._end_site(self.site)
            self.site = None
        if self.process and self.process.stdin:
            self.process.stdin.close()
        shutil.rmtree(self.state, ignore_errors=True)

    def _end_site(self, site: int) -> None:
        members = [pid for host in self.hosts.values() for pid in host.pids()]
        os.kill(site, signal.SIGKILL)

        def dead() -> bool:
            reap(members)
            return (self.process is None or self.process.poll() is not None) and not os.path.exists(f"/proc/{site}")

        wait_until("the site to die", dead, 30)
        for cgroup in glob.glob(f"{self.cgroup_base()}/{self.id}-*"):
            os.rmdir(cgroup)

    def _write_files(self) -> None:
        state = self.state
        for name in ("home", "keys", "etc", "slurm/plugstack.conf.d", *(f"nodes/{host}" for host in self.hosts)):
            os.makedirs(f"{state}/{name}", exist_ok=True)
        for key in ("host", "user"):
            sh(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", f"{state}/keys/{key}"])
        put(f"{state}/keys/munge.key", os.urandom(512).hex(), 0o600)
        self._write_etc()
        self._write_slurm()
        env = {
            "private": " ".join(PRIVATE),
            "slurm": int(self.slurm) or "",
            "gpus": self.gpus,
            "runas": f"{os.getuid()}:{os.getgid()}" if self.userns else "",
        }
        put(f"{state}/site.env", configs.SITE_ENV.format(**env))
        put(f"{state}/share", "".join(f"{path}\n" for path in self.share))
        put(f"{state}/hide", "".join(f"{path}\n" for path in self.hide))
        put(f"{state}/testbed.json", json.dumps({"nodes": self.count, "slurm": self.slurm, "gpus": self.gpus}))

    def _write_etc(self) -> None:
        etc = f"{self.state}/etc"
        hosts = "".join(f"{host.ip} {host.name}\n" for host in self.hosts.values())
        put(f"{etc}/hosts", f"127.0.0.1 localhost\n{hosts}")
        put(f"{etc}/passwd", "".join(map(self._with_own_home, read("/etc/passwd").splitlines(keepends=True))))
        groups = read("/etc/group").splitlines(keepends=True)
        # Without this group, sshd does not try to give it a pty, which a user cannot.
        put(f"{etc}/group", "".join(line for line in groups if not (self.userns and line.startswith("tty:"))))
        put(f"{etc}/nsswitch.conf", configs.NSSWITCH)
        put(f"{etc}/known_hosts", f"login,node*,10.77.*,localhost,127.0.0.1 {read(f'{self.state}/keys/host.pub')}")
        put(f"{etc}/ssh_config", configs.SSH.format(state=self.state))
        put(f"{etc}/sshd_config", configs.SSHD.format(state=self.state, user=self.user))

    def _with_own_home(self, line: str) -> str:
        """A home without the machine's ~/.bashrc, which may be slow or change what commands do."""
        fields = line.split(":")
        return ":".join([*fields[:5], self.home, "/bin/bash\n"]) if fields[0] == self.user else line

    def _write_slurm(self) -> None:
        slurm = f"{self.state}/slurm"
        nodes = f"node[1-{self.count}]" if self.count > 1 else "node1"
        told = {"nodes": nodes, "cpus": self.cpus, "gpus": self.gpus, "task": self.task, "user": self.user}
        put(f"{slurm}/slurm.conf", configs.SLURM.format(**told))
        put(f"{slurm}/gres.conf", configs.SLURM_GRES.format(nodes=nodes, last=self.gpus - 1))
        put(f"{slurm}/plugstack.conf", "")

    def _start_site(self) -> None:
        state = self.state
        owned = int(self.owned) or ""
        env = [f"STATE={state}", f"HERE={HERE}", f"OWNED={owned}", f"HOME={self.home}", "LANG=C.UTF-8", f"PATH={PATH}"]
        user = ["--user", "--map-root-user"] if self.userns else []
        with open(f"{state}/site.log", "w") as log:
            self.process = subprocess.Popen(
                [
                    *("env", "-i", *env),
                    *("unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child"),
                    f"{HERE}/siteinit.sh",
                ],
                stdin=subprocess.PIPE if self.owned else subprocess.DEVNULL,  # it closes when we die, and the site ends
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.site = int(wait_until("the site", lambda: read(f"{state}/site.pid"), 60))
        except TimeoutError:
            raise RuntimeError(f"no site: {read(f'{state}/site.log')}") from None

    def start(self, names: Iterable[str]) -> None:
        """Switch hosts on."""
        hosts = [self.hosts[name] for name in names]
        lines = "".join(f"{host.name} {host.ip} {host.mac} {host.clock}\n" for host in hosts)
        if self.process and self.process.stdin:
            self.process.stdin.write(lines.encode())
            self.process.stdin.flush()
        else:
            with open(f"{self.state}/boot", "w") as boot:
                boot.write(lines)

    def wait_ready(self, names: Iterable[str], timeout: float) -> None:
        """Wait until hosts have booted, or one has failed to."""
        waited = [self.hosts[name] for name in names]

        def ready() -> bool:
            for host in waited:
                if os.path.exists(f"{host.dir}/failed"):
                    raise RuntimeError(f"{host.name}: {read(f'{host.dir}/init.log')}")
            return all(os.path.exists(f"{host.dir}/ready") for host in waited)

        wait_until("hosts to boot", ready, timeout)

    @classmethod
    def attach(cls, state: str) -> Testbed:
        """A cluster that another process has started, not owned."""
        testbed = cls(state=state, **json.loads(read(f"{state}/testbed.json")))
        testbed.site = int(read(f"{state}/site.pid"))
        for host in testbed.hosts.values():
            host.hurt = True  # for all we know
        return testbed

    # Between tests

    def mend(self) -> None:
        """End what was started on its hosts, undo every fault."""
        hurt = any(host.hurt for host in self.hosts.values())
        for host in self.hosts.values():
            host.end_started()
            host.mend()
        if hurt:  # who was just being sought would else be given up, with "No route to host", though it is there now
            for host in self.hosts.values():
                host.run(["ip", "neigh", "flush", "dev", "eth0"], check=False)

    def strays(self, grace: float = 0) -> dict[str, dict[int, list[str]]]:
        """For each host with any, the processes that are not its own and still there after a grace period."""
        return {host.name: left for host in self.hosts.values() if (left := host.strays(grace))}

    def leaves_nothing(self) -> None:
        """Fail if any process that is not a host's own is there for half a minute."""
        left = self.strays(30)
        assert not left, f"left: {left}"

    def slurm_ready(self, timeout: float = 150) -> None:
        """Wait until every node is idle, and bring back the ones that Slurm has given up.

        A node that was away when a job ended would be asked again only after most of a minute.
        """
        begin = time.monotonic()

        def update(name: str, *words: str) -> None:
            self["login"].run(["scontrol", "update", f"nodename={name}", *words], check=False)

        def idle() -> bool:
            states = self["login"].run(["sinfo", "-h", "-N", "-o", "%N %T"], check=False).stdout.split()
            for name, state in zip(states[::2], states[1::2], strict=True):
                if state.startswith(("down", "drain")):
                    update(name, "state=resume")
                elif state.startswith("completing") and time.monotonic() > begin + COMPLETING:
                    update(name, "state=down", "reason=away")
            return states[1::2] == ["idle"] * self.count

        wait_until("Slurm's nodes to be idle", idle, timeout, 0.1)

    def slurm_jobs(self, grace: float = 0) -> list[str]:
        """The jobs that are neither over nor ending after a grace period."""
        jobs: list[str] = []

        def none() -> bool:
            jobs[:] = self["login"].run(["squeue", "-h", "-t", "PD,R,S,CF", "-o", "%i %j %T"]).stdout.splitlines()
            return not jobs

        try:
            wait_until("jobs to end", none, grace, 0.1)
        except TimeoutError:
            pass
        return jobs

    # Plumbing

    def nsenter(self, pid: int | str, *namespaces: str) -> list[str]:
        """The argv that runs a command in a process's namespaces."""
        user = ["-U", "--preserve-credentials"] if self.userns else []
        return ["nsenter", "-t", str(pid), *user, *namespaces, "--"]

    def site_pid(self) -> int:
        """The site's init, as a pid of ours."""
        if not self.site:
            raise RuntimeError("the cluster is not up")
        return self.site

    def site_run(self, cmd: Sequence[str], stdin: str | None = None, quiet: bool = False) -> str:
        """Run a command at the switch."""
        return sh([*self.nsenter(self.site_pid(), "-n"), *cmd], stdin, quiet)

    def cgroup_base(self) -> str | None:
        """Where we may make a cgroup that can be frozen."""
        for base, sign in (("", "cgroup.controllers"), ("/unified", "cgroup.controllers"), ("/freezer", "tasks")):
            if os.path.exists(f"/sys/fs/cgroup{base}/{sign}") and os.access(f"/sys/fs/cgroup{base}", os.W_OK):
                return f"/sys/fs/cgroup{base}"
        return None


def names(nodes: int) -> list[str]:
    """The hosts of a cluster with so many nodes."""
    return ["login", *(f"node{number}" for number in range(1, nodes + 1))]


def address(number: int) -> str:
    """The address of the host of that number; login is 0."""
    subnet, place = divmod(number - 1, 250) if number else (-1, 0)
    return f"10.77.{subnet + 1}.{place + 1}"
