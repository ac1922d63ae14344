"""The plug-in of pytest: tests on ranks."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Stage, clean_environ, wait_for
from tests.kit import needs

pytest_plugins = ["pytester"]
BEGIN = "import os, sys, time, unittest\nimport pytest\nRANK = int(os.environ.get('RANK', -1))\n"


# What else is installed here takes as long to load as all the rest.
ALONE = clean_environ(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def command(*words: str) -> list[str]:
    plugins = ["bireme.pytest_plugin.plugin", *["xdist.plugin"] * ("-n" in words), "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *(word for plugin in plugins for word in ("-p", plugin)), *words]


@pytest.fixture
def run(stage: Stage, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest on a file; its output, and how many tests had which outcome. `stage` sees that nothing is left."""
    for name in os.environ.keys() - ALONE.keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run_pytest(text: str, *words: str) -> tuple[str, dict[str, int]]:
        pytester.makepyfile(test_it=BEGIN + text)
        done = pytester.run(*command(*words))
        out = done.stdout.str()
        return out + done.stderr.str(), done.parseoutcomes() if " in " in out else {}

    return run_pytest


def test_a_test_passes_on_all_ranks(run, tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(3)
def test_it(tmp_path, ranks):
    assert (os.environ["WORLD_SIZE"], ranks) == ("3", 3)
    (tmp_path / str(RANK_NOW())).write_text("")
    while len(os.listdir(tmp_path)) < 3:
        time.sleep(0.01)
def RANK_NOW():
    return int(os.environ["RANK"])
"""
    assert run(text)[1] == {"passed": 1}


def test_pytest_finds_the_plug_in(stage: Stage, tmp_path: Path) -> None:
    """Where Bireme is installed; and it does with what else is installed here."""
    if "bireme" not in {each.name for each in importlib.metadata.entry_points(group="pytest11")}:
        needs.missing("Bireme was installed before it had the plug-in")
    (tmp_path / "test_it.py").write_text(BEGIN + "@pytest.mark.ranks(2)\ndef test_it(ranks):\n    assert ranks == 2\n")
    stage.run_argv([sys.executable, "-m", "pytest", "--strict-markers"], cwd=tmp_path, code=0)


def test_nothing_leaks_from_one_test_to_the_next(run) -> None:
    text = """
state = []
@pytest.mark.ranks(2)
@pytest.mark.parametrize("k", range(3))
def test_it(k):
    state.append(k)
    assert state == [k]
def test_here():
    assert state == [] and "RANK" not in os.environ
"""
    assert run(text)[1] == {"passed": 4}


def test_ports_differ(run, tmp_path: Path) -> None:
    text = f"""
@pytest.mark.ranks(2)
@pytest.mark.parametrize("k", range(2))
def test_it(k):
    with open({str(tmp_path)!r} + f"/port{{k}}", "a") as file:
        file.write(os.environ["MASTER_PORT"] + "\\n")
"""
    assert run(text)[1] == {"passed": 2}
    ports = [(tmp_path / f"port{k}").read_text().split() for k in range(2)]
    assert all(len(each) == 2 and len({*each}) == 1 for each in ports)


OUTCOMES = """
@pytest.mark.ranks(3)
def test_one_fails():  # FAILED
    print("I am", os.environ["RANK"])
    if os.environ["RANK"] == "1": assert 1 == 2
    time.sleep(1000)

@pytest.mark.ranks(2)
def test_all_fail():  # FAILED
    assert 0

@pytest.mark.ranks(2)
def test_skips():  # SKIPPED
    pytest.skip("why")

@pytest.mark.ranks(2)
@pytest.mark.skip
def test_is_skipped():  # SKIPPED
    pass

@pytest.mark.ranks(2)
@pytest.mark.xfail
def test_is_to_fail():  # XFAIL
    assert 0

@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True)
def test_does_not_fail():  # FAILED
    pass

@pytest.mark.ranks([1, 2, 3])
def test_sizes(ranks):  # PASSED
    assert os.environ["WORLD_SIZE"] == str(ranks)

@pytest.mark.ranks([1, 2])
def test_sizes_without_a_name():  # PASSED
    pass

@pytest.fixture
def broken():
    raise OSError("no")

@pytest.mark.ranks(2)
def test_of_a_broken_fixture(broken):  # ERROR
    pass

@pytest.mark.ranks(2)
def test_exits():  # FAILED
    if os.environ["RANK"] == "1": os._exit(3)
    time.sleep(1000)

@pytest.mark.ranks(2)
def test_crashes():  # FAILED
    if os.environ["RANK"] == "1": os.kill(os.getpid(), 11)
    time.sleep(1000)

class TestUnits(unittest.TestCase):
    def setUp(self):
        self.size = os.environ["WORLD_SIZE"]
    @pytest.mark.ranks(2)
    def test_of_unittest(self):  # PASSED
        self.assertEqual(self.size, "2")
"""
SAID = (
    *("rank 1 of 3 has failed; 2 others were stopped", "E       assert 1 == 2", "I am 1", "of 2 has failed"),
    *("strict", "OSError: no", "rank 1: the test ended its process, with exit code 3"),
    *("rank 0: stopped, since another rank", "by SIGSEGV"),
)


def test_outcomes(run) -> None:
    """Each test has the outcome that stands beside it, and nothing of one is seen in the next."""
    out, _ = run(OUTCOMES, "-v")
    expected = dict(re.findall(r"def (test_\w+)\(.*\):  # (\w+)", OUTCOMES))
    found = dict(re.findall(r"^\S*::(test_\w+)\S* (?:\(.*\) )?([A-Z]+)", out, re.MULTILINE))
    assert found == expected
    assert [word for word in SAID if word not in out] == []


def test_a_test_that_hangs(run) -> None:
    text = """
def inside():
    time.sleep(1000)
@pytest.mark.ranks(2)
def test_it():
    if os.environ["RANK"] == "1":
        inside()
"""
    out, found = run(text, "--ranks-timeout", "6")
    assert found == {"failed": 1}
    assert "the test hangs: it is still running after 6 s" in out
    assert "line 6 in inside" in out
    assert "rank 0: it has passed" in out
    assert "_pytest" not in out


def test_a_file_that_hangs_on_a_rank(run) -> None:
    """It is collected there before the test can be ended; the next test has new ranks."""
    text = """
while RANK == 1 and not os.path.exists("hung"):
    open("hung", "w").close()
    time.sleep(1000)
@pytest.mark.ranks(2)
def test_one(): pass
@pytest.mark.ranks(2)
def test_two(): pass
"""
    out, found = run(text, "--ranks-timeout", "6")
    assert found == {"failed": 1, "passed": 1}, out
    assert "rank 1: it does not answer" in out


def test_fixtures_of_modules_of_tests_on_both_sides(run) -> None:
    """What is set up here is torn down, whatever stands between."""
    text = """
@pytest.fixture(scope="module")
def module():
    yield 1
    print("torn down")
def test_before(module): pass
@pytest.mark.ranks(2)
def test_it(module): assert module == 1
def test_after(module): pass
"""
    out, found = run(text, "-s")
    assert found == {"passed": 3}
    assert out.count("torn down") >= 1


@pytest.mark.parametrize("words", [("-x",), ("-n", "2"), ("-s",), ("-q",)], ids=" ".join)
def test_options(run, words: tuple[str, ...]) -> None:
    text = """
@pytest.mark.ranks(2)
@pytest.mark.parametrize("k", range(3))
def test_it(k, tmp_path, tmp_path_factory):
    print("said")
    assert tmp_path_factory.mktemp("x")
    assert k != 0
"""
    out, found = run(text, *words)
    assert found == ({"failed": 1} if words == ("-x",) else {"failed": 1, "passed": 2})
    assert "said" in out


def test_the_process_of_a_rank_is_killed(run) -> None:
    """The test fails, and the next one has new ranks."""
    text = """
import signal
@pytest.mark.ranks(2)
@pytest.mark.parametrize("k", range(3))
def test_it(k):
    if k == 1 and os.environ["RANK"] == "1":
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.1)
"""
    out, found = run(text)
    assert found == {"failed": 1, "passed": 2}
    assert "rank 1: the process of the rank was ended" in out


def test_a_debugger_on_rank_0(stage: Stage, tmp_path: Path) -> None:
    text = """
import warnings
@pytest.mark.ranks(2)
def test_it(tmp_path):
    x = 42
    warnings.warn("of both")
    assert os.environ['RANK'] == '1'
"""
    (tmp_path / "test_it.py").write_text(BEGIN + text)
    process = stage.start_argv(command("--pdb"), cwd=tmp_path, stdin=subprocess.PIPE, env=ALONE)
    out, _ = process.communicate(b"p x, os.environ['WORLD_SIZE']\nc\n", timeout=60)
    assert b"(42, '2')" in out
    assert b"1 failed, 1 warning in" in out


def test_a_wrong_number(run) -> None:
    out, _ = run("@pytest.mark.ranks(0)\ndef test_it(): pass")
    assert "test_it.py::test_it: ranks(n) needs a number of at least 1, not 0" in out


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_session_that_ends(stage: Stage, tmp_path: Path, signum: int) -> None:
    text = f"""
@pytest.mark.ranks(2)
def test_it():
    open({str(tmp_path)!r} + "/at" + os.environ["RANK"], "w").close()
    time.sleep(1000)
"""
    (tmp_path / "test_it.py").write_text(BEGIN + text)
    (tmp_path / "tmp").mkdir()
    process = stage.start_argv(command(), cwd=tmp_path, env={**ALONE, "TMPDIR": str(tmp_path / "tmp")})
    wait_for(lambda: all((tmp_path / f"at{rank}").exists() for rank in range(2)), "the test runs")
    process.send_signal(signum)
    process.communicate(timeout=60)  # and `stage` waits until no process is left
    own = [f"pytest-of-{getpass.getuser()}"]
    wait_for(lambda: [path.name for path in (tmp_path / "tmp").iterdir()] == own, "nothing else is left")


WARNS = """
import warnings
class Own(UserWarning):
    def __init__(self, a, b): super().__init__(f"{a} and {b}")
@pytest.mark.ranks(2)
def test_warns():
    warnings.warn("of both")
    if os.environ["RANK"] == "1": warnings.warn(Own(1, 2))
@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("error:marked")
def test_marked():
    warnings.warn("marked")
"""


def test_warnings(run) -> None:
    """One that each rank raises is one; and the filter of a test holds on ranks."""
    out, found = run(WARNS)
    assert found == {"passed": 1, "failed": 1, "warnings": 2}
    assert "UserWarning: of both" in out and "Own: 1 and 2" in out and "UserWarning: marked" in out


def test_warnings_are_errors(run) -> None:
    """On ranks; and this session, which has a job, warns of nothing itself."""
    out, found = run(WARNS, "-W", "error")
    assert found == {"failed": 2}
    assert "UserWarning: of both" in out and "ResourceWarning" not in out


def test_hooks_around_a_test(run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
import pytest
def pytest_assertrepr_compare(left):
    return [f"compared {left}"]
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.around = True
    return (yield)
""")
    text = "@pytest.mark.ranks(2)\ndef test_it(request):\n    assert request.node.around\n    assert 6 == 7\n"
    assert "compared 6" in run(text)[0]


def test_another_session_removes_the_folders_of_old_ones(run, pytester: pytest.Pytester) -> None:
    """As soon as pytest lets go of this one's, at its end."""
    pytester.makeconftest("""
import pytest, shutil
@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    shutil.rmtree(session.config._tmp_path_factory.getbasetemp())
""")
    out, found = run("@pytest.mark.ranks(2)\ndef test_it(): pass\n")
    assert found == {"passed": 1}
    assert "Error" not in out


def test_a_session_that_is_started_outside_of_its_root(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pytest.ini").write_text("[pytest]\nmarkers = own: of this file\n")
    text = "@pytest.mark.own\n@pytest.mark.ranks(2)\ndef test_it(): pass\n"
    (tmp_path / "inner" / "test_it.py").write_text(BEGIN + text)
    stage.run_argv(command("--strict-markers", "inner/test_it.py"), cwd=tmp_path, env=ALONE, code=0)


def test_ranks_leave_the_log_file_alone(run, pytester: pytest.Pytester) -> None:
    text = """
import logging
def test_before():
    logging.warning("before")
@pytest.mark.ranks(2)
def test_it():
    pass
"""
    run(text, "--log-file", "log")
    assert "before" in (pytester.path / "log").read_text()


SUBTESTS = """
@pytest.mark.ranks(3)
def test_on_one(subtests):
    for i in range(3):
        with subtests.test("of", i=i):
            assert (i, os.environ["RANK"]) != (1, "2")
@pytest.mark.ranks(2)
def test_equal_ones(subtests):
    for i in range(2):
        with subtests.test():
            pass
class TestUnits(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_of_unittest(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)
"""


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest has subtests since version 9")
def test_subtests(run) -> None:
    """Those of all ranks are reported as if there were one, and a test fails of which one has failed."""
    out, _ = run(SUBTESTS, "-v")
    lines = re.findall(r"^test_it.py::(?:TestUnits::)?(\w+) ([A-Z]+)", out, re.MULTILINE)
    assert lines == [
        *[("test_on_one", "SUBPASSED"), ("test_on_one", "SUBFAILED"), ("test_on_one", "SUBPASSED")],
        *[("test_on_one", "FAILED"), *[("test_equal_ones", "SUBPASSED")] * 2, ("test_equal_ones", "PASSED")],
        *[("test_of_unittest", "SUBPASSED"), ("test_of_unittest", "SUBFAILED"), ("test_of_unittest", "SUBPASSED")],
        ("test_of_unittest", "PASSED"),
    ]
    assert "contains 1 failed subtest" in out
    assert "rank 2 of 3 has failed" in out


@needs.modules("pytest_timeout")
@pytest.mark.parametrize("method", ["signal", "thread"])
def test_time_out_of_another_plug_in(run, method: str) -> None:
    """That of pytest-timeout is that of the ranks, and the next test runs."""
    text = """
@pytest.mark.timeout(2)
@pytest.mark.ranks(2)
def test_it():
    if os.environ["RANK"] == "1": time.sleep(1000)
@pytest.mark.ranks(2)
def test_next(): pass
"""
    out, found = run(text, "-p", "pytest_timeout", "--timeout-method", method)
    assert found == {"failed": 1, "passed": 1}
    assert "the test hangs: it is still running after 2 s" in out
    assert re.search(r"rank 1: Current thread.*\n.* in test_it\n", out)


@needs.modules("pytest_timeout")
def test_time_out_of_a_function(run) -> None:
    text = """
@pytest.mark.timeout(2, func_only=True)
@pytest.mark.ranks(2)
def test_it():
    if os.environ["RANK"] == "1": time.sleep(1000)
"""
    out, found = run(text, "-p", "pytest_timeout", "--timeout-method", "thread", "--ranks-timeout", "60")
    assert found == {"failed": 1}
    assert "the test hangs: its function is still running after 2 s" in out
    assert "rank 1 of 2 has failed" in out


@needs.modules("coverage")
def test_coverage(stage: Stage, tmp_path: Path) -> None:
    """Lines that run on one rank only are seen, and no file of data is broken."""
    (tmp_path / ".coveragerc").write_text("[run]\nparallel = true\npatch = subprocess, fork, _exit\ninclude = mod.py\n")
    (tmp_path / "mod.py").write_text(
        "import os\ndef which():\n    if os.environ['RANK'] == '0':\n        return 0\n    return 1\n"
    )
    text = "import mod\n@pytest.mark.ranks(2)\ndef test_it():\n    assert mod.which() in (0, 1)\n"
    (tmp_path / "test_it.py").write_text(BEGIN + text)
    python, *words = command("-q")
    coverage = [python, "-m", "coverage"]
    stage.run_argv([*coverage, "run", *words], cwd=tmp_path, code=0, env=ALONE)
    combined = stage.run_argv([*coverage, "combine"], cwd=tmp_path, code=0)
    assert "errored" not in combined.stdout + combined.stderr
    assert stage.run_argv([*coverage, "report"], cwd=tmp_path, code=0).stdout.split()[-1] == "100%"


CACHE = """
def test_here(cache):
    cache.set("example/kept", "kept")

@pytest.mark.ranks(2)
def test_one(cache):
    assert cache.get("example/kept", None) == "kept"
    cache.set("example/value", os.environ["RANK"])
    assert cache.get("example/value", None) == os.environ["RANK"]

@pytest.mark.ranks(2)
def test_two(cache):
    assert cache.get("example/value", None) == "0"
"""


def test_the_cache_is_written_by_rank_0(stage: Stage, tmp_path: Path) -> None:
    """The others see what is in it, and it is emptied once, before the first test."""
    (tmp_path / "test_it.py").write_text(BEGIN + CACHE)
    for option in ("--cache-clear", "--lf", "--sw"):
        done = stage.run_argv([*command()[:-2], option], cwd=tmp_path, env=ALONE)  # with pytest's cache
        assert " 3 passed" in done.stdout
        assert (tmp_path / ".pytest_cache/v/example/value").read_text() == '"0"'


def test_ranks_that_do_not_begin(stage: Stage, tmp_path: Path) -> None:
    """Here something in their Python hangs before they can say anything."""
    site = tmp_path / "site"
    site.mkdir()
    hangs = "import os, time\nif 'LOCAL_RANK' in os.environ: time.sleep(1000)\n"
    (site / "sitecustomize.py").write_text(hangs)
    (tmp_path / "test_it.py").write_text(BEGIN + "@pytest.mark.ranks(2)\ndef test_it(): pass\ndef test_here(): pass\n")
    environ = {**ALONE, "PYTHONPATH": str(site)}
    done = stage.run_argv(command("--ranks-timeout=1"), cwd=tmp_path, env=environ, code=1)
    assert "its ranks cannot be started: the ranks have not begun in 1 s" in done.stdout
    assert "1 passed, 1 error" in done.stdout


def test_the_output_of_a_rank_that_was_stopped_is_with_its_own_test(run) -> None:
    text = """
@pytest.mark.ranks(2)
def test_one(tmp_path):
    print("said by", "one", os.environ["RANK"], flush=True)
    (tmp_path / os.environ["RANK"]).touch()
    while len(os.listdir(tmp_path)) < 2: time.sleep(0.01)
    if os.environ["RANK"] == "1": assert 0
    time.sleep(1000)
@pytest.mark.ranks(2)
def test_two():
    assert 0
"""
    out, found = run(text)
    assert found == {"failed": 2}
    first, second = out.split("____ test_two ____")
    assert "said by one 0" in first and "said by one 1" in first and "said by" not in second
