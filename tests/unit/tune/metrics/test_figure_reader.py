"""Figures are read from what programs print, while they run; what is not a figure is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.logs.lines import SINCE
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End
from bireme.tune.metrics.metric import Measure, Readings, parse
from bireme.tune.metrics.reader import Reader

PRUNED = End(143, None, 2.0, stopped=False, end_reason="certainly worse than the best")
REPORT = {"ends": [{"rank": 0, "seconds": 3.5}, {"rank": 1, "seconds": 4.0}]}


def labelled(*rows: str, rank: str = "0", second: float = 1.0) -> bytes:
    return b"".join(f"[{second:.3f} node-1:{rank}] ".encode() + row.encode() + b"\n" for row in rows)


def measure(*goals: str, limits: tuple[str, ...] = ()) -> Measure:
    return parse([("maximize", goal) for goal in goals], limits)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Readings]:
    """Reads figures out of an output."""

    def reading(output: bytes | str, *goals: str, limits: tuple[str, ...] = (), messages: bytes = b"") -> Readings:
        (tmp_path / "stdout.log").write_bytes(labelled(output) if isinstance(output, str) else output)
        (tmp_path / "stderr.log").write_bytes(messages)
        paths = str(tmp_path / "stdout.log"), str(tmp_path / "stderr.log")
        return Reader(measure(*goals, limits=limits), *paths).finish(REPORT)

    return reading


@pytest.mark.parametrize(
    ("pattern", "row", "value", "unit"),
    [
        ("tps = {}", "tps = 221.6 (without initial connection time)", 221.6, ""),
        ("throughput:  {} samples/s", "  throughput:\t1,234,567.5   samples/s", 1234567.5, ""),
        ("loss {}", "loss -1.5e-3, next", -1.5e-3, ""),
        ("{} it/s", "100%|####| 60/60 [00:01<00:00, 12.3k it/s]", 12300, ""),
        ("{}batch/s", "60/60 [00:01<00:00, 45.82batch/s, loss=0.3]", 45.82, ""),
        ("Run Time: real {}", "Run Time: real 0.188 user 0.187 sys 0.000", 0.188, ""),
        ("real {}", "real\t1m2.500s", 62.5, "s"),
        ("Elapsed: {}", "Elapsed: 1:02:03.5", 3723.5, "s"),
        ("latency = {}", "latency = 4.5 ms", 0.0045, "s"),
        ("p99: {}", "p99: 980µs", 980e-6, "s"),
        ("rate: {}", "rate: 1.5MiB/s", 1.5 * 2**20, "B"),
        ("{} MiB/s", "rnd: 28.6 MiB / 28.6 MiB = 1.000, 512 KiB/s, 0:41", 0.5, ""),
        ("{} cycles", "     1,234,567      cycles:u", 1234567, ""),
        ("MemAllocated={}", "MaxMemAllocated=9.1GB, MemAllocated=4.5GB", 4.5e9, "B"),
        ("rate: {}", "\x1b[1mrate: \x1b[32m12.5\x1b[0m it/s", 12.5, ""),
        ('"tps": {}', '{"tps": 7}', 7, ""),
        ("{} it/s", "45.82it/s", 45.82, ""),
        ("tps = {}", "tps =12", 12, ""),
        ("loss {}", "loss2 7, loss 3", 3, ""),
        ("{} 5 s", "125 s, 12 5 s", 12, ""),
    ],
)
def test_numbers_as_programs_print_them(
    read: Callable[..., Readings], pattern: str, row: str, value: float, unit: str
) -> None:
    readings = read(row, pattern)
    assert readings.problem == ""
    ((name, figure),) = readings.figures.items()
    assert figure == pytest.approx(value)
    assert readings.units[name] == unit


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["x: 12x4"], "x: {}: '12x4' is not a number"),
        (["x: 1,5 s"], "x: {}: '1,5' is not a number"),
        (["x: 1.2.3"], "x: {}: '1.2.3' is not a number"),
        (["x: nan"], "x: {}: 'nan' is not a number"),
        (["x: 1", "x: 2", "x: inf"], "x: {}: 'inf' is not a number (reading 3)"),
        (["x: 980 us", "x: 3 it"], "x: {}: the unit changes: '980 us', then '3'"),
        (["X 3"], "'x: {}' matches no line of the output, which ends: X 3"),
        ([], "'x: {}' matches no line: the program printed nothing"),
    ],
)
def test_what_is_no_figure(read: Callable[..., Readings], rows: list[str], words: str) -> None:
    readings = read(labelled(*rows), "x: {}")
    assert (readings.problem, dict(readings.figures)) == (words, {})


def test_no_number_before_the_first_one_is_warm_up(read: Callable[..., Readings]) -> None:
    readings = read(labelled("x: nan", "x: inf", "x: 1", "x: 3", "x: 3", "x: 3"), "x: {}")
    assert (readings.problem, readings.figures["x"], readings.warm_up["x"]) == ("", 3.0, 1)
    assert len(readings.series["x"]) == 4


def test_a_pattern_that_never_matches_is_answered_with_the_most_similar_line(read: Callable[..., Readings]) -> None:
    rows = ["epoch 1 of 3", "Throughput (samples/sec): 12.5", *(f"loss {number}" for number in range(9)), "done", "bye"]
    assert read(labelled(*rows), "throughput: {} samples/s").problem == (
        "'throughput: {} samples/s' matches no line of the output; the most similar: Throughput (samples/sec): 12.5\n"
        "  the output ends: loss 0 | done | bye"
    )


def test_a_progress_bar_holds_many_figures(read: Callable[..., Readings]) -> None:
    bar = "\r".join(f" {step}/9 [00:0{step}, {10 + step % 2} it/s]" for step in range(10))
    readings = read(labelled(""), "{} it/s", messages=b"bireme: 3 it/s\n" + labelled(bar))
    assert [value for _, value in readings.series["it/s"]] == [10, 11] * 5


def test_limits_in_another_unit_than_the_figure(read: Callable[..., Readings]) -> None:
    assert read("y: 3ms", "y: {}", limits=("y: {} < 3",)).problem == (
        "--limit 'y: {} < 3': the program prints '3ms'\n  write the limit in that unit"
    )
    assert read("y: 3", "y: {}", limits=("y: {} < 3ms",)).problem == (
        "--limit 'y: {} < 3ms': the program prints '3'\n  write the limit without a unit, as the program does"
    )


def test_the_figure_is_the_mean_over_the_ranks(read: Callable[..., Readings]) -> None:
    output = labelled("x: 10", "x: 20", rank="1") + labelled("x: 30", "x: 40", second=2.5) + labelled("y: 7")
    readings = read(output, "x: {}", "time", limits=("y: {} < 9",))
    assert readings.figures == {"x": (15 + 35) / 2, "time": 4.0, "y": 7.0}
    assert [value for _, value in readings.series["x"]] == [10, 20]


def test_reading_while_the_program_writes(tmp_path: Path) -> None:
    """Wherever the output is cut between two looks, and where one rank's line is interrupted by another's."""
    output = (
        labelled("x: 4")
        + b"[1.000 node-1:1] x: 1\n[1.100 node-1:0] speed: 10 x\n[1.000 node-1:1+] 2.5 and x: 3\n"
        + b"[1.000 node-1:0+] : 4\n"
        + labelled("x: 4\rx: 4")
    )
    path = tmp_path / "stdout.log"
    for cut in range(len(output)):
        path.write_bytes(output[:cut])
        reader = Reader(measure("x: {}"), str(path))
        reader.update()
        with path.open("ab") as file:
            file.write(output[cut:])
        reader.update()
        assert reader.values("x") == [4, 4], cut  # a last line may go on
        readings = reader.finish(None)
        assert [value for _, value in readings.series["x"]] == [4] * 4, cut
        assert readings.figures["x"] == (4 + (12.5 + 3) / 2) / 2, cut


def test_times_count_from_the_start_of_the_trial(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"[1.500 n:0] x: 1\n[86400.250 n:0] x: 2\n")
    readings = Reader(measure("x: {}"), str(path)).finish(None)
    assert [when for when, _ in readings.series["x"]] == [1.5, 86400.25]


def test_long_outputs_take_little_memory(tmp_path: Path) -> None:
    """The mean is that of all readings; a line as long as the launcher's longest is searched to its end."""
    path = tmp_path / "stdout.log"
    rows = [f"x: {number}" for number in range(10_000)]
    path.write_bytes(
        labelled(*rows[:5000]) + labelled("\r" + "\r".join(rows[5000:])).replace(b"] \rx: 5000", b"+] \rx: 5000")
    )
    reader = Reader(measure("x: {}"), str(path))
    reader.update()
    assert len(reader.values("x")) <= 2048
    readings = reader.finish(None)
    assert any(note.startswith("x: 10,000 readings, kept as means of 8 each") for note in readings.notes)
    assert len(readings.series["x"]) == 1250


def test_figures_between_long_outputs(tmp_path: Path) -> None:
    """Output without figures is passed over, but not the line before it, nor the one after it."""
    path = tmp_path / "stdout.log"
    plain = labelled(*["step, nothing else to say"] * 10_000)
    path.write_bytes(labelled("x: 4") + b"[1.000 node-1:1] x: 4\n")
    reader = Reader(measure("x: {}"), str(path))
    for output in (plain + labelled("speed x"), b"[1.000 node-1:0+] : 8\n", plain):
        reader.update()
        with path.open("ab") as file:
            file.write(output)
    readings = reader.finish(None)
    assert [value for _, value in readings.series["x"]] == [4, 8]
    assert readings.figures["x"] == (6 + 4) / 2


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r-t7.json"
    path.write_text('{"rate": 1}')

    def reading(key: str, text: str | None) -> Readings:
        reader = Reader(measure(f"r-{{trial}}.json:{key}"), "", directory=str(tmp_path), name="t7")
        if text is not None:
            path.write_text(text)
        return reader.finish(None)

    assert reading("rate", '{"rate": 2}').figures == {"rate": 2}
    assert reading("a.b.rate", '{"a.b": {"rate": 4}}').figures == {"rate": 4}
    assert reading("runs.1.rate", '{"runs": [{}, {"rate": 5}]}').figures == {"rate": 5}
    assert [value for _, value in reading("times", '{"times": [3, 1, 2, 2]}').series["times"]] == [3, 1, 2, 2]
    for key, text, words in (
        ("rate", None, "r-{trial}.json was there before the trial, and the program did not write it"),
        ("rate", '{"rates": 2}', "r-{trial}.json has no 'rate': the keys there are rates"),
        ("rate.x", '{"rate": 2}', "r-{trial}.json has no 'rate.x': found 2, which has no keys"),
        ("rate", '{"rate": "12ms"}', "r-{trial}.json:rate: '12ms' is not a number"),
        ("rate", '{"rate": NaN}', "r-{trial}.json:rate: 'nan' is not a number"),
        ("rate", '{"rate": true}', "r-{trial}.json:rate: 'true' is not a number"),
        ("rate", '{"rate": []}', "r-{trial}.json:rate is an empty list"),
        ("rate", '{"rate": 2', f"{path} is not readable as JSON:"),
    ):
        assert reading(key, text).problem.startswith(words)
    path.unlink()
    assert reading("rate", None).problem.startswith("r-{trial}.json was not written by the program")


REPORTING = """
import os, sys, time, warnings
from bireme import report
begin = set(sys.modules)
class Bad:
    def __float__(self): raise KeyboardInterrupt if 0 else OSError
    def __repr__(self): raise OSError
class Scalar:
    def __float__(self): return 3.5
rank = int(os.environ["RANK"])
report(speed=Scalar(), loss=float("nan"), step=1)
report(speed=4.5 + rank, gone=None, step=2)
report(bad=Bad())
report()
os.close(1)
report(speed=99)
"""


def test_figures_that_a_script_reports(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REPORTING)
    run = (sys.executable, "-m", "bireme", "run", "--num_gpus", "2", "--output", "prefix", "--timestamps")
    goals = ("speed", "time")
    reader = Reader(measure(*goals), str(tmp_path / "out"))
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(
            [*run, "--report", "report.json", "script.py"],
            cwd=tmp_path,
            env={**os.environ, "BIREME_TRIAL": "t1", SINCE: repr(time.monotonic())},
            stdout=out,
            stderr=subprocess.PIPE,
            check=True,
        )
    readings = reader.finish(json.loads((tmp_path / "report.json").read_text()))
    assert readings.problem == ""
    assert readings.figures["speed"] == (4.0 + 4.5) / 2
    assert 0 < readings.figures["time"] < 30
    assert all(when is not None and 0 < when < 60 for when, _ in readings.series["speed"])
    for figure, words in (
        ("loss", "loss: 'nan' is not a number"),
        ("gone", "gone: 'None' is not a number"),
        ("sped", "no figure 'sped': reported: speed, loss, step, gone\n  did you mean speed? Or call bireme.report"),
    ):
        assert Reader(measure(figure), str(tmp_path / "out")).finish(None).problem.startswith(words)


@pytest.mark.parametrize(
    ("row", "pattern"),
    [
        ("step 3 rate=12.5 img/s", "rate={}"),
        ("rate :  -4", "rate :  {}"),
        ("rate is 3", "rate: {}"),
        ("crate=3", "rate: {}"),
    ],
)
def test_a_name_that_is_only_printed_becomes_a_pattern(read: Callable[..., Readings], row: str, pattern: str) -> None:
    assert read(labelled(row), "rate").problem.endswith(f"or give a pattern: '{pattern}'")


@pytest.mark.parametrize(("step", "said"), [("'warm'", "\"'warm'\""), ("3", "3.0")])
def test_figures_are_reported_though_the_step_cannot_be_noted(step: str, said: str, tmp_path: Path) -> None:
    """It is no number, or its file cannot be written."""
    code = f"from bireme import report; report(step={step}, loss=2)"
    environ = {"BIREME_TRIAL": "1", "BIREME_STEPS": f"{tmp_path}/gone/step", "RANK": "0"}
    shown = subprocess.run((sys.executable, "-c", code), env={**os.environ, **environ}, capture_output=True, text=True)
    assert shown.stdout == f'\x1ebireme {{"loss":2.0,"step":{said}}}\n'


def test_reporting_outside_of_a_tuning_costs_nothing() -> None:
    code = "import sys; from bireme import report; report(x=object()); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {name for name in done.stdout.split() if name.startswith("bireme")}
    assert ours == {"bireme", "bireme.figure_report"}
    assert not {"json", "re", "typing", "numpy"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        (("y: 3 ms", "y: 3 ms"), "pruned"),
        (("y: 3 ms", "y: nan"), "no metric"),
        (("y: 3 ms", "y: 4 MiB"), "no metric"),
    ],
)
def test_what_was_stopped_early_has_the_figure_of_its_goal_or_none(
    read: Callable[..., Readings], rows: tuple[str, ...], cause: str
) -> None:
    """A limit's figure, which is there or not, does not stand for it."""
    for other in ("z: 1", "w: 1"):
        readings = read(labelled(*rows, other), "y: {}", limits=("z: {} < 5",))
        result = diagnose(PRUNED, readings.figures, readings.problem, "")
        assert (result.cause, "y" in result.metrics) == (cause, cause == "pruned")
