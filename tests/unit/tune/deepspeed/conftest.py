"""What the tests of the DeepSpeed adapter share."""

from __future__ import annotations

import json

import pytest

from bireme.tune.deepspeed.config import read_config
from bireme.tune.deepspeed.space import read_space


@pytest.fixture
def config(tmp_path):
    """A configuration, read from a file that is written from keywords, one key a line."""

    def config(**data):
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps(data, indent=1))
        return read_config(str(path))

    return config


@pytest.fixture
def space(config):
    """The space of a configuration, for two ranks."""

    def space(world=2, args=(), **data):
        return read_space(config(**data), world, args)

    return space
