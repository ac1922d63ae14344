"""`make test-changed`: every module has tests that are chosen for it, and not too many."""

from __future__ import annotations

from tests.kit.changed import ALWAYS, MOST, ROOT, WHOLE, files_for, graph


def test_every_module_has_tests() -> None:
    tests, sources = graph()
    chosen = {module: files_for(module, tests, sources) for module in sources}
    assert all(0 < len(files) <= MOST for files in chosen.values())
    named = {file for files in chosen.values() for file in files}
    assert all((ROOT / file).is_file() for file in (*named, *ALWAYS))
    assert all((ROOT / "tests" / file).is_file() for files in WHOLE.values() for file in files)
    assert chosen["bireme.resources.cores"][0] == "tests/unit/resources/test_cores.py"
    assert chosen["bireme.options.conflicts"][0] == "tests/unit/options/test_conflicts.py"
    assert set(chosen["bireme.cli.drain"]) == {f"tests/{file}" for file in WHOLE[""]}
