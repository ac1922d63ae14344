"""What py-spy says of the threads of a rank."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.loop import Loop
from bireme.one_node import stack_taker
from bireme.one_node.stack_taker import StackTaker, _stacks
from bireme.result.stacks import RankStack
from tests.kit.waiting import wait_for


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


@pytest.mark.parametrize(
    "said",
    ["{}", "7", "null", "[7]", '[{"frames": null}]', '[{"frames": [7]}]', '[{"frames": {"a": 1}}]', "[" * 9000, "x"],
)
def test_an_answer_of_another_form_is_no_stack(said: str) -> None:
    assert _stacks(said.encode(), 0, True, 7) == []


COUNTS = """
import subprocess, sys
from bireme.one_node.use_meter import UseMeter

listed = []
sys.addaudithook(lambda event, args: listed.append(args) if event == "os.listdir" and args == ("/proc",) else None)
ranks = {rank: subprocess.Popen(["sh", "-c", "read line"], stdin=-1) for rank in range(3)}
print(len(UseMeter({}, {}).measure({rank: each.pid for rank, each in ranks.items()}).ranks), len(listed))
for each in ranks.values():
    each.communicate()
"""


def test_the_processes_are_read_once_for_all_ranks() -> None:
    """Once for each rank takes longer than a command waits, where a node has many."""
    assert subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True).stdout == "3 1\n"


def taken(tool: Path, commands: list[list[str]]) -> list[RankStack]:
    """The stacks of these commands, as this tool tells them."""
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    loop = Loop()
    found: list[RankStack] = []

    def end(stacks: tuple[RankStack, ...]) -> None:
        found.extend(stacks)
        loop.stop()

    taker = StackTaker(loop, str(tool), {rank: each.pid for rank, each in enumerate(ranks)}, {}, end)
    loop.run()
    taker.close()
    for each in ranks:
        each.kill()
        each.communicate()
    return found


TOOL = """#!/bin/sh
echo >>"{log}"
[ -e "{log}.go" ] || exec sleep 1000
echo '[]'
"""
MANY = 100


@pytest.mark.parametrize("ends", [False, True])
def test_not_all_processes_are_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """A node with a thousand ranks would start a thousand processes, and none would answer in time.

    The others follow as soon as one has answered.
    """
    log, tool = tmp_path / "log", tmp_path / "py-spy"
    log.touch()
    monkeypatch.setattr(stack_taker, "SECONDS", 60.0 if ends else 1.0)
    if ends:
        (tmp_path / "log.go").touch()
    tool.write_text(TOOL.format(log=log))
    tool.chmod(0o755)
    found = taken(tool, [["sleep", "1000"]] * MANY)
    asked = log.read_text().count("\n")
    assert [each.rank for each in found] == [*range(MANY)]
    assert asked == MANY if ends else asked <= 32


@pytest.mark.parametrize("says", ["exit 1", "echo '{}'"], ids=["nothing", "another form"])
def test_who_has_no_stack_is_not_called_another_program(tmp_path: Path, says: str) -> None:
    """Without the right to read it, py-spy says as much of Python as of other programs."""
    (tool := tmp_path / "py-spy").write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    found = taken(tool, [[sys.executable, "-c", "input()"], ["cat"]])
    assert [each.reason for each in found] == ["py-spy cannot read its stack", "it is not a Python process"]


def test_what_comes_over_the_network_is_progress() -> None:
    """Of a process that waits in `recv`, whose bytes the kernel counts for the connection only."""
    code = """
import socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while link.recv(999): pass
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = subprocess.Popen([sys.executable, "-c", code, str(server.getsockname()[1])])
        link = server.accept()[0]
        with child, link:
            before = stack_taker._io(child.pid)
            link.sendall(bytes(100_000))
            wait_for(lambda: stack_taker._io(child.pid) - before >= 100_000, "the bytes are counted")
