"""A program to tune: prints a rate that depends on its arguments, its environment and a file, with a little noise.

tunable.py [--batch N] [--mode fast|safe] [--config FILE] [--log FILE] [--fail WHAT] [--slow SECONDS]
    [--out FILE]
"""

import json
import os
import random
import sys
import time


def given(flag: str, default: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default


batch, mode = int(given("--batch", "8")), given("--mode", "safe")
if config := given("--config", ""):
    with open(config) as file:
        batch = json.load(file)["training"]["batch"]
if log := given("--log", ""):  # what really ran
    with open(log, "a") as file:
        file.write(f"{os.environ.get('BIREME_TRIAL')} {batch} {mode} {os.environ.get('THREADS', '1')}\n")
if given("--fail", "") == f"{batch}":
    raise MemoryError("out of memory")
time.sleep(float(given("--slow", "0")))
rate = 100.0 * batch / (batch + 8) * (1.5 if mode == "fast" else 1.0) * (1.0 + 0.2 * (os.environ.get("THREADS") == "2"))
for step in range(6):
    print(f"step {step}: rate: {rate * random.uniform(0.998, 1.002):.3f} items/s", flush=True)
print(f"p99: {batch * 3} ms")
if out := given("--out", ""):
    with open(out, "w") as file:
        json.dump({"rate": rate * random.uniform(0.998, 1.002)}, file)
