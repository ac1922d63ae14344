"""Obeys DeepSpeed's autotuning contract without PyTorch: each configuration has its own speed.

``--do STAGE/MICRO=WHAT`` has a configuration do something else; ``*`` stands for any. ``oom`` counts from that
micro-batch on.
"""

import argparse
import base64
import json
import os
import signal
import sys
import time

SLEEPER = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config", "--deepspeed", required=True)
parser.add_argument("--say", default="")
parser.add_argument("--batch", default="")
parser.add_argument("--nap", type=float, default=0.0)
parser.add_argument("--until", default="", help="wait for this file")
parser.add_argument("--fail", default="", help="a name of an experiment that raises, or 'all'")
parser.add_argument("--do", action="append", default=[], metavar="STAGE/MICRO=WHAT")
parser.add_argument("--steps", type=int, default=0, help="say the times of so many steps, as the engine does")
parser.add_argument("--step", type=float, default=0.01, help="seconds of such a step")
parser.add_argument("--ran", default="", help="rank 0 appends the configuration to this file")
args, _ = parser.parse_known_args()

word = args.deepspeed_config
text = open(word).read() if os.path.exists(word) else base64.urlsafe_b64decode(word)
config = json.loads(text)
section = config.get("autotuning", {})
micro, stage = config["train_micro_batch_size_per_gpu"], config.get("zero_optimization", {}).get("stage", 0)
rank = int(os.environ["RANK"])


def wants(what: str) -> bool:
    """Whether this configuration is to do so."""
    for each in args.do:
        where, _, name = each.partition("=")
        its_stage, _, its_micro = where.partition("/")
        fits = its_micro == "*" or (micro >= int(its_micro) if what == "oom" else str(micro) == its_micro)
        if name == what and fits and its_stage in ("*", str(stage)):
            return True
    return False


def has_run() -> bool:
    """Whether rank 0 has said so."""
    return os.path.exists(args.ran) and f"{stage}/{micro}" in open(args.ran).read().split()


def written(text: str) -> None:
    with open(section["metric_path"], "w") as file:
        file.write(text)


if args.ran and rank == 0:
    with open(args.ran, "a") as file:
        file.write(f"{stage}/{micro}\n")
if section.get("model_info_path"):
    if rank == 0:
        info = {"num_params": 1000, "trainable_num_params": 1000, "activation_mem_per_gpu": 1000, "rank": 0}
        with open(section["model_info_path"], "w") as file:
            json.dump(info, file)
    sys.exit()
if args.say:
    print(args.say, file=sys.stderr)
while args.until and not os.path.exists(args.until):
    time.sleep(0.01)
time.sleep(args.nap)
if section:
    for _ in range(args.steps if rank == 0 else 0):
        print("[INFO] [logging.py:107:log_dist] [Rank 0] time (ms) | fwd: 1.00 | bwd: 2.00 | step: 1.00", flush=True)
        time.sleep(args.step)
    if wants("oom"):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if wants("stubborn"):
        import subprocess

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(f"stubborn.{rank}", "w") as file:
            file.write(f"{os.getpid()} {subprocess.Popen(SLEEPER, start_new_session=True).pid}")
    if wants("hang") or wants("stubborn"):
        time.sleep(600)
    if wants("half") and rank == 0:
        written('{"throughput": 1e9, "lat')
    if wants("nothing") or wants("half"):
        sys.exit()
    if wants("once"):  # measures and hangs; later it measures nothing
        if os.path.exists("once"):
            sys.exit()
        written(json.dumps({"throughput": 1e9}))
        open("once", "w").close()
        time.sleep(600)
    while wants("die") and args.ran and not has_run():
        time.sleep(0.01)  # rank 0 may not have come to it
    if wants("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if wants("error"):
        print("ERROR: an error, an Error and (error", file=sys.stderr)
if args.fail and args.fail in ("all", f"{stage}/{micro}"):
    raise ValueError(f"no luck with stage {stage}")
speed = 100.0 * micro / (1 + stage)
if section.get("metric_path") and rank == 0:
    figures = {
        "throughput": speed,
        "latency": 1e6 / speed,
        "FLOPS_per_gpu": 1e9 * speed,
        "fwd": 1.0,
        "bwd": 2.0,
        "step": 3.0,
        "rank": 0,
    }
    written(json.dumps(figures))
if section and rank == 0 and wants("late"):
    raise ValueError("after the figures")
if not section:
    print("real job", stage, micro, flush=True)
print("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), "batch", args.batch, "config", json.dumps(config), flush=True)
