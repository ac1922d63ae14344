"""What all tests share: the command as a user starts it, and an exact check that it leaves nothing behind."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from bireme.errors import BadInputError
from bireme.resources import extension_locks
from bireme.resources.rendezvous_port import lease_named_port
from bireme.runner import job_client
from tests.kit import needs
from tests.kit.order import pytest_collection_modifyitems as pytest_collection_modifyitems  # a hook
from tests.kit.waiting import wait_for as wait_for

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests/kit/programs"
PR_SET_CHILD_SUBREAPER = 36
TIMES = int(os.environ.get("BIREME_TEST_TIMES", "4"))
"""How often a test tries again what goes wrong once in a while: make test BIREME_TEST_TIMES=1000 for a night."""

# A busy machine may take long for anything. Every run tries other examples.
settings.register_profile("ours", deadline=None, max_examples=12 * TIMES)
settings.load_profile("ours")


def pytest_configure() -> None:
    """Begin with the signals of a user's shell: ``nohup``, ``&`` and some daemons ignore or block them for us.

    What we start would inherit that, and would not hear the Ctrl+C that a test sends.
    """
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP, signal.SIGCHLD):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Hundreds of processes would compile the same files again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that lacks something, and keep what PyTorch has compiled for this user from all that are not its own.

    A build that is killed, as by a test, leaves a lock that nobody holds: each command speaks of it, and each later
    build would wait for it forever.
    """
    needs.pytest_runtest_setup(item)
    if item.get_closest_marker("torch"):
        os.environ.pop("TORCH_EXTENSIONS_DIR", None)
        for lock in extension_locks.stale(os.environ):
            Path(lock).unlink(missing_ok=True)
    else:
        os.environ["TORCH_EXTENSIONS_DIR"] = "/dev/null/extensions"  # where nothing can be made


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let one worker compile a file, and the others read what it has written."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with open(collector.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def clean_environ(**more: str) -> dict[str, str]:
    """The environment of a user's shell: nothing of pytest's, nothing that a launcher has set."""
    drop = (
        "PYTEST",
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "COLUMNS",
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**environ, **more}


def bireme(*args: str | Path) -> list[str]:
    """The command line of ``bireme`` with these arguments."""
    return [sys.executable, "-m", "bireme", *map(str, args)]


def run_python(source: str, *args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run a text as a program of its own, in a user's environment."""
    words = [sys.executable, "-c", source, *map(str, args)]
    given = {"env": clean_environ(), "timeout": 60, **kwargs}
    return subprocess.run(words, capture_output=True, text=True, check=False, **given)  # type: ignore[call-overload, no-any-return]


BEGIN = """
import sys
from bireme.isolated import exit_quietly_on_interrupt
exit_quietly_on_interrupt()
begun = open(sys.argv.pop(1), "x")
from bireme.__main__ import command
command()
"""


def bireme_begun(file: Path, *args: str | Path) -> list[str]:
    """The same, and it makes this file once Ctrl+C is its own.

    Before that it is Python's: it answers with a traceback, or now and then with ``Exception ignored in``, and goes on.
    `bireme` itself takes the first moment that it gets: `test_nothing_is_imported_before_ctrl_c_is_ours`.
    """
    return [sys.executable, "-c", BEGIN, str(file), *map(str, args)]


NOBODY = 65534
"""The uid of another user, for a test that runs as root."""


def as_nobody(uid: int = NOBODY) -> list[str]:
    """The words before a command that run it as another user; the test is skipped where that cannot be done.

    That user may read and search everything, for the interpreter may lie in root's home, and nothing else.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    can = "-all,+dac_read_search"
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    words += [f"--inh-caps={can}", f"--ambient-caps={can}", f"--bounding-set={can}"]
    try:
        done = subprocess.run([*words, *bireme("--version")], capture_output=True, text=True, check=False, cwd="/")
    except OSError as error:
        needs.missing(f"setpriv: {error.strerror}")
    if done.returncode:
        pytest.skip(f"nothing can be run as another user here: {done.stderr}")
    return words


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can read and write, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def own_children() -> set[int]:
    """Live children of this process, adopted orphans included."""
    while (listed := _listed()) != _listed():  # the kernel may leave one out when another ends meanwhile
        pass
    found = set()
    for pid in listed:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.add(pid)
    return found


def _listed() -> set[int]:
    """The children of each thread, as the kernel lists them."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            found |= {*map(int, Path(f"/proc/self/task/{thread}/children").read_text().split())}
        except OSError:  # it has ended; its children are another's
            return _listed()
    return found


def guards_of(pid: int) -> dict[str, int]:
    """The watcher and the guardian of a command or agent, as far as they are there."""
    found = {}
    for name in ("watcher", "guardian"):
        try:
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            named = [int(child) for child in below if Path(f"/proc/{child}/comm").read_text() == _COMM[name]]
        except OSError:
            break
        if named:
            found[name] = pid = named[0]
    return found


_COMM = {"watcher": "bireme-watch\n", "guardian": "bireme-guard\n"}


class Stage:
    """Starts commands in sessions of their own and knows what of them is left.

    The test's process is a subreaper: whatever a command leaves behind becomes its child, in
    whichever session it is and whatever environment it has.
    """

    def __init__(self) -> None:
        self.before = own_children()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str | Path, **kwargs: object) -> subprocess.Popen[bytes]:
        """``bireme ARGS``, its stdout and stderr in pipes."""
        return self.start_argv(bireme(*args), **kwargs)

    def start_argv(self, argv: list[str], **kwargs: object) -> subprocess.Popen[bytes]:
        """The same for a whole command line."""
        kwargs.setdefault("env", clean_environ())
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen(argv, start_new_session=True, **kwargs)  # type: ignore[call-overload]
        self.started.append(process)
        return process

    def run(
        self, *args: str | Path, timeout: float = 120, code: int | None = None, **kwargs: object
    ) -> subprocess.CompletedProcess[str]:
        """The same, to its end, which has this exit code."""
        return self.run_argv(bireme(*args), timeout, code, **kwargs)

    def run_argv(
        self, argv: list[str], timeout: float = 120, code: int | None = None, **kwargs: object
    ) -> subprocess.CompletedProcess[str]:
        """The same for a whole command line."""
        process = self.start_argv(argv, **kwargs)
        out, err = ((data or b"").decode() for data in process.communicate(timeout=timeout))
        assert code in (None, process.returncode), err or out
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def left(self, within: float = 0.0) -> dict[int, str]:
        """pid → command line of every process that is still there after so many seconds."""
        deadline = time.monotonic() + within
        known = {process.pid for process in self.started if process.poll() is None}
        while True:
            left = {}
            for pid in own_children() - self.before - known:
                try:
                    left[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    pass
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.005)  # an adopted process sends no event

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()
            process.wait()
        left = self.left(within=30)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
        assert not left, f"left running: {left}"


def become_subreaper() -> None:
    """Adopt what processes below this one leave behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(scope="session", autouse=True)
def _subreaper() -> None:
    become_subreaper()


@pytest.fixture
def stage():
    """A stage; after the test nothing may be left on it."""
    stage = Stage()
    yield stage
    stage.end()


@pytest.fixture
def script(tmp_path):
    """Write a Python program and give its path."""

    def write(text: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def free_ports(count: int = 1) -> int:
    """The first of so many free ports in a row, which no job has leased either.

    They lie below those that the system takes for connections, and below the default one, and at random, since tests
    run in parallel.
    """
    for _ in range(200):
        first = random.SystemRandom().randrange(20000, 29000)
        try:
            with ExitStack() as held:
                for port in range(first, first + count):
                    held.callback(lease_named_port(port).close)
            return first
        except BadInputError:
            pass
    raise AssertionError("no free ports")


def wait_until_listed(process: subprocess.Popen[bytes]) -> None:
    """Wait until other commands can ask a job: that begins a moment after its ranks, which may have written before."""
    wait_for(lambda: process.pid in job_client.jobs(), "the job is listed")


def read_lines(process: subprocess.Popen[bytes], count: int, containing: str) -> list[str]:
    """Wait until so many lines of stdout contain a text; return all lines read. Fails at the end of the output."""
    lines: list[str] = []
    while sum(containing in line for line in lines) < count:
        line = process.stdout.readline().decode(errors="replace")  # type: ignore[union-attr]
        if not line:
            _, err = process.communicate()
            raise AssertionError(f"ended before {count} times {containing!r}: {lines} {err.decode(errors='replace')}")
        lines.append(line)
    return lines
