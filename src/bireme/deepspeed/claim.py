"""Locks a results folder against other tuners, and opens the event loop for the experiments in it."""

from __future__ import annotations

import os
from contextlib import ExitStack

from bireme.logs.console import complain
from bireme.loop import Loop
from bireme.tune.deepspeed.autotune import LOCK
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.stale_files import sweep
from bireme.tune.store.journal import Journal
from bireme.tune.store.lock import ExperimentsLock
from bireme.tune.store.records import JOURNAL


class Claim:
    """The locks that ``bireme tune`` holds on its folder too, so that the two exclude each other.

    The running tuner holds the lock of the journal. (Nothing is written to the journal here: each experiment's own
    files say how it ended.) The experiments lock is held until no process of the experiments is left, even if their
    tuner was killed.

    Attributes:
        loop: the event loop, which receives the signals.

    Args:
        files: the folders, which are created.

    Raises:
        BadInputError: another tuner is using the folder, or it is not writable.
    """

    def __init__(self, files: StudyFiles) -> None:
        files.prepare()
        with ExitStack() as opened:
            opened.callback(Journal.open(os.path.join(files.results_dir, JOURNAL)).close)
            self._lock = opened.enter_context(ExperimentsLock(os.path.join(files.results_dir, LOCK)))
            if not self._lock.taken():
                complain("waiting for experiments of an earlier tuner to end")
                self._lock.wait()
            sweep(files)
            self.loop = Loop()
            opened.callback(self.loop.close)
            self._held = opened.pop_all()

    def fileno(self) -> int:
        """The file descriptor that the guardians hold as long as any process of an experiment lives."""
        return self._lock.fileno()

    def close(self) -> None:
        """Restore the signal handlers and release the locks."""
        self._held.close()
