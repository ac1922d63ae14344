"""The environment that a script sets up. Its interpreter is in ``tests/cluster/test_passing.py``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.errors import BadInputError
from bireme.one_node import activation


def test_what_the_script_said_last_is_the_hint(tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("echo first >&2\necho last >&2\nexit 3\n")
    with pytest.raises(BadInputError, match="exited with code 3") as caught:
        activation._activated(str(tmp_path / "activate"), os.environ)
    assert caught.value.hint == "last"
