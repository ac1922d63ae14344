"""Study files: what they say, and where they are wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.cli import tune
from bireme.errors import BadInputError
from bireme.options.option import seconds_of
from bireme.tune.define.declarations import Binding, declare
from bireme.tune.define.study_file import key_lines, read_study, write_example
from tests.conftest import ROOT

DOCS = ROOT / "docs"
LEAST = """\
command = "train.py --batch {batch}"
maximize = "samples/s: {}"
[parameters]
batch = "8,16"
"""


def study(folder, text):
    path = folder / "tune.toml"
    path.write_text(text)
    return read_study(str(path))


def refusal(folder, text):
    """What the command says of a file: it checks what the file's options may be, as if they had been typed."""
    with pytest.raises(BadInputError) as caught:
        study(folder, text)
        tune.main([str(folder / "tune.toml")])
    said = str(caught.value)
    assert said.count("\n") <= 1 and "no such script" not in said
    return said.replace(f"{folder}/", "")


def test_the_example_is_a_study_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_example()
    found = read_study("tune.toml")
    assert found.words == ("--maximize=samples/s: {}",)
    assert found.declaration.space.default == {"batch": 8, "compile": "on"}
    with pytest.raises(BadInputError, match=r"tune.toml: already exists\n  remove it, or use it"):
        write_example()
    with pytest.raises(BadInputError, match=r"cannot be written: No such file"):
        write_example("no/tune.toml")


def test_what_the_example_only_mentions_is_right_too(tmp_path):
    write_example(str(tmp_path / "example.toml"))
    example = (tmp_path / "example.toml").read_text()
    text = re.sub(r"^# ((# )?[a-z_]+ = |\[)", r"\1", example, flags=re.MULTILINE)
    text = text.replace("# file =", "file =").replace("# key =", "key =").replace('flag = "--accum"', "")
    text = text.replace('\nminimize = "time"', "")
    found = study(tmp_path, text.replace("default = 4", "default = 8").replace('"8..512', '"32..512'))
    assert found.words == (
        "--maximize=samples/s: {}", "--limit=p99: {} < 200", "--limit=peak_memory < 16GiB", "--trials=40",
        "--confidence=95", "--effect=2", "--budget=2h", "--confirm=50%", "--pruner=halving",
        "--search=model_based", "--results_dir=tuning", "--warm_start=measured.csv", "--num_gpus=2",
    )  # fmt: skip
    assert found.declaration.bindings[-1] == Binding("accum", "file", "config.yaml", "training.accum")


def test_the_example_in_the_docs(tmp_path):
    block = re.findall(r"```toml\n(.*?)```", (DOCS / "study-file.md").read_text(), re.DOTALL)[0]
    found = study(tmp_path, block)
    assert found.command == ("train.py", "--batch", "{batch}", "--accum", "{accum}", "--config", "config.yaml")
    assert found.declaration.space.default == {"batch": 64, "accum": 4, "stage": 1, "threads": 1}
    by_words = declare(
        params=["batch=8..256:log2:memory", "accum=1,2,4,8,16,32", "--offload=none,cpu"],
        envs=["OMP_NUM_THREADS=1..8:log2"],
        files=["config.yaml:zero_optimization.stage=1,2,3"],
        conditions=["offload only if stage >= 2"],
        constraints=["batch * accum == 256"],
        defaults=["batch=64,accum=4"],
        args=found.command[1:],
    )
    assert found.declaration.space.size == by_words.space.size == 6 * (1 + 2 * 2) * 4
    assert {each.where for each in found.declaration.bindings} == {each.where for each in by_words.bindings}


def test_options_have_their_lines(tmp_path):
    found = study(
        tmp_path,
        LEAST.replace("[parameters]", 'limits = [\n  "p99: {} < 200",\n  "time < 3s",\n]\n[parameters]')
        + '[launch]\nquiet = true\nfold = false\nexport = ["A", "B=1"]\nnum-nodes = "1:4"\n',
    )
    assert [(each.text, each.where.rpartition(":")[2]) for each in found.options] == [
        ("--maximize=samples/s: {}", "2"), ("--limit=p99: {} < 200", "4"), ("--limit=time < 3s", "5"),
        ("--quiet", "10"), ("--export=A", "12"), ("--export=B=1", "12"), ("--num_nodes=1:4", "13"),
    ]  # fmt: skip


def test_values_of_every_kind(tmp_path):
    found = study(
        tmp_path,
        LEAST
        + '[parameters.a]\nvalues = [true, 1, "x", 0.5]\ndefault = "x"\nenv = "A"\n'
        + '[parameters.b]\nvalues = ["s", "l"]\nordered = true\nmemory = true\nflag = "-b"\n'
        + '[parameters.c]\nvalues = [[1, 2], {x = 1}, true]\nfile = "c.json"\nkey = "c"\ndefault = true\n'
        + '[parameters.d]\nvalues = "1e-4,true"\nfile = "c.json"\nkey = "d.0"\ndefault = true\n',
    )
    b = found.declaration.space.parameters[2]
    assert b.ordered and b.memory
    assert found.declaration.space.default == {"batch": 8, "a": "x", "b": "s", "c": True, "d": True}
    assert found.declaration.text("d", 1e-4) == "1e-4" and found.declaration.text("a", True) == "true"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("maximize", "maximise"), "tune.toml:2: unknown key: 'maximise'\n  did you mean 'maximize'?"),
        (("command =", "commands ="), "tune.toml:1: unknown key: 'commands'\n  did you mean 'command'?"),
        (('command = "train.py --batch {batch}"', ""), "tune.toml:1: no command\n  write it like: command ="),
        (('"train.py', '"--num_gpus 2 train.py'), "tune.toml:1: the command begins with an option: --num_gpus"),
        (('"train.py --batch {batch}"', '"a \'b"'), "tune.toml:1: a quote of the command is not closed"),
        (('"train.py --batch {batch}"', "3"), "tune.toml:1: 'command' must be a string or a list of strings"),
        (('"train.py --batch {batch}"', '""'), "tune.toml:1: the command is empty"),
        (("{batch}", "{bach}"), "tune.toml:1: no parameter for {bach} in the program's arguments"),
        (("{batch}", "8"), "tune.toml:4: 'batch' does not reach the program"),
        (('maximize = "samples/s: {}"', ""), "tune.toml:1: no goal"),
        (('"samples/s: {}"', '["a: {}", "b: {}", "c: {}"]'), "tune.toml:2: 3 goals, but at most two are allowed"),
        (('"samples/s: {}"', '"samples/s {} {}"'), "tune.toml:2: "),
        (("[parameters]", 'limits = ["p99: {} < 2", "p99 {}"]\n[parameters]'), "tune.toml:3: no <, <=, > or >="),
        (("[parameters]", "trials = 0\n[parameters]"), "tune.toml:3: --trials: "),
        (("[parameters]", "trials = true\n[parameters]"), "tune.toml:3: 'trials' must be a string or a number"),
        (("[parameters]", "confidence = 0.95\n[parameters]"), "tune.toml:3: --confidence: '0.95' is not a percentage"),
        (("[parameters]", 'budget = "2 hours"\n[parameters]'), "tune.toml:3: --budget: "),
        (("[parameters]", "budget = 0\n[parameters]"), "tune.toml:3: --budget: "),
        (("[parameters]", 'search = "grid"\n[parameters]'), "tune.toml:3: --search: unknown search: 'grid'\n  choose"),
        (('batch = "8,16"', 'batch = "8,16"\n[launch]\nask_tell = true'), "tune.toml:6: unknown option: 'ask_tell'"),
        (("[parameters]", "search = 3\n[parameters]"), "tune.toml:3: --search: unknown search: '3'"),
        (("[parameters]", 'constraints = ["batch >"]\n[parameters]'), "tune.toml:3: not an expression at character"),
        (("[parameters]", 'constraints = [\n"batch > 0",\n"bach > 0"]\n[parameters]'), "toml:5: unknown name 'bach'"),
        (("[parameters]", 'constraints = ["batch > 8"]\n[parameters]'), "such as: default = 16 in [parameters.batch]"),
        (("[parameters]", 'conditions = ["batch"]\n[parameters]'), "tune.toml:3: no 'only if'"),
        (('batch = "8,16"', ""), "tune.toml:3: no parameters: nothing varies"),
        (('"8,16"', '"8..4"'), "tune.toml:4: a range from the larger number to the smaller one"),
        (('"8,16"', "8"), "tune.toml:4: no values for 'batch'\n  write a list"),
        (('"8,16"', "[8, 8]"), "tune.toml:4: 8 is listed twice"),
        (('"8,16"', "[]"), "tune.toml:4: no choices for 'batch'"),
        (('"8,16"', "[8, nan]"), "tune.toml:4: not a value for 'batch': NaN"),
        (('"8,16"', "[8, 2020-01-01]"), "tune.toml:4: not a value for 'batch': \"2020-01-01\""),
        (('"8,16"', '{values = "8,16", flg = "--b"}'), "tune.toml:4: unknown key: 'flg'\n  did you mean 'flag'?"),
        (('"8,16"', '{values = "8,16", flag = "b"}'), "tune.toml:4: not a flag: \"b\""),
        (('"8,16"', '{values = "8,16", flag = "-b", env = "B"}'), "tune.toml:4: both 'flag' and 'env' for 'batch'"),
        (('"8,16"', '{values = "8,16", file = "a.json"}'), "tune.toml:4: 'file' without 'key' for 'batch'"),
        (('"8,16"', '{values = "8,16", memory = 1}'), "tune.toml:4: 'memory' must be true or false, not 1"),
        (('"8,16"', '{values = "8,16", default = 9}'), "tune.toml:4: '9' is not a choice of 'batch'\n  choose: 8, 16"),
        (('"8,16"', '{values = "8,16", only_if = "x > 1"}'), "tune.toml:4: unknown name 'x'"),
        (('batch = "8,16"', 'batch = "8,16"\n"a b" = "1"'), "tune.toml:5: not a name: 'a b'"),
        (("[parameters]", "launch = 3\n[parameters]"), "tune.toml:3: 'launch' is not a table"),
        (('batch = "8,16"', 'batch = "8,16"\n[launch]\nnum_gpu = 2'), "tune.toml:6: unknown option: 'num_gpu'"),
        (('batch = "8,16"', 'batch = "8,16"\n[launch]\nquiet = 2'), "tune.toml:6: 'quiet' must be true or false, not"),
        (('batch = "8,16"', 'batch = "8,16"\n[launch]\nhosts = [1]'), "tune.toml:6: 'hosts' must be a string"),
        (('batch = "8,16"', 'batch = "8,16'), "tune.toml:4: invalid TOML: "),
        (('batch = "8,16"', 'batch = "8"\nbatch = "9"'), 'tune.toml:5: invalid TOML: key "batch" already exists'),
        (('"8,16"', '{values = "8",\nvalues = "9"}'), "tune.toml:"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, change, said):
    assert change[0] in LEAST
    assert said in refusal(tmp_path, LEAST.replace(*change))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ('"90"', 90.0), ('"1h30m"', 5400.0), ('"1d"', 86400.0), ("1.5", 1.5)]
)
def test_a_budget_is_what_the_command_line_takes(tmp_path, text, seconds):
    word = study(tmp_path, LEAST.replace("[parameters]", f"budget = {text}\n[parameters]")).words[-1]
    assert seconds_of(word.removeprefix("--budget="), "--budget") == seconds


def test_options_replace_those_of_the_file(tmp_path):
    """Goals replace goals, and a limit those on the same figure."""
    limits = 'limits = ["p99: {} < 200", "p99: {} > 1", "time < 3s"]\n'
    found = study(tmp_path, LEAST.replace("[parameters]", f"{limits}[parameters]"))
    assert found.without(goals=False, limits=()) == found
    words = found.without(goals=True, limits=["p99: {} < 300"]).words
    assert words == ("--limit=time < 3s",)


def test_an_error_about_an_option_has_its_line(tmp_path):
    found = study(tmp_path, LEAST + "[launch]\nnum_gpus = 2\n")
    error = BadInputError("wrong", where="--num_gpus")
    assert str(found.located(error)).endswith("tune.toml:6: --num_gpus: wrong")
    for other in (found.located(error, ["--num-gpus=3"]), found.located(BadInputError("wrong", where="--hosts"))):
        assert "tune.toml" not in str(other)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInputError, match=r"tune.toml: cannot be read: No such file or directory"):
        read_study(str(tmp_path / "tune.toml"))
    (tmp_path / "tune.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(BadInputError, match="is not UTF-8 text"):
        read_study(str(tmp_path / "tune.toml"))
    (tmp_path / "tune.toml").write_bytes(b"\xef\xbb\xbf" + LEAST.replace("\n", "\r\n").encode())
    assert read_study(str(tmp_path / "tune.toml")).command[0] == "train.py"


def test_the_line_of_each_key():
    text = 'a = 1 # [b]\nb.c = """\nx = 3\n[d]\n"""\n[t."u v"]\n\nx = [ # "no"\n "p", \'q\',\n ["r"],\n "s" ]\n'
    text += 'y = {z = "]"}\n[[l]]\n'
    assert key_lines(text) == {
        ("a",): 1, ("b",): 2, ("b", "c"): 2, ("t",): 6, ("t", "u v"): 6, ("t", "u v", "x"): 8,
        ("t", "u v", "x", "0"): 9, ("t", "u v", "x", "1"): 9, ("t", "u v", "x", "2"): 11, ("t", "u v", "y"): 12,
        ("t", "u v", "y", "0"): 12, ("l",): 13,
    }  # fmt: skip


@given(st.text(alphabet="ab=[].\"'{}\n#,1 ", max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:  # none has a command
        read_study(str(path))
    assert re.match(rf"{re.escape(str(path))}:\d+: ", str(caught.value))
