"""Functions on ranks from a notebook, whose kernel stays well."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.conftest import Stage, clean_environ
from tests.kit import needs

pytestmark = needs.modules("nbclient", "ipykernel")

# In a process of its own: the kernel is a child of it, as of Jupyter.
RUNS = """
import json, os, sys, tempfile
import nbformat
from ipykernel.kernelspec import install
from nbclient import NotebookClient

os.environ["JUPYTER_PATH"] = place = tempfile.mkdtemp(dir=os.getcwd())
install(prefix=place)
os.environ["JUPYTER_PATH"] = os.path.join(place, "share", "jupyter")
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)])
NotebookClient(book, timeout=120, kernel_name="python3").execute()
said = [[o.get("text") or o.get("data", {}).get("text/plain") for o in cell.outputs] for cell in book.cells]
print(json.dumps(["".join(map(str, each)) for each in said]))
"""
BEGIN = """
import bireme, os, signal, threading, time
JOB = {"num_gpus": 2, "accelerator": "cpu", "log_level": "error"}
"""


@pytest.fixture
def cells(stage: Stage, tmp_path):
    """Run the cells of a notebook; what each shows."""

    def run(*texts: str) -> list[str]:
        import json

        given: dict[str, Any] = {"env": clean_environ(JUPYTER_RUNTIME_DIR=str(tmp_path)), "cwd": tmp_path}
        (tmp_path / "cells").write_text(json.dumps([BEGIN, *texts]))
        with (tmp_path / "cells").open() as file:
            done = stage.run_argv([sys.executable, "-c", RUNS], code=0, stdin=file, **given)
        found: list[str] = json.loads(done.stdout.splitlines()[-1])
        return found[1:]

    return run


@pytest.mark.slow
def test_a_notebook(cells) -> None:
    task = "def task(x):\n    print('on rank', bireme.rank())\n    return x * bireme.rank()\n"
    waits = "threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
    first, error, _, pooled, interrupted, last = cells(
        f"{task}print(list(bireme.launch(task, 3, **JOB)))",
        "def bad():\n    if bireme.rank() == 1: raise KeyError('missing')\n    time.sleep(1000)\n"
        "try: bireme.launch(bad, **JOB)\nexcept KeyError as error: print(error.__notes__[1])",
        "pool = bireme.Executor(**JOB)",
        "print(list(pool.map(lambda k: k * k, range(4)))); pool.shutdown()",
        f"{waits}try: bireme.launch(time.sleep, 1000, **JOB)\nexcept KeyboardInterrupt: print('interrupted')",
        "print(list(bireme.launch(task, 1, **JOB)))",
    )
    assert "on rank 0" in first and "on rank 1" in first and "[0, 3]" in first
    assert error == "1 other rank was stopped because of it\n"
    assert pooled == "[0, 1, 4, 9]\n"
    assert interrupted == "interrupted\n"
    assert "[0, 1]" in last
