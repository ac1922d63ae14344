"""What the tests of ``bireme tune`` share: a folder in which studies are made, and a disk that is too small for one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, bireme, clean_environ
from tests.kit import needs

CONTRACT = PROGRAMS / "contract.py"
TUNABLE = PROGRAMS / "tunable.py"
CONFIG = {
    "train_micro_batch_size_per_gpu": [4, 8],
    "optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.999]}},
    "zero_optimization": {"stage": 0},
    "autotuning": {"enabled": True},
}
NAMES = ["z0_gas1_tmbspg8", "z0_gas2_tmbspg4"]
ONE = ("--num_gpus", "1")


class Bench:
    """A folder in which programs are tuned."""

    results_dir = "tuning"

    def __init__(self, folder: Path, stage) -> None:
        self.folder, self.stage = folder, stage

    @property
    def results(self) -> Path:
        return self.folder / self.results_dir

    def tune(self, *words: object, code: int = 0, command=("tune",), **kwargs):
        """``bireme tune WORDS``, which ends with this code."""
        done = self.stage.run(*command, *map(str, words), cwd=self.folder, timeout=120, **kwargs)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def words(self, *options: str, args: tuple[str, ...] = ()) -> list[str]:
        return [*options, str(TUNABLE), "--log", "ran", *args]

    def run(self, *options: str, args: tuple[str, ...] = (), code: int = 0):
        """A study of the program with these options, that has these arguments."""
        return self.tune(*self.words(*options, args=args), code=code)

    def start(self, *options: str, args: tuple[str, ...] = (), **kwargs):
        return self.stage.start("tune", *self.words(*options, args=args), cwd=self.folder, **kwargs)

    @property
    def ran(self) -> list[str]:
        """The trials that really ran, in order."""
        return [line.split()[0] for line in (self.folder / "ran").read_text().splitlines()]

    def records(self, journal: Path | None = None) -> list[dict]:
        """What the journal has, without a last record that was cut off."""
        path, found = journal or self.results / "journal", []
        for line in path.read_text(errors="replace").splitlines()[1:] if path.exists() else ():
            try:
                found.append(json.loads(line.partition(" ")[2]))
            except ValueError:
                pass
        return found

    def ends(self, journal: Path | None = None) -> dict[str, dict]:
        """Trial → the record of its end; each ends once, unless the study has changed since."""
        by_name, seen = {}, set()
        for record in self.records(journal):
            if "study" in record:
                seen.clear()
            elif "end" in record:
                assert record["end"] not in seen, "nothing ends twice"
                by_name[record["end"]] = record
                seen.add(record["end"])
        return by_name

    def causes(self) -> dict[str, str]:
        return {name: record["ending"]["cause"] for name, record in self.ends().items()}

    def on_a_small_disk(self, kilobytes: int, *words: str, before: str = "true") -> subprocess.CompletedProcess[str]:
        """Tune on a disk of its own until that is full; then, with room, once more.

        What the study wrote is copied into ``kept`` then, and its journal of before into ``kept/journal.then``.
        """
        namespaces = [needs.program("unshare"), "--user", "--map-root-user", "--mount"]
        if subprocess.run([*namespaces, "true"], capture_output=True).returncode:
            needs.missing("no namespaces for a disk of its own")
        disk = self.folder / "disk"
        disk.mkdir()
        script = f"""
            mount -t tmpfs -o size={kilobytes}k none {shlex.quote(str(disk))} && cd {shlex.quote(str(disk))} && {before}
            home=$OLDPWD
            "$@"; code=$?
            cp {self.results_dir}/journal "$home/journal.then"
            mount -o remount,size=10m none . && "$@" >/dev/null
            cp -r {self.results_dir} "$home/kept" && mv "$home/journal.then" "$home/kept"
            exit $code
            """
        argv = [*namespaces, "sh", "-c", script, "sh", *bireme("tune", *words)]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, env=clean_environ(), timeout=120)
        assert done.returncode == 69, done.stdout + done.stderr
        assert re.search(r"bireme: /\S+ cannot be (written|made): No space left on device", done.stderr)
        assert "Traceback" not in done.stderr and "Bireme itself failed" not in done.stderr
        return done


class Desk(Bench):
    """The same for DeepSpeed jobs: a script that obeys DeepSpeed's contract, and its configuration."""

    results_dir = "autotuning_results"

    def __init__(self, folder: Path, stage) -> None:
        super().__init__(folder, stage)
        self.configure(CONFIG)

    def configure(self, config: dict, **section: object) -> None:
        given = {"tuner_type": "gridsearch", **config.get("autotuning", {}), **section}  # what is asked here is not how
        config = {**config, "autotuning": given} if section or "autotuning" in config else config
        (self.folder / "ds.json").write_text(json.dumps(config))

    def program(self, name: str, *changes: tuple[str, str]) -> Path:
        """The script with other text in some places."""
        text = CONTRACT.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (self.folder / name).write_text(text)
        return self.folder / name

    def words(self, *args: object, options=ONE, flag="--deepspeed_config", program: object = CONTRACT) -> list[str]:
        return [*map(str, options), str(program), flag, "ds.json", *map(str, args)]

    def run(self, *args: object, code: int = 0, command=("tune",), env=None, **kwargs):
        """A study with the script's arguments and, by keyword, all else."""
        return self.tune(*self.words(*args, **kwargs), code=code, command=command, env=env or clean_environ())

    def start(self, *args: object, **kwargs):
        return self.stage.start("tune", *self.words(*args, **kwargs), cwd=self.folder)

    def summary(self) -> str:
        """The summary without what depends on the clock."""
        text = (self.results / "summary.txt").read_text()
        return re.sub(r"\d+(\.\d+)? (s|min)\b( \d+ s)?", "T", re.sub(r"([ -])\1+", r"\1", text))


@pytest.fixture
def bench(tmp_path, stage):
    return Bench(tmp_path, stage)


@pytest.fixture
def desk(tmp_path, stage):
    return Desk(tmp_path, stage)
