"""What is made of the files of PyTorch's flight recorder, and of NCCL's answers."""

from __future__ import annotations

import os
import pickle
import resource
from pathlib import Path

import pytest

from bireme.loop import Loop
from bireme.one_node.flight_recorder import FlightRecorder, progress, recorded, trouble
from bireme.planning.environment import RECORDED, RECORDER_PIPE
from bireme.result.collectives import GroupProgress
from bireme.result.stacks import RankStack, merged
from bireme.validate import build


def entry(number: int, what: str, *, group: tuple[str, str] = ("0", "default_pg"), **more: object) -> dict[str, object]:
    """As version 2.10 writes it, without what is not read."""
    plain = {"collective_seq_id": number, "profiling_name": f"nccl:{what}", "process_group": group, "is_p2p": False}
    return {**plain, "input_sizes": [[4]], "retired": False, "state": "scheduled", **more}


def dump(*entries: dict[str, object], ranks: str = "[0, 1, 2, 3]") -> bytes:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": list(entries)}, 2)


def test_how_far_a_rank_is() -> None:
    done, sent = {"state": "completed", "retired": True}, {"is_p2p": True}
    found = progress(
        dump(
            entry(1, "broadcast", **done),
            entry(2, "all_reduce", state="started"),
            entry(9, "send", **sent),
            entry(3, "all_gather"),
            entry(7, "all_reduce", group=("1", "undefined"), retired=True),
        )
    )
    assert found == (
        GroupProgress(name="0", label="default_pg", called=3, waits=2, what="all_reduce [[4]]", members=(0, 1, 2, 3)),
        GroupProgress(name="1", label="1", called=7),
    )


def stacks(**numbers: tuple[int, int, str]) -> list[RankStack]:
    """rank → (last called, first that has not ended, what)."""
    return [
        RankStack(
            rank=int(rank[1:]),
            groups=(GroupProgress(name="0", label="dp", called=called, waits=wait, what=what, members=(0, 1, 2)),),
        )
        for rank, (called, wait, what) in numbers.items()
    ]


REDUCES = (6, 6, "all_reduce [[4]]")
LATE = (5, 0, "")
BROADCASTS = (6, 6, "broadcast [[4]]")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (stacks(r0=REDUCES, r1=REDUCES, r2=LATE), "ranks 0-1 wait in all_reduce, N: rank 2 has not called it"),
        (stacks(r0=REDUCES, r1=LATE, r2=LATE), "rank 0 waits in all_reduce, N: ranks 1-2 have not called it"),
        (
            stacks(r0=REDUCES, r1=(8, 6, REDUCES[2]), r2=REDUCES),
            "ranks 0-2 wait in all_reduce, N: all its ranks have called it",
        ),
        (
            [*stacks(r0=REDUCES, r1=REDUCES), RankStack(rank=2)],
            "ranks 0-1 wait in all_reduce, N: rank 2 does not answer",
        ),
        (stacks(r0=REDUCES, r2=BROADCASTS), "N differs: rank 0: all_reduce [[4]]; rank 2: broadcast [[4]]"),
        (stacks(r0=(6, 0, ""), r1=(7, 0, "")), ""),
    ],
)
def test_who_waits_for_whom(found: list[RankStack], said: str) -> None:
    found = [each.replace(reason="no py-spy") for each in found]
    first, *lines = merged(found, {}).splitlines()
    assert "no py-spy" in first
    assert [line.replace("collective 6 of the group dp", "N") for line in lines] == [said] * bool(said)


def test_many_groups_are_not_all_named() -> None:
    groups = tuple(GroupProgress(name=str(each), label=f"tp{each}", called=1, waits=1, what="x") for each in range(10))
    lines = merged([RankStack(rank=0, groups=groups)], {}).splitlines()
    assert len(lines) == 9 and lines[-1] == "ranks wait in 2 more process groups"


def test_a_rank_that_has_ended_has_no_line_of_its_own() -> None:
    text = merged(stacks(r0=REDUCES, r1=(5, 0, ""), r2=REDUCES), {})
    assert text == "ranks 0,2 wait in all_reduce, collective 6 of the group dp: rank 1 has not called it"


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    """Nor does one of another version, or half a file, end the agent."""

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "run"),)

    whole = dump(entry(1, "x"))
    for rank, data in enumerate((pickle.dumps({"entries": [Evil()]}), pickle.dumps({"other": 1}), whole[:-9], whole)):
        (tmp_path / f"dump{rank}").write_bytes(data)
    assert [each.rank for each in recorded(f"{tmp_path}/dump", range(5))] == [3]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(b"\x80\x02]r\xff\xff\xff\x0f.", id="what follows is the object number 268,435,455"),
        pytest.param(b"\x80\x05\x96" + (1 << 30).to_bytes(8, "little") + b".", id="1 GiB of bytes follow"),
    ],
)
def test_a_number_in_a_file_reserves_no_memory(file: bytes, tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not recorded(f"{tmp_path}/", [0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def test_what_another_version_may_write_breaks_no_protocol() -> None:
    """What an agent tells has the types that it is to have, and is not long: else its node would count as lost."""
    many = [entry(each, "x" * 999, group=(each, "y" * 999)) for each in range(1, 200)]  # type: ignore[arg-type]
    found = progress(dump(*many))
    assert len(found) == 64 and max(len(text) for each in found for text in (each.name, each.label, each.what)) == 200
    assert build(GroupProgress, found[0].as_dict()) == found[0]
    with pytest.raises(TypeError):
        progress(dump(entry(None, "x")))  # type: ignore[arg-type]


def nested(levels: int) -> list[object]:
    """A short pickle, whose text would fill the memory."""
    found: list[object] = []
    for _ in range(levels):
        found = [found, found]
    return found


@pytest.mark.parametrize(
    "bad",
    [
        entry(1 << 63, "x"),
        entry(10**5000, "x"),
        entry(-1, "x"),
        entry(1, "x", input_sizes=nested(60)),
        entry(1, "x", group=("0", nested(60))),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_form_in_the_protocol_is_not_told(bad: dict[str, object], tmp_path: Path) -> None:
    """Such a number would end the job when it is sent, and such a text hold it up for ever."""
    for rank, entries in enumerate(([bad], [entry(1, "x")])):
        (tmp_path / f"dump{rank}").write_bytes(dump(*entries))
    assert [each.rank for each in recorded(f"{tmp_path}/dump", range(2))] == [1]


def test_members_that_are_too_many_or_no_ranks() -> None:
    (group,) = progress(dump(entry(1, "x"), ranks="7 " * (1 << 17)))
    assert group.members == ()
    with pytest.raises(ValueError):
        progress(dump(entry(1, "x"), ranks="9" * 200))


def test_a_name_cannot_add_lines_to_the_report() -> None:
    (group,) = progress(dump(entry(1, "x\ny", group=("0", "dp\nbireme: all is well"))))
    assert (group.label, group.what) == ("dp bireme: all is well", "x y [[4]]")


def test_who_has_no_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nor is one that nobody reads, or a file in its place; the file stays as it is."""
    os.mkfifo(tmp_path / "pipe1.pipe")
    (tmp_path / "pipe2.pipe").write_text("mine")
    environ = {RECORDER_PIPE: f"{tmp_path}/pipe", RECORDED: f"{tmp_path}/dump"}
    asked = FlightRecorder(Loop(), environ, range(3), lambda: None)
    assert asked.ended and not asked.found
    assert (tmp_path / "pipe2.pipe").read_text() == "mine"


def test_what_nccl_finds_wrong_is_kept_and_no_more() -> None:
    said = "NCCL version 2.27\n\nCommunicators\n=====\n 0  1  RUNNING\n\nErrors\n======\n\n#0-0 INCOMPLETE\n  Missing\n"
    assert trouble(said) == "#0-0 INCOMPLETE\n  Missing"
    assert trouble("NCCL version 2.27\n\nJob summary\n====\n") == ""
    assert trouble("Warnings\n" + "x\n" * 99).splitlines()[-1] == "…"
