"""The command line of an experiment."""

from __future__ import annotations

import base64
import json

import pytest

from bireme.errors import BadInputError
from bireme.tune.deepspeed.command import (
    argument,
    encoded,
    experiment_args,
    find_config,
    look_up,
    real_job,
    with_config,
    with_mappings,
    without_autotuning,
)
from bireme.tune.deepspeed.config import read_document

CONFIG = {"train_micro_batch_size_per_gpu": 8, "fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("args", "path", "replaced"),
    [
        ("--deepspeed_config ds.json", "ds.json", "--deepspeed_config NEW"),
        ("--deepspeed_config=ds.json --lr 1", "ds.json", "--deepspeed_config=NEW --lr 1"),
        ("--deepspeed --deepspeed_config ds", "ds", "--deepspeed --deepspeed_config NEW"),
        ("--lr 1 --deepspeed ds.json --x", "ds.json", "--lr 1 --deepspeed NEW --x"),
        ("--deepspeed=ds.hjson", "ds.hjson", "--deepspeed=NEW"),
        ("--deepspeed ds.JSON", "ds.JSON", "--deepspeed NEW"),
        ("--deepspeed data --deepspeed ds.json", "ds.json", "--deepspeed data --deepspeed NEW"),
        ("--deepspeed_config a --deepspeed_config b", "b", "--deepspeed_config NEW --deepspeed_config NEW"),
        ("--deepspeed_config a -- --deepspeed_config b", "a", "--deepspeed_config NEW -- --deepspeed_config b"),
        ("--deepspeed a.json --deepspeed_config b.json", "b.json", "--deepspeed a.json --deepspeed_config NEW"),
    ],
)
def test_the_configuration_is_replaced(args, path, replaced):
    assert find_config(args.split()).path == path
    assert with_config(args.split(), "NEW") == tuple(replaced.split())


@pytest.mark.parametrize("flag", ["--deepspeed_config", "--deepspeed"])
def test_a_configuration_that_is_given_in_base64(flag):
    """As DeepSpeed's engine takes it, and so a command that was copied from an experiment."""
    args = ["--lr", "1", flag, encoded(CONFIG)]
    assert read_document(find_config(args).path).data == CONFIG
    assert with_config(args, "NEW") == ("--lr", "1", flag, "NEW")


@pytest.mark.parametrize("text", ['{"a": 1}', "\ufeff // of stage 2\n# and\n/* 3 * 4\n */{a: 1}", '{"a": 1, '])
def test_a_hugging_face_configuration_of_any_name(tmp_path, text):
    """A broken one, too: what is wrong with it is then said."""
    path = tmp_path / "zero2"
    path.write_text(text)
    args = ["--deepspeed", str(path), "--lr", "1"]
    assert find_config(args).path == str(path)
    assert with_config(args, "NEW") == ("--deepspeed", "NEW", "--lr", "1")


@pytest.mark.parametrize("content", [b"", b"words {", b"# only\n", b"#" * 70000 + b"{", b"\xff\xfe{", b"[1]", b"a: 1"])
def test_files_that_are_no_configurations(tmp_path, content):
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(BadInputError, match="no DeepSpeed configuration"):
        find_config(["--deepspeed", str(tmp_path / "data")])
    with pytest.raises(BadInputError, match="no DeepSpeed configuration"):
        find_config(["--deepspeed", str(tmp_path)])


@pytest.mark.parametrize(
    "args",
    ["", "--lr 1", "--deepspeed", "--deepspeed --x", "--deepspeed data", "--config a.json", "-- --deepspeed_config a"],
)  # fmt: skip
def test_no_configuration(args):
    with pytest.raises(BadInputError, match="no DeepSpeed configuration") as caught:
        find_config(args.split())
    assert "--deepspeed_config FILE" in caught.value.hint


@pytest.mark.parametrize("args", [["--deepspeed_config"], ["--deepspeed_config", "--lr"]])
def test_no_file_after_the_flag(args):
    with pytest.raises(BadInputError, match="--deepspeed_config: no file given"):
        find_config(args)


def test_encoded_as_the_engine_decodes_it():
    config = {"text": "ü/+?" * 20, **CONFIG}
    assert json.loads(base64.urlsafe_b64decode(encoded(config)).decode("utf-8")) == config


def test_path_or_encoded():
    args = ("--deepspeed_config", "ds.json")
    assert experiment_args(args, CONFIG, path="/r/ds_config.json") == ("--deepspeed_config", "/r/ds_config.json")
    assert experiment_args(args, CONFIG) == ("--deepspeed_config", encoded(CONFIG))


MAPPING = {"train_micro_batch_size_per_gpu": "--batch"}


@pytest.mark.parametrize(
    ("args", "mapped"),
    [
        (["--batch", "4", "--lr", "1"], ["--batch", "8", "--lr", "1"]),
        (["--batch=4"], ["--batch=8"]),
        (["--lr", "1"], ["--lr", "1", "--batch", "8"]),
        ([], ["--batch", "8"]),
        (["--batch"], ["--batch", "8"]),
        (["--batch", "", "x"], ["--batch", "8", "x"]),
        (["--batch", "--lr", "1"], ["--batch", "8", "--lr", "1"]),
        (["--batch", "-1"], ["--batch", "8"]),
        (["--batch-size", "4"], ["--batch-size", "4", "--batch", "8"]),
        (["x", "--", "--batch", "4"], ["x", "--batch", "8", "--", "--batch", "4"]),
        (["--batch", "1", "--batch=2"], ["--batch", "8", "--batch=8"]),
    ],
)
def test_mappings(args, mapped):
    assert with_mappings(args, MAPPING, CONFIG) == tuple(mapped)


@pytest.mark.parametrize("value", [None, "auto"])
def test_what_is_missing_or_auto_changes_nothing(value):
    config = {} if value is None else {"train_micro_batch_size_per_gpu": value}
    assert with_mappings(["--batch", "4"], MAPPING, config) == ("--batch", "4")


def test_keys_and_flags_are_stripped():
    assert with_mappings(["--batch", "4"], {" train_micro_batch_size_per_gpu ": " --batch\n"}, CONFIG) == (
        "--batch",
        "8",
    )


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [("zero", 0, "0"), ("no", False, "False"), ("fp16.enabled", True, "True"), ("stage", 2, "2"), ("list", [1], "[1]")],
)
def test_values_as_words(key, value, word):
    config = {"zero": 0, "no": False, "list": [1], **CONFIG}
    assert look_up(config, key) == value
    assert with_mappings([], {key: "--flag"}, config) == ("--flag", word)


def test_the_outermost_key_counts():
    assert look_up({"a": {"b": {"x": 1}}, "c": {"x": 2}}, "x") == 2
    assert look_up({"a": {"x": 1}, "x": 3}, "x") == 3
    assert look_up({"a": {"x": 1}}, "a.y") is None


def test_argument():
    assert argument(["--batch", "4", "--batch=6"], " --batch ") == "6"
    assert argument(["--batch", "--lr"], "--batch") is None
    assert argument([], "--batch") is None


def test_experiments_do_not_share_a_list():
    """DeepSpeed changes one list for all, so that experiments side by side swap their configurations."""
    args = ["--deepspeed_config", "ds.json", "--batch", "4"]
    one = experiment_args(args, {"train_micro_batch_size_per_gpu": 8}, MAPPING)
    two = experiment_args(args, {}, MAPPING)
    assert args == ["--deepspeed_config", "ds.json", "--batch", "4"]
    assert one == ("--deepspeed_config", encoded({"train_micro_batch_size_per_gpu": 8}), "--batch", "8")
    assert two == ("--deepspeed_config", encoded({}), "--batch", "4")


@pytest.mark.parametrize("autotuning", [["--autotuning", "run"], ["--autotuning=tune"], []])
def test_the_real_job_does_not_tune(autotuning):
    launch = ["bireme", "run", *autotuning, "--num_gpus", "2", "train.py"]
    command = real_job(launch, ["--deepspeed_config", "ds.json"], "/r/best.json", CONFIG, MAPPING)
    assert command == (
        "bireme", "run", "--num_gpus", "2", "train.py", "--deepspeed_config", "/r/best.json", "--batch", "8"
    )  # fmt: skip


def test_only_autotuning_is_taken_out():
    assert without_autotuning(["a", "--autotuning", "tune", "b", "--autotuning_x"]) == ("a", "b", "--autotuning_x")
