"""A folder of results, claimed, and the loop for the experiments in it: who runs some there is alone."""

from __future__ import annotations

import os
from contextlib import ExitStack

from bireme.logs.console import complain
from bireme.loop import Loop
from bireme.tune.deepspeed.autotune import JOURNAL, LOCK
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.stale_files import sweep
from bireme.tune.journal import Journal
from bireme.tune.lock import ExperimentsLock


class Claim:
    """The locks that ``bireme tune`` holds on its folder, so that it counts as another tuner as well.

    The journal's is held by who is at work; nothing of ours is written there, for each experiment's own files say how
    it has ended. The other is held until nothing is left of the experiments, though who began them was killed.

    Attributes:
        loop: the event loop, which takes the signals.

    Args:
        files: the folders, which are made.

    Raises:
        BadInputError: another tuner is at work, or nothing can be written there.
    """

    def __init__(self, files: StudyFiles) -> None:
        files.prepare()
        with ExitStack() as opened:
            opened.callback(Journal.open(os.path.join(files.results_dir, JOURNAL)).close)
            self._lock = opened.enter_context(ExperimentsLock(os.path.join(files.results_dir, LOCK)))
            if not self._lock.taken():
                complain("waiting for what an earlier tuner has left to end")
                self._lock.wait()
            sweep(files)
            self.loop = Loop()
            opened.callback(self.loop.close)
            self._held = opened.pop_all()

    def fileno(self) -> int:
        """For the guardians to keep, as long as anything of an experiment lives."""
        return self._lock.fileno()

    def close(self) -> None:
        """Give the signals back; others may come."""
        self._held.close()
