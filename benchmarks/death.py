"""Measures how long a job of two ranks takes to end when a part of it dies, its exit code, and what is left of it.

The clock starts right before the death: in the dying rank, or before the signal is sent. It stops when the last process
of the job has ended, including the command and whatever ranks have started. Exit codes are as a shell shows them
(128 + n for signal n). Processes that are still there at the time limit are counted and killed. All contestants have a
grace time of 1 s; where that cannot be set, the output says so.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import contest
from contest import Launcher


@dataclass(frozen=True)
class Scene:
    """Rank 1 does ``part``; or, if ``signum`` is given, the command or the process above the ranks gets that signal."""

    title: str
    part: str = "wait"
    signum: signal.Signals | None = None
    above: bool = False


SCENES = {
    "exit3": Scene("rank 1 exits with 3", "exit3"),
    "raise": Scene("rank 1 raises", "raise"),
    "segv": Scene("rank 1 dies by SIGSEGV", "segv"),
    "stubborn": Scene("rank 0 ignores SIGTERM, rank 1 exits with 3", "stubborn"),
    "grandchild": Scene("ranks leave setsid grandchildren, rank 1 exits with 3", "grandchild"),
    "sigint": Scene("SIGINT to the command", signum=signal.SIGINT),
    "sigterm": Scene("SIGTERM to the command", signum=signal.SIGTERM),
    "sighup": Scene("SIGHUP to the command", signum=signal.SIGHUP),
    "sigkill": Scene("SIGKILL to the command", signum=signal.SIGKILL),
    "above": Scene("SIGKILL to the process above the ranks", signum=signal.SIGKILL, above=True),
}
GRACE = {
    "bireme": ("--grace", "1"),
    "torchrun": ("--shutdown-timeout", "1"),
    "openmpi": ("--mca", "odls_base_sigkill_timeout", "1"),
}
"""One second between SIGTERM and SIGKILL, for everyone who can be told."""


@dataclass(frozen=True)
class Ending:
    """Seconds until all processes were gone, the command's exit code, and the number of processes left.

    ``seconds`` is ``None`` if processes were left, ``code`` is ``None`` if the command still ran.
    """

    seconds: float | None
    code: int | None
    left: int


def play(scene: Scene, launcher: Launcher, bound: float) -> Ending:
    """Play a scene once.

    Args:
        scene: what dies.
        launcher: the contestant.
        bound: how long to wait for the end, in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = GRACE.get(launcher.name, ())
        process, ranks = contest.start_scene(launcher, 2, scene.part, folder, options=options)
        try:
            time.sleep(0.1)  # the launcher may still be starting
            above = contest.stat(ranks[1])[1]
            job = Watch()
            death = time.monotonic_ns()
            if scene.signum is None:
                open(os.path.join(folder, "go"), "w").close()
            else:
                os.kill(above if scene.above else process.pid, scene.signum)
            gone = job.await_end(time.monotonic() + bound)
            left = len(contest.descendants())
            if scene.signum is None:
                with open(os.path.join(folder, "death")) as file:
                    death = int(file.read())
            return Ending((gone - death) / 1e9 if gone else None, exit_code(process), left)
        finally:
            contest.sweep(process)


class Watch:
    """Watches all processes below this one, each through a pidfd, which reports its end at once."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.open: set[int] = set()
        self.last = 0
        self._look()

    def _look(self) -> None:
        for pid in contest.descendants():
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            self.open.add(fd)
            self.poll.register(fd, select.POLLIN)

    def await_end(self, deadline: float) -> int | None:
        """Wait until no process is left; return the monotonic time of the last end in ns, ``None`` at the deadline."""
        while self.open:
            ready = self.poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            now = time.monotonic_ns()
            for fd, _ in ready:
                self.poll.unregister(fd)
                self.open.remove(fd)
                os.close(fd)
                self.last = now
            if not ready:
                for fd in self.open:
                    os.close(fd)
                return None
            if not self.open:
                self._look()  # processes that started after the first look
        return self.last


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code as a shell shows it; ``None`` while the command still runs."""
    code = process.poll()
    return 128 - code if code is not None and code < 0 else code


def cell(endings: list[Ending], bound: float) -> str:
    """A table cell for the endings of one scene: milliseconds, exit code, number of processes left."""
    worst = max(endings, key=lambda ending: ending.left)
    if worst.left:
        ended = "running" if worst.code is None else f"exit {worst.code}"
        return f">{bound:g} s  {ended:>8}  {worst.left} left"
    codes = ",".join(str(code) for code in sorted({ending.code for ending in endings if ending.code is not None}))
    middle = contest.median(ending.seconds for ending in endings)
    return f"{contest.milliseconds(middle)} ms  exit {codes:>3}  0 left"


def enough(endings: list[Ending]) -> bool:
    """Whether a launcher need not play a scene again, because it left processes or takes long."""
    times = [ending.seconds for ending in endings]
    return None in times or (len(times) >= contest.FEWEST and max(times) > 1)


def main() -> int:
    parser = contest.arguments(__doc__, rounds=7)
    parser.add_argument(
        "--bound", type=float, default=15, metavar="SECONDS", help="wait this long for the end (%(default)s)"
    )
    parser.add_argument("--scenes", default=",".join(SCENES), metavar="NAME,…", help="play only these (%(default)s)")
    args = parser.parse_args()
    launchers = {name: it for name, it in contest.contestants(parser, args).items() if name != "bare"}
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # as ``nohup`` and a shell's ``&`` leave them
        signal.signal(signum, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if fixed := [name for name in launchers if name not in GRACE]:
        print(f"the grace time is 1 s, but that of {', '.join(fixed)} cannot be set")
    for name, launcher in launchers.items():  # fill caches, compile bytecode
        contest.progress(f"warming up: {name}")
        play(SCENES["exit3"], launcher, 0.1)
    rows, results = [], []
    for key in args.scenes.split(","):
        scene = SCENES[key]
        played: dict[str, list[Ending]] = {name: [] for name in launchers}
        for number in range(args.rounds):
            for name, launcher in launchers.items():
                contest.progress(f"{scene.title}, round {number + 1}: {name}")
                if not enough(played[name]):
                    played[name].append(play(scene, launcher, args.bound))
        contest.progress("")
        rows.append([scene.title, *(cell(endings, args.bound) for endings in played.values())])
        results += [
            {"scene": key, "name": name, "endings": [vars(ending) for ending in endings]}
            for name, endings in played.items()
        ]
    contest.table("Until every process of the job is gone", ["what happens", *launchers], rows)
    contest.write_json(args.json, benchmark="death", bound=args.bound, results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
