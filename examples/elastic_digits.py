"""Trains on handwritten digits with a changing number of ranks: nodes may come and go while the training continues.

Run it on two to four nodes, or on this machine to kill a rank and see what happens::

    bireme run --elastic_training --hostfile hosts --min_elastic_nodes 2 --max_elastic_nodes 4 \\
        examples/elastic_digits.py --checkpoint /shared/digits.pt
    bireme run --elastic_training --accelerator cpu --num_gpus 2 examples/elastic_digits.py --delay 0.05

With any number of ranks, a step uses the same images and makes nearly the same change, so the loss continues where it
was. The checkpoint must be in a place that the rank 0 of every epoch can read.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, its default arguments would keep the process group: see leave()
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SEED = 0
TEST_SIZE = 360  # a fifth of the 1797 images


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=48, help="images per step, over all ranks together")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate of Adam")
    parser.add_argument("--checkpoint", default="elastic_digits.pt")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument(
        "--delay", type=float, default=0, help="seconds to sleep in each step, to have time to cause a failure"
    )
    return parser.parse_args()


def load_data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and labels for training and for the test, split in the same way on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16  # a pixel is 0 to 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    train, test = order[TEST_SIZE:], order[:TEST_SIZE]
    return (images[train], labels[train]), (images[test], labels[test])


def save(path: str, state: dict[str, Any]) -> None:
    """Write the checkpoint atomically: a process that is killed meanwhile leaves the previous checkpoint intact."""
    beside = f"{path}.{os.getpid()}.tmp"
    with open(beside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(path: str) -> dict[str, Any] | None:
    """The last checkpoint, which rank 0 reads for all ranks; None if there is none yet."""
    found: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0 and os.path.exists(path):
        found[0] = torch.load(path, map_location="cpu", weights_only=True)
    dist.broadcast_object_list(found, src=0)
    return found[0]


def my_share(data: tuple[Tensor, Tensor], step: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """This rank's share of the images of a step. The images of a step depend only on its number."""
    images, labels = data
    epoch, place = divmod(step, len(labels) // batch_size)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED + 1 + epoch))
    batch = order[place * batch_size :][:batch_size]
    mine = batch[dist.get_rank() :: dist.get_world_size()]
    return images[mine], labels[mine]


def train(model: nn.Module, data: tuple[Tensor, Tensor], args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    first = 0
    state = load(args.checkpoint)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        if rank == 0:
            before = state["world"]
            print(f"resumed at step {first}: {before} -> {world} ranks", flush=True)
    elif rank == 0:
        print(f"begun with {world} ranks", flush=True)
    parallel = DistributedDataParallel(model)
    for step in range(first, args.steps):
        images, labels = my_share(data, step, args.batch_size)
        # DistributedDataParallel takes the mean over ranks, although their shares may differ in size.
        loss = nn.functional.cross_entropy(parallel(images), labels, reduction="sum") * world / args.batch_size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.delay)
        if (step + 1) % args.every == 0:
            mean = loss.detach() / world
            dist.all_reduce(mean)
            if rank == 0:
                both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(args.checkpoint, {"step": step + 1, "world": world, **both})
                print(f"step {step + 1:4d}  loss {mean.item():.4f}  {world} ranks", flush=True)


@torch.no_grad()
def measure_accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    images, labels = data
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def leave() -> None:
    """End gloo's threads while Python still runs: one that drops its last tensor later aborts the process.

    ``destroy_process_group`` waits for these threads, but only if nothing else refers to the process group. A model in
    DistributedDataParallel does, until the garbage collector finds it.
    """
    gc.collect()
    dist.destroy_process_group()


def main() -> None:
    args = parse_args()
    if "RANK" not in os.environ:
        sys.exit("start this with a launcher: bireme run --elastic_training --accelerator cpu --num_gpus 2 …")
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    data, test = load_data()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    train(model, data, args)
    if dist.get_rank() == 0:
        print(f"test accuracy {measure_accuracy(model, test):.2f}", flush=True)
    # Not in a `finally`: a rank that fails should end at once; the launcher stops the others.
    leave()


if __name__ == "__main__":
    main()
