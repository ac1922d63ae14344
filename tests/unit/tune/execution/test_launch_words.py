"""Every option of the command reaches the experiments, unchanged."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from bireme.cli.parser import parse
from bireme.cli.tune_words import NOT_SHARED, deepspeed_study, words_of
from bireme.options.option import Option
from bireme.options.table import select
from bireme.resources import devices, nvidia
from bireme.tune.execution.slot_scheduler import SlotReservation
from bireme.tune.execution.trial_launch import Launch, ResourcePool
from tests.conftest import clean_environ

RUN = select("run")
OPTIONS = [option for group in RUN.values() for option in group]
STRANGE = "-x 'a b' \"c\" $HOME;=\n*ü"


def values(option: Option) -> list[str]:
    if option.kind == "choice":
        return [choice for choice in option.choices if choice != option.default]
    return {
        "count": ["7"],
        "range": ["7", "2:4"],
        "slots": ["7", "cpu"],
        "seconds": ["0", "2.5", "1e-07", "100000"] if not (option.zero or option.most) else ["2.5", "100"],
        "size": ["100", "2G"],
        "word": [STRANGE],
        "list": [STRANGE],
    }[option.kind]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.dest)
def test_words_say_what_was_said(option):
    given = [option.names[0]] if option.kind == "flag" else [f"{option.names[0]}={value}" for value in values(option)]
    for word in given:
        parsed = parse(RUN, [word, "train.py", "--an", "argument"])
        words = words_of(parsed)
        assert words, "it is not its default"
        assert parse(RUN, [*words, "train.py", "--an", "argument"]) == parsed
        assert bool(words_of(parsed, without=NOT_SHARED)) == (option.dest not in NOT_SHARED)


def test_a_list_keeps_its_order():
    parsed = parse(RUN, ["--export", "B=1", "--export", "A=2", "--export", "B*", "train.py"])
    assert words_of(parsed) == ("--export=B=1", "--export=A=2", "--export=B*")


def test_defaults_are_left_out():
    assert words_of(parse(RUN, ["train.py"])) == ()


# -- what is made of them ------------------------------------------------------------------------------


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    """What a command line asks the tuner for, on a machine with these NVIDIA GPUs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "autotuning": {"enabled": true}}')
    sizes = {"0": 80, "1": 40, "2": 16, "3": 24}

    def discover(accelerator, environ, root="/"):
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        if accelerator == "cpu":
            return devices.Devices("cpu", ("0", "1"))
        return devices.Devices("cuda", tuple(sizes), None if visible is None else tuple(visible.split(",")))

    monkeypatch.setattr(devices, "discover", discover)
    monkeypatch.setattr(nvidia, "smallest_memory", lambda ids: min(map(sizes.__getitem__, ids)))

    def make(words, **environ):
        parsed = parse(RUN, [*shlex.split(words), "train.py", "--deepspeed_config", "ds.json"])
        return deepspeed_study(
            parsed.replace(options={**parsed.options, "autotuning": "tune"}), clean_environ(**environ)
        )

    return make


@pytest.mark.parametrize(
    ("words", "visible", "capacity"),
    [
        ("", None, 16),
        ("--num_gpus 2", None, 16),  # on any two of four
        ("", "3,1", 24),
        ("--include localhost:1,3", None, 24),
        ("--include localhost:0,1", "3,2", 40),  # the filter chooses among all
        ("--hosts localhost:2", None, 40),
        ("--hosts localhost:2", "3,2", 16),  # a declared slot is a place in the list
        ("--hosts localhost:4 --exclude localhost:2", None, 24),
        ("--accelerator cpu", None, None),
        ("--num_gpus cpu", None, None),
        ("--hosts a.invalid:2", None, None),
        ("--hosts localhost:2,a.invalid:2", None, None),
        ("--hosts localhost:2,a.invalid:2 --include localhost", None, 40),
        ("--hosts localhost:2 --force_multi", None, None),
    ],
)
def test_the_memory_is_that_of_the_gpus_that_are_used(request_of, words, visible, capacity):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert request_of(words, **environ).capacity == capacity


def test_the_accelerator_that_torchrun_names_by_a_number_stays(request_of):
    """As under ``bireme run``."""
    request = request_of("--num_gpus cpu")
    cores = str(os.cpu_count())
    assert str(request.setting.shape) == f"1x{cores}"
    assert request.setting.launch.words == ("--accelerator=cpu",)
    assert request.real == ("bireme", "run", "--accelerator=cpu", "--num_gpus", cores, "train.py")


def test_the_python_of_the_experiments_and_of_the_real_job(request_of):
    request = request_of(f"--accelerator cpu --num_gpus 1 --python {shlex.quote(sys.executable)}")
    assert f"--python={sys.executable}" in request.setting.launch.words and f"--python={sys.executable}" in request.real


LAUNCH = Launch(ResourcePool({"localhost": ("0",), "a.invalid": ("0",)}), (), "train.py", 65534)
HERE, THERE = SlotReservation((("localhost", ("0",)),)), SlotReservation((("a.invalid", ("0",)),))


@pytest.mark.parametrize(
    ("place", "port"), [(0, 65534), (1, 65535), (2, 1024), (3, 1025), (64513, 65535), (64514, 1024)]
)
def test_after_the_last_port_comes_the_first_that_anybody_may_use(place, port):
    words = LAUNCH.command("e", HERE, place, options=(), args=())
    assert words[words.index("--master_port") + 1] == str(port)


@pytest.mark.parametrize(
    ("reservation", "report", "seconds"),
    [
        (THERE, None, 22.0),
        (THERE, {"cause": "agent lost"}, 22.0),  # its agent may still be giving its ranks their time
        (THERE, {"cause": "rank failed"}, 0.0),
        (THERE, {"cause": "unfit"}, 0.0),
        (HERE, None, 0.0),
        (HERE, {"cause": "agent lost"}, 0.0),
    ],
)
def test_how_long_something_may_be_left(reservation, report, seconds):
    assert LAUNCH.settling(reservation, report) == seconds
