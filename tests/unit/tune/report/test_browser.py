"""The report in a real browser: no console error, no request, plots are drawn, sorting sorts, the switch works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.cli import tune_report
from bireme.tune.look import read_study
from bireme.tune.report.page import vega
from tests.kit import needs
from tests.kit.waiting import wait_for
from tests.unit.tune.report.studies import BASELINE, BEGIN, StudyMaker, finished

pytestmark = [
    pytest.mark.slow,
    needs.programs("chromium", "chromedriver"),
    needs.modules("selenium", "vl_convert"),
]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = finished(tmp_path_factory.mktemp("study") / "tuning")
    assert tune_report.main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = needs.program("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(needs.program("chromedriver")))
    yield driver
    driver.quit()


def opened(browser: Any, report: Path, *, scheme: str = "light", width: int = 1200) -> None:
    """Load the page, and forget what the browser logged before."""
    sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(f"file://{report}")
    wait_for(lambda: browser.execute_script("return document.documentElement.dataset.ready"))


def requests(browser: Any) -> list[str]:
    """The addresses that the page asked for, beside itself; data in the page is no request."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [each["request"]["url"] for each in asked if not each["request"]["url"].startswith(("data:", "chrome:"))]


def texts(browser: Any, selector: str) -> list[str]:
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
    )
    return found


def test_it_is_drawn_without_errors_and_without_a_network(browser: Any, report: Path) -> None:
    opened(browser, report)
    assert browser.get_log("browser") == []
    assert requests(browser) == [f"file://{report}"]
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('[data-chart]')].map((each) => ["
        "each.dataset.chart, each.querySelectorAll('svg path').length, each.getBoundingClientRect().height])"
    )
    assert [name for name, _, _ in drawn] == [
        "forest samples/s",
        *(f"effect {place}" for place in range(4)),
        "progress",
    ]
    assert all(marks > 3 and height > 100 for _, marks, height in drawn), drawn
    assert texts(browser, "#headline") == ["batch=128 compile=on OMP_NUM_THREADS=2"]
    assert "1.64" in texts(browser, ".ratio")[0]


def test_hostile_text_stays_text(browser: Any, report: Path) -> None:
    """Names of values, reasons and logs with script tags: shown, in the table, in plots and in their tips."""
    opened(browser, report)
    browser.execute_script("document.getElementById('all').click()")
    browser.execute_script("document.querySelectorAll('td.open button').forEach((each) => each.click())")
    shown = "\n".join(texts(browser, "tr.detail pre"))
    assert "<script>window.hacked = 1</script>" in shown and "\\xff\\xfe" in shown and "\x1b" not in shown
    # Even if markup got into the page, its policy would not run it.
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    wait_for(lambda: any("Content Security Policy" in each["message"] for each in browser.get_log("browser")))
    assert browser.execute_script("return window.hacked") is None
    assert not browser.execute_script("return document.querySelector('main b:not(.open):not(.eyebrow b), main i img')")


def test_sorting_by_the_keyboard_and_filtering(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, report)
    browser.execute_script("document.getElementById('all').click()")
    heads = browser.find_elements(By.CSS_SELECTOR, "#table th button")
    titles = [each.text for each in heads]
    seconds = titles.index("Seconds")

    def column(place: int) -> list[str]:
        return texts(browser, f"#table tbody tr > td:nth-child({place + 1})")

    figures = [float(each.replace(",", "")) for each in column(1) if each]
    assert len(figures) == 57 and figures == sorted(figures, reverse=True)
    for ordered in (False, True):
        heads[seconds].send_keys(Keys.ENTER)
        values = [float(each) for each in column(seconds)]
        assert values == sorted(values, reverse=ordered)
    cell = browser.find_elements(By.CSS_SELECTOR, "#table th")[seconds]
    assert cell.get_attribute("aria-sort") == "descending"

    browser.find_element(By.ID, "find").send_keys("batch=512")
    assert set(column(titles.index("batch"))) == {"512"} and set(column(titles.index("End"))) == {"out of memory"}
    browser.find_element(By.CSS_SELECTOR, "td.open button").send_keys(Keys.ENTER)
    assert "CUDA out of memory" in browser.find_element(By.CSS_SELECTOR, "tr.detail").text


def test_colours_follow_the_system_and_the_switch(browser: Any, report: Path) -> None:
    def colours() -> list[str]:
        found: list[str] = browser.execute_script(
            "return [getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('[data-chart] .role-axis-label text').getAttribute('fill')]"
        )
        return found

    opened(browser, report, scheme="dark")
    dark = colours()
    browser.execute_script("document.getElementById('theme').click()")  # light, whatever the system has
    light = wait_for(lambda: colours() if colours()[1] != dark[1] else None)
    assert dark[0] != light[0] and light[0] == "rgb(255, 255, 255)"
    browser.execute_script("document.getElementById('theme').click(); document.getElementById('theme').click()")
    wait_for(lambda: colours() == dark)


def test_two_goals_while_the_study_runs(browser: Any, tmp_path: Path) -> None:
    """A study that has no answer yet, of two goals: their plot, and a best that is not confirmed."""
    made = StudyMaker(tmp_path, logs=False)
    goals = [{"name": "samples/s", "direction": "maximize"}, {"name": "p99", "direction": "minimize"}]
    made.begin(goals=goals)
    for threads in (1, 2, 4) * 3:
        made.trial({**BASELINE, "OMP_NUM_THREADS": threads}, "noise")  # no trial fails
    made.start(BASELINE, "search", 0)
    made.journal.close()
    study, secrets = read_study(str(tmp_path))
    tune_report.write(study, secrets, str(tmp_path / "report.html"), BEGIN + 600, vega())
    opened(browser, tmp_path / "report.html")
    assert browser.get_log("browser") == []
    drawn = browser.execute_script("return document.querySelectorAll('[data-chart=front] svg path').length")
    assert drawn > 3 and "not confirmed" in texts(browser, ".eyebrow")[0] and "p99, ms" in texts(browser, "#table th")


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Any, report: Path) -> None:
    opened(browser, report, width=360)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 360
    assert browser.get_log("browser") == []
