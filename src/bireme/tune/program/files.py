"""The files of a study of a program; each is written completely or not at all.

::

    DIR/journal                     the record from which a study resumes (`bireme.tune.store.journal`)
    DIR/trials/NAME/cmd.txt         the command of a trial
    DIR/trials/NAME/std{out,err}.log  the output of its ranks
    DIR/trials/NAME/outcome.json    the report of its run
    DIR/trials/NAME/…               its copies of the files in which parameters vary; in folders 2, 3, … if others
                                    have the same name
    DIR/trials/NAME/fetched/…       the JSON files of its figures, with --ship
    DIR/summary.txt                 the table and the answer
    DIR/cmd_best.txt                the command that runs the job with the best configuration
    DIR/best/…                      its files
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

from bireme import drafts
from bireme.errors import BadInputError
from bireme.tune.store.folder import PRIVATE, SUMMARY, make_folder, prepare, write_text
from bireme.tune.store.records import JOURNAL
from bireme.value import Value

BEST_COMMAND = "cmd_best.txt"
OUTCOME = "outcome.json"
FETCHED = "fetched"
DEFAULT = "tuning"


class ProgramFiles(Value):
    """The results folder of a study; `at` makes it absolute."""

    results_dir: str

    @classmethod
    def at(cls, results_dir: str) -> ProgramFiles:
        """A relative folder is below the working directory; ``~`` is the user's own."""
        return cls(os.path.join(os.getcwd(), os.path.expanduser(results_dir or DEFAULT)))

    def path(self, *parts: str) -> str:
        """A file of the study."""
        return os.path.join(self.results_dir, *parts)

    def trial(self, name: str, *parts: str) -> str:
        """A trial's folder, or a file in it."""
        return self.path("trials", name, *parts)

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            BadInputError: it cannot be created or written to, or has files in the place of the study's.
        """
        another = "choose another folder: --results_dir DIR"
        prepare(self.results_dir, hint=another)
        if not os.path.exists(self.path(JOURNAL)):
            for name in ("trials", SUMMARY, BEST_COMMAND, "best", "baseline"):
                if os.path.isfile(self.path(name)) or (os.path.isdir(self.path(name)) and os.listdir(self.path(name))):
                    raise BadInputError(f"{self.path(name)} exists, and is not of a study", hint=another)
        make_folder(self.path("trials"))

    def write_start(self, name: str, command: Sequence[str], files: Mapping[str, str]) -> None:
        """Write the files of a trial's folder before its start, and remove those of an earlier attempt.

        Raises:
            BiremeError: one cannot be written.
        """
        make_folder(self.trial(name))
        for file in ("stdout.log", "stderr.log"):
            drafts.remove(self.trial(name, file))
        self._write_copies(self.trial(name), files, sync=False)
        write_text(self.trial(name, "cmd.txt"), shlex.join(command) + "\n", mode=PRIVATE, sync=False)

    def write_best(self, command: Sequence[str]) -> None:
        """Write the command of the real job."""
        write_text(self.path(BEST_COMMAND), shlex.join(command) + "\n", mode=PRIVATE)

    def write_copies(self, folder: str, files: Mapping[str, str]) -> None:
        """Write copies of files into a folder of the study."""
        self._write_copies(self.path(folder), files, sync=True)

    def _write_copies(self, folder: str, files: Mapping[str, str], *, sync: bool) -> None:
        make_folder(folder)
        for file, text in files.items():
            path = os.path.join(folder, file)
            make_folder(os.path.dirname(path))
            write_text(path, text, mode=PRIVATE, sync=sync)


def digest(data: bytes) -> str:
    """The digest of a file's content, as the journal keeps it."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digests(paths: Iterable[str]) -> dict[str, str]:
    """The digest of each of these that is a file; a module or a program on PATH is none."""
    found = {}
    for path in filter(os.path.isfile, paths):
        try:
            with open(path, "rb") as file:
                found[path] = digest(file.read())
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror}", where=path) from None
    return found
