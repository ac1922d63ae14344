"""What processes that were killed have left in the folders of a study: drafts, and probes whether one can write there.

A draft has the name of its file and the number of its process: ``cmd.txt.4711.tmp``. Whoever holds the locks of the
study knows that no experiment is at work; a second tuner may still be at its probe, so what lives is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from bireme.tune.deepspeed.files import BEST_COMMAND, BEST_CONFIG, SUMMARY, StudyFiles

_DRAFT = re.compile(r"(?P<file>.+)\.(?P<pid>\d+)\.tmp")
_PROBE = re.compile(r"\.bireme-(?P<pid>\d+)")
_OF_STUDY = {SUMMARY, BEST_CONFIG, BEST_COMMAND}
_OF_EXPERIMENT = {"ds_config.json", "exp.json", "cmd.txt", "outcome.json"}


def sweep(files: StudyFiles) -> None:
    """Remove them; what only looks like one, or cannot be removed, stays."""
    for path in (*_in_results(files.results_dir), *_in_experiments(files.exps_dir)):
        try:
            os.unlink(path)
        except OSError:
            pass


def _in_results(folder: str) -> Iterator[str]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from (inner.path for inner in _entries(entry.path) if _draft(inner.name) in _OF_EXPERIMENT)
        elif _draft(entry.name) in _OF_STUDY or _left(_PROBE.fullmatch(entry.name)):
            yield entry.path


def _in_experiments(folder: str) -> Iterator[str]:
    for entry in _entries(folder):
        if _draft(entry.name).endswith(".json") or _left(_PROBE.fullmatch(entry.name)):
            yield entry.path


def _draft(name: str) -> str:
    """The file whose draft it is, of a process that is gone; "": it is none."""
    found = _DRAFT.fullmatch(name)
    return found["file"] if found and _left(found) else ""


def _left(found: re.Match[str] | None) -> bool:
    """Whether the process whose number stands in a name is gone."""
    if not found:
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it is another user's
        return False
    return False


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []
