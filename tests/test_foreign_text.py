"""Text of other programs is read or refused, and never causes a traceback of ours."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme import jsontext
from bireme.backends import choice
from bireme.errors import BadInputError
from bireme.job import LAUNCHERS
from bireme.logs.console import printable
from bireme.planning.world import decode_world_info, encode_world_info
from bireme.process.oom import OomWatch
from bireme.result import report_record
from bireme.result.failure_words import last_lines
from bireme.result.outcome import Outcome, RankEnd
from bireme.result.report import summary
from bireme.tune.deepspeed.config import read_config
from bireme.tune.deepspeed.files import StudyFiles
from bireme.tune.deepspeed.results import METRICS, goal_of, read_metrics, read_model_info, with_goal
from bireme.tune.execution import diagnosis
from bireme.tune.execution.diagnosis import diagnose
from bireme.tune.execution.experiment import End, read_report
from bireme.tune.metrics.numbers import scaled
from bireme.tune.study.trial import TrialResult
from tests.conftest import bireme, clean_environ

HARD = {
    "nested lists": "[" * 100_000 + "]" * 100_000,
    "nested lists without an end": "[" * 100_000,
    "nested objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a little too deep": "[" * 102 + "]" * 102,
    "a number of 5,000 digits": "9" * 5000,
    "a number that fits no float": "-" + "9" * 400,
    "an infinite number": "1e999",
    "not a number": "NaN",
    "half of a character": r'"\ud800"',
}

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([10**99, 10**400, -1, 2**63, "\ud800", "\0", "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


# -- JSON --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in HARD if case != "half of a character"])
def test_hard_json_is_refused(case):
    with pytest.raises(ValueError):
        jsontext.loads(HARD[case], finite=True)


def test_the_place_of_what_is_refused():
    for text, line, column in (
        ('{"a": "[[[' + "9" * 200 + '",\n "b":\n  ' + "9" * 200 + "}", 3, 3),
        ("\n" + "[" * 101 + "]" * 101, 2, 101),
        ("\n" + "[" * 100_000, 2, 101),
    ):
        with pytest.raises(json.JSONDecodeError) as raised:
            jsontext.loads(text)
        assert (raised.value.lineno, raised.value.colno) == (line, column)


@given(VALUES)
def test_json_is_read_as_python_reads_it(value):
    text = json.dumps(value)
    try:
        got = jsontext.loads(text)
    except ValueError as error:
        assert "100 digits" in str(error) and re.search(r"\d{101}", text)
    else:
        assert json.dumps(got) == text
        assert json.dumps(jsontext.loads(text.encode())) == text


@given(VALUES)
def test_json_is_written_as_python_writes_it(value):
    assert jsontext.dumps(value) == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("text", ["{", "{num: 2}", '"open', "[1,", "nul", ""])
def test_what_is_not_json_is_refused_where_nothing_has_imported_json(text):
    """The parts in C cannot word their errors then."""
    code = (
        "import sys; from bireme import jsontext; assert 'json' not in sys.modules\ntry: jsontext.loads(sys.argv[1])\n"
    )
    code += "except ValueError as error: print(type(error).__name__)"
    environ = clean_environ(PYTHONPATH=str(Path(jsontext.__file__).parents[1]))
    done = subprocess.run([sys.executable, "-S", "-c", code, text], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("JSONDecodeError\n", "")


def test_json_without_the_parts_in_c():
    code = "import sys; sys.modules['_json'] = None\nfrom bireme import jsontext\n"
    code += "print(jsontext.dumps(jsontext.loads(' [1, {\"a\": null}]')))"
    done = subprocess.run([sys.executable, "-c", code], env=clean_environ(), capture_output=True, text=True)
    assert done.stdout == '[1,{"a":null}]\n', done.stderr


@given(st.text() | st.binary())
def test_any_text_is_json_or_refused(text):
    try:
        json.dumps(jsontext.loads(text, finite=True), allow_nan=False)
    except ValueError:
        pass


# -- the tuner's files -------------------------------------------------------------------------------

SECTION = ("num_tuning_micro_batch_sizes", "max_train_batch_size", "model_info", "arg_mappings", "metric", "fast")


def configuration(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for word in (str(path), base64.urlsafe_b64encode(data).decode()):
        try:
            read_config(word)
        except BadInputError as error:
            assert 1 <= len(str(error).split("\n")) <= 2


@pytest.mark.parametrize("name", ["ds.json", "ds.hjson"])
@pytest.mark.parametrize("case", HARD)
def test_a_hard_configuration(tmp_path, case, name):
    for text in (HARD[case], f'{{"a": {HARD[case]}}}', f'{{"autotuning": {{"model_info": {HARD[case]}}}}}'):
        configuration(tmp_path / name, text.encode())
        configuration(tmp_path / name, f"# a comment\n{text}".encode())


@FILES
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_as_a_configuration(tmp_path, data):
    for name in ("ds.json", "ds.hjson"):
        configuration(tmp_path / name, data)


@FILES
@given(st.dictionaries(st.sampled_from(SECTION) | st.text(max_size=5), VALUES, max_size=4))
def test_any_section_in_a_configuration(tmp_path, section):
    configuration(tmp_path / "ds.json", json.dumps({"autotuning": section}).encode())


def test_the_command_refuses_a_hard_configuration_with_its_place(stage, tmp_path):
    (tmp_path / "train.py").touch()
    for text, said in (
        ('{"a":\n' + HARD["nested lists"] + "}", r"ds\.json:2:100: invalid JSON: nested more than 100 deep"),
        ('{"a":\n' + "9" * 5000 + "}", r"ds\.json:2:1: invalid JSON: a whole number of more than 100 digits"),
    ):
        (tmp_path / "ds.json").write_text(text)
        done = stage.run("tune", "train.py", "--deepspeed_config", "ds.json", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert re.fullmatch(rf"bireme: \S*{said}\n", done.stderr)


def results(folder: Path, data: bytes) -> None:
    for name in ("metrics.json", "model_info.json"):
        (folder / name).write_bytes(data)
    metrics = read_metrics(str(folder / "metrics.json"))
    for name in METRICS:
        judged = with_goal(TrialResult(cause="ok", metrics=dict(metrics.values)), name, 1)
        value = judged.metrics.get(goal_of(name).name, 0.0)
        assert (judged.cause == "ok") != bool(judged.reason)
        assert judged.reason or (value > 0 and scaled(value / METRICS[name].scale, METRICS[name].unit))
    info = read_model_info(str(folder / "model_info.json"))
    assert (info.params is None) == bool(info.reason)


@pytest.mark.parametrize("case", HARD)
def test_hard_figures(tmp_path, case):
    for key in ("throughput", "num_params"):
        for text in (HARD[case], f'{{"{key}": {HARD[case]}}}'):
            results(tmp_path, text.encode())


@FILES
@given(
    st.binary()
    | st.dictionaries(
        st.sampled_from(["throughput", "latency", "num_params", "trainable_num_params"]) | st.text(max_size=3), VALUES
    ).map(lambda data: json.dumps(data).encode())
)
def test_any_figures(tmp_path, data):
    results(tmp_path, data)


@pytest.mark.parametrize("case", HARD)
def test_a_hard_file_is_no_experiment(tmp_path, case):
    files = StudyFiles(f"{tmp_path}/results", f"{tmp_path}/exps")
    files.prepare()
    files.write_experiment("good", {})
    Path(files.experiment("bad")).write_text(HARD[case])
    Path(files.experiment("worse")).write_text(f'{{"name": 1, "b": {HARD[case]}}}')
    assert files.experiments() == ("good",)


# -- the report --------------------------------------------------------------------------------------

END = RankEnd(1, "node1", "cuda:0", 77, 1, False, 2.5, False, detail="ValueError: boom")
REPORTS = tuple(
    report_record.of_outcome(outcome)
    for outcome in (
        Outcome(1, "rank failed", 3.0, (END, END.replace(rank=2, stopped=True)), END),
        Outcome(143, "signal", 3.0, signum=15),
        Outcome(75, "agent lost", 3.0, note="node1 is lost", hosts=("node1",)),
    )
)


@given(st.sampled_from(REPORTS), st.data())
def test_any_field_of_a_report_may_be_wrong(report, data):
    report = json.loads(json.dumps(report))
    assert report_record.is_report(report)
    place = report
    if report["first"] is not None and data.draw(st.booleans()):
        place = data.draw(st.sampled_from([report["first"], *report["ends"]]))
    name = data.draw(st.sampled_from(sorted(place)))
    if data.draw(st.booleans()):
        place[name] = data.draw(VALUES)
    else:
        del place[name]
    ending = diagnose(End(1, report, 1.0, False), {}, "no figures", "")
    assert ending.cause in ("failed", "infrastructure", "timed out", "out of memory")


@pytest.mark.parametrize("case", HARD)
def test_a_hard_report(tmp_path, case):
    path = tmp_path / "outcome.json"
    for text in (HARD[case], f'{{"cause": "rank failed", "first": {HARD[case]}}}'):
        path.write_text(text)
        assert diagnose(End(1, read_report(str(path)), 1.0, False), {}, "none", "").cause == "infrastructure"


# -- world info --------------------------------------------------------------------------------------


def world(text: str) -> None:
    try:
        pool = decode_world_info(text)
    except BadInputError as error:
        assert len(str(error).split("\n")) == 1
        return
    assert pool
    for host, slots in pool.items():
        assert slots
        for word in (host, *slots):  # it can stand in an environment and in a command line
            assert b"\0" not in os.fsencode(word) and word.split() == [word]
    assert decode_world_info(encode_world_info(pool)) == pool


@given(
    st.text()
    | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode())
    | (VALUES | st.dictionaries(st.text(), st.lists(st.integers() | st.text()))).map(
        lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    )
)
def test_any_world_info(text):
    world(text)


@pytest.mark.parametrize("case", HARD)
def test_hard_world_info(case):
    for text in (HARD[case], f'{{"node1": {HARD[case]}}}', f'{{"node1": [{HARD[case]}]}}'):
        world(base64.urlsafe_b64encode(text.encode()).decode())


# -- last words --------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):\n",
        "  + Exception Group Traceback (most recent call last):\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
        "\nDuring handling of the above exception, another exception occurred:\n\n",
        '  File "train.py", line 3, in <module>\n',
        "ValueError: boom\n",
        "torch.OutOfMemoryError: CUDA out of memory.\n",
        "[rank1]: ",
        "  | ",
        "\r",
        "\n",
        "\x1b[31m",
    ]
)
WORDS = st.lists(PIECES | st.text(), max_size=12).map("".join)


@given(WORDS.map(str.encode) | st.binary(), WORDS | VALUES.map(json.dumps), st.booleans())
def test_any_last_words(stderr, error_file, by_signal):
    words = last_lines(stderr, error_file, by_signal=by_signal)
    assert len(words.splitlines()) <= 62
    end = END.replace(detail=words)
    printed = printable(summary(Outcome(1, "rank failed", 3.0, (end,), end)))
    assert all(char.isprintable() or char in "\n\t" for char in printed)


@pytest.mark.parametrize("case", HARD)
def test_a_hard_error_file(case):
    for text in (HARD[case], f'{{"message": {HARD[case]}}}', f'{{"message": {{"extraInfo": {HARD[case]}}}}}'):
        assert isinstance(last_lines(b"the end", text, by_signal=False), str)


@given(WORDS)
def test_any_traceback(detail):
    for found in (diagnosis.of_memory, diagnosis.of_port, diagnosis.of_disk, diagnosis.headline):
        assert "\n" not in found(detail) and len(found(detail)) <= 200
    assert isinstance(diagnosis.of_another(detail), bool)
    assert all(said.strip() for said in diagnosis.exceptions(detail)) or "Traceback" in detail


@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", ["resource exhausted ", "DataLoader worker ", "cuda failure ", "a."])
def test_a_traceback_that_is_made_to_take_long(line):
    detail = "Traceback (most recent call last):\n" + f"ValueError: {line * 20_000}\n" * 12
    for found in (diagnosis.of_memory, diagnosis.of_port, diagnosis.of_disk, diagnosis.headline):
        found(detail)


# -- engines -----------------------------------------------------------------------------------------

PATTERNS = [
    (name, pattern)
    for name in LAUNCHERS
    for pattern in (*choice.load(name).FAILED, *filter(None, (choice.load(name).OVER,)))
]
NODES = {
    "mpich": [
        "ssh: connect to host NODE port 22: Connection refused",
        "ssh: Could not resolve hostname NODE: Name or service not known",
        "[proxy:0:1@NODE] HYDU_create_process (lib/utils/launch.c:73): execvp error on file x (No such file)",
    ],
    "pdsh": ["pdsh@here: NODE: ssh exited with exit code 255"],
    "slurm": ["srun: error: NODE: task 3: Exited with exit code 1"],
}


def test_engines_name_the_node_that_they_lost():
    for name, lines in NODES.items():
        for line in lines:
            found = [re.search(pattern, line.replace("NODE", "node-1.site")) for pattern in choice.load(name).FAILED]
            assert [match.group(1) for match in found if match] == ["node-1.site"]


@given(st.text() | st.lists(st.sampled_from(["[proxy:", "@", "]", " ", "pdsh@", ": ", "srun: error: ", "ssh: "])))
def test_any_line_of_an_engine(line):
    for name, pattern in PATTERNS:
        if found := re.search(pattern, "".join(line)):
            assert pattern in (choice.load(name).OVER, "") or not re.search(r"\s", found.group(1))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "pattern"), PATTERNS)
def test_a_line_of_an_engine_that_is_made_to_take_long(name, pattern):
    for start in ("", "[proxy:", "pdsh@", "srun: error: ", "Slurm job ", "ssh: connect to host "):
        for piece in ("@", "@a", ":", ": ", "1", "] ", "@]", "a"):
            re.search(pattern, start + piece * (100_000 // len(piece)))


# -- the kernel's log --------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"Killed process 7 (x)", b"Killed process 77", b"7 "])))
def test_any_kernel_log(records):
    """As /dev/kmsg gives it: a record with each read, then EAGAIN."""
    watch = OomWatch()
    watch.close()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setblocking(False)
        watch._log = ours.detach()
        for text in records:
            theirs.send(b"6,1,2,-;" + text)
        watch._before = watch._kills()
        assert (watch.struck(7) is not None) == any(b"Killed process 7 " in text for text in records)
        watch.close()


# -- the terminal ------------------------------------------------------------------------------------


@given(st.text(st.characters() | st.sampled_from("\x1b[0m\r\n\x9b\x07\u202e\udcff")))
def test_nothing_of_ours_commands_the_terminal(text):
    shown = printable(text)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert printable(shown) == shown
    shown.encode()


def test_what_is_shown_of_what_is_not_printable():
    assert printable("a\r\nb\rc\td") == "a\nb\nc\td"
    assert printable("\x1b[1;31mred\x1b[0m \x1b]0;title\x07") == r"red \x1b]0;title\x07"
    assert printable("\x9b2J \u202e \udcff \ud800 é…") == r"\x9b2J \u202e \xff \ud800 é…"


def test_what_an_engine_says_does_not_command_the_terminal(stage, tmp_path, script):
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nprintf 'banner \\033[2J\\033]0;evil\\007 \\2332J end\\r\\n' >&2; exit 255\n")
    ssh.chmod(0o755)
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}")
    words = bireme("run", "--hosts", "node1:1,node2:1", script(""))
    done = subprocess.run(words, capture_output=True, env=environ, check=False)
    assert done.returncode == 69
    assert rb"banner \x1b[2J\x1b]0;evil\x07" in done.stderr
    assert not set(done.stderr) & ({*range(32), 127} - {10})


def test_a_ranks_own_output_is_as_it_is_and_its_report_is_not(script):
    program = script("raise ValueError('\\x1b[2J\\x07\\x1b[31mred')")
    done = subprocess.run(bireme("run", program), capture_output=True, env=clean_environ(), check=False)
    ours = b"".join(line for line in done.stderr.splitlines() if line.startswith(b"bireme: "))
    assert b"ValueError: \x1b[2J\x07\x1b[31mred\n" in done.stderr
    assert rb"ValueError: \x1b[2J\x07red" in ours and b"\x1b" not in ours


# -- stdout that cannot take it ----------------------------------------------------------------------

PAGES = [["--help"], ["--version"], ["run", "--help"], ["tune", "--help"], ["check", "--help"], ["drain", "--help"]]


@pytest.mark.parametrize("words", [*PAGES, ["run", "--dry_run", "/dev/null", "ü\udcff"]], ids=" ".join)
def test_pages_in_any_encoding_and_into_a_full_device(words):
    for encoding in ("ascii", "latin-1", "utf-8", "ascii:strict"):
        environ = clean_environ(PYTHONIOENCODING=encoding)
        done = subprocess.run(bireme(*words), capture_output=True, env=environ, check=False)
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout
    with open("/dev/full", "wb") as full:
        done = subprocess.run(bireme(*words), stdout=full, stderr=subprocess.PIPE, env=clean_environ(), check=False)
    assert (done.returncode, done.stderr) == (125, b"bireme: cannot write to stdout: No space left on device\n")
