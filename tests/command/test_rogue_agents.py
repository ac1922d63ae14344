"""An authentic agent that misbehaves costs its node, never the runner, and cannot turn a failure into a success."""

from __future__ import annotations

import json
import os
import shlex
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.agent import sent_code
from bireme.cluster.agent_protocol import AgentProtocol
from bireme.control.frames import MAX_FROM_AGENT, Decoder, encode_code
from bireme.control.greeting import greeting, python_tag
from bireme.control.messages import FROM_AGENT
from bireme.errors import ProtocolError
from tests.command.conftest import state_of
from tests.conftest import PROGRAMS, clean_environ, wait_for

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
HELLO = {
    "type": "Hello",
    "problems": [],
    "hostname": "bad",
    "python": "3",
    "addresses": ["127.0.0.1"],
    "interpreter": sys.executable,
    "accelerator": "cpu",
    "slots": ["0"],
    "cores": 1,
    "temporary": "/tmp",
}
OVER = {"type": "Over", "killed": 0, "stuck": []}
OUTPUT = b"x"


def output(rank: int, number: int) -> dict[str, str]:
    return {"raw": (b"O" + struct.pack("!I", 5 + len(OUTPUT)) + struct.pack("!IB", rank, number) + OUTPUT).hex()}


def framed(text: bytes) -> dict[str, str]:
    return {"raw": (b"J" + struct.pack("!I", len(text)) + text).hex()}


def nested(depth: int) -> dict[str, str]:
    return framed(b"[" * depth)


LISTS = framed(b'{"type":[' + b"[]," * (MAX_FROM_AGENT // 3 - 10) + b"[]]}")

VIOLATIONS: dict[str, tuple[str, str, list[dict[str, object]]]] = {
    "over early": ("Up", "after", [OVER]),
    "over before up": ("Up", "before", [OVER]),
    "over in the preflight": ("Hello", "before", [OVER]),
    "up in the preflight": ("Hello", "before", [{"type": "Up", "rank": 1, "pid": 1, "when": 1.0}]),
    "a second hello": ("Up", "before", [{"type": "Hello", "problems": [], "hostname": "x"}]),
    "a hello of nothing": ("Hello", "replace", [{"type": "Hello"}]),
    "a hello of wrong types": ("Hello", "replace", [{"type": "Hello", "problems": 3}]),
    "a hello of a device that there is not": ("Hello", "replace", [{**HELLO, "accelerator": "quantum"}]),
    "a hello of no slots": ("Hello", "replace", [{**HELLO, "slots": []}]),
    "a hello of too many slots": ("Hello", "replace", [{**HELLO, "slots": ["0", "1"]}]),
    "a hello of no address": ("Hello", "replace", [{**HELLO, "addresses": ["\0"]}]),
    "a hello of a long name": ("Hello", "replace", [{**HELLO, "hostname": "x" * 256}]),
    "a hello of a version on two lines": ("Hello", "replace", [{**HELLO, "python": "3\nnode9  fine"}]),
    "a hello of a path on two lines": ("Hello", "replace", [{**HELLO, "interpreter": "/x\nnode9  fine"}]),
    "a hello of an option on two lines": ("Hello", "replace", [{**HELLO, "local_rank_flag": "-x\u2028y"}]),
    "the end of a rank that nobody has stopped": (
        *("Down", "replace"),
        [{"type": "Down", "end": {**END, "code": 3, "stopped": True}, "when": 1.0}],
    ),
    "an end on two lines": ("Down", "replace", [{"type": "Down", "end": {**END, "device": "x\ny"}, "when": 1.0}]),
    "a list of lists": ("Up", "after", [LISTS]),
    "a frame that is too long": ("Up", "after", [{"raw": (b"J" + struct.pack("!I", MAX_FROM_AGENT + 1)).hex()}]),
    "words without end": ("Up", "after", [{"type": "Say", "level": "debug", "text": "x" * 1000}] * 1100),
    "less than none killed": ("Over", "replace", [{**OVER, "killed": -1}]),
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

    def start(
        at: str,
        do: str,
        send: list[dict[str, object]],
        *words: str,
        command: str = "run",
        wait: bool = True,
        **kwargs: object,
    ):
        (tmp_path / "plan.json").write_text(json.dumps({"at": at, "do": do, "send": send}))
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        env = clean_environ(PATH=path, BIREME_ROGUE=str(tmp_path / "plan.json"))
        options = ("--hosts", "good:1,bad:1", "--accelerator", "cpu", *words)
        if command == "run":
            options += ("--grace", "1")
        return (stage.run if wait else stage.start)(
            command, *options, tmp_path / "rank.py", cwd=tmp_path, env=env, **kwargs
        )

    return start


BY_A_WHOLE_JOB = [
    *("over early", "a hello of wrong types", "a hello of too many slots", "a list of lists", "words without end"),
    *("the end of a rank that nobody has stopped", "no frame", "deep nesting"),
]
"""Of each kind one, those that cost much memory, and those that only the runner's list of slots shows."""


def frame_of(message: dict[str, object]) -> bytes:
    return bytes.fromhex(str({**framed(json.dumps(message).encode()), **message}["raw"]))


@pytest.mark.parametrize("name", [name for name in VIOLATIONS if name not in BY_A_WHOLE_JOB])
def test_a_violation_is_seen(name: str) -> None:
    """In what an agent says from its first word to its last, by the reader of its channel or by its state machine."""
    at, do, send = VIOLATIONS[name]
    decoder = Decoder(FROM_AGENT, greeted=True, longest=MAX_FROM_AGENT)
    protocol = AgentProtocol()
    protocol.on("begin")
    rogue = b"".join(map(frame_of, send))

    def hears(data: bytes) -> None:
        for frame in decoder.feed(data):
            protocol.admit(frame)

    up = {"type": "Up", "rank": 1, "pid": 1, "when": 1.0}
    for message in (HELLO, up, {"type": "Down", "end": END, "when": 1.0}, OVER):
        if message is up:
            protocol.on("fit")
            protocol.start([1])
        if message["type"] != at:
            hears(frame_of(message))
            continue
        if do == "after":
            hears(frame_of(message))
        with pytest.raises(ProtocolError, match=r"^it (sent|reported) "):
            hears(rogue)
        return
    raise AssertionError("nothing was wrong")


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_A_WHOLE_JOB)
def test_a_violation_loses_the_node(rogue, tmp_path: Path, name: str) -> None:
    at, do, send = VIOLATIONS[name]
    if at in ("Down", "Over"):
        (tmp_path / "go").touch()  # else no rank ends
    done = rogue(at, do, send)
    assert done.returncode == 75, done.stderr
    assert "agent lost on bad: it broke the protocol: it " in done.stderr
    assert "Traceback" not in done.stderr and "Bireme itself failed" not in done.stderr
    assert len(done.stderr.splitlines()) <= 6, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a hello of too many slots", "a hello of wrong types"])
def test_bireme_check_ends(rogue, name: str) -> None:
    """And says what the node did."""
    done = rogue(*VIOLATIONS[name], command="check")
    assert done.returncode == 1, done.stderr
    assert "it broke the protocol: it " in done.stdout + done.stderr


@pytest.mark.slow
def test_it_cannot_put_the_blame_on_another(rogue, tmp_path: Path) -> None:
    """Neither by the name of another node, nor by a line that looks like one of the runner's own."""
    (tmp_path / "go").touch()
    done = rogue("Down", "replace", [{"type": "Down", "end": {**END, "host": "another", "code": 3}, "when": 1.0}])
    assert done.returncode == 3 and "rank 1 on " in done.stderr and "another" not in done.stderr
    done = rogue("Up", "before", [{"type": "Say", "level": "error", "text": "x\nrank 0 on good failed first"}])
    assert "bireme: bad: rank 0 on good" in done.stderr and "bireme: rank 0" not in done.stderr
    problems = ["x\nbireme: good: rank 0 failed first"]
    done = rogue("Hello", "replace", [{**HELLO, "problems": problems}], "--no_ssh_check")
    assert "bireme: bad: bireme: good: " in done.stderr and "bireme: bireme:" not in done.stderr, done.stderr
    assert not any(line.startswith("bireme: good: ") for line in done.stderr.splitlines())
    done = rogue("Over", "replace", [{**OVER, "stuck": ["1 (x)\nbireme: rank 0 on good failed first"]}])
    assert "1 (x) bireme: rank 0" in done.stderr and "bireme: bireme: rank 0" not in done.stderr


@pytest.mark.slow
def test_output_without_credit(rogue, tmp_path: Path) -> None:
    """An agent that goes on sending although nobody reads loses its node; all that it sends would have to be kept."""
    text = struct.pack("!IB", 1, 1) + b"x" * 500_000
    data: dict[str, object] = {"raw": (b"O" + struct.pack("!I", len(text)) + text).hex()}
    first = "import os, time\nopen(os.environ['RANK'], 'w').write(str(os.getpid()))\n"
    # The flood begins with an unfinished line of rank 1, so not before the other rank runs.
    waits = (
        "if os.environ['RANK'] == '1':\n    while not os.path.exists('0'): time.sleep(0.01)\n    os.write(1, b'x')\n"
    )
    (tmp_path / "rank.py").write_text(first + waits + RANK)
    job = rogue("Rested", "after", [data] * 20, wait=False)
    wait_for((tmp_path / "0").exists, "the other node's rank")
    pid = int(wait_for((tmp_path / "0").read_text, "its pid"))
    wait_for(lambda: not state_of(pid), "its end, although nobody reads")
    err = job.communicate(timeout=60)[1].decode()
    assert job.returncode == 75 and "it broke the protocol: it sent more output than" in err


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
    assert "agent lost on bad: it broke the protocol: it " in done.stderr


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


HOSTILE = {"kind": "file", "path": "out/a", "size": 1, "mtime": 1, "mode": 0o644}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["out/../../evil", "contents"])
def test_a_file_that_was_not_asked_for(rogue, tmp_path: Path, what: str) -> None:
    """It costs the files of the node; the job stays what it was, and nothing is written but what the other node has."""
    (tmp_path / "go").touch()
    (tmp_path / "rank.py").write_text("import os\nos.makedirs('out', exist_ok=True)\nopen('out/a', 'w').write('x')")
    found = {"type": "Found", "files": [{**HOSTILE, "path": what}], "last": True}
    piece: dict[str, object] = {"raw": (b"T" + struct.pack("!I", 10) + b"D" + b"\0" * 7 + b"\2x").hex()}
    done = rogue("Found", "replace", [found if "/" in what else piece], "--fetch", "out/**:home")
    assert done.returncode == 74, done.stderr
    assert "not fetched: bad: it broke the protocol: it sent " in done.stderr
    assert not (tmp_path.parent / "evil").exists() and (tmp_path / "home/out/a").read_text() == "x"


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


GREETING = greeting(python_tag())


@pytest.mark.parametrize("name", TO_THE_AGENT)
def test_a_rogue_runner(tmp_path: Path, name: str) -> None:
    """The agent says what is wrong in one line, and goes."""
    data = encode_code(sent_code.pack(python_tag()))
    for message in TO_THE_AGENT[name]:
        text = json.dumps(message).encode()
        framed = b"J" + struct.pack("!I", len(text)) + text
        data += bytes.fromhex(str(message["raw"])) if "raw" in message else framed
    command = sent_code.command("channel")
    done = subprocess.run(command, input=data, capture_output=True, cwd=tmp_path, env=clean_environ(), timeout=60)
    assert done.stdout == GREETING
    assert done.stderr.decode().startswith("bireme: the runner broke the protocol: it sent ")
    assert len(done.stderr.splitlines()) == 1


def test_what_is_printed_in_an_agent_does_not_reach_the_runner(tmp_path: Path) -> None:
    command = sent_code.command("channel")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=clean_environ(), stdin=pipe, stdout=pipe, stderr=pipe) as agent:
        assert agent.stdout is not None and agent.stdout.read(len(GREETING)) == GREETING
        places = [os.readlink(f"/proc/{agent.pid}/fd/{fd}") for fd in range(3)]
        assert places[0] == os.devnull and places[1] == places[2]
        agent.communicate(timeout=60)


@pytest.mark.slow
def test_a_port_that_is_taken_is_no_fault_of_the_other_node(rogue) -> None:
    """Passed over by --no_ssh_check, it leaves nothing to try; the other node is not asked to, and not blamed."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = rogue("none", "after", [], "--no_ssh_check", "--master_port", str(port))
    assert done.returncode == 69 and "good has no free port at which the ranks could meet" in done.stderr
    assert "bad" not in done.stderr
