"""The copy of a tree that an agent gets: the paths that lead there, the room for it, and what is said if it fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.control.messages import Ask, Message, TreeOffer
from bireme.job import JobSpec, Program
from bireme.loop import Loop
from bireme.ship import source
from bireme.ship.messages import Need
from bireme.ship.source import Contents
from bireme.ship.store import NEWEST
from bireme.ship.taker import TreeTaker
from tests.control.examples import ASK


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project; the working directory is a folder in it."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "data.txt").write_text("some data")
    monkeypatch.chdir(root / "sub")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


def take(
    project: Path, *args: str, job: str = "", logs: str = "", altered: Callable[[bytes], bytes] = bytes
) -> tuple[Ask, str]:
    """Take a project as an agent does; return the message as it is in the copy, and why there is none."""
    spec = JobSpec(program=Program("x.py", args), ship=str(project), rank_log_dir=logs or None)
    tree = source.find(spec, os.environ)
    text = tree.manifest.text
    offer = TreeOffer(digest=tree.manifest.digest, length=len(text), roots=tree.roots, cache="", job=job)
    loop = Loop()
    ended: list[tuple[Ask, str]] = []

    def send(message: Message) -> None:
        if isinstance(message, Need):
            buffer = bytearray(1 << 16)
            size = Contents(tree, message.spans).read_into(memoryview(buffer))
            data = altered(bytes(buffer[:size])) if message.spans else text
            loop.after(0, lambda: taker.take(data))

    def on_done(ask: Ask, problem: str) -> None:
        ended.append((ask, problem))
        loop.stop()

    ask = ASK.replace(spec=spec, cwd=os.getcwd(), tree=offer)
    taker = TreeTaker(loop, ask, os.environ, send, on_done)
    loop.after(0, taker.start)
    loop.run()
    for fd in taker.keep:
        os.close(fd)
    taker.close()
    loop.close()
    return ended[0]


def test_where_arguments_lead(project: Path) -> None:
    """To the copy if they name something in the tree, else to where they lead without it."""
    outside = project.parent
    wanted = {
        "../data.txt": "../data.txt",
        "..": "..",
        "s/../x/": "s/../x/",
        "../../runs": f"{outside}/runs",
        "--out=../../runs": f"--out={outside}/runs",
        "../../project-2": f"{outside}/project-2",
        "../../project/data.txt": "../../project/data.txt",
        f"{project}/data.txt": "COPY/data.txt",
        f"--in={project}/data.txt": "--in=COPY/data.txt",
        f"{project}/sub/../data.txt": "COPY/data.txt",
        str(project): "COPY",
        f"{project}/..": str(outside),
        f"{project}/../runs": f"{outside}/runs",
        f"{project}-2/data.txt": f"{project}-2/data.txt",
        f"{project}/new": f"{project}/new",
    }
    ask, problem = take(project, *wanted, logs="../../logs")
    assert not problem
    copy, found = ask.cwd.removesuffix("/sub"), ask.spec.program.args
    assert {word: now.replace(copy, "COPY") for word, now in zip(wanted, found, strict=True)} == wanted
    assert ask.spec.rank_log_dir == f"{outside}/logs"
    assert take(project, logs="logs")[0].spec.rank_log_dir == "logs"


def test_room_is_made_before_the_next_copy(project: Path) -> None:
    """Not only when ranks have run for a while: one mistake after the other ends them at once."""
    for number in range(NEWEST + 3):
        (project / "data.txt").write_text(f"data {number}")
        assert not take(project)[1]
    assert len(list((project.parent / "cache/bireme/trees").glob("[!.]*"))) == NEWEST + 1


def test_a_job_gets_its_copy_again(project: Path) -> None:
    """With what its ranks have written, also to files that were sent. Another job gets a new one."""
    first = take(project, job="one")[0].cwd
    Path(first, "../data.txt").write_text("more data than before")
    other = take(project, job="two")[0].cwd
    assert other != first
    assert take(project, job="one")[0].cwd == first
    assert take(project)[0].cwd == other


def test_another_place_is_named_where_that_helps(project: Path) -> None:
    _, problem = take(project, altered=lambda data: b"x" * len(data))
    assert problem.endswith("/bireme: data.txt has changed since the job began; start the job again")
    (project.parent / "cache/bireme/trees").rename(project.parent / "cache/bireme/old")
    (project.parent / "cache/bireme/trees").write_text("no folder")
    _, problem = take(project)
    assert problem.endswith(": File exists\n--export XDG_CACHE_HOME=DIR names another place")
