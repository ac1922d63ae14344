"""Checks the golden records, or renews them: ``python -m tests.golden [--write] [--studies WHICH] [--show N]``."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
STUDIES = HERE / "studies.txt"
NUMBER = 1000

ADVICE = """\
What the tuner does, or says, has changed. If nobody meant that, it is a bug; `python -m tests.golden --show N` shows
all of study N, and does so in an older checkout too. If it is meant: `python -m tests.golden --write` renews the
records, and the commit says which have changed, and why that is better.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the records, and show what has changed")
    parser.add_argument("--studies", default=f"0:{NUMBER}", metavar="WHICH", help="such as 0:100 or 3,17")
    parser.add_argument("--show", type=int, metavar="N", help="show everything about one study")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--views", action="store_true", help="only what is said of the folders in tests/golden/studies")
    parser.add_argument("--make", metavar="DIR", help="write folders of the chosen studies in every state into DIR")
    parser.add_argument("--keep", action="store_true", help="make the folders that tests/golden/studies lacks")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--look", metavar="DIR", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    chosen = _chosen(given.studies)
    if given.show is not None:
        _show(given.show)
        return 0
    if given.play:
        _play(chosen)
        return 0
    if given.look:
        _look(Path(given.look))
        return 0
    if given.make:
        _make(chosen, Path(given.make))
        return 0
    if given.keep:
        _keep()
    changes = changed_views(write=given.write)
    if not given.views:
        known, now = recorded(), played(chosen, given.jobs)
        changes += differences(known, now)
        if given.write:
            STUDIES.write_text("".join(f"{line}\n" for _, line in sorted({**known, **now}.items())), encoding="utf-8")
    print("\n".join(changes) or "all is as recorded")
    if changes and not given.write:
        print(f"\n{ADVICE}")
    return 1 if changes and not given.write else 0


def _chosen(which: str) -> Sequence[int]:
    """The numbers of studies that the user names."""
    if ":" in which:
        return range(NUMBER)[slice(*(int(part) if part else None for part in which.split(":")))]
    return [int(part) for part in which.split(",")]


def _install() -> None:
    from tests.golden import driver

    driver.install()


def _play(chosen: Iterable[int]) -> None:
    """In a process of its own: print the lines of these studies."""
    _install()
    from tests.golden.draw import draw
    from tests.golden.record import play

    for number in chosen:
        print(play(draw(number)).line, flush=True)


def _show(number: int) -> None:
    _install()
    import shlex

    from tests.golden.draw import draw
    from tests.golden.record import play

    drawn = draw(number)
    print(shlex.join(("bireme", *drawn.words)), drawn._replace(words=()), sep="\n")
    done = play(drawn)
    for name, text in done.views.items():
        print(f"\n== {name}\n{text}")
    print(done.line)


def _make(chosen: Iterable[int], target: Path) -> None:
    """Write folders of these studies, as the tuner leaves them: NUMBER-STATE."""
    _install()
    from tests.golden import journals

    for number in chosen:
        state = journals.state_of(number)
        journals.make(number, state, str(target / f"{number:04}-{state}"))


def _keep() -> None:
    """Make the kept folders that are missing; what is there stays: today's code must read what earlier code wrote."""
    _install()
    from tests.golden import journals

    for name, (number, state) in journals.CHOSEN.items():
        if not (journals.STUDIES / name).exists():
            assert journals.make(number, state, str(journals.STUDIES / name)), name


def _look(target: Path) -> None:
    """In a process of its own: write what is said of the kept studies into this folder."""
    _install()
    from tests.golden import journals

    for name, (_, state) in journals.CHOSEN.items():
        said = journals.views(journals.STUDIES / name, running=state == "running")
        text = "".join(f"== {what}\n{words.rstrip()}\n\n" for what, words in said.items())
        (target / f"{name}.txt").write_text(text, encoding="utf-8")


def changed_views(*, write: bool = False) -> list[str]:
    """What is said differently of the kept studies; ``write``: and record it."""
    import difflib
    import tempfile

    changes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        _own_process("--look", folder)
        for path in sorted(Path(folder).iterdir()):
            kept = HERE / "views" / path.name
            was = kept.read_text(encoding="utf-8") if kept.exists() else ""
            now = path.read_text(encoding="utf-8")
            changes += difflib.unified_diff(
                was.splitlines(), now.splitlines(), f"views/{path.name}", "now", n=1, lineterm=""
            )
            if write and was != now:
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(now, encoding="utf-8")
    return [line if len(line) < 1000 else f"{line[:1000]} …" for line in changes]


def _own_process(*words: str) -> str:
    """What this command prints in a process of its own."""
    command = [sys.executable, "-m", "tests.golden", *words]
    done = subprocess.run(command, cwd=HERE.parent.parent, env=environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr}")
    return done.stdout


def played(chosen: Sequence[int], jobs: int) -> dict[int, str]:
    """The lines of these studies now, by number; played by so many processes."""

    def run(part: Sequence[int]) -> str:
        return _own_process("--play", "--studies", ",".join(map(str, part)))

    parts = [chosen[first::jobs] for first in range(min(jobs, len(chosen)))]
    with ThreadPoolExecutor(jobs) as pool:
        lines = [line for text in pool.map(run, parts) for line in text.splitlines()]
    return {int(line[:4]): line for line in lines}


def environ() -> dict[str, str]:
    """What a study may know of this machine, so that it knows the same on any other."""
    kept = ("PYTHONHASHSEED", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "PYTHONPATH")
    known = {name: os.environ[name] for name in kept if name in os.environ}
    own = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    return {**own, "OPENBLAS_NUM_THREADS": "1", **known}  # more threads take more time for such small matrices


def recorded() -> dict[int, str]:
    """The recorded lines, by number."""
    if not STUDIES.exists():
        return {}
    return {int(line[:4]): line for line in STUDIES.read_text(encoding="utf-8").splitlines()}


_PARTS = ("study", "order", "runs", "exit code", "end", "answer", "words", "written")


def differences(known: dict[int, str], now: dict[int, str]) -> list[str]:
    """What has changed, study by study."""
    changes = []
    for number, line in sorted(now.items()):
        was = known.get(number, "")
        if was == line:
            continue
        changes.append(f"{line.split(' | ')[0]}")
        old, new = was.split(" | "), line.split(" | ")
        if len(old) != len(new):
            changes += [f"  - {was}", f"  + {line}"]
            continue
        for what, one, other in zip(_PARTS, old, new, strict=False):
            if one != other:
                if what == "order":
                    before, after = (re.findall("/|..", text) for text in (one, other))
                    same = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
                    changes.append(f"  the first {same} runs are the same, then:")
                    one, other = ("".join(each[same : same + 30]) for each in (before, after))
                changes += [f"  - {what}: {one}", f"  + {what}: {other}"]
    return changes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
