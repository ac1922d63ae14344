"""The documentation against the code: tables say what the code says, links lead somewhere, commands can be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.cli.check import CHECK
from bireme.cli.options import AGENT, RUN, parse
from bireme.errors import EXIT_CODES
from bireme.job import JobSpec, Program
from bireme.planning.start import JobFacts, NodeFacts, start_plan
from bireme.resources.devices import ACCELERATORS, visible_variables
from bireme.supervise.ladder import TABLE
from tests.test_layers import LAYERS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


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
    assert described == {str(code): text for code, text in EXIT_CODES.items()}


def names_that_a_plan_sets() -> set[str]:
    """Over every accelerator, named or found, with slots of every sort."""
    names = set()
    for accelerator in ACCELERATORS:
        for explicit in (False, True):
            job = JobFacts("id", accelerator, visible_variables(accelerator), explicit, "", "127.0.0.1", 29500)
            node = NodeFacts("host", "python", "/", 4, "/tmp/errors")
            spec = JobSpec(Program("train.py"))
            for part in start_plan(spec, {"host": ("0", "MIG-1")}, job, {"host": node}).nodes:
                names.update(part.env, *(worker.env for worker in part.workers))
    return names


def test_environment():
    described = {name for first, *_ in rows(page("environment.md")) for name in code_words(first)}
    assert described == names_that_a_plan_sets()


def test_accelerators():
    table = {
        row[0].strip("`"): set(code_words(row[2])) for row in rows(section(page("devices.md"), "How devices are found"))
    }
    variables = {kind: set(visible_variables(kind)) for kind in ACCELERATORS}
    assert {**table, "cpu": set()} == variables


def test_every_option_is_described():
    described = {word.split()[0] for row in rows(page("options.md")) for word in code_words(row[0])}
    known = {name for table in (RUN, AGENT) for group in table.values() for option in group for name in option.names}
    assert known - described == set(), "not in docs/options.md"
    assert described - known == set(), "in docs/options.md, but there is no such option"


def test_layers():
    table = [set(code_words(first)) for first, _ in rows(section(page("architecture.md"), "Layers"))]
    assert table == [set(layer) for layer in LAYERS]


def test_stop_ladder():
    table = {
        (state, event): (next_state, tuple(do.split(", ")), deadline)
        for state, event, do, next_state, deadline in rows(section(page("architecture.md"), "The stop ladder"))
    }
    assert table == {key: (step.state, step.do, step.deadline) for key, step in TABLE.items()}


def test_files_that_are_named_are_there():
    text = page("architecture.md")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    by_folder = re.findall(r"^\*\*`(\w+)/`\.\*\*(.*?)(?=\n\n)", text, flags=re.MULTILINE | re.DOTALL)
    assert len(by_folder) >= 7
    inside = {f"{folder}/{name}" for folder, files in by_folder for name in re.findall(r"`(\w+\.py)`", files)}
    missing = {
        name
        for name in {name for name in named if "/" in name} | inside
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
        tables = {("bireme", "run"): RUN, ("bireme", "check"): CHECK, ("python", "-m", "bireme.agent"): AGENT}
        for start, table in tables.items():
            if tuple(words[: len(start)]) == start and "--num_gpu" not in words:  # that one shows its own error
                parsed = parse(table, words[len(start) :])
                assert parsed.command or table is CHECK, f"{name}: {shlex.join(words)}"
                read += 1
    assert read > 10
