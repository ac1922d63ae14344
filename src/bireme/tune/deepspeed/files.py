"""The files of a study, in the layout of DeepSpeed's autotuner; each is written completely or not at all.

::

    exps_dir/NAME.json                  what an experiment is
    results_dir/NAME/cmd.txt            its command
    results_dir/NAME/ds_config.json     its configuration
    results_dir/NAME/exp.json           what it is, and where it ran
    results_dir/NAME/metrics.json       its figures, written by DeepSpeed
    results_dir/NAME/std{out,err}.log   the output of its ranks
    results_dir/confirmation/NAME/…     the same of a repeated run, where nobody takes it for another configuration
    results_dir/summary.txt             the table
    results_dir/ds_config_optimal.json  the best configuration, for the real job
    results_dir/cmd_optimal.txt         the command that runs it
    results_dir.1, exps_dir.1           the same of an earlier study
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, pairwise

from bireme import drafts, jsontext
from bireme.errors import BadInputError, BiremeError
from bireme.process.kernel import exists
from bireme.regular_file import listing, read_regular
from bireme.tune.deepspeed.command import encoded
from bireme.tune.deepspeed.config import SECTION
from bireme.tune.store.folder import PRIVATE, SUMMARY, make_folder, prepare, write_command, write_text
from bireme.value import Value

BEST_CONFIG, BEST_COMMAND = "ds_config_optimal.json", "cmd_optimal.txt"
CONFIRMATION = "confirmation"
LOCK = "experiments.lock"
REPEATED = "@"
"""What the name of a repeated run contains, and no other: ``z0_gas1_tmbspg8@round1``."""


class StudyFiles(Value):
    """The folders of a study; `at` makes both absolute."""

    results_dir: str
    exps_dir: str

    @classmethod
    def at(cls, results_dir: str, exps_dir: str) -> StudyFiles:
        """Relative folders are below the working directory; ``~`` is the user's own."""
        return cls(*(os.path.join(os.getcwd(), os.path.expanduser(folder)) for folder in (results_dir, exps_dir)))

    # -- places --------------------------------------------------------------------------------------

    def result(self, name: str, file: str = "") -> str:
        """An experiment's folder, or a file in it."""
        above = self._confirmation if REPEATED in name else self.results_dir
        return os.path.join(above, _safe(name), file) if file else os.path.join(above, _safe(name))

    def experiment(self, name: str) -> str:
        """The file that describes an experiment."""
        return os.path.join(self.exps_dir, f"{_safe(name)}.json")

    @property
    def _confirmation(self) -> str:
        return os.path.join(self.results_dir, CONFIRMATION)

    # -- before --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create both folders."""
        missing = [folder for folder in (self.results_dir, self.exps_dir) if not os.path.lexists(folder)]
        try:
            for key in ("results_dir", "exps_dir"):
                hint = f"set {SECTION}.{key} to a writable folder on a file system that all nodes share"
                prepare(getattr(self, key), hint=hint, where=key)
        except BadInputError:
            for folder in missing:
                with suppress(OSError):
                    os.rmdir(folder)
            raise

    def clear(self) -> None:
        """Remove the files of an earlier study, and nothing else: the folders may contain other files."""
        for _, path in self._ours():
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                drafts.remove(path)

    def beside(self, number: int) -> StudyFiles:
        """The folders that keep an earlier study: ``results_dir.NUMBER``, ``exps_dir.NUMBER``."""
        return StudyFiles(*(f"{folder.rstrip('/')}.{number}" for folder in (self.results_dir, self.exps_dir)))

    def first_free(self) -> int:
        """The lowest number for `beside` of which neither folder exists."""
        folders = ((self.beside(number).results_dir, self.beside(number).exps_dir) for number in count(1))
        return next(number for number, both in enumerate(folders, 1) if not any(map(os.path.lexists, both)))

    @property
    def empty(self) -> bool:
        """Whether the folders hold nothing of a study."""
        return not any(self._ours())

    def move(self, to: StudyFiles) -> str:
        """Move the files of an earlier study, and nothing else: the folders may contain other files.

        Returns the note about it.
        """
        try:
            ended = time.localtime(os.stat(os.path.join(self.results_dir, SUMMARY)).st_mtime)
            when = time.strftime(" of %Y-%m-%d %H:%M", ended)
        except OSError:
            when = ""
        for key, path in list(self._ours()):
            folder = getattr(to, key)
            try:
                os.makedirs(folder, exist_ok=True)
                os.rename(path, os.path.join(folder, os.path.basename(path)))
            except OSError as error:
                raise BiremeError(
                    f"{path} cannot be moved to {folder}: {error.strerror}",
                    hint=f"set {SECTION}.results_dir to another folder",
                ) from error
        to._point_to_own_config(self.best_config)
        return f"the results of the earlier study{when} are now in {to.results_dir}"

    def _point_to_own_config(self, old: str) -> None:
        """In the command of the real job, name the configuration that was moved together with it."""
        path = os.path.join(self.results_dir, BEST_COMMAND)
        try:
            words = shlex.split(read_regular(path).decode())
        except (OSError, ValueError):
            return
        write_command(path, [word.replace(old, self.best_config) for word in words])

    def _ours(self) -> Iterator[tuple[str, str]]:
        """(``results_dir`` or ``exps_dir``, path) of each file and folder of a study in them."""
        names = self.experiments()
        for name in names:
            if os.path.isfile(self.result(name, "exp.json")):
                yield "results_dir", self.result(name)
        if any(REPEATED in name for name in listing(self._confirmation)):
            yield "results_dir", self._confirmation
        for file in (SUMMARY, BEST_CONFIG, BEST_COMMAND):
            if os.path.isfile(path := os.path.join(self.results_dir, file)):
                yield "results_dir", path
        for name in names:
            yield "exps_dir", self.experiment(name)

    def experiments(self) -> tuple[str, ...]:
        """The names of the experiments in ``exps_dir``, sorted."""
        names = (file.removesuffix(".json") for file in sorted(listing(self.exps_dir)) if file.endswith(".json"))
        return tuple(name for name in names if name and self._is_experiment(name))

    def _is_experiment(self, name: str) -> bool:
        try:
            data = jsontext.loads(read_regular(self.experiment(name)))
        except (OSError, ValueError):
            return False
        return isinstance(data, dict) and {"name", "ds_config"} <= set(data)

    # -- an experiment -------------------------------------------------------------------------------

    def write_experiment(self, name: str, ds_config: Mapping[str, object], **facts: object) -> str:
        """Write ``exps_dir/NAME.json`` and return its path; ``facts``: num_nodes, num_gpus, hostfile."""
        path = self.experiment(name)
        write_json(path, {"name": name, "ds_config": ds_config, **facts})
        return path

    def write_start(
        self, name: str, ds_config: Mapping[str, object], words: Sequence[str], args: Sequence[str], /, **facts: object
    ) -> None:
        """Write the files of an experiment's folder before its start, and remove those of an earlier run.

        Args:
            words: what follows ``bireme run``; the script and its arguments ``args`` are the last.
            facts: further keys of ``exp.json``, which gets those that DeepSpeed's scheduler writes too.
        """
        make_folder(self.result(name))
        for file in ("metrics.json", "model_info.json", "stdout.log", "stderr.log"):
            drafts.remove(self.result(name, file))
        path, launcher_args = self.result(name, "ds_config.json"), words[: len(words) - len(args) - 1]
        port = dict(pairwise(launcher_args)).get("--master_port")
        facts = {
            "name": name,
            "ds_config": ds_config,
            "result_dir": self.result(name),
            **facts,
            "master_port": None if port is None else int(port),  # None: the run finds a free one
            "launcher_args": list(launcher_args),
            "user": get_user(),
            "job_id": get_job_id(),
            "ds_config_path": path,
            "ds_config_base64": encoded(ds_config),
        }
        write_json(path, ds_config)
        write_json(self.result(name, "exp.json"), facts, mode=PRIVATE)  # may contain the script's arguments
        write_command(self.result(name, "cmd.txt"), ("bireme", "run", *words))

    # -- the end -------------------------------------------------------------------------------------

    @property
    def best_config(self) -> str:
        """The file of the best configuration."""
        return os.path.join(self.results_dir, BEST_CONFIG)

    def write_best(self, ds_config: Mapping[str, object], command: Sequence[str]) -> None:
        """Write the best configuration without its ``autotuning`` section, and the command of the real job."""
        write_json(self.best_config, {key: value for key, value in ds_config.items() if key != SECTION})
        write_command(os.path.join(self.results_dir, BEST_COMMAND), command)


def get_job_id() -> str:
    """The job id that some clusters set in the environment."""
    return os.environ.get("DLWS_JOB_ID") or os.environ.get("DLTS_JOB_ID") or "unknown-job-id"


def get_user() -> str:
    """The name of the user."""
    return os.environ.get("USER", "unknown-user")


def write_json(path: str, data: Mapping[str, object], *, mode: int = 0o666) -> None:
    """Replace a file atomically by indented JSON; ``mode``: its permissions, before the umask."""
    write_text(path, json.dumps(data, indent=2) + "\n", mode=mode)


def _safe(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise BadInputError(f"not a name for an experiment: {name!r}", hint="it becomes the name of a folder")
    return name


# -- stale drafts ----------------------------------------------------------------------------------------

_DRAFT = re.compile(r"(?P<file>.+)\.(?P<pid>\d+)\.[0-9a-f]{12}\.tmp")
_OURS = re.compile(r"\.bireme|summary\.txt|(ds_config(_optimal)?|exp|outcome)\.json|cmd(_optimal)?\.txt")


def sweep(files: StudyFiles) -> None:
    """Remove the drafts that killed processes left in the folders of a study.

    A draft is named after its file and the pid of its process: ``cmd.txt.4711.0123456789ab.tmp``. The caller holds the
    locks of the study, so no experiment is running; but a second tuner may be testing the folder, so drafts of living
    processes are kept. Files that only look like drafts, or cannot be removed, stay.
    """
    above = (files.results_dir, os.path.join(files.results_dir, CONFIRMATION))
    inner = [os.path.join(folder, name) for folder in above for name in listing(folder)]
    for folder in (files.results_dir, files.exps_dir, *(each for each in inner if not os.path.islink(each))):
        for name in listing(folder):
            if not (found := _DRAFT.fullmatch(name)) or exists(int(found["pid"])):
                continue
            if _OURS.fullmatch(found["file"]) or (folder == files.exps_dir and found["file"].endswith(".json")):
                drafts.remove(os.path.join(folder, name))
