"""The cluster at the command line: ``python -m tests.cluster up 4 --slurm``, ``exec login CMD``, ``down``.

Every fault of a host is a verb: ``poweroff node2``, ``delay node1 50``, ``clear node1``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time

from tests.cluster.testbed import Testbed

STATE = os.environ.get("TESTBED_STATE", os.path.join(tempfile.gettempdir(), f"testbed-{os.getuid()}"))
VERBS = (
    *("cut", "blackhole", "heal", "freeze", "thaw", "panic", "poweroff", "boot", "kill-sshd", "start-sshd"),
    *("delay", "loss", "drop", "rate", "clear"),
)


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = main.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster")
    up.add_argument("nodes", type=int)
    up.add_argument("--slurm", action="store_true")
    up.add_argument("--gpus", type=int, default=4)
    up.add_argument("--cpus", type=int, default=os.cpu_count())
    up.add_argument("--task", default="task/affinity")
    up.add_argument("--share", action="append", default=[], help="a directory under /tmp that all hosts are to see")
    verbs.add_parser("down", help="end it")
    run = verbs.add_parser("exec", help="run a command on a host")
    run.add_argument("host")
    run.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("ps", help="all processes").add_argument("host", nargs="?")
    for verb in VERBS:
        fault = verbs.add_parser(verb)
        fault.add_argument("host")
        fault.add_argument("numbers", nargs="*", type=float)
    return main


def start(options: argparse.Namespace) -> None:
    if os.path.exists(f"{STATE}/site.pid"):
        sys.exit(f"{STATE} holds a cluster already: take it down first")
    shutil.rmtree(STATE, ignore_errors=True)
    known = {name: value for name, value in vars(options).items() if name != "verb"}
    began = time.monotonic()
    testbed = Testbed(state=STATE, owned=False, **known)
    try:
        testbed.up()
        if options.slurm:
            testbed.slurm_ready()
    except BaseException:
        testbed.down()
        raise
    print(f"{options.nodes} nodes and login up in {time.monotonic() - began:.2f} s")


def show(testbed: Testbed, name: str | None) -> None:
    for host in [testbed[name]] if name else testbed.hosts.values():
        for pid, process in host.ps().items():
            print(f"{host.name:8} {process.pid:6} {pid:7} {process.state} {' '.join(process.argv)[:120]}")


def main() -> None:
    options = parser().parse_args()
    if options.verb == "up":
        start(options)
        return
    testbed = Testbed.attach(STATE)
    if options.verb == "down":
        testbed.down()
    elif options.verb == "ps":
        show(testbed, options.host)
    elif options.verb == "exec":
        words = options.command if len(options.command) > 1 else ["sh", "-c", *options.command]
        argv = testbed[options.host].argv(words)
        os.execvp(argv[0], argv)
    else:
        numbers = [int(number) if number.is_integer() else number for number in options.numbers]
        getattr(testbed[options.host], options.verb.replace("-", "_"))(*numbers)


if __name__ == "__main__":
    main()
