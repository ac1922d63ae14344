"""The agent's code as it is sent to nodes: it is complete, and any Python from 3.10 on runs it."""

from __future__ import annotations

import ast
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.agent import sent_code
from bireme.control.frames import encode_code
from bireme.control.greeting import END, STEM, python_tag
from tests.conftest import Stage, clean_environ
from tests.kit import needs
from tests.test_layers import all_modules, imports


def others(first: int = 10) -> dict[str, str]:
    """The interpreters of other versions that are here, from 3.``first`` on, by version."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for minor in range(first, 20):
        version = f"3.{minor}"
        places = [shutil.which(f"python{version}"), *map(str, folder.glob(f"{version}.*/bin/python{version}"))]
        for path in filter(None, places):
            if minor != sys.version_info.minor and "/shims/" not in path:  # pyenv's shims may lead nowhere
                found[version] = path
    return found


PYTHONS = others()


def needed(*modules: str) -> set[str]:
    """These modules, and all that they import at any time, packages aside."""
    paths = all_modules()
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imported(ast.parse(paths[module].read_text()), module, set(paths))
    return {module for module in found if paths[module].name != "__init__.py"}


def imported(tree: ast.Module, module: str, known: set[str]) -> Iterator[str]:
    """What a module imports, but for the sake of types."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            statement.body = []
    for _, name in imports(tree, module, is_package=False):
        yield from (part for part in (name, name.rpartition(".")[0]) if part in known)


TEMPLATES = ("bireme.process.templates", "bireme.process.keeper")
STUB = {"bireme.agent.stub", "bireme.signal_numbers"}


@pytest.mark.parametrize("roots", [sent_code.AGENT, *sent_code.AHEAD.values()], ids=["agent", *sent_code.AHEAD])
def test_all_that_an_agent_imports_is_sent(roots: tuple[str, ...]) -> None:
    """What is found by the lines of the sources is what Python's own parser finds in them."""
    sent, imports_ = set(sent_code.needed(roots)), needed(*roots)
    assert not imports_ - sent, f"an agent may import these, but is not sent them: {', '.join(imports_ - sent)}"
    assert not sent - imports_, f"an agent is sent these, but never imports them: {', '.join(sent - imports_)}"


def test_a_tree_and_files_that_come_home_need_more() -> None:
    plain, tree, fetch = (
        set(sent_code.needed(sent_code.AGENT, left_out))
        for left_out in (
            ("bireme.ship.taker", "bireme.ship.fetch_sender", *TEMPLATES),
            ("bireme.ship.fetch_sender", *TEMPLATES),
            ("bireme.ship.taker", *TEMPLATES),
        )
    )
    assert not {name for name in plain if name.startswith("bireme.ship")}
    ours = {"bireme.logs.console", "bireme.logs.output", "bireme.runner.session", "bireme.resources.filters"}
    assert not plain & ours, "what only the command needs makes the agent's code larger"
    assert "bireme.ship.taker" in tree - fetch
    assert "bireme.ship.fetch_sender" in fetch - tree
    assert not {name for name in plain if name.startswith("bireme.warm")}


def test_the_stub_imports_nothing_else_before_the_agent() -> None:
    """It imports the agent only when that has come."""
    first = {name for roots in sent_code.AHEAD.values() for name in roots}
    late = {*first, *sent_code.AGENT, "bireme.control.frames", "bireme.control.messages", "bireme.errors"}
    paths = all_modules()
    found = set(imported(ast.parse(paths["bireme.agent.stub"].read_text()), "bireme.agent.stub", set(paths)))
    assert {name for name in found if paths[name].name != "__init__.py"} <= late | STUB


def interpreter(version: str) -> str:
    if version == "no other":
        needs.missing("no other Python from 3.10 on is installed")
    return PYTHONS[version] if version else sys.executable


@pytest.mark.parametrize("version", ["", *(PYTHONS or ["no other"])])
def test_every_module_is_imported_from_memory(version: str) -> None:
    """From bytecode by the same Python, and by others from source; without a file of ours."""
    python = interpreter(version)
    names = ", ".join(sent_code.needed(sent_code.AGENT, ("bireme.ship.taker", "bireme.ship.fetch_sender", *TEMPLATES)))
    finder = sent_code._source("bireme.agent.sent_modules")
    program = f"import sys\nexec(compile({finder!r}, 'sent', 'exec'))"
    program += f"\nmodules = SentModules({{}}); modules.add(sys.stdin.buffer.read())\nimport {names}\n"
    program += (
        "print({type(sys.modules[name].__loader__).__name__ for name in sys.modules if name.startswith('bireme')})"
    )
    packed = sent_code.pack(python_tag() if not version else "another")
    done = subprocess.run([python, "-I", "-S", "-c", program], input=packed, capture_output=True, check=False)
    assert done.stdout == b"{'SentModules'}\n", done.stderr.decode()


def test_an_agent_loads_little_of_the_standard_library(tmp_path: Path, stage: Stage) -> None:
    """Each of these takes longer than all modules of ours, on each node, before the first rank."""
    (tmp_path / "rank.py").write_text("")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -X importtime "$@" 2>>"{tmp_path}/imports.$$"\n')
    python.chmod(0o755)
    way_in = ("--launcher", "exec", "--launcher_args", "env HOST={host} {argv}", "--node_python", str(python))
    done = stage.run("run", "--hosts", "one:1,two:1", "--master_addr", "127.0.0.1", *way_in, "rank.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logs = list(tmp_path.glob("imports.*"))
    assert len(logs) == 2
    for log in logs:
        loaded = {line.rpartition("|")[2].strip() for line in log.read_text().splitlines()}
        assert {"bireme.agent.remote", "bireme.process.guardian"} <= loaded
        costly = {"collections", "ctypes", "dataclasses", "encodings.idna", "enum", "functools", "json", "re", "socket"}
        assert not loaded & {*costly, "subprocess", "threading", "traceback", "typing"}


@pytest.mark.parametrize("version", PYTHONS or ["no other"])
def test_an_agent_on_another_python(version: str) -> None:
    argv = sent_code.command("channel", python=(interpreter(version),))
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=clean_environ(), stdin=pipe, stdout=pipe, stderr=pipe) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        line = agent.stdout.readline() + agent.stdout.readline()
        tag = line.removeprefix(STEM).removesuffix(END).decode()
        assert tag.startswith(f"cpython-{version.replace('.', '')}-")
        _, errors = agent.communicate(encode_code(sent_code.pack(tag)), timeout=60)
    assert (agent.returncode, errors) == (0, b"")


@pytest.mark.parametrize("code", [False, True], ids=["no code", "no job"])
def test_a_runner_that_says_nothing_more(code: bool) -> None:
    """Nobody else would end an agent that is cut off before it knows the heartbeat."""
    argv = sent_code.command("channel", patience=2 if code else 0.2)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=clean_environ(), stdin=pipe, stdout=pipe, bufsize=0) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdout.read(1)
        if code:
            agent.stdin.write(encode_code(sent_code.pack(python_tag())))
        assert agent.wait(30) == (0 if code else -signal.SIGALRM)


def test_what_was_packed_is_kept_until_a_module_changes(tmp_path: Path) -> None:
    """In the user's cache; what is damaged there, or what others can write or have put there, is not used."""
    copy = tmp_path / "src/bireme"
    shutil.copytree(Path(sent_code.isolated.root()) / "bireme", copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from bireme.agent.sent_code import pack; print(__import__('zlib').crc32(pack('x')))"
    environ = clean_environ(PYTHONPATH=str(copy.parent), XDG_CACHE_HOME=str(tmp_path / "cache"))

    def packed() -> str:
        argv = [sys.executable, "-c", code]
        return subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout.strip()

    first = packed()
    (kept,) = (tmp_path / "cache/bireme/agents").iterdir()
    whole = kept.read_bytes()
    other = whole.partition(b"\n")[0] + b"\n" + hashlib.blake2b(b"other", digest_size=16).digest() + b"other"
    zeros = whole[:5000] + bytes(len(whole) - 5000)
    cases = ((other, 0o600, str(zlib.crc32(b"other"))), (other, 0o666, first), (whole[:60], 0o600, first))
    for content, mode, found in (*cases, (zeros, 0o600, first), (whole[:-1], 0o600, first)):
        kept.write_bytes(content)
        kept.chmod(mode)
        assert packed() == found
        if mode == 0o600 and found == first:
            assert kept.read_bytes() == whole  # made again
    (tmp_path / "other").write_bytes(other)
    (tmp_path / "other").chmod(0o600)
    for put in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "other"), os.mkdir):
        kept.unlink()
        put(kept)
        assert packed() == first
    kept.rmdir()
    (copy / "agent/remote.py").write_text((copy / "agent/remote.py").read_text() + "\n")
    assert packed() != first


def test_a_strange_python_costs_no_more_than_another() -> None:
    """A rogue agent may call its Python as it likes: the source is packed once."""
    assert sent_code.pack("x") is sent_code.pack("../y")
