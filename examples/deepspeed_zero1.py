"""Handwritten digits, trained with DeepSpeed's ZeRO stage 1: the optimizer's state is divided among the ranks.

On two CPU ranks, or on every GPU of this machine::

    bireme run --accelerator cpu --num_gpus 2 examples/deepspeed_zero1.py --deepspeed_config examples/ds_config.json
    bireme run examples/deepspeed_zero1.py --deepspeed_config examples/ds_config.json

The ``deepspeed`` launcher and torchrun start it with the same arguments. The data set comes with
scikit-learn: nothing is downloaded.

No compiler is needed. Left alone, DeepSpeed compiles two extensions when it first needs them: on the
CPU a faster all-reduce (a minute's work, and an error where there is no C++ compiler), and on a GPU
its own Adam. The first is turned off below, the second by ``torch_adam`` in ``ds_config.json``. The
batch there is that of all ranks together, and must be divisible by their number.
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
    parser.add_argument("--local_rank", type=int, default=-1, help="given by launchers in the manner of DeepSpeed's")
    return deepspeed.add_config_arguments(parser).parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The images for training and for the test, split in the same way on every rank."""
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
        # As with any distributed sampler: without this, every epoch would go through the same order.
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
    """The share of the images that are recognised; the ranks divide the work."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()].to(engine.device) for part in data.tensors)
    right = (engine(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(data)


def main() -> None:
    args = parse_args()
    if "RANK" not in os.environ:
        sys.exit("start this with a launcher: bireme run --accelerator cpu --num_gpus 2 examples/deepspeed_zero1.py")
    # Have gloo do the collectives on the CPU, instead of an extension that must be compiled first.
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
    # Not in a `finally`: a rank that fails should end at once and leave the others to the launcher.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
