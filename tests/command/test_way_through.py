"""How many files of ours somebody has to read who follows a command to its first rank, or to its first trial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environ

SRC = Path(__file__).parent.parent.parent / "src"

FOLLOW = """
import os, sys
root, *words = sys.argv[1:]
sys.path.insert(0, root)
passed, done = set(), []

def look(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and code.co_filename.startswith(f"{root}/bireme/"):  # 1: a function
        passed.add(code.co_filename.removeprefix(f"{root}/bireme/"))

def hook(event, _):
    if event == "os.fork" and not done:
        done.append(event)
        sys.setprofile(None)
        loaded = [name for name in sys.modules if name.partition(".")[0] == "bireme"]
        print(len(loaded), *sorted(passed), file=sys.__stdout__, flush=True)
        os._exit(0)

sys.addaudithook(hook)
sys.argv = ["bireme", *words]
sys.setprofile(look)
from bireme.__main__ import command
command()
"""


# Files of which a function is called in the command, between the command line and the first fork, and modules that are
# imported until then. There were 53 and 76 for `bireme run`.
@pytest.mark.parametrize(
    ("flags", "words", "among", "most", "most_loaded"),
    [
        (
            ("-I", "-S"),
            ("run", "--accelerator", "cpu", "--num_gpus", "2"),
            ("cli/run.py", "launching/placement.py", "one_node/part.py", "process/guardian.py"),
            40,
            58,
        ),
        (
            ("-I",),
            ("tune", "--accelerator", "cpu", "--param", "--lr=0.1,0.2", "--maximize", "speed"),
            ("cli/tune.py", "tune/study/study.py", "tune/program/program_study.py", "process/guardian.py"),
            72,
            130,
        ),
    ],
    ids=["run", "tune"],
)
def test_the_way_passes_few_files(
    flags: tuple[str, ...], words: tuple[str, ...], among: tuple[str, ...], most: int, most_loaded: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    argv = [sys.executable, *flags, "-c", FOLLOW, str(SRC), *words, str(script)]
    done = subprocess.run(argv, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, *passed = done.stdout.splitlines()[-1].split()
    assert set(among) <= set(passed)
    assert len(passed) <= most, f"{len(passed)} files are passed, {most} may be: {' '.join(passed)}"
    assert int(loaded) <= most_loaded, f"{loaded} modules are loaded, {most_loaded} may be"
