"""One host of the cluster: its processes, and commands on it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.cluster.basics import PATH, children, read, reap, signal_all, wait_until
from tests.cluster.faults import Faults
from tests.cluster.ways import FAKE

if TYPE_CHECKING:
    from tests.cluster.testbed import Testbed

# What a host runs of its own, by the name in argv[0]; sshd's listener is known by its title.
DAEMONS = {"testbed-idle", "testbed-kubelet", "munged", "slurmd", "slurmctld", "slurmctld:"}
STEP_DAEMON = 30.0  # seconds that a slurmstepd may stay after the last process of its step


class Process(NamedTuple):
    """A process as its host sees it."""

    pid: int
    state: str
    argv: list[str]


class Host(Faults):
    """A host of the cluster, on or off. Its faults, ``cut()`` and the like, are in faults.py."""

    def __init__(self, testbed: Testbed, name: str, ip: str, clock: int | str) -> None:
        """``clock``: see ``testbed.CLOCKS``; "" where all have this machine's."""
        super().__init__()
        self.clock = clock
        self.testbed = testbed
        self.name = name
        self.ip = ip
        self.mac = "02:00:" + ":".join(f"{int(byte):02x}" for byte in ip.split("."))
        self.dir = f"{testbed.state}/nodes/{name}"
        self.started: list[subprocess.Popen[Any]] = []

    # Processes

    @property
    def pid(self) -> int | None:
        """The host's init, as a pid of ours; None while the host is off."""
        text = read(f"{self.dir}/ready")
        return int(text) if text and os.path.exists(f"/proc/{int(text)}") else None

    def pids(self) -> list[int]:
        """Every process of the host, zombies too, as pids of ours."""
        if not (init := self.pid):
            return []
        found = []
        try:
            namespace = os.readlink(f"/proc/{init}/ns/pid")
        except OSError:
            return []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    found.append(int(name))
            except OSError:
                pass
        return sorted(found)

    def ps(self) -> dict[int, Process]:
        """Every process of the host, by its pid of ours."""
        found = {}
        for pid in self.pids():
            status = dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").splitlines())
            argv = read(f"/proc/{pid}/cmdline").rstrip("\0")
            if status:
                words = argv.split("\0") if argv else [f"[{status['Name']}]"]
                found[pid] = Process(int(status["NSpid"].split()[-1]), status["State"][0], words)
        return found

    def others(self) -> bool:
        """Whether anything but its daemons is there, by its own /proc, which is short."""
        if not (init := self.pid):
            return False
        proc = f"/proc/{init}/root/proc"
        try:
            pids = [name for name in os.listdir(proc) if name.isdigit()]
        except OSError:
            return True
        return not all(
            own(Process(int(pid), "", read(f"{proc}/{pid}/cmdline").rstrip("\0").split("\0"))) for pid in pids
        )

    def agents(self) -> set[int]:
        """Every agent of a job, and its guardian, which is a fork of it."""
        return {pid for pid, process in self.ps().items() if is_agent(process.argv)}

    def strays(self, grace: float = 0) -> dict[int, list[str]]:
        """Argv of every process that is not one of the host's own daemons, and still there after a grace period.

        Slurm's daemon of a step stays at its own pace when all processes of the step are gone: it is given longer.
        """
        if not self.others():
            return {}
        begin = time.monotonic()
        while left := {pid: process.argv for pid, process in self.ps().items() if not own(process)}:
            reap(left)
            only_slurm = all(argv[0].startswith("slurmstepd") for argv in left.values())
            waited = time.monotonic() - begin
            if waited >= (max(grace, STEP_DAEMON) if grace and only_slurm else grace):
                break
            time.sleep(max(0.05, min(waited / 20, 0.5)))
        return left

    # Commands

    def argv(
        self, cmd: Sequence[str], cwd: str = "/", env: Mapping[str, str] | None = None, root: bool = False
    ) -> list[str]:
        """The argv that runs a command on this host, in the environment of a login and nothing of ours.

        The command dies when the process that runs this argv does. ``root``: it may change mounts and addresses.
        """
        testbed = self.testbed
        if not (pid := self.pid):
            raise RuntimeError(f"{self.name} is off")
        login = {"HOME": testbed.home, "USER": testbed.user, "LOGNAME": testbed.user, "LANG": "C.UTF-8", "PATH": PATH}
        user = ["--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}", "--"]
        return [
            *testbed.nsenter(pid, "-m", "-u", "-i", "-n", "-p", *(["-T"] if self.clock else [])),
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *(["unshare", *user] if testbed.userns and not root else []),
            *("env", "-i", *(f"{name}={value}" for name, value in {**login, **(env or {})}.items())),
            *("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", cwd, *cmd),
        ]

    def run(
        self,
        cmd: str | Sequence[str],
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        check: bool = True,
        root: bool = False,
        **kwargs: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (a string: by the shell) to its end; stdout and stderr are caught. ``root``: see ``argv``."""
        words = ["sh", "-c", cmd] if isinstance(cmd, str) else cmd
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if "input" in kwargs:
            del defaults["stdin"]
        options: dict[str, Any] = {**defaults, **kwargs}
        return subprocess.run(self.argv(words, cwd, env, root), text=True, timeout=timeout, check=check, **options)

    def popen(
        self, cmd: Sequence[str], cwd: str = "/", env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start a command; ``end_started`` ends it at the latest."""
        process = subprocess.Popen(self.argv(cmd, cwd, env), **kwargs)
        self.started.append(process)
        return process

    def kill(self, popen: subprocess.Popen[Any], number: int, group: bool = False) -> None:
        """Send a signal to a command that ``popen`` started, or to its whole process group, as ^C does.

        A signal to the Popen object itself would only reach nsenter. For a group of its own, the command needs
        ``start_new_session=True``.
        """
        if group:
            members = [pid for pid in self.pids() if group_of(pid) == os.getpgid(popen.pid)]
        else:
            members = children(popen.pid)
        signal_all(members, number)

    def end_started(self) -> None:
        """Kill what ``popen`` started and still runs, and close its pipes."""
        if self.started:
            self.thaw()
        for process in self.started:
            self.kill(process, signal.SIGKILL)  # its nsenter waits for it and ends too
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.started.clear()

    # Its daemon

    def has_sshd(self) -> bool:
        """Is there a listener?"""
        return any("[listener]" in process.argv[0] for process in self.ps().values())

    def kill_sshd(self, sessions: bool = False) -> None:
        """Kill the listener, so that connections are refused, or every sshd process of the host."""
        self.hurt = True
        listener = int(self.run(["cat", "/run/sshd.pid"]).stdout)
        for pid, process in self.ps().items():
            session = process.argv[0].startswith(("sshd:", "/usr/sbin/sshd"))
            if process.pid == listener or (sessions and session):
                os.kill(pid, signal.SIGKILL)

    def start_sshd(self, *options: str) -> None:
        """Start the listener; it listens when this returns."""
        self.run(["rm", "-f", "/run/sshd.pid"])
        config = f"{self.testbed.state}/etc/sshd_config"
        self.run(["/usr/sbin/sshd", "-r", "-f", config, *options, "-E", f"{self.dir}/sshd.log"])
        wait_until("sshd to listen", lambda: self.run(["cat", "/run/sshd.pid"], check=False).stdout.strip(), 30)

    def start_kubelet(self) -> None:
        """Start what the stand-in for ``kubectl exec`` speaks to, unless it runs."""
        root, self.has_pods = f"/proc/{self.pid}/root", True
        if not os.path.exists(f"{root}/proc/{read(f'{root}/run/kubelet') or 'none'}"):
            self.run(["bash", "-c", f"exec -a testbed-kubelet python3 -IS {shlex.quote(str(FAKE / 'kubelet'))}"])

    def mend(self) -> None:
        """Undo every fault, and boot the host if it is off."""
        if not self.hurt:
            return
        self.thaw()
        if self.pid is None:
            self.boot()
        self.clear()  # first: a delayed host's port is no port of the bridge, which heal() speaks to
        self.heal()
        if not self.has_sshd():
            self.start_sshd()
        self.hurt = False


def is_agent(argv: Sequence[str]) -> bool:
    """Is this the command line of an agent, however it was started? One of its words names it."""
    return argv[0] == sys.executable and "bireme.agent" in argv


def own(process: Process) -> bool:
    """Is it the host's init or one of its daemons?"""
    title = process.argv[0]
    name = title.split("/")[-1].split(" ")[0]
    return process.pid == 1 or name in DAEMONS or "[listener]" in title


def group_of(pid: int) -> int:
    """The process group, or 0 if there is no such process."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
