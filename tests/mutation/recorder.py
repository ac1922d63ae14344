"""Which test reaches which line of the program: a plugin for pytest, and what is appended to a copy of the package.

Every process of Bireme takes part, the guardians and the agents of other hosts included. `choice.py` chooses with it by
which tests a change is judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / ".reach"
"""`now`: the number of the test that runs; `lines-USER`: what was reached; `tests`: how each test went."""

RECORDER = '''
def _record():
    """Note each line of the package when it is first reached, of a function only in its first calls."""
    import os
    import sys
    import threading

    home = os.path.dirname(os.path.abspath(__file__)) + os.sep
    folder = os.path.join(home, "../../.reach/")
    global reached
    reached, calls, test = set(), {}, ["-1"]

    def begin():
        with open(folder + "now") as file:
            test[0] = file.read()
        reached.clear()
        calls.clear()

    def on_line(frame, event, _):
        place = f"{test[0]} {frame.f_code.co_filename[len(home):]} {frame.f_lineno}\\n"
        if event == "line" and place not in reached:
            reached.add(place)
            try:
                file = os.open(f"{folder}lines-{os.getuid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                os.write(file, place.encode())
                os.close(file)
            except OSError:
                pass
        return on_line

    def on_call(frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(home) or calls.get(code, 0) >= 20:
            return None
        calls[code] = calls.get(code, 0) + 1
        return on_line

    global begin_test
    begin_test = begin
    begin()
    threading.settrace(on_call)
    sys.settrace(on_call)


_record()
'''


def begin(number: int, folder: Path = FOLDER) -> None:
    """From now on the test of this number runs."""
    (folder / "new").write_text(str(number))
    (folder / "new").replace(folder / "now")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Run them in the order in which they were named."""
    yield
    place = {name: number for number, name in enumerate(config.args)}
    items.sort(key=lambda item: place.get(item.nodeid, 0))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not FOLDER.exists():
        yield
        return
    import bireme

    numbers = json.loads((FOLDER / "numbers").read_text())
    begin(numbers[item.nodeid])
    bireme.begin_test()  # type: ignore[attr-defined]
    since = time.monotonic()
    yield
    with open(FOLDER / "tests", "a") as file:
        bad = item.stash.get(BAD, "")
        file.write(f"{numbers[item.nodeid]} {time.monotonic() - since:.3f} {bad}\n")
    begin(-1)


BAD = pytest.StashKey[str]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.outcome != "passed":
        item.stash[BAD] = report.outcome
