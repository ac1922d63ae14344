"""Trains a small perceptron with DeepSpeed on the CPU and prints its samples per second by the clock.

    bireme tune --accelerator cpu --num_gpus 1 --param stage=0,1,2,3 --param micro=2..64:log2:memory \\
        --param accumulation=1,2,4,8 --param dtype=float32,bfloat16 --maximize 'samples/s: {}' \\
        deepspeed_zero.py --stage {stage} --micro {micro} --accumulation {accumulation} --dtype {dtype}
"""

import argparse
import os
import socket
import time

import deepspeed
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--micro", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to train after the warm-up")
    args = parser.parse_args()

    if "RANK" not in os.environ:  # started by itself
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would have to be compiled
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 256),
    )  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": args.micro,
        "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": args.dtype == "bfloat16"},
        "steps_per_print": 1_000_000_000,
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    kind = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    inputs, targets = torch.randn(2, args.micro, 256, dtype=kind)

    def step() -> None:
        for _ in range(args.accumulation):
            engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
            engine.step()

    for _ in range(2):
        step()
    steps, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < args.seconds:
        step()
        steps += 1
    samples = steps * args.micro * args.accumulation * int(os.environ["WORLD_SIZE"])
    print(f"samples/s: {samples / passed:.6g}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
