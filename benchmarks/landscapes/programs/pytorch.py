"""Trains a small convolutional network on the CPU and prints its samples per second.

    bireme tune --param batch=16..1024:log2:memory --param threads=1,2 --param dtype=float32,bfloat16 \\
        --param layout=contiguous,channels_last --param optimizer=each,foreach,fused --maximize 'samples/s: {}' \\
        pytorch.py --batch {batch} --threads {threads} --dtype {dtype} --layout {layout} --optimizer {optimizer}

With ``--memory MIB`` the training may take only so much: a large batch ends as out of memory, as on a small GPU.
"""

import argparse
import resource
import time

import torch
from torch import nn
from torch.nn import functional


def peak() -> int:
    """The most memory that this process has used so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--layout", choices=["contiguous", "channels_last"], default="contiguous")
    parser.add_argument("--optimizer", choices=["each", "foreach", "fused"], default="each")
    parser.add_argument("--memory", type=int, help="MiB that the training may take")
    parser.add_argument("--seconds", type=float, default=0.15, help="how long to train after the warm-up")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    loaded = peak()
    memory_format = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[args.layout]
    net: nn.Module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip
    net = net.to(memory_format=memory_format)
    kind = {"each": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[args.optimizer]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, **kind)
    images = torch.randn(args.batch, 3, 16, 16).to(memory_format=memory_format)
    labels = torch.randint(10, (args.batch,))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(2):
        step()
        if args.memory and (used := peak() - loaded) > args.memory:
            raise MemoryError(f"out of memory: the training takes {used} MiB, and may take {args.memory}")
    steps, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < args.seconds:
        step()
        steps += 1
    print(f"samples/s: {steps * args.batch / passed:.6g}", flush=True)


if __name__ == "__main__":
    main()
