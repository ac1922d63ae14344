"""Trains on handwritten digits with DeepSpeed's ZeRO stage 1, which divides the optimizer's state among the ranks.

Run it on two CPU ranks, or on every GPU of this machine::

    bireme run --accelerator cpu --num_gpus 2 examples/deepspeed_zero1.py --deepspeed_config examples/ds_config.json
    bireme run examples/deepspeed_zero1.py --deepspeed_config examples/ds_config.json

The ``deepspeed`` launcher and torchrun run it with the same arguments. The data set comes with scikit-learn, so nothing
is downloaded.

The example needs no compiler. By default DeepSpeed compiles two extensions when it first needs them. On the CPU this is
a faster all-reduce, which takes a minute and fails without a C++ compiler; it is turned off below. On a GPU it is
DeepSpeed's own Adam, which ``torch_adam`` in ``ds_config.json`` turns off. The batch size there is that of all ranks
together, and must be divisible by their number.
"""

from __future__ import annotations

import argparse
import os
import sys

import deepspeed
import torch
from deepspeed import comm as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

SEED = 0
TEST_SIZE = 360  # a fifth of the 1797 images


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
    return deepspeed.add_config_arguments(parser).parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels for training and for the test, split in the same way on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16  # a pixel is 0 to 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    train, test = order[TEST_SIZE:], order[:TEST_SIZE]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train(engine: deepspeed.DeepSpeedEngine, epochs: int) -> None:
    loader = engine.training_dataloader
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(1, epochs + 1):
        # Without this, a distributed sampler would use the same order in every epoch.
        loader.data_sampler.set_epoch(epoch)
        total = torch.zeros((), device=engine.device)
        for images, labels in loader:
            loss = loss_function(engine(images.to(engine.device)), labels.to(engine.device))
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        mean = total.item() / (len(loader) * dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"epoch {epoch:2d}  loss {mean:.4f}", flush=True)


@torch.no_grad()
def measure_accuracy(engine: deepspeed.DeepSpeedEngine, data: TensorDataset) -> float:
    """The share of the images that the model recognises. The ranks divide the work."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()].to(engine.device) for part in data.tensors)
    right = (engine(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(data)


def main() -> None:
    args = parse_args()
    if "RANK" not in os.environ:
        sys.exit("start this with a launcher: bireme run --accelerator cpu --num_gpus 2 examples/deepspeed_zero1.py")
    # On the CPU, use gloo for collectives instead of an extension that would have to be compiled.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    torch.manual_seed(SEED)
    train_data, test_data = load_data()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    engine, *_ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=train_data
    )
    train(engine, args.epochs)
    accuracy = measure_accuracy(engine, test_data)
    if dist.get_rank() == 0:
        print(f"test accuracy {accuracy:.2f}", flush=True)
    # Not in a `finally`: a rank that fails should end at once; the launcher stops the others.
    dist.destroy_process_group()
    # Without Python's shutdown: DeepSpeed keeps process groups of its own, and a thread of theirs that drops its last
    # tensor during the shutdown aborts the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
