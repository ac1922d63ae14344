"""The decoder of wait statuses: signal n is 128 + n, and never success."""

from __future__ import annotations

import os
import signal

import pytest

from bireme.result.outcome import describe, exit_code, signal_name


def status_of(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("code", [0, 1, 3, 126, 127, 128, 137, 255])
def test_codes_as_they_are(code):
    assert exit_code(status_of(lambda: os._exit(code))) == code


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGALRM, signal.SIGRTMIN + 3])
def test_signals(signum):
    def die():
        signal.signal(signum, signal.SIG_DFL) if signum != signal.SIGKILL else None
        os.kill(os.getpid(), signum)

    assert exit_code(status_of(die)) == 128 + signum


def test_a_core_dump_is_not_in_the_code():
    assert exit_code(signal.SIGSEGV | 0x80) == 139


def test_in_words():
    assert describe(3, by_signal=False) == "exit code 3"
    assert describe(139, by_signal=False) == "exit code 139"
    assert describe(139, by_signal=True) == "SIGSEGV (exit code 139)"
    assert describe(128 + 40, by_signal=True) == "signal 40 (exit code 168)"
    assert signal_name(9) == "SIGKILL"
