"""A training as small as can be: writes a line for each step, and at the end how long all of them took."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
weights, batch = torch.randn(256, 256), torch.randn(256, 256)


def step() -> None:
    gradient = batch.T @ torch.tanh(batch @ weights)
    dist.all_reduce(gradient)
    weights.sub_(gradient, alpha=1e-6)


for _ in range(20):
    step()
begin = time.perf_counter()
for number in range(int(sys.argv[1])):
    step()
    print("step", number, flush=True)
if dist.get_rank() == 0:
    print("seconds", time.perf_counter() - begin, flush=True)
dist.destroy_process_group()
