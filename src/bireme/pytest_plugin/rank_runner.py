"""What a rank of the pytest plug-in does: it collects test files once, and runs each test in a fork of its own."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import tempfile
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import Config

SHARED = "BIREME_TEST_FOLDER"
"""The variable with the folder that is ``tmp_path`` on all ranks of a test."""

STOPPED = "stopped, since another rank has failed"
"""What a rank answers that was ended for that reason."""

PlainWarning = tuple[str, str, str, str, int]
"""Of a warning: its text, the module and name of its category, file, and line."""


def serve(address: str, options: Mapping[str, Any], folder: str) -> None:
    """Run tests until the other end of the connection is closed.

    Args:
        address: where the plug-in listens.
        options: those of pytest, as the plug-in has them.
        folder: where it was started.
    """
    os.chdir(folder)
    with Client(address, "AF_UNIX") as connection:
        connection.send(int(os.environ["RANK"]))
        collected = _Collected(options)
        while True:
            try:
                what, *rest = connection.recv()
            except EOFError:
                return
            if what == "run":  # else it is to end a test that has ended meanwhile
                nodeid, environ = rest
                connection.send(_run(collected, nodeid, environ, connection))


class SharedFolder:
    """The fixture ``tmp_path``, which is the same folder on all ranks of a test."""

    @pytest.fixture
    def tmp_path(self, request: pytest.FixtureRequest) -> Path:
        """The folder of the test; of one without the marker, pytest's own."""
        return Path(os.environ[SHARED]) if SHARED in os.environ else request.getfixturevalue("tmp_path")


def plain(warning: warnings.WarningMessage) -> PlainWarning:
    """A warning as it is sent."""
    category = warning.category
    return str(warning.message), category.__module__, category.__name__, warning.filename, warning.lineno


class _Recorder:
    """Keeps all that pytest reports of a test: its phases, its subtests, and its warnings."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.reports: list[dict[str, Any]] = []
        self.warnings: list[PlainWarning] = []

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool:
        """Fail where the time-out is for the function only; pytest-timeout needs a terminal for that."""

        def fail(*_: object) -> None:
            pytest.fail(f"the test hangs: its function is still running after {settings.timeout:g} s")

        if settings.func_only:
            signal.signal(signal.SIGALRM, fail)
            signal.setitimer(signal.ITIMER_REAL, settings.timeout)
            item.cancel_timeout = lambda: signal.setitimer(signal.ITIMER_REAL, 0)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report; as for the terminal, a test whose subtests have failed becomes one that has failed."""
        hook = self._config.hook
        hook.pytest_report_teststatus(report=report, config=self._config)
        self.reports.append(hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Keep a warning; those of collecting are also those of the session that shows them."""
        if when == "runtest":
            self.warnings.append(plain(warning_message))


class _Collected:
    """A pytest session that collects files when their first test comes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._items: dict[str, pytest.Item] = {}
        self.config = Config.fromdictargs(dict(options), [])
        self.recorder = _Recorder(self.config)
        self.config.pluginmanager.register(SharedFolder(), "bireme-rank")
        self.config.pluginmanager.register(self.recorder)
        self.config._do_configure()
        if os.environ["RANK"] != "0" and hasattr(self.config, "cache"):
            _write_nothing(self.config.cache)
        self._session = pytest.Session.from_config(self.config)
        self.config.hook.pytest_sessionstart(session=self._session)

    def item(self, nodeid: str) -> pytest.Item:
        """The test of this name."""
        if nodeid not in self._items:
            file = nodeid.partition("::")[0]
            self._session.perform_collect([os.path.join(self.config.rootpath, file)], genitems=True)
            self._items |= {item.nodeid: item for item in self._session.items}
        return self._items[nodeid]


def _write_nothing(cache: Any) -> None:
    """Leave pytest's cache to rank 0; a test on another rank still finds what it has put there itself."""
    own: dict[str, Any] = {}
    kept = cache.get
    cache.set = own.__setitem__
    cache.get = lambda key, default: own[key] if key in own else kept(key, default)


def _run(collected: _Collected, nodeid: str, environ: Mapping[str, str], connection: Connection) -> tuple[str, Any]:
    """Run a test in a fork.

    Returns:
        ``reports``, with its reports and warnings; or ``ended``, with why it ended without, and its output.
    """
    try:
        item = collected.item(nodeid)
    except BaseException as error:
        return "ended", (f"the test cannot be collected on this rank: {type(error).__name__}: {error}", ())
    read, write = os.pipe()
    stacks = tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            connection.close()
            os.environ.update(environ)
            faulthandler.enable(stacks)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            said = pickle.dumps((collected.recorder.reports, collected.recorder.warnings))
            with open(write, "wb") as file:
                file.write(said)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with stacks:
        kind, said = _outcome(pid, read, stacks, connection)
    capture = collected.config.pluginmanager.getplugin("capturemanager")
    # The fork has written to files of this process, from which it may have taken nothing.
    output = capture.read_global_capture() if capture.is_globally_capturing() else ()
    return kind, said if kind == "reports" else (said, tuple(output))


def _outcome(pid: int, read: int, stacks: Any, connection: Connection) -> tuple[str, Any]:
    said, why = b"", ""
    with open(read, "rb", buffering=0) as file:
        while True:
            ready = wait([file, connection])  # type: ignore[list-item]
            if connection in ready:  # the plug-in says to end it
                try:
                    _, why = connection.recv()
                except EOFError:
                    why = "kill"
                os.kill(pid, signal.SIGABRT if why == "stacks" else signal.SIGKILL)
                os.kill(pid, signal.SIGCONT)
                break
            data = file.read(1 << 20)
            if not data:
                break
            said += data
    _, status = os.waitpid(pid, 0)
    if said and not why:
        return "reports", pickle.loads(said)
    stacks.seek(0)
    text = _own_frames(stacks.read().decode(errors="replace"))
    if why:
        return "ended", text if why == "stacks" else STOPPED
    code = os.waitstatus_to_exitcode(status)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return "ended", f"the test ended its process, {how}\n{text}".rstrip()


def _own_frames(text: str) -> str:
    """The stacks that `faulthandler` has written, without the frames of pytest and what runs it."""
    kept, skips = [], False
    for line in text.splitlines():
        if not line.startswith("  File "):
            skips = False
            if line.startswith(("Fatal Python error: Aborted", "Extension modules:")) or not line:
                continue
        skips = skips or "/_pytest/" in line or "/pluggy/" in line
        if not skips:
            kept.append(line)
    return "\n".join(kept)
