"""An ordinary DeepSpeed script: a multi-layer perceptron of 2.1 million parameters on random data.

It compiles nothing, so it needs no compiler, and no contestant pays for extensions that DeepSpeed caches for the next.
"""

import argparse

import deepspeed
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=30)
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
        torch.nn.Linear(1024, 512),
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.randn(4096, 512), torch.randn(4096, 512))
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=data
    )
    while engine.global_steps < args.steps:
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            if engine.global_steps >= args.steps:
                break


if __name__ == "__main__":
    main()
