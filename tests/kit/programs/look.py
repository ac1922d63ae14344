"""Writes what a rank finds as JSON into ``$LOOK_DIR/RANK.json``. Bytes are written as Latin-1 text."""

import json
import os
import sys


def read(path):
    with open(path, "rb") as file:
        return file.read().decode("latin-1")


def fds():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own
            pass
    return found


found = {
    "argv": read("/proc/self/cmdline").split("\0")[:-1],
    "environ": dict(pair.split("=", 1) for pair in read("/proc/self/environ").split("\0") if pair),
    "status": dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line),
    "fds": fds(),
    "cwd": os.getcwd(),
    "umask": os.umask(0o022),
    "affinity": sorted(os.sched_getaffinity(0)),
    "session": os.getsid(0) == os.getpid(),
    "executable": sys.executable,
    "limits": read("/proc/self/limits"),
}
path = f"{os.environ['LOOK_DIR']}/{os.environ['RANK']}.json"
with open(path + ".tmp", "w") as file:
    json.dump(found, file)
os.rename(path + ".tmp", path)
