"""A rank of a scene: reports that it is ready, then plays its part. ``scene.py PART [GO]``; the last rank acts."""

import ctypes
import os
import signal
import subprocess
import sys
import time


def forever():
    while True:
        time.sleep(1000)


def say(word):
    os.write(1, f"{word} {os.getpid()}\n".encode())


def play(part, go=""):
    """Also called as a function on ranks (`called_scene.py`)."""
    rank = int(os.environ["RANK"])
    acts = rank == int(os.environ["WORLD_SIZE"]) - 1
    if part == "stubborn" and not acts:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if part == "grandchild":
        # a session of its own, an emptied environment, no open pipe: nothing by which it could be found but the tree
        subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(1000)"],
            start_new_session=True,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    say("ready")
    if not acts or part == "wait":
        forever()
    # act only when all are ready: the test says so by a file
    while not os.path.exists(go):
        time.sleep(0.001)
    if part in ("exit3", "stubborn", "grandchild"):
        sys.exit(3)
    elif part == "raise":
        raise RuntimeError(f"boom in rank {rank}")
    elif part == "segv":
        ctypes.string_at(0)
    elif part == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    play(*sys.argv[1:])
