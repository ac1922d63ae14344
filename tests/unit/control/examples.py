"""One message of each kind, as real jobs send them."""

from __future__ import annotations

from bireme.control.messages import (
    Ask,
    Credit,
    Down,
    Eof,
    Fetch,
    GuardianLost,
    Hello,
    InputTaken,
    KillNow,
    Measure,
    Measured,
    Message,
    NeedTool,
    Over,
    Ping,
    Pong,
    Probe,
    Probed,
    Release,
    Rested,
    Resume,
    Say,
    Signalled,
    SignalRanks,
    Stacks,
    Start,
    Stop,
    Suspend,
    Taken,
    TakeStacks,
    Tool,
    TreeOffer,
    Unfit,
    Up,
    Want,
)
from bireme.job import JobSpec, Program
from bireme.planning.start import NodePlan, WorkerPlan
from bireme.result.outcome import RankEnd
from bireme.result.rank_use import RankUses
from bireme.result.stacks import Frame, RankStack

SPEC = JobSpec(program=Program(target="train.py", args=("--lr", "0.1")), time_limit=3.5, wrap_ranks=(0, 2))
HELLO = Hello(
    problems=(),
    hostname="node1",
    python="3.11.7",
    addresses=("10.0.0.1", "fd00::1"),
    interpreter="/usr/bin/python3",
    accelerator="cuda",
    slots=("0", "1"),
    cores=8,
    bound=((0, 1), (2, 3)),
    temporary="/tmp",
    port=29500,
)
WORKERS = tuple(
    WorkerPlan(rank=rank, local_rank=rank, slot=str(rank), argv=("python3", "é.py"), env={"RANK": str(rank)})
    for rank in range(2)
)
PLAN = NodePlan(host="node1", node_rank=0, cwd="/", env={"WORLD_SIZE": "2"}, error_dir="/tmp/x", workers=WORKERS)


def end(rank: int, code: int = 0) -> RankEnd:
    return RankEnd(rank, "node1", "cuda:0", 4711, code, by_signal=False, seconds=1.5, stopped=False)


ASK = Ask(
    spec=SPEC,
    cwd="/",
    heartbeat=10.0,
    first=True,
    name="node1",
    slots=None,
    tasks=2,
    exports={"A": "ü"},
    unset=("PMI_",),
)
START = Start(node=PLAN, accelerator="cuda", grace=10.0, window=1 << 20, rest=0.5)
TO_AGENT: tuple[Message, ...] = (
    ASK,
    ASK.replace(slots=("0", "GPU-1")),
    ASK.replace(tree=TreeOffer(digest="0" * 64, length=200, roots=("/a", "/b"), cache="")),
    Probe(addresses=("10.0.0.1",), port=29500),
    START,
    Stop(signum=15),
    KillNow(),
    SignalRanks(signum=10),
    Suspend(),
    TakeStacks(),
    Measure(),
    Tool(digest="0af3", size=8094072),
    Resume(),
    Credit(size=131072),
    Fetch(patterns=("out/**",), mark=".bireme-1"),
    Want(places=(0, 3), digests=True),
    Taken(size=524288),
    Ping(sent=1.25),
    Release(),
)
FROM_AGENT: tuple[Message, ...] = (
    HELLO,
    Hello(problems=("no such directory",), hostname="node1", addresses=()),
    Probed(reachable=("10.0.0.1",)),
    Up(rank=0, pid=4711, when=12.5),
    Down(end=end(0, 3), when=13.5),
    InputTaken(),
    Rested(rank=0, number=1),
    Eof(rank=1, number=2),
    Stacks(stacks=(RankStack(rank=1, state="asleep", frames=(Frame(function="step", file="a.py", line=3),)),)),
    Measured(
        uses=RankUses(
            ranks=(1,), states=("asleep",), cpu=(1.5,), rss=(4096,), gpu=(-1.0,), gpu_memory=(-1,), steps=(-1.0,)
        )
    ),
    NeedTool(machine="x86_64"),
    Say(level="warning", text="disk full"),
    Unfit(problems=("cannot fork",)),
    GuardianLost(pid=12, when=345.75),
    Signalled(signum=15, when=13.0),
    Over(killed=1, stuck=("12 (python, state D)",)),
    Pong(sent=1.25, now=77.0),
)
