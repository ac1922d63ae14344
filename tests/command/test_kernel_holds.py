"""A process that SIGKILL does not end because the kernel holds it: here by a file system that never answers."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.command.conftest import state_of
from tests.conftest import bireme, read_lines
from tests.kit import needs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="/dev/fuse cannot be used here"),
]

# Mounts a file system of its own, and runs a command beside which it serves it: it greets, and then says nothing more.
# A process that waits for an answer to what has been read from /dev/fuse cannot be killed until that is closed.
SILENT = """
import ctypes, os, signal, struct, subprocess, sys, threading
mount, *command = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
if ctypes.CDLL(None).mount(b"silent", mount.encode(), b"fuse", 0, options.encode()):
    sys.exit(77)

def serve():
    while True:
        _, opcode, unique = struct.unpack_from("IIQ", os.read(device, 1 << 17))
        if opcode == 26:  # FUSE_INIT
            answer = struct.pack("IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)
            os.write(device, struct.pack("IiQ", 16 + len(answer), 0, unique) + answer)
        else:
            os.write(1, b"asked 0\\n")

threading.Thread(target=serve, daemon=True).start()
process = subprocess.Popen(command)
print("command", process.pid, flush=True)
code = process.wait()
print("ended", code, flush=True)
signal.pause()
"""

RANK = """
import os, sys
os.write(1, b"rank %d\\n" % os.getpid())
os.stat(sys.argv[1])
"""


def test_it_is_named_and_left(stage, script, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.mkdir()
    command = bireme("run", "-q", "--num_gpus", "1", "--output", "raw", "--grace", "0.3", script(RANK), silent / "file")
    words = [
        needs.program("unshare"),
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        "-c",
        SILENT,
        str(silent),
        *command,
    ]
    process = stage.start_argv(words)
    try:
        said = dict(line.split() for line in read_lines(process, 3, " "))
        command_pid, rank = int(said["command"]), int(said["rank"])
        os.kill(command_pid, signal.SIGTERM)
        begin = time.monotonic()
        assert read_lines(process, 1, "ended")[-1].split() == ["ended", "143"]
        assert time.monotonic() - begin > 5, "it is given this time"
        assert state_of(rank) == "D"
    finally:
        process.kill()  # the file system goes, and with it what it held
        _, err = process.communicate(timeout=60)
    assert f"{rank} (" in err.decode() and "state D" in err.decode()
    assert not stage.left(within=30)
