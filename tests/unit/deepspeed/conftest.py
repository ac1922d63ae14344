"""Experiments of DeepSpeed's scheduler, on slots of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.deepspeed import runner
from bireme.deepspeed.scheduler import ResourceManager
from tests.conftest import PROGRAMS

CONTRACT = PROGRAMS / "contract.py"


class Made:
    """Managers and experiments' files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def manager(self, *words, hosts=None, slots=4, mappings=None, script=CONTRACT, launch=()) -> ResourceManager:
        """``words``: the script's arguments; ``launch``: the launcher's options."""
        given = (*launch, script, "--deepspeed_config", "ds.json", *words)
        args = runner.parse_args([str(word) for word in given])
        folders = str(self.folder / "results"), str(self.folder / "exps")
        return ResourceManager(args, ["localhost"] if hosts is None else hosts, slots, *folders, mappings)

    def exp(self, name, *, stage=0, micro=4, gpus=1, nodes=1, suffix="json", section=None, **more) -> str:
        """An experiment's file; ``section``: keys of its ``autotuning``."""
        config = {
            "optimizer": {"type": "Adam"},
            "zero_optimization": {"stage": stage},
            "train_micro_batch_size_per_gpu": micro,
            "autotuning": {"enabled": True, "start_profile_step": 3, "end_profile_step": 5, **(section or {})},
        }
        facts = {"num_gpus": gpus, "num_nodes": nodes, "hostfile": "/job/hostfile", **more}
        (self.folder / "exps").mkdir(exist_ok=True)
        path = self.folder / "exps" / f"{name}.{suffix}"
        path.write_text(json.dumps({"name": name, "ds_config": config, **facts}))
        return str(path)

    def result(self, name, file) -> Path:
        """A file of an experiment's folder."""
        return self.folder / "results" / name / file

    def output(self, name) -> str:
        """What its ranks wrote."""
        return self.result(name, "stdout.log").read_text()


@pytest.fixture
def make(tmp_path, stage, monkeypatch):
    """Managers on slots of this machine, and their experiments' files. Nothing may be left of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Made(tmp_path)
