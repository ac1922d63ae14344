"""The pytest plug-in: runs a test that is marked with ``ranks`` on so many ranks, and reports it as one test.

The ranks are those of a Bireme job that stays for the whole session. Each has collected the test's file, and forks for
each test (:mod:`bireme.pytest_plugin.rank_runner`).
"""

from __future__ import annotations

from typing import Any

import pytest

POOL = pytest.StashKey[Any]()
IS_RANK = "bireme-rank"
"""The plug-in that a session on a rank has registered."""
LIMIT = 300.0
"""Seconds after which a test hangs where nothing else is said."""
TIMEOUT = pytest.StashKey[float]()
"""The time-out that pytest-timeout has for a test on ranks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--ranks-timeout``."""
    group = parser.getgroup("bireme", "tests on ranks (bireme)")
    group.addoption(
        "--ranks-timeout",
        type=float,
        metavar="SECONDS",
        help="time after which a test on ranks counts as hanging: its ranks are ended, and their stacks shown (300, or"
        " the time-out of pytest-timeout)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    if config.option.usepdb:
        from bireme.pytest_plugin.rank_runner import SharedFolder

        config.pluginmanager.register(SharedFolder(), "bireme-shared-folder")
    config.addinivalue_line("markers", "ranks(n): run this test on n ranks; a list of numbers parametrizes it")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test whose marker has a list of numbers."""
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is not None and marker.args and isinstance(marker.args[0], (list, tuple)):
        if "ranks" not in metafunc.fixturenames:
            metafunc.fixturenames.append("ranks")
        metafunc.parametrize("ranks", marker.args[0])


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> int:
    """How many ranks run this test."""
    return count_of(request.node) or 1


def count_of(item: pytest.Item) -> int:
    """On how many ranks a test is to run; 0: it has no marker."""
    marker = item.get_closest_marker("ranks")
    if marker is None:
        return 0
    callspec = getattr(item, "callspec", None)
    count = callspec.params.get("ranks") if callspec is not None else None
    count = count if count is not None else marker.args[0] if marker.args else None
    if not isinstance(count, int) or count < 1:
        raise pytest.UsageError(f"{item.nodeid}: ranks(n) needs a number of at least 1, not {count!r}")
    return count


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test on ranks."""
    if item.config.pluginmanager.hasplugin(IS_RANK) or not (count := count_of(item)):
        return None
    from bireme.errors import BiremeError
    from bireme.pytest_plugin.session_ranks import RankPool

    config = item.config
    limits = (config.option.ranks_timeout, item.stash.get(TIMEOUT, None))
    limit = min((each for each in limits if each is not None), default=LIMIT)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    pool = config.stash.get(POOL, None)
    if pool is not None and (pool.size < count or pool.is_broken):
        del config.stash[POOL]
        pool.close()
        pool = None
    try:
        if pool is None:
            pool = config.stash[POOL] = RankPool(config, max(map(count_of, item.session.items)), limit)
        reports = pool.run(item, count, limit)
    except BiremeError as error:
        what = f"its ranks cannot be started: {error}"
        reports = [pytest.TestReport(item.nodeid, item.location, {}, "failed", what, "setup")]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.session._setupstate.teardown_exact(nextitem)  # what tests before have left for this one
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Make the time-out of pytest-timeout that of the ranks; here it would end the session."""
    if not count_of(item):
        return None
    item.stash[TIMEOUT] = settings.timeout
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the ranks, before pytest lets go of its temporary folder, which other sessions may then remove."""
    pool = session.config.stash.get(POOL, None)
    if pool is not None:
        pool.close()
