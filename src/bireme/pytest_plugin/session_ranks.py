"""The ranks of a pytest session: sends each test to them, and makes one report of theirs."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Client, Connection, Listener, wait
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from bireme.calls.functions import StoppedError, start
from bireme.errors import BiremeError
from bireme.process.kernel import LINUX
from bireme.pytest_plugin import rank_runner
from bireme.resources.devices import discover
from bireme.resources.rendezvous_port import lease_port

if TYPE_CHECKING:
    from bireme.calls.job_fields import JobFields

_RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
_PATIENCE = 5.0
"""Seconds in which ranks may end by themselves, or end a test."""
_NOT_FOR_RANKS: dict[str, Any] = {
    "usepdb": False,
    "trace": False,
    "cacheclear": False,
    "tx": [],
    "dist": "no",
    "numprocesses": None,
    "maxfail": 0,
    "basetemp": None,
    "log_file": os.devnull,
}
_PLUGINS = ("no:terminal", "no:xdist", "no:cov", "no:pytest_cov", "no:junitxml", "no:rerunfailures")


class RankPool:
    """The ranks.

    Args:
        size: how many; a test may run on fewer of them.
        limit: seconds in which they must have begun.

    Raises:
        BiremeError: they cannot be started.
    """

    def __init__(self, config: pytest.Config, size: int, limit: float) -> None:
        self._config, self.size, self.is_broken = config, size, False
        # Among the folders that pytest removes by and by, so nothing is left where it is killed.
        self._folder = str(config._tmp_path_factory.mktemp("ranks"))  # type: ignore[attr-defined]
        self._place = os.open(self._folder, os.O_RDONLY)
        # The path of a socket has 107 bytes, and that of the folder may have more.
        address = f"/proc/{os.getpid()}/fd/{self._place}/ranks" if LINUX else os.path.join(self._folder, "ranks")
        self._listener = Listener(address, "AF_UNIX", backlog=size)  # only this user can enter the folder
        args = (address, _options(config), os.getcwd())
        # What tests write is in their reports, unless nothing is captured.
        where = None if config.option.capture == "no" else DEVNULL
        fields: JobFields = {"num_gpus": size, "accelerator": _accelerator(size), "log_level": "error"}
        self._job = start(rank_runner.serve, *args, stdout=where, stderr=where, **fields)
        self._job.add_done_callback(lambda _: _wake(address))
        patience = threading.Timer(limit, self._job.stop)
        patience.start()
        self._connections: dict[int, Connection] = {}
        try:
            while len(self._connections) < size:
                connection = self._listener.accept()
                rank = connection.recv()
                if rank is None:  # the job has ended
                    self._job.results()
                self._connections[rank] = connection
        except BaseException as error:
            self.close()
            if isinstance(error, StoppedError):
                raise BiremeError(f"the ranks have not begun in {limit:g} s") from None
            raise
        finally:
            patience.cancel()

    def close(self) -> None:
        """End the ranks."""
        for connection in self._connections.values():
            connection.close()
        if len(self._connections) == self.size:  # they end by themselves, and save what coverage has measured
            with contextlib.suppress(TimeoutError):
                self._job.wait(_PATIENCE)
        self._job.stop()
        self._job.wait()
        self._listener.close()
        os.close(self._place)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, item: pytest.Item, count: int, limit: float) -> Iterator[pytest.TestReport]:
        """Run a test on ``count`` ranks, which hangs after ``limit`` seconds; yield its reports.

        With ``--pdb`` rank 0 is this process, which has the terminal.
        """
        begin = time.time()
        folder = tempfile.mkdtemp(dir=self._folder)
        lease, _ = lease_port()
        with lease:
            environ = {"MASTER_PORT": str(lease.port), rank_runner.SHARED: folder}
            environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
            here = self._config.option.usepdb
            asked = {self._connections[rank]: rank for rank in range(int(here), count)}
            for connection in asked:
                connection.send(("run", item.nodeid, environ))
            answers = {0: self._here(item, environ)} if here else {}
            why = self._collect(asked, limit, answers)
        shutil.rmtree(folder, ignore_errors=True)
        ended = {rank: answer[0] for rank, (kind, answer) in answers.items() if kind != "reports"}
        left = [
            (f"Captured {name}, rank {rank}", text)
            for rank in sorted(ended)
            for name, text in zip(("stdout", "stderr"), answers[rank][1][1], strict=False)
            if text
        ]
        by_part: dict[tuple[int, bool, str, int], dict[int, pytest.TestReport]] = {}
        noted: Counter[rank_runner.PlainWarning] = Counter()
        from_plain = self._config.hook.pytest_report_from_serializable
        for rank in sorted(answers.keys() - ended.keys()):
            plains, warned = answers[rank][1]
            noted |= Counter(warned)  # what each rank warns of is one warning
            seen: Counter[tuple[int, bool, str]] = Counter()
            for each in plains:
                report = from_plain(config=self._config, data=each)
                subtest = str(getattr(report, "context", ""))
                part = (("setup", "call", "teardown").index(report.when), not subtest, subtest)
                seen[part] += 1
                by_part.setdefault((*part, seen[part]), {})[rank] = report
        for warning in noted.elements():
            _warn(item, *warning)
        if ended and not any(report.failed for reports in by_part.values() for report in reports.values()):
            report = _of_ended(item, ended, answers.keys() - ended.keys(), why, begin)
            report.sections = left
            yield report
            return
        for _, reports in sorted(by_part.items(), key=lambda each: each[0][:2]):
            report = merged(reports, count, len(ended))
            if report.failed:
                report.sections += left
                left = []
            yield report

    def _here(self, item: pytest.Item, environ: dict[str, str]) -> tuple[str, Any]:
        """Run a test as rank 0 in this process; its answer."""
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as warned:
            for name, value in {**environ, **_RANK_0}.items():
                patch.setenv(name, value)
            reports = runtestprotocol(item, nextitem=None, log=False)
        config = self._config
        plains = [config.hook.pytest_report_to_serializable(config=config, report=report) for report in reports]
        return "reports", (plains, list(map(rank_runner.plain, warned)))

    def _collect(self, asked: dict[Connection, int], limit: float, answers: dict[int, tuple[str, Any]]) -> str:
        """Add what the ranks answer; why they were ended, if they were."""
        why, end = "", time.monotonic() + limit
        while asked:
            ready = wait(list(asked), _PATIENCE if why else max(0.0, end - time.monotonic()))
            if why and not ready:
                self.is_broken = True
                text = why if why == rank_runner.STOPPED else "it does not answer: its file hangs while it is collected"
                answers |= dict.fromkeys(asked.values(), ("ended", (text, ())))
                return why
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = asked.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, OSError):
                    answers[rank], self.is_broken = ("ended", ("the process of the rank was ended", ())), True
            if not why and not ready:
                why = f"the test hangs: it is still running after {limit:g} s"
                _end(asked, "stacks")
            elif not why and any(map(_has_failed, answers.values())):
                why = rank_runner.STOPPED
                _end(asked, "kill")
        return why


def _end(asked: Iterable[Connection], how: str) -> None:
    for connection in asked:
        with contextlib.suppress(OSError):  # the rank has ended, which is seen
            connection.send(("end", how))


def _of_ended(
    item: pytest.Item, ended: dict[int, str], passed: Iterable[int], why: str, begin: float
) -> pytest.TestReport:
    """The report of a test of which some ranks have no reports: they hang, or have died."""
    lines = [why] if why and why != rank_runner.STOPPED else []
    said = {rank: text or "its stack is unknown" for rank, text in ended.items()}
    said |= dict.fromkeys(passed, "it has passed")
    blameless = (rank_runner.STOPPED, "it has passed")
    lines += [f"rank {rank}: {said[rank]}" for rank in sorted(said, key=lambda rank: (said[rank] in blameless, rank))]
    return pytest.TestReport(
        item.nodeid, item.location, {}, "failed", "\n".join(lines), "call", duration=time.time() - begin
    )


def _warn(item: pytest.Item, text: str, module: str, name: str, file: str, line: int) -> None:
    """Report a warning of the ranks."""
    category = getattr(sys.modules.get(module), name, UserWarning)  # one of a function cannot be had here
    message = warnings.WarningMessage(text, category, file, line)
    known = {"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
    item.ihook.pytest_warning_recorded.call_historic(kwargs=known)


def merged(reports: dict[int, pytest.TestReport], count: int, stopped: int) -> pytest.TestReport:
    """One report of those of all ranks for a phase or subtest: that of the rank that failed first, or was skipped."""
    failed = {rank: report for rank, report in reports.items() if report.failed}
    skipped = {rank: report for rank, report in reports.items() if report.skipped}
    chosen = failed or skipped or reports
    rank = min(chosen, key=lambda rank: (chosen[rank].stop, rank))
    report = chosen[rank]
    report.duration = max(each.duration for each in reports.values())
    report.sections = [
        (f"{title}, rank {each}" if count > 1 else title, text)
        for each, other in sorted(reports.items())
        for title, text in other.sections
    ]
    if failed and count > 1:
        more = f"{stopped} others were stopped" if stopped else f"{len(failed)} of {count} ranks failed"
        text = f"rank {rank} of {count} has failed; {more}"
        addsection = getattr(report.longrepr, "addsection", None)
        if addsection is not None:
            addsection("ranks", text)
        else:
            report.longrepr = f"{text}\n{report.longrepr}"
    return report


def _wake(address: str) -> None:
    """Let go who waits for ranks that will not come."""
    with contextlib.suppress(OSError), Client(address, "AF_UNIX") as connection:  # else nobody waits
        connection.send(None)


def _accelerator(size: int) -> str:
    """``auto`` if this machine has a device for each rank; else ``cpu``."""
    found = discover("auto", os.environ)
    there = found.ids if found.visible is None else found.visible
    return "auto" if found.accelerator != "cpu" and len(there) >= size else "cpu"


def _has_failed(answer: tuple[str, Any]) -> bool:
    kind, said = answer
    return kind != "reports" or any(plain.get("outcome") == "failed" for plain in said[0])


def _options(config: pytest.Config) -> dict[str, Any]:
    """The options of this session for the ranks, as far as they concern tests and can be sent."""
    found: dict[str, Any] = {}
    where = {"rootdir": str(config.rootpath), "inifilename": config.inipath and str(config.inipath)}
    for name, value in {**vars(config.option), **_NOT_FOR_RANKS, **where}.items():
        with contextlib.suppress(Exception):
            pickle.dumps(value)
            found[name] = value
    found["plugins"] = [*(found.get("plugins") or ()), *_PLUGINS]
    return found
