"""Reading a configuration, the checks of its ``autotuning`` section, and the errors."""

from __future__ import annotations

import base64

import pytest

from bireme.errors import BadInputError
from bireme.tune.deepspeed.config import CHECKS, Autotuning, read_document

DEFAULTS = {
    "results_dir": "autotuning_results",
    "exps_dir": "autotuning_exps",
    "overwrite": True,
    "start_profile_step": 3,
    "end_profile_step": 5,
    "metric": "throughput",
    "fast": True,
    "tuner_type": "gridsearch",
    "tuner_early_stopping": 5,
    "tuner_num_trials": 50,
    "mp_size": 1,
    "max_train_micro_batch_size_per_gpu": 1024,
    "min_train_micro_batch_size_per_gpu": 1,
    "num_tuning_micro_batch_sizes": 3,
    "max_train_batch_size": None,
    "min_train_batch_size": 1,
    "metric_path": None,
    "model_info": None,
    "model_info_path": None,
    "arg_mappings": None,
    "enabled": False,
}


def test_defaults_are_the_contract(config):
    """But for the search: where nobody names one, it is the model's, which finds as good ones in fewer runs."""
    assert config().autotuning.as_dict() == {**DEFAULTS, "tuner_type": None}
    assert config(autotuning={}).autotuning == Autotuning()
    assert set(CHECKS) == set(DEFAULTS)


OTHERS = {
    "results_dir": "r",
    "exps_dir": "e",
    "overwrite": False,
    "start_profile_step": 4,
    "end_profile_step": 9,
    "metric": "latency",
    "fast": False,
    "tuner_type": "model_based",
    "tuner_early_stopping": None,
    "tuner_num_trials": 7,
    "mp_size": 2,
    "max_train_micro_batch_size_per_gpu": 64,
    "min_train_micro_batch_size_per_gpu": 2,
    "num_tuning_micro_batch_sizes": 5,
    "max_train_batch_size": 4096,
    "min_train_batch_size": 16,
    "metric_path": "m.json",
    "model_info": {"profile": True, "num_params": 1000},
    "model_info_path": "i.json",
    "arg_mappings": {"train_micro_batch_size_per_gpu": "--batch"},
    "enabled": True,
}


def test_every_key_is_read(config):
    assert set(OTHERS) == set(DEFAULTS)
    assert all(OTHERS[key] != DEFAULTS[key] for key in OTHERS)
    assert config(autotuning=OTHERS).autotuning.as_dict() == OTHERS


def test_null_is_the_default(config):
    assert config(autotuning={"max_train_batch_size": None, "arg_mappings": None}).autotuning == Autotuning()


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("tuner_typ", "tuner_type"),
        ("result_dir", "results_dir"),
        ("start_step", "start_profile_step"),
        ("end_step", "end_profile_step"),
        ("max_micro_batch_size_per_gpu", "max_train_micro_batch_size_per_gpu"),
        ("Fast", "fast"),
    ],
)
def test_unknown_keys(config, key, near):
    with pytest.raises(BadInputError, match=f"unknown key in autotuning: '{key}'") as caught:
        config(train_batch_size=8, autotuning={"enabled": True, key: 1})
    assert caught.value.hint == f"did you mean {near!r}?"
    assert caught.value.where.endswith("ds_config.json:5")


def test_an_unknown_key_that_is_near_to_none(config):
    with pytest.raises(BadInputError, match="known keys: enabled, fast"):
        config(autotuning={"zzz": 1})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("fast", "false", "true or false"),
        ("fast", 0, "true or false"),
        ("overwrite", None, "true or false"),
        ("start_profile_step", 0, "a positive integer"),
        ("start_profile_step", True, "a positive integer"),
        ("end_profile_step", 5.0, "a positive integer"),
        ("end_profile_step", "5", "a positive integer"),
        ("tuner_num_trials", -1, "a positive integer"),
        ("tuner_type", "grid", "one of gridsearch, random, model_based"),
        ("metric", "speed", "one of throughput, latency"),
        ("results_dir", "", "a non-empty string"),
        ("exps_dir", 3, "a non-empty string"),
        ("arg_mappings", ["--batch"], "an object that maps configuration keys to flags"),
        ("arg_mappings", {"a": 1}, "an object that maps configuration keys to flags"),
        ("model_info", {"num_parms": 1}, "did you mean 'num_params'"),
        ("model_info", {"num_params": "many"}, "num_params is a positive integer"),
        ("model_info", 7, "an object"),
        ("max_train_batch_size", [8], "a positive integer"),
        ("mp_size", 0, "a positive integer"),
    ],
)
def test_wrong_values(config, key, value, wanted):
    with pytest.raises(BadInputError, match=f"autotuning.{key} must be .*{wanted}") as caught:
        config(autotuning={key: value})
    assert caught.value.where.endswith("ds_config.json:3")
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"start_profile_step": 6}, "start_profile_step 6 is after end_profile_step 5"),
        ({"min_train_batch_size": 9, "max_train_batch_size": 8}, "min_train_batch_size 9 is above"),
        ({"min_train_micro_batch_size_per_gpu": 2000}, "per_gpu 2000 is above max_train_micro"),
    ],
)
def test_values_that_contradict_each_other(config, section, said):
    with pytest.raises(BadInputError, match=said):
        config(autotuning=section)


def test_the_section_is_no_object(config):
    with pytest.raises(BadInputError, match="'autotuning' must be an object"):
        config(autotuning=True)


# -- the file ----------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "ds.json") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_json_with_lines(write):
    document = read_document(
        write('{\n "a": 1,\n "zero": {"stage": [0,\n  1]},\n "l": [{"x": "}{,:\\""}, {"x": 2}]\n}')
    )
    assert document.data == {"a": 1, "zero": {"stage": [0, 1]}, "l": [{"x": '}{,:"'}, {"x": 2}]}
    assert document.lines == {
        ("a",): 2, ("zero",): 3, ("zero", "stage"): 3, ("l",): 5, ("l", "0", "x"): 5, ("l", "1", "x"): 5
    }  # fmt: skip
    assert document.where("zero", "unknown") == f"{document.path}:3"
    assert document.where("unknown") == document.path


def test_hjson(write):
    text = "{\n  # a comment\n  train_batch_size: 8\n  zero_optimization: {\n stage: all\n}\n}"
    assert read_document(write(text)).data == {"train_batch_size": 8, "zero_optimization": {"stage": "all"}}


def test_base64_in_the_place_of_a_path(tmp_path, monkeypatch):
    word = base64.urlsafe_b64encode(b'{"a": "\xc3\xbf>?"}').decode()
    document = read_document(word)
    assert (document.data, document.where("a")) == ({"a": "\xff>?"}, "the configuration in base64:1")
    with pytest.raises(BadInputError) as caught:
        read_document(base64.urlsafe_b64encode(b'{"a": }').decode())
    assert caught.value.where.startswith("the configuration in base64")
    monkeypatch.chdir(tmp_path)
    (tmp_path / word).write_text('{"b": 1}')
    assert read_document(word).data == {"b": 1}  # a file goes first, as in the engine


@pytest.mark.parametrize("word", ["ds.json", "abcd", base64.b64encode(b"[1]").decode(), "x" * 5000])
def test_no_file_and_no_base64_either(word):
    with pytest.raises(BadInputError, match="cannot be read"):
        read_document(word)


def test_a_byte_order_mark(write):
    assert read_document(write(b'\xef\xbb\xbf{"a": 1}')).data == {"a": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1,\n  "b": [1, 2\n}', r"ds.json:4:1: invalid JSON"),
        ('{"a": }', r"ds.json:1:7: invalid JSON: expecting value"),
        ('{\n "a": {\n', r"ds.json:3:1: invalid JSON"),
        ("", r"ds.json: is empty"),
        (" \n", r"ds.json: is empty"),
        ('{"a": 1} {"b": 2}', r"ds.json:1:10: invalid JSON: extra data"),
        ("[1, 2]", r"ds.json: not an object: a configuration begins with"),
        ("7", r"ds.json: not an object: a configuration begins with"),
        ('{"a": 1,\n\n\n   "a": 3}', r"ds.json:4:4: duplicate key: 'a'\n  it is first set on line 1"),
        ('{"z": {"s": 1,\n"s": 2}}', r"ds.json:2:1: duplicate key: 'z.s'"),
        ('{"l": [{"s": 1}, {"s": 1, "s": 2}]}', r"duplicate key: 'l.1.s'"),
        ("{\n# hjson\na: 1\nb: 2\na: 3\n}", r"ds.json:5: duplicate key: 'a'"),
        ("{\n# hjson\na: {\n", r"ds.json:\d+:\d+: invalid HJSON"),
        (b'{"a": "\xff"}', r"ds.json:1: is not UTF-8 text"),
    ],
)  # fmt: skip
def test_broken(write, text, said):
    with pytest.raises(BadInputError, match=said) as caught:
        read_document(write(text))
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_python_writes_for_no_number(write, word):
    """HJSON would take it for a string."""
    with pytest.raises(BadInputError, match=f"{word} is not a number in JSON\n") as caught:
        read_document(write(f'{{\n "note": "a NaN",\n "x": [1, {word}]\n}}'))
    assert caught.value.where.endswith("ds.json:3:11")


def test_equal_keys_in_different_objects(write):
    assert read_document(write('{"l": [{"s": 1}, {"s": 2}], "z": {"s": 3}, "y": {"s": 4}}')).data["y"] == {"s": 4}


@pytest.mark.parametrize(("name", "said"), [("missing.json", "No such file"), (".", "Is a directory")])
def test_no_file(tmp_path, name, said):
    with pytest.raises(BadInputError, match=f"cannot be read: {said}"):
        read_document(str(tmp_path / name))
