"""What others have put where a study looks: pipes, links, folders and files of other users, and absurd values."""

from __future__ import annotations

import csv
import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.cli import tune_report
from bireme.errors import BadInputError, BiremeError
from bireme.tune.deepspeed.results import read_metrics
from bireme.tune.execution import experiment
from bireme.tune.execution.experiment import read_report, tail
from bireme.tune.metrics.metric import parse
from bireme.tune.metrics.numbers import LEAST, shown
from bireme.tune.metrics.reader import Reader
from bireme.tune.program.program_study import ProgramFiles
from bireme.tune.report.export import trials_csv
from bireme.tune.report.view import Configuration, StudyView, TrialView, short
from bireme.tune.store.journal import Journal
from bireme.tune.study.study import Study, Trial, TrialResult
from tests.conftest import clean_environ

OTHER = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


# -- files -------------------------------------------------------------------------------------------

PUT: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "ten gigabytes": lambda path: (path.touch(), os.truncate(path, 10 << 30)),
}


@pytest.mark.parametrize("what", PUT)
def test_what_is_in_the_place_of_a_file(tmp_path: Path, what: str) -> None:
    """Nobody may ever write to the pipe; a large file may have more bytes than there is memory."""
    path = tmp_path / "metrics.json"
    reader = Reader(parse([("maximize", "metrics.json:rate")]), "", directory=str(tmp_path))
    PUT[what](path)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with Limited(resource.RLIMIT_AS, used + (1 << 30)):
        said = reader.finish(None).problem
        assert said.startswith(f"{path} cannot be read: ") and "\n" not in said
        assert read_metrics(str(path)).reason.startswith("metrics.json cannot be read: ")
        assert read_report(str(path)) is None
        assert len(tail(str(path))) <= 65536
        assert Reader(parse([("maximize", "x: {}")]), str(path)).values("x") == []


class Limited:
    """A limit of this process."""

    def __init__(self, kind: int, soft: int) -> None:
        self.kind, self.soft = kind, soft

    def __enter__(self) -> None:
        self.before = resource.getrlimit(self.kind)
        resource.setrlimit(self.kind, (self.soft, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(self.kind, self.before)


@pytest.mark.slow
def test_a_program_that_writes_to_a_pipe_and_goes(tmp_path: Path, stage) -> None:
    (tmp_path / "job.py").write_text("import os\nos.mkfifo('m.json') if not os.path.exists('m.json') else None\n")
    words = ("tune", "--param", "n=1,2", "--maximize", "m.json:rate", "job.py", "{n}")
    done = stage.run(*words, cwd=tmp_path, timeout=60)
    assert done.returncode == 2 and "m.json cannot be read: not a regular file" in done.stderr, done.stderr


# -- folders -----------------------------------------------------------------------------------------


def give_away(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


@needs_root
@pytest.mark.parametrize("part", ["", "trials", "trials/trial-1", "journal", "best"])
@pytest.mark.parametrize("link", [False, True])
def test_a_study_of_another_user_is_not_continued(tmp_path: Path, part: str, link: bool) -> None:
    """Nor is what another user has put into a study, or a link: it may lead to files of this user."""
    (tmp_path / "tuning/trials/trial-1").mkdir(parents=True)
    (tmp_path / "tuning/best").mkdir()
    Journal.open(str(tmp_path / "tuning/journal")).close()
    path = tmp_path / "tuning" / part
    if link:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    give_away(path)
    files = ProgramFiles.at(str(tmp_path / "tuning"))
    with pytest.raises(BadInputError, match=f"belongs to user {OTHER}|link of another user") as raised:
        files.prepare()
        Journal.open(files.path("journal")).close()
        files.write_start("trial-1", ["x"], {})
        files.write_copies("best", {"a/b": ""})
        files.write_best(["x"])
    assert len(str(raised.value).splitlines()) == 2
    if not part:
        assert "bireme tune report" in str(raised.value)


@needs_root
def test_a_study_of_another_user_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But not through its links."""
    folder = tmp_path / "tuning"
    (folder / "trials/trial-1").mkdir(parents=True)
    journal = Journal.open(str(folder / "journal"))
    journal.append({"study": {"goals": [{"name": "rate"}]}})
    journal.append({"start": "trial-1", "on": "a:0", "time": 1.0, "point": {"n": 1}})
    journal.close()
    (tmp_path / "mine").write_text("my secret")
    (folder / "trials/trial-1/stderr.log").symlink_to(tmp_path / "mine")
    for path in (folder, folder / "journal", *folder.rglob("*")):
        give_away(path)
    assert tune_report.main(["status", str(folder)]) == 0
    (tmp_path / "page").mkdir()
    study, secrets = tune_report_study(folder)
    from bireme.tune.report.page import page

    assert "my secret" not in page(study, secrets, 2.0, library="")


def tune_report_study(folder: Path):
    from bireme.tune.look import read_study

    return read_study(str(folder))


# -- values ------------------------------------------------------------------------------------------

OVERFLOWS = """\
import sys
n = int(sys.argv[1])
print("rate:", "1e308" if n == 3 else "9" * 5000 if n == 4 else n)
print("rate:", "1e308" if n == 3 else "9" * 5000 if n == 4 else n)
"""


@pytest.mark.slow
@pytest.mark.parametrize("values", ["1,2,3,4", "3,1,2,4"])
def test_a_study_goes_on_after_an_overflow(tmp_path: Path, stage, values: str) -> None:
    """Also where the default overflows."""
    (tmp_path / "job.py").write_text(OVERFLOWS)
    words = ("tune", "--param", f"n={values}", "--maximize", "rate: {}", "job.py", "{n}")
    done = stage.run(*words, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "no metric: rate: {}: '1e308' is too large" in done.stdout and "\nbest: n=2" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 200
    again = stage.run(*words, cwd=tmp_path, timeout=120)
    assert again.returncode == 0 and "best: n=2" in again.stdout, again.stderr


NONE = (float("inf"), float("-inf"), float("nan"), 1e308, -1e200, 10**400)


@pytest.mark.parametrize("value", NONE, ids=["inf", "-inf", "nan", "1e308", "-1e200", "10**400"])
def test_a_figure_that_cannot_be_compared_is_none(value: float) -> None:
    """When it is told, and when it is found in the journal of an earlier version."""
    study = Study({"n": [1, 2, 3]}, maximize="rate", trials=40)
    restored = Trial(name="trial-0", point={"n": 2}, phase="search")
    study.restore(restored, TrialResult(metrics={"rate": value}, seconds=1.0))
    while trial := study.ask():
        study.tell(trial.name, rate=value if trial.point["n"] == 3 else float(str(trial.point["n"])))
    assert study.answer.best in ({"n": 1}, {"n": 2})


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_figures_of_all_sizes(direction: str) -> None:
    """Neither their logarithms, their squares nor the ratios of these overflow."""
    figures = {1: 1e100, 2: 5e-324, 3: 1.0, 4: LEAST, 5: -1e100, 6: 0.0}
    for some in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        study = Study({"n": some}, **{direction: "rate"}, trials=60)
        while trial := study.ask():
            study.tell(trial.name, rate=figures[int(str(trial.point["n"]))])
        assert study.answer.text


def test_readings_of_all_sizes(tmp_path: Path) -> None:
    rows = "".join(f"[1.000 a:0] x: {value}\n" for value in ("1e100", "1e99", "5e-324", "-1e100") * 5)
    (tmp_path / "out").write_text(rows)
    readings = Reader(parse([("maximize", "x: {}")]), str(tmp_path / "out")).finish(None)
    assert abs(readings.figures["x"]) < 1e100


@pytest.mark.parametrize("text", ["9" * 5000, "1e999", "[" * 100_000, "-" + "9" * 400], ids=len)
def test_what_a_script_reports(tmp_path: Path, text: str) -> None:
    from bireme.figure_report import MARK

    (tmp_path / "out").write_text(f'[1.000 a:0] {MARK}{{"rate": {text}}}\n')
    problem = Reader(parse([("maximize", "rate")]), str(tmp_path / "out")).finish(None).problem
    assert problem and max(map(len, problem.splitlines())) < 200


def test_long_values_are_shortened() -> None:
    assert shown(1e300) == "1e+300" and shown(1e-300) == "1e-300" and shown(1234.4) == "1234"
    assert short("a" * 5000 + "b").endswith("ab") and len(short("a" * 5000)) == 60


FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "＝1+1")  # noqa: RUF001


def test_no_cell_of_a_csv_is_a_formula() -> None:
    """As OWASP says: of any text of others. Numbers stay numbers."""
    points = [{"=p": text} for text in FORMULAS] + [{"=p": number} for number in (-5, "-5", "+2.5e-3", -0.1, "-.5")]
    study = StudyView(
        folder="",
        state="over",
        command="",
        configurations=tuple(Configuration(place, point, {}, "") for place, point in enumerate(points)),
        trials=tuple(
            TrialView(f"={place}", place, point, reason=FORMULAS[place % 7], place="@a", figures={"=f": -1.5})
            for place, point in enumerate(points)
        ),
    )
    rows = list(csv.reader(io.StringIO(trials_csv(study), newline="")))
    for row in rows:
        for cell in row:
            try:
                float(cell)
            except ValueError:
                assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝")), cell  # noqa: RUF001
    assert {row[-1] for row in rows} >= {"-5", "+2.5e-3", "-0.1", "-.5"} and rows[1][-2] == "-1.5"


# -- limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "tune"])
@pytest.mark.parametrize("number", [5, 6, 7, 9])
def test_few_open_files(tmp_path: Path, command: str, number: int) -> None:
    (tmp_path / "job.py").write_text("")
    of_study = ("--param", "n=1,2", "--minimize", "time") if command == "tune" else ("--num_gpus", "2")
    line = [sys.executable, "-m", "bireme", command, *of_study, "job.py", *("{n}",)[: command == "tune"]]
    shell = ["sh", "-c", f'ulimit -n {number}; exec "$@"', "sh", *line]
    done = subprocess.run(shell, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 69 and "Bireme itself failed" not in done.stderr, done.stderr
    assert "open files" in done.stderr and "ulimit" in done.stderr and len(done.stderr.splitlines()) <= 3


@pytest.mark.parametrize(("limit", "said"), [("-v 60000", "no more memory"), ("-f 0", "cannot be written: File too")])
def test_little_memory_or_room(tmp_path: Path, limit: str, said: str) -> None:
    """A study ends; it does not wait for a thread or a file that could not be made."""
    (tmp_path / "job.py").write_text("print('rate: 1')")
    study = ("tune", "--param", "n=1,2", "--maximize", "rate: {}", "--trials", "2", "job.py", "{n}")
    shell = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, "-m", "bireme", *study]
    done = subprocess.run(shell, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 69 and said in done.stderr and len(done.stderr.splitlines()) == 2, done.stderr


def test_no_more_memory_or_disk(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from bireme.cli import main

    for error, said in (
        (MemoryError(), "no more memory"),
        (OSError(28, "No space left on device"), "no more space"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "no more processes"),
        (ImportError("libx.so: cannot open: Cannot allocate memory"), "no more memory"),
    ):

        def fail(_: list[str], error: Exception = error) -> int:
            raise error

        assert main.main([], fail) == 69
        assert capfd.readouterr().err.startswith(f"bireme: {said}")


def test_a_log_that_is_a_pipe(tmp_path: Path) -> None:
    """As an earlier trial can have left it."""
    os.mkfifo(tmp_path / "stderr.log")
    with pytest.raises(BiremeError, match="cannot be written"):
        experiment._new(str(tmp_path / "stderr.log"))
