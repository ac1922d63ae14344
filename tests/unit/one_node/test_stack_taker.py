"""What py-spy says of the threads of a rank."""

from __future__ import annotations

import json

import pytest

from bireme.one_node.stack_taker import _stacks


def thread(name: str | None, number: int | None, *functions: str) -> dict[str, object]:
    frames = [{"name": each, "filename": "train.py", "line": 1} for each in functions]
    return {"pid": 7, "thread_name": name, "os_thread_id": number, "frames": frames}


@pytest.mark.parametrize(
    ("threads", "labels"),
    [
        ([thread("feeder", 8, "feed", "_bootstrap"), thread("MainThread", 7, "step")], ["thread feeder", ""]),
        # Python 3.10 keeps no number of a thread, and without one py-spy knows no name.
        ([thread(None, None, "feed", "run", "_bootstrap"), thread(None, None, "step", "<module>")], ["thread ?", ""]),
    ],
    ids=["named", "unnamed"],
)
def test_the_main_thread(threads: list[dict[str, object]], labels: list[str]) -> None:
    said = json.dumps(threads).encode()
    assert [each.thread for each in _stacks(said, 0, True, 7)] == labels
    others = [", ".join(filter(None, ("process 7", label))) for label in labels]
    assert [each.thread for each in _stacks(said, 0, False, 7)] == others
