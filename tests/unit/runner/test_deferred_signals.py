"""Signals that arrive while no session handles them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from bireme.runner.signals import DeferredSignals

before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, ours := lambda *_: None)
with DeferredSignals() as between:
    for signum in (signal.SIGUSR1, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), signum)
    assert between.signum == signal.SIGTERM, "the first that asks for the end"
    assert [between.take(), between.take()] == [signal.SIGTERM, 0], "once"
assert signal.getsignal(signal.SIGTERM) is before
assert signal.getsignal(signal.SIGUSR1) is ours
"""


def test_the_first_that_asks_for_the_end_is_kept():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


THREAD = """
from concurrent.futures import ThreadPoolExecutor
from bireme.runner.signals import DeferredSignals

def defer():
    with DeferredSignals() as between:
        return between.signum

assert ThreadPoolExecutor().submit(defer).result() == 0
"""


def test_nothing_is_kept_in_a_thread():
    """Signals are the main thread's. That a job cannot run there is said later, in words."""
    subprocess.run([sys.executable, "-c", THREAD], check=True)
