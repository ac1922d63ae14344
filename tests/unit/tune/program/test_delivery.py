"""How values reach a program: the trial's own copies of the files that it reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.tune.define.declarations import declare
from bireme.tune.program.delivery import Courier
from tests.kit import needs

TOML = """\
# what the program reads
name = "x"   # its name

[training]
lr = 0.1     # tuned
batch.size = 8
layers = [{ width = 1 }, { width = 2 }]
"""
YAML = """\
base: &base {lr: 0.1, steps: [1, 2]}
first: *base
second:
  <<: *base
  name: größe
3: three
"""
HJSON = "{\n  # the size of a batch\n  batch: 8\n  name: x\n}\n"


def courier(files: Sequence[str], args: Sequence[str]) -> Courier:
    return Courier(declare(files=files, args=args), args)


def copy_of(path: Path, text: str, *keys: str, **point: object) -> str:
    """The copy of a file in a trial of this point."""
    path.write_text(text)
    delivered = courier([f"{path}:{key}" for key in keys], ["--config", str(path)]).deliver(point, "trials/t", "t")
    assert delivered.args == ("--config", f"trials/t/{path.name}")
    assert path.read_text() == text, "the user's file is as it was"
    return delivered.files[path.name]


def test_toml_keeps_comments_and_order(tmp_path: Path) -> None:
    keys = ("training.lr=0.1,1e-3", "training.batch.size=8,16", "training.layers.1.width=2,4")
    copy = copy_of(tmp_path / "c.toml", TOML, *keys, lr=1e-3, size=16, width=4)
    assert copy == TOML.replace("0.1 ", "0.001 ").replace("8", "16").replace("width = 2", "width = 4")


@pytest.mark.parametrize("point", [{"lr": 0.5, "first_lr": 0.1}, {"lr": 0.1, "first_lr": 0.5}])
def test_yaml_keeps_order_and_changes_no_alias(tmp_path: Path, point: dict[str, float]) -> None:
    yaml = needs.module("yaml")
    expected = yaml.safe_load(YAML)
    read = yaml.safe_load(copy_of(tmp_path / "c.yaml", YAML, "base.lr=0.1,0.5", "first.lr=0.1,0.5", "3=three,four",
                                  base_lr=point["lr"], first_lr=point["first_lr"], _3="four"))  # fmt: skip
    assert read == {
        **expected,
        "base": {"lr": point["lr"], "steps": [1, 2]},
        "first": {"lr": point["first_lr"], "steps": [1, 2]},
        3: "four",
    }
    assert list(read) == list(expected)


def test_json_and_hjson(tmp_path: Path) -> None:
    copy = copy_of(
        tmp_path / "c.json", '{"b": {"x": [1, {"y": 2}]}, "a": null}', "b.x.1.y=2,3", "a=null,on", y=3, a="on"
    )
    assert json.loads(copy) == {"b": {"x": [1, {"y": 3}]}, "a": "on"} and list(json.loads(copy)) == ["b", "a"]
    copy = copy_of(tmp_path / "c.hjson", HJSON, "batch=8,16", batch=16)
    assert json.loads(copy) == {"batch": 16, "name": "x"}


def test_files_of_one_name_get_a_copy_each(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/config.json", "b/config.json", "outcome.json")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"x": 1, "y": 1, "z": 1}')
    files = [f"{path}:{key}=1,2" for path, key in zip(paths, "xyz", strict=True)]
    found = courier(files, [f"--c={path}" for path in paths]).deliver({"x": 2, "y": 2, "z": 2}, "t", "t")
    assert found.args == ("--c=t/config.json", "--c=t/2/config.json", "--c=t/3/outcome.json")
    assert [json.loads(text) for text in found.files.values()] == [
        {"x": 2, "y": 1, "z": 1},
        {"x": 1, "y": 2, "z": 1},
        {"x": 1, "y": 1, "z": 2},
    ]
    assert list(found.files) == ["config.json", "2/config.json", "3/outcome.json"]


@pytest.mark.parametrize(
    ("name", "text", "keys", "said"),
    [
        ("c.toml", TOML, ["training.rate=1,2"], "there is no 'rate' in 'training.rate' (found: lr, batch, layers)"),
        ("c.toml", TOML, ["name=x,null"], "TOML has no null for 'name'\n  leave that value out"),
        ("c.json", '{"a": [1]}', ["a.1=1,2"], "there is no '1' in 'a.1' (found: a list of 1)"),
        ("c.json", '{"a": {"b": 1}}', ["a=1,2", "a.b=1,2"], "'a' and 'a.b' cannot both vary"),
        ("c.ini", "", ["a=1,2"], "is not a file that --in can change"),
    ],
)
def test_what_cannot_be_delivered_is_refused(tmp_path: Path, name: str, text: str, keys: list[str], said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        courier([f"{path}:{key}" for key in keys], [str(path)])
    assert str(caught.value).startswith(f"{path}: {said}")
