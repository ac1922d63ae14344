"""Removes stale files: drafts that killed processes left in the folders of a study.

A draft is named after its file and the pid of its process: ``cmd.txt.4711.0123456789ab.tmp``. The caller holds the
locks of the study, so no experiment is running; but a second tuner may be testing the folder, so drafts of living
processes are kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from bireme import drafts
from bireme.process.kernel import exists
from bireme.tune.deepspeed.files import BEST_COMMAND, BEST_CONFIG, CONFIRMATION, StudyFiles
from bireme.tune.store.folder import PROBE, SUMMARY

_DRAFT = re.compile(r"(?P<file>.+)\.(?P<pid>\d+)\.[0-9a-f]{12}\.tmp")
_OF_STUDY = {PROBE, SUMMARY, BEST_CONFIG, BEST_COMMAND}
_OF_EXPERIMENT = {"ds_config.json", "exp.json", "cmd.txt", "outcome.json"}


def sweep(files: StudyFiles) -> None:
    """Remove the stale drafts of a study. Files that only look like drafts, or cannot be removed, stay."""
    for path in (*_in_results(files.results_dir), *_in_experiments(files.exps_dir)):
        drafts.remove(path)


def _in_results(folder: str) -> Iterator[str]:
    for entry in _entries(folder):
        if entry.name == CONFIRMATION and entry.is_dir(follow_symlinks=False):
            yield from _in_results(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from (inner.path for inner in _entries(entry.path) if _draft(inner.name) in _OF_EXPERIMENT)
        elif _draft(entry.name) in _OF_STUDY:
            yield entry.path


def _in_experiments(folder: str) -> Iterator[str]:
    for entry in _entries(folder):
        file = _draft(entry.name)
        if file == PROBE or file.endswith(".json"):
            yield entry.path


def _draft(name: str) -> str:
    """The name of the file of which this is a stale draft; "" if it is not one."""
    found = _DRAFT.fullmatch(name)
    return found["file"] if found and not exists(int(found["pid"])) else ""


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []
