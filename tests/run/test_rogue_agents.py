"""An agent that is authentic but misbehaves costs its node, never the runner; it cannot make a failure a success."""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.control.frames import GREETING
from tests.conftest import PROGRAMS, clean_environ

END = {
    "rank": 1,
    "host": "bad",
    "device": "cpu",
    "pid": 1,
    "code": 0,
    "by_signal": False,
    "seconds": 1.0,
    "stopped": False,
}
OVER = {"type": "Over", "killed": 0, "stuck": []}
OUTPUT = b"x"


def output(rank: int, number: int) -> dict[str, str]:
    return {"raw": (b"O" + struct.pack("!I", 5 + len(OUTPUT)) + struct.pack("!IB", rank, number) + OUTPUT).hex()}


def nested(depth: int) -> dict[str, str]:
    text = b"[" * depth
    return {"raw": (b"J" + struct.pack("!I", len(text)) + text).hex()}


VIOLATIONS: dict[str, tuple[str, str, list[dict[str, object]]]] = {
    "over early": ("Up", "after", [OVER]),
    "over before up": ("Up", "before", [OVER]),
    "over in the preflight": ("Hello", "before", [OVER]),
    "up in the preflight": ("Hello", "before", [{"type": "Up", "rank": 1, "pid": 1, "when": 1.0}]),
    "a second hello": ("Up", "before", [{"type": "Hello", "problems": [], "hostname": "x"}]),
    "a hello of nothing": ("Hello", "replace", [{"type": "Hello"}]),
    "a hello of wrong types": ("Hello", "replace", [{"type": "Hello", "problems": 3}]),
    "the end of another's rank": ("Up", "after", [{"type": "Down", "end": {**END, "rank": 0}, "when": 1.0}]),
    "the end of a rank that there is not": (
        *("Up", "after"),
        [{"type": "Down", "end": {**END, "rank": 99}, "when": 1.0}],
    ),
    "an end without fields": ("Up", "after", [{"type": "Down", "end": {}, "when": 1.0}]),
    "an end of no time": ("Up", "after", [{"type": "Down", "end": END, "when": float("nan")}]),
    "an end twice": ("Down", "after", [{"type": "Down", "end": END, "when": 1.0}]),
    "up twice": ("Up", "after", [{"type": "Up", "rank": 1, "pid": 1, "when": 1.0}]),
    "output of another's rank": ("Up", "after", [output(0, 1)]),
    "output of a rank that there is not": ("Up", "after", [output(99, 1)]),
    "output of a stream that there is not": ("Up", "after", [output(1, 7)]),
    "eof of a rank that there is not": ("Up", "after", [{"type": "Eof", "rank": 99, "number": 1}]),
    "rested of a list": ("Up", "after", [{"type": "Rested", "rank": [1], "number": 1}]),
    "a signal that there is not": ("Up", "after", [{"type": "Signalled", "signum": 999, "when": 1.0}]),
    "an unknown message": ("Up", "after", [{"type": "close"}]),
    "a message of the runner's": ("Up", "after", [{"type": "Release"}]),
    "a message without a type": ("Up", "after", [{}]),
    "a line of no level": ("Up", "after", [{"type": "Say", "level": "evil", "text": "x"}]),
    "a pong of words": ("Up", "after", [{"type": "Pong", "sent": "x", "now": "y"}]),
    "a field too many": ("Up", "after", [{"type": "Say", "level": "info", "text": "x", "member": 1}]),
    "no frame": ("Up", "after", [{"raw": b"garbage".hex()}]),
    "deep nesting": ("Up", "after", [nested(100_000)]),
}

RANK = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
"""


@pytest.fixture
def rogue(tmp_path, stage):
    """Start a job of the nodes ``good`` and ``bad``, whose agent does what it is told."""
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin/ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(PROGRAMS / "rogue.py")])} "$@"\n')
    ssh.chmod(0o755)
    (tmp_path / "rank.py").write_text(RANK)

    def start(at: str, do: str, send: list[dict[str, object]], *words: str, **kwargs: object):
        (tmp_path / "plan.json").write_text(json.dumps({"at": at, "do": do, "send": send}))
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        env = clean_environ(PATH=path, BIREME_ROGUE=str(tmp_path / "plan.json"))
        options = ("--hosts", "good:1,bad:1", "--accelerator", "cpu", "--grace", "1", *words)
        return stage.run("run", *options, tmp_path / "rank.py", cwd=tmp_path, env=env, **kwargs)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_loses_the_node(rogue, tmp_path: Path, name: str) -> None:
    at, do, send = VIOLATIONS[name]
    if at == "Down":
        (tmp_path / "go").touch()  # else no rank ends
    done = rogue(at, do, send)
    assert done.returncode == 75, done.stderr
    assert "agent lost on bad: it broke the protocol: it sent " in done.stderr
    assert "Traceback" not in done.stderr and "Bireme itself failed" not in done.stderr
    assert len(done.stderr.splitlines()) <= 6, done.stderr


@pytest.mark.slow
def test_an_end_that_is_not_told_is_no_success(rogue, tmp_path: Path) -> None:
    """The rank fails, and its agent says that all is over."""
    (tmp_path / "go").touch()
    done = rogue("Down", "replace", [OVER])
    assert done.returncode == 75 and "agent lost on bad" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["over early", "a hello of wrong types", "no frame"])
def test_an_elastic_job_goes_on_without_it(rogue, tmp_path: Path, name: str) -> None:
    """Only the node is lost; it is looked for, but whoever is looked for is asked anew."""
    (tmp_path / "rank.py").write_text(RANK.replace('"go"', '"go" if os.environ["WORLD_SIZE"] == "2" else "/"'))
    done = rogue(*VIOLATIONS[name], "--elastic_training", "--elastic_interval", "60")
    assert done.returncode == 0, done.stderr
    assert "agent lost on bad: it broke the protocol: it sent " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("Up", {"type": "Say", "level": "error", "text": "\x1b]0;evil\x07\x1b[2J\x9b31m"}),
        ("Up", {"type": "Unfit", "problems": ["\x1b[2Jevil\x07"]}),
        ("Hello", {"type": "Unfit", "problems": ["\x1b[2Jevil\x07"]}),
    ],
)
def test_no_control_characters_reach_the_terminal(rogue, tmp_path: Path, at: str, message: dict[str, object]) -> None:
    (tmp_path / "go").touch()
    done = rogue(at, "before", [message])
    assert "evil" in done.stderr
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr and "\x9b" not in done.stderr


TO_THE_AGENT = {
    "nothing asked": [{"type": "Ping", "sent": 1.0}],
    "start first": [{"type": "Start"}],
    "stop first": [{"type": "Stop", "signum": 15}],
    "an ask of nothing": [{"type": "Ask"}],
    "an ask of wrong types": [{"type": "Ask", "spec": [], "cwd": 3}],
    "unknown": [{"type": "_on_frame", "frame": 1}],
    "not JSON": [{"raw": b"J\0\0\0\x01{".hex()}],
    "deep": [nested(100_000)],
    "output": [output(0, 1)],
    "garbage": [{"raw": b"garbage".hex()}],
}


@pytest.mark.parametrize("name", TO_THE_AGENT)
def test_a_rogue_runner(tmp_path: Path, name: str) -> None:
    """The agent says what is wrong in one line, and goes."""
    data = b""
    for message in TO_THE_AGENT[name]:
        text = json.dumps(message).encode()
        framed = b"J" + struct.pack("!I", len(text)) + text
        data += bytes.fromhex(str(message["raw"])) if "raw" in message else framed
    command = [sys.executable, "-m", "bireme.agent", "--channel"]
    done = subprocess.run(command, input=data, capture_output=True, cwd=tmp_path, env=clean_environ(), timeout=60)
    assert done.stdout == GREETING
    assert done.stderr.decode().startswith("bireme: the runner broke the protocol: it sent ")
    assert len(done.stderr.splitlines()) == 1
