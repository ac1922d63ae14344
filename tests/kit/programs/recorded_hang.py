"""A training by gloo that hangs, in which each rank answers as one with NCCL does.

Stand-ins, since there is no GPU: the pipe of NCCL's process group, which has the flight recorder write a file, and the
port of NCCL's RAS. What is written is PyTorch's own record of real collectives.
"""

import os
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

ANSWER = b"""NCCL version 2.27.3

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
"""


def pipe(rank: int) -> None:
    """As in PyTorch's "ProcessGroupNCCL Environment Variables", with its pause between two looks at the pipe."""
    path = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(path, 0o666)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.2)
        try:
            if not os.read(fd, 128):
                continue
        except BlockingIOError:
            continue
        dump(rank)


def dump(rank: int) -> None:
    """In pieces: whoever reads too early finds a part."""
    with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "wb", buffering=0) as file:
        data = torch._C._distributed_c10d._dump_fr_trace()
        for place in range(0, len(data), 1000):
            file.write(data[place : place + 1000])
            time.sleep(0.01)


def time_out(rank: int) -> None:
    """As when a collective takes too long: all ranks write what they remember, and those that wait abort."""
    time.sleep(1)
    dump(rank)
    time.sleep(1)
    if rank < 3:
        os.abort()


def ras() -> None:
    """As in NCCL's user guide: the first process of a node listens; the text is that of the guide, shortened."""
    host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
    try:
        listener = socket.create_server((host, int(port)))
    except OSError:
        return
    while True:
        client, _ = listener.accept()
        with client:
            asked = b""
            while b"status\n" not in asked.lower():
                asked += client.recv(128)
            client.sendall(b"OK\n" * asked.count(b"TIMEOUT") + ANSWER)


odd = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
threading.Thread(target=pipe, args=(rank,), daemon=True).start()
threading.Thread(target=ras, daemon=True).start()
pair = dist.new_group([0, 1], group_desc="pair")
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
if rank < 2:
    dist.all_reduce(ones, group=pair)
print("begins", flush=True)
if odd == "times out":
    threading.Thread(target=time_out, args=(rank,), daemon=True).start()
if rank == 3:
    if odd != "differs":
        time.sleep(1000)
    dist.broadcast(ones, 0)
dist.all_reduce(ones)
