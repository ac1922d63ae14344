"""How many files of ours somebody has to read who follows a command to its first rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import clean_environ

SRC = Path(__file__).parent.parent.parent / "src"
MOST = 42
"""Files of which a function is called in the command, between the command line and the first fork; there were 53."""
MOST_LOADED = 60
"""Modules that are imported until then; there were 76."""

FOLLOW = """
import os, sys
root, script = sys.argv[1:]
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
sys.argv = ["bireme", "run", "--accelerator", "cpu", "--num_gpus", "2", script]
sys.setprofile(look)
from bireme.__main__ import command
command()
"""


def test_one_launch_passes_few_files(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    argv = [sys.executable, "-I", "-S", "-c", FOLLOW, str(SRC), str(script)]
    done = subprocess.run(argv, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, *passed = done.stdout.split()
    assert {"cli/run.py", "api.py", "launch/one_machine.py", "node/part.py", "process/guardian.py"} <= set(passed)
    assert len(passed) <= MOST, f"{len(passed)} files are passed, {MOST} may be: {' '.join(passed)}"
    assert int(loaded) <= MOST_LOADED, f"{loaded} modules are loaded, {MOST_LOADED} may be"
