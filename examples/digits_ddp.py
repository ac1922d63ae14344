"""Trains on handwritten digits with PyTorch's DistributedDataParallel: a first job to launch.

Run it on two CPU ranks, or on every GPU of this machine::

    bireme run --accelerator cpu --num_gpus 2 examples/digits_ddp.py
    bireme run examples/digits_ddp.py

It reads only the usual environment variables (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and so on), so
``torchrun --nproc-per-node 2 examples/digits_ddp.py`` runs it too. The data set comes with scikit-learn, so nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, its default arguments would keep the process group: see leave()
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 0
TEST_SIZE = 360  # a fifth of the 1797 images


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate of Adam")
    parser.add_argument("--batch-size", type=int, default=48, help="images per step, over all ranks together")
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels for training and for the test, split in the same way on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16  # a pixel is 0 to 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    train, test = order[TEST_SIZE:], order[:TEST_SIZE]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def choose_device() -> torch.device:
    """This rank's own GPU if every rank of the node can have one, else the CPU.

    All ranks must choose the same kind of device, because it determines the backend.
    """
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1"))):
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def train(model: nn.Module, data: TensorDataset, args: argparse.Namespace, device: torch.device) -> None:
    # Every rank gets its own share of the images, in an order that changes with each epoch.
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=SEED)
    # A step has the same number of images with any number of ranks, so the result is nearly the same too.
    loader = DataLoader(data, batch_size=max(1, args.batch_size // dist.get_world_size()), sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for images, labels in loader:
            loss = loss_function(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        mean = total.item() / (len(loader) * dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"epoch {epoch:2d}  loss {mean:.4f}", flush=True)


@torch.no_grad()
def measure_accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """The share of the images that the model recognises. The ranks divide the work."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()].to(device) for part in data.tensors)
    right = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(data)


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
        sys.exit("start this with a launcher: bireme run --accelerator cpu --num_gpus 2 examples/digits_ddp.py")
    device = choose_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(SEED)
    train_data, test_data = load_data()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    train(DistributedDataParallel(model), train_data, args, device)
    accuracy = measure_accuracy(model, test_data, device)
    if dist.get_rank() == 0:
        print(f"test accuracy {accuracy:.2f}", flush=True)
    # Not in a `finally`: a rank that fails should end at once; the launcher stops the others.
    leave()


if __name__ == "__main__":
    main()
