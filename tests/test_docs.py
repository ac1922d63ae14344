"""The documentation against the code: tables agree with the code, links have targets, commands can be parsed."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme import errors
from bireme.agent import sent_code
from bireme.backends import base, choice
from bireme.cli.parser import parse
from bireme.control.messages import FROM_AGENT, TO_AGENT
from bireme.errors import BadInputError
from bireme.job import ACCELERATORS, LAUNCHERS, JobSpec, Program
from bireme.options.table import OF_JOBS, OPTIONS, select
from bireme.planning.environment import STEPS, JobFacts, NodeFacts, recording_environment
from bireme.planning.exports import NAMES, PREFIXES
from bireme.planning.start import start_plan
from bireme.process.stop_ladder import TABLE
from bireme.resources.devices import visible_variables
from bireme.resources.own_name import INTERFACE_VARIABLES
from bireme.result import outcome
from bireme.result.outcome import Outcome, RankEnd
from bireme.result.report_record import of_outcome
from bireme.ship import conversation as ship_messages
from tests.conftest import clean_environ
from tests.test_layers import LAYERS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md")),
    *sorted(DOCS.glob("*.md")),
]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands below a heading of the second rank."""
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row, heads and rules left out."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        rule = line.startswith("|--")
        head = number + 1 < len(lines) and lines[number + 1].startswith("|--")
        if line.startswith("|") and not rule and not head:
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code_words(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names by which the headings of a page can be reached, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- tables ------------------------------------------------------------------------------------------


def test_exit_codes():
    first_table = page("exit-codes.md").split("\n\n")[2]
    described = dict(rows(first_table))
    assert described.pop("128 + n").startswith("signal n ended the rank that failed first")
    assert described.keys() == {str(code) for code in vars(errors).values() if type(code) is int}


def names_that_a_plan_sets() -> set[str]:
    """Over every accelerator, named or found, with slots of every sort."""
    names = set()
    for accelerator in ACCELERATORS:
        for explicit in (False, True):
            job = JobFacts("id", accelerator, visible_variables(accelerator), explicit, "", "127.0.0.1", 29500)
            node = NodeFacts("host", "python", cores=4, temporary="/tmp")
            spec = JobSpec(Program("train.py"), job_name="llama")
            for part in start_plan(spec, {"host": ("0", "MIG-1")}, job, {"host": node}).nodes:
                names.update(part.env, *(worker.env for worker in part.workers))
    return names


def test_environment():
    described = {name for first, *_ in rows(page("environment.md")) for name in code_words(first)}
    assert described == {*names_that_a_plan_sets(), *recording_environment("/tmp"), STEPS, *INTERFACE_VARIABLES}


def test_accelerators():
    table = {
        row[0].strip("`"): set(code_words(row[2])) for row in rows(section(page("devices.md"), "How devices are found"))
    }
    variables = {kind: set(visible_variables(kind)) for kind in ACCELERATORS}
    assert {**table, "cpu": set()} == variables


def test_every_option_is_described():
    described = {re.split(r"[ [=]", word)[0] for row in rows(page("options.md")) for word in code_words(row[0])}
    theirs = {"drain", "shim", *OF_JOBS}  # pages of their own have them
    known = {name for option in OPTIONS if not theirs.issuperset(option.commands) for name in option.names}
    assert known - described == set(), "not in docs/options.md"
    assert described - known == set(), "in docs/options.md, but there is no such option"


def test_fields_of_the_report():
    text = page("output.md").split("### The report as a file", 1)[1]
    described = [name for row in rows(text) for name in code_words(row[0])]
    record = of_outcome(Outcome(0, "ok", 1.0))
    assert sorted(described) == sorted(record)
    causes = [name for row in rows(text) if "`cause`" in row[0] for name in code_words(row[1])]
    alias = inspect.getsource(outcome).split("Cause: TypeAlias", 1)[1].split("]", 1)[0]
    assert causes == re.findall(r'"([a-z ]+)"', alias)
    end = text.split("An end has", 1)[1].split("\n\n", 1)[0]
    assert set(RankEnd._fields) - {"recorded"} <= set(code_words(end))


def test_what_travels():
    prefixes, (names,) = (list(rows(part)) for part in tables(section(page("nodes.md"), "What travels")))
    assert [word for row in prefixes for word in code_words(row[1])] == list(PREFIXES)
    assert set(code_words(names[0])) == NAMES


def test_messages_of_the_channel():
    to_agent, from_agent = (
        list(rows(part)) for part in tables(section(page("architecture.md"), "The control channel"))
    )
    for table, vocabulary in (
        (to_agent, TO_AGENT),
        (from_agent, {**FROM_AGENT, **ship_messages.FROM_AGENT}),
    ):
        described = {name for row in table for name in code_words(row[0])}
        assert described == set(vocabulary)


def test_lines_of_the_guardians_protocol():
    lines = [row[:2] for row in rows(section(page("architecture.md"), "The guardian's protocol"))]
    turn = [direction for direction, _ in lines].index("guardian → agent")
    to_guardian, from_guardian = (
        {(words.split()[0], words.count(" ")) for _, cell in part for words in code_words(cell)}
        for part in (lines[:turn], lines[turn:])
    )
    sources = [(ROOT / f"src/bireme/process/{name}.py").read_text() for name in ("guardian", "watcher")]
    written = [call for text in sources for call in re.findall(r'write_line\(\w+\.events, "(\w+)"(.*)\)\n', text)]
    assert from_guardian == {(word, args.count(", ")) for word, args in written}
    assert {word for word, _ in to_guardian} == set(re.findall(r'word == "(\w+)"', sources[0]))


def tables(text: str) -> list[str]:
    return re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)


AGENT_WORDS = ("AGENT",)


def test_what_starts_an_agent():
    block = re.search(r"```\n(.*?)```", section(page("backends.md"), "The command lines"), flags=re.DOTALL)
    assert block is not None
    python, *words = shlex.split(block[1].replace("/home/me/.venv/bin/python", shlex.quote(sys.executable)))
    ours = sent_code.python_words(JobSpec(Program("train.py")), short=True)
    assert (python, *words) == sent_code.command("channel", python=ours, short=True)[:-1]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_command_lines(name):
    backend = choice.load(name)
    channel = ("--channel",) if backend.CHANNEL == "stdio" else ("--dial", "ADDRESSES", "PORT", backend.TOKEN_VARIABLE)
    hosts, agent = tuple(map(base.HostLaunch, ("node1", "node2"))), (*AGENT_WORDS, *channel)
    plan = base.LaunchPlan(hosts=hosts, agent=agent, extra=extra(name), allocation="bireme-…")
    block = re.search(rf"\n### {name}\n\n```\n(.*?)```", page("backends.md"), flags=re.DOTALL)
    assert block is not None
    expected = [word for command in backend.commands(plan, {}) for word in command]
    assert shlex.split(block[1]) == expected


def extra(name: str) -> tuple[str, ...]:
    return ("docker", "exec", "-i", "{host}") if name == "exec" else ()


def test_launchers():
    table = {code_words(row[0])[0]: row for row in rows(page("backends.md").split("\n## ")[0])}
    assert tuple(table) == LAUNCHERS
    hosts = {
        "user": base.HostLaunch("h", user="u"),
        "port": base.HostLaunch("h", port=22),
        "v6": base.HostLaunch("::1"),
    }
    for name, (_, programs, channel, *can, native) in table.items():
        backend = choice.load(name)
        assert code_words(programs) == list(backend.PROGRAMS)
        assert channel == {"stdio": "session", "dial": "dial back"}[backend.CHANNEL]
        assert native == ("yes" if backend.starts_ranks else "no")
        for host, word in zip(hosts.values(), can, strict=True):
            assert word == ("yes" if renders(backend, host) else "no"), (name, host)


def renders(backend: base.Backend, host: base.HostLaunch) -> bool:
    try:
        return bool(backend.commands(base.LaunchPlan((host,), AGENT_WORDS, extra=extra(backend.NAME)), {}))
    except BadInputError:
        return False


def test_rank_variables():
    table = {code_words(row[0])[0]: tuple(code_words(row[1])) for row in rows(indented(page("backends.md"))) if row}
    variables = {name: choice.load(name).rank_variables for name in LAUNCHERS}
    assert table == {name: beginnings for name, beginnings in variables.items() if beginnings}


def indented(text: str) -> str:
    """The tables that stand within a list."""
    return "\n".join(line.strip() for line in text.splitlines() if line.startswith("  |"))


def test_layers():
    table = [set(code_words(first)) for first, _ in rows(section(page("architecture.md"), "Layers"))]
    assert table == [set(layer) for layer in LAYERS]


def test_stop_ladder():
    table = {
        (state, event): (next_state, tuple(do.split(", ")), deadline)
        for state, event, do, next_state, deadline in rows(section(page("architecture.md"), "The stop ladder"))
    }
    assert table == {key: (step.state, step.do, step.deadline) for key, step in TABLE.items()}


GUARANTEES = ("What dies, and what happens then", "On many nodes", "Signals", "Jobs that are watched")


def named_tests() -> set[str]:
    """What docs/guarantees.md names, as pytest does."""
    return {word for word in code_words(page("guarantees.md")) if word.startswith("tests/") and "::" in word}


def test_every_guarantee_has_a_test():
    text = page("guarantees.md")
    numbers = [[row[0] for row in rows(section(text, title))] for title in GUARANTEES]
    for letter, found in zip("DNSW", numbers, strict=True):
        assert found == [f"{letter}{number + 1}" for number in range(len(found))]
    tests = dict(rows(section(text, "The tests")))
    assert list(tests) == [number for found in numbers for number in found]
    assert all(set(code_words(cell)) & named_tests() for cell in tests.values())


def test_tests_of_guarantees_are_there():
    """Files and functions; what a function is given only pytest knows: see below."""
    for name in named_tests():
        path, _, function = name.partition("[")[0].partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE), name


@pytest.mark.slow
def test_parameters_of_tests_of_guarantees_are_there():
    files = sorted({name.partition("::")[0] for name in named_tests()})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(words, cwd=ROOT, env=clean_environ(), capture_output=True, text=True, check=True)
    collected = set(done.stdout.splitlines())
    collected |= {line.partition("[")[0] for line in collected}
    assert named_tests() - collected == set()


def test_files_that_are_named_are_there():
    text = page("architecture.md")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    assert len(named) >= 7
    missing = {
        name
        for name in {name for name in named if "/" in name}
        if not (ROOT / "src/bireme" / name).is_file() and not (ROOT / name).is_file()
    }
    assert not missing


# -- links and commands ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        other = path.parent / name if name else path
        assert other.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(other.read_text(encoding="utf-8")), f"{path.name}: {target}"


def commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words) of each command of ours: in the blocks for the console, and in the README's table."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
        lines = [line.strip()[2:] for block in blocks for line in block.splitlines() if line.strip().startswith("$ ")]
        lines += [word for row in rows(text) for word in code_words(row[0]) if word.startswith("bireme run ")]
        for line in lines:
            words = shlex.split(line)
            while words and re.match(r"\w+=", words[0]):
                del words[0]
            yield path.name, words


def test_commands_can_be_read():
    read = 0
    for name, words in commands():
        tables = {("bireme", "run"): "run", ("bireme", "check"): "check", ("python", "-m", "bireme.agent"): "agent"}
        for start, command in tables.items():
            if tuple(words[: len(start)]) == start and "--num_gpu" not in words:  # that one shows its own error
                parsed = parse(select(command), words[len(start) :])
                assert parsed.command or command == "check", f"{name}: {shlex.join(words)}"
                read += 1
    assert read > 10


@pytest.mark.slow
def test_templates_of_tests(tmp_path):
    """What tests/README.md gives a newcomer to begin with."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "tests/README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 6
    for place, block in enumerate(blocks):
        if "(jobs)" in block:
            block += "\nfrom tests.cluster.conftest import _ssh_cluster, backend, jobs, shared_dir, ssh_cluster, tool\n"
        if "(bench)" in block:
            block += "\nfrom tests.command.tune.conftest import bench\n"
        (tmp_path / f"test_{place}.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=clean_environ(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
