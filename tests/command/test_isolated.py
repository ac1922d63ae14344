"""Bireme's processes never import a user's file, from the working directory or from PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme import isolated
from bireme.agent import sent_code
from bireme.cluster.node_selection import DeclaredPool
from bireme.elastic import node_probe
from bireme.job import JobSpec, Program
from bireme.planning.exports import Exports
from bireme.planning.world import encode_world_info
from bireme.resources.hostfile import HostEntry
from tests.conftest import PROGRAMS, clean_environ, run_python
from tests.kit import needs
from tests.kit.traps import NAMES, Traps

RANK = "import json, os\nos.write(1, f'took {json.__file__}\\n'.encode())\n"


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    """In the working directory, and in another that is on PYTHONPATH."""
    traps = Traps(tmp_path / "work")
    traps.set(tmp_path / "path")
    (tmp_path / "work" / "rank.py").write_text(RANK)
    return traps


def run(traps: Traps, command: list[str] | tuple[str, ...], stdin: str = "", path: bool = True, **environ: str):
    places = {"PYTHONPATH": f":{traps.log.parents[1] / 'path'}"} if path else {}
    return subprocess.run(
        command,
        cwd=traps.log.parent,
        env=clean_environ(**places, **environ),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def only_ranks_took(traps: Traps, done: subprocess.CompletedProcess[str], ranks: int) -> None:
    """What lies in the working directory, and nothing of ours did."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"took {traps.log.parent / 'json.py'}") == ranks
    assert traps.sprung() == []


def imported_before(words: str) -> tuple[str, ...]:
    """What Python, or an installer's script, imports before the first statement of ours."""
    code = f"import sys, {words}; print(*sys.modules)"
    done = run_python(code)
    return ("sitecustomize", "usercustomize", "bireme", *done.stdout.split())


@pytest.mark.parametrize("path", [False, True], ids=["working directory", "PYTHONPATH"])
def test_a_rank_has_the_usual_rules(traps: Traps, path: bool) -> None:
    done = run(traps, isolated.command("bireme", "run", "--num_gpus=2", "rank.py"), path=path)
    only_ranks_took(traps, done, 2)


def test_an_agent_by_its_words(traps: Traps) -> None:
    world = encode_world_info({"here": [0, 1]})
    done = run(traps, isolated.command("bireme.agent", f"--world_info={world}", "rank.py"))
    only_ranks_took(traps, done, 2)


@pytest.mark.parametrize("module", ["bireme", "bireme.agent", "bireme.deepspeed.launch"])
def test_by_hand(tmp_path: Path, module: str) -> None:
    """All but what Python itself takes from there, before a program of ours begins."""
    traps = Traps(tmp_path, but=(*imported_before("runpy"), "__future__" if module.endswith("launch") else ""))
    assert {"json", "select", "heapq", "shlex", "subprocess"} <= set(traps.names)
    (tmp_path / "rank.py").write_text(RANK)
    words = ["run", "--num_gpus=1"] if module == "bireme" else [f"--world_info={encode_world_info({'here': [0]})}"]
    done = run(traps, [sys.executable, "-m", module, *words, "rank.py"], path=False)
    only_ranks_took(traps, done, 1)


def test_the_command_with_a_path_of_the_users(tmp_path: Path) -> None:
    """All but what Python and the script that an installer has written import before it begins."""
    script = Path(sys.executable).parent / "bireme"
    if not script.exists():
        needs.missing("the command is not installed beside this Python")
    traps = Traps(tmp_path / "work", but=imported_before("re"))
    assert {"json", "select", "heapq"} <= set(traps.names)
    traps.set(tmp_path / "path")
    (tmp_path / "work" / "rank.py").write_text(RANK)
    done = run(traps, [str(script), "run", "--num_gpus=1", "rank.py"])
    only_ranks_took(traps, done, 1)


def test_looking_for_a_node(traps: Traps, tmp_path: Path) -> None:
    """As beside an elastic job."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho it is away >&2\nexit 255\n")
    ssh.chmod(0o755)
    spec = JobSpec(Program("rank.py"), min_nodes=1, max_nodes=2)
    found = DeclaredPool((HostEntry("far", 1),), "--hosts")
    request = node_probe.request(spec, found, "far", "cpu", Exports({}, {}))
    process_of = {**request, "parent": os.getpid()}
    done = run(traps, node_probe.words(), json.dumps(process_of) + "\n", PATH=f"{ssh.parent}:{os.environ['PATH']}")
    assert "it is away" in json.loads(done.stdout)["why"], done
    assert traps.sprung() == []


def test_the_shim_of_native_ranks(traps: Traps) -> None:
    plan = {"world": [["here", ["0"]]], "variables": [], "addr": "here", "port": 1, "place": -1}
    words = (json.dumps(plan), sys.executable, "-u", "rank.py")
    done = run(
        traps,
        sent_code.command("native", *words),
        OMPI_COMM_WORLD_RANK="0",
        OMPI_COMM_WORLD_LOCAL_RANK="0",
    )
    only_ranks_took(traps, done, 1)


def test_the_helper_of_mpich(traps: Traps) -> None:
    words = ("--launcher", "mpich", "rank.py")
    done = run(traps, isolated.command("bireme.deepspeed.launcher_helper", *words), PMI_RANK="0", MPI_LOCALRANKID="0")
    only_ranks_took(traps, done, 1)


# heapq is ours alone: what the script of the study imports does not
TUNED = ("heapq", "bireme", "__future__", "sitecustomize")


@pytest.mark.slow
def test_a_study(tmp_path: Path) -> None:
    traps = Traps(tmp_path / "work", but=tuple(name for name in NAMES if name not in TUNED))
    traps.set(tmp_path / "path")
    config = {"train_micro_batch_size_per_gpu": [4, 8], "autotuning": {"enabled": True}}
    (tmp_path / "work" / "ds.json").write_text(json.dumps(config))
    words = ("tune", "--num_gpus=1", str(PROGRAMS / "contract.py"), "--deepspeed_config", "ds.json")
    done = run(traps, isolated.command("bireme", *words))
    assert done.returncode == 0, done.stdout + done.stderr
    assert traps.sprung() == []


def test_a_program_that_imports_us_keeps_its_path(tmp_path: Path) -> None:
    """The interface of Python touches neither its path nor its environment."""
    code = """
import os, sys
before = list(sys.path), dict(os.environ)
import bireme
outcome = bireme.run(bireme.JobSpec(bireme.Program("true", (), "exec"), num_gpus=1))
assert outcome.exit_code == 0, outcome
assert (list(sys.path), dict(os.environ)) == before
"""
    (tmp_path / "program.py").write_text(code)
    environ = clean_environ(PYTHONPATH=f":{tmp_path}")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SAYS_ALL = "import os, sys\nos.write(1, open('/proc/self/environ', 'rb').read().replace(b'\\0', b'\\n'))\n"


@pytest.mark.parametrize(
    ("locale", "coerce"),
    [
        *(({"LANG": "C"}, ""), ({"LC_CTYPE": "C", "LANG": ""}, ""), ({"LC_ALL": "C"}, ""), ({"LANG": "C.UTF-8"}, "")),
        *(({"LANG": "C"}, "0"), ({"LC_ALL": "C"}, "1")),
    ],
)
def test_the_environment_of_the_ranks_stays(tmp_path: Path, locale: dict[str, str], coerce: str) -> None:
    """Isolated Python overlooks its own variables; byte for byte, ranks find what they would have found."""
    (tmp_path / "rank.py").write_text(SAYS_ALL)
    kept = {name: value for name, value in clean_environ().items() if not name.startswith(("LC_", "LANG"))}
    environ = {**kept, **locale, "PYTHONCOERCECLOCALE": coerce, "PYTHONPATH": ":x", "PYTHONNOUSERSITE": "1"}
    seen = []
    for start in ([sys.executable, "-m", "bireme"], isolated.command("bireme")):
        done = subprocess.run(
            [*start, "run", "--num_gpus=1", "--output=raw", "rank.py"],
            cwd=tmp_path, env=environ, capture_output=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = (line for line in done.stdout.splitlines() if not line.startswith((b"BIREME_", b"TORCHELASTIC_")))
        seen.append(sorted(line for line in lines if not line.startswith((b"MASTER_PORT", b"TMPDIR"))))
    assert seen[0] == seen[1]


def test_modules_are_found_as_a_rank_finds_them(tmp_path: Path) -> None:
    """``-m`` with a module that lies on PYTHONPATH, or among the user's own packages: neither is on our path."""
    environ = clean_environ(HOME=str(tmp_path), PYTHONUSERBASE=str(tmp_path / "base"))
    site = run_python("import site; print(site.getusersitepackages())", env=environ).stdout.strip()
    for place in (tmp_path / "path", Path(site)):
        place.mkdir(parents=True)
    (tmp_path / "path" / "on_path.py").write_text("import argparse  # --local_rank\n")
    (Path(site) / "own.pth").write_text(f"{tmp_path / 'linked'}\n")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "linked_one.py").write_text("")
    environ = clean_environ(PYTHONPATH=str(tmp_path / "path"), PYTHONUSERBASE=str(tmp_path / "base"))
    for module, code in (("on_path", 0), ("linked_one", 0), ("nowhere_at_all", 2)):
        words = isolated.command("bireme", "run", "--num_gpus=1", "-m", module)
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True)
        refused = "no such module" in done.stderr
        assert refused == (code == 2), done.stderr
