"""A rank of a scene: ``scene.py PART FOLDER``. It reports its start by a file; rank 1 plays PART when told to."""

import os
import signal
import subprocess
import sys
import time

part, folder = sys.argv[1:]
rank = int(next(os.environ[n] for n in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK") if n in os.environ))
acts = rank == 1 and part != "wait"

if part == "stubborn" and not acts:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if part == "grandchild":
    # A session of its own, an emptied environment, no open pipe: only by the tree of processes could it be found.
    null = subprocess.DEVNULL
    nap = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
    subprocess.Popen(nap, start_new_session=True, env={}, stdin=null, stdout=null, stderr=null)

name = os.path.join(folder, f"rank{rank}")
with open(os.path.join(folder, f"new{rank}"), "w") as file:
    file.write(str(os.getpid()))
if acts:
    stamp = os.open(os.path.join(folder, "death"), os.O_WRONLY | os.O_CREAT)
os.rename(file.name, name)

if not acts:
    while True:
        time.sleep(1000)
go = os.path.join(folder, "go")
while not os.path.exists(go):
    time.sleep(0.001)
os.write(stamp, str(time.monotonic_ns()).encode())
if part == "raise":
    raise RuntimeError(f"boom in rank {rank}")
if part == "segv":
    os.kill(os.getpid(), signal.SIGSEGV)
sys.exit(3)
