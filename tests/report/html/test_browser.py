"""The page in headless Chromium: no console error, and everything that a reader can do.

Skipped where Chromium, its driver or selenium is missing. Times are recorded, not asserted.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuseq.report.html import write_report
from tests.report.html.documents import DOCUMENT, HOSTILE, engine, hostile, kernel

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
Service = pytest.importorskip("selenium.webdriver.chrome.service").Service
pytest.importorskip("fast_sugiyama", reason="the report extra is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
DRIVER = shutil.which("chromedriver") or ""
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--force-prefers-reduced-motion",
)
TABLE = "#kernels-1 tbody tr"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_window_size(1280, 900)
    driver.implicitly_wait(5)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    many = tuple(kernel(f"k{i}", ("gemm", "quantize")[i % 2], "int8", 100.0 - i, (f"n{i}",)) for i in range(12))  # fmt: skip
    busy = dataclasses.replace(DOCUMENT, engines=(DOCUMENT.engines[0], engine("quantized", "INT8", many)))  # fmt: skip
    write_report(folder / "good.html", DOCUMENT)
    write_report(folder / "busy.html", busy)
    write_report(folder / "hostile.html", hostile(DOCUMENT))
    return folder


def opened(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    browser.execute_script("try { localStorage.clear(); } catch {}")
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(page.as_uri())


def column(browser: Any, number: int, visible: bool = True) -> list[str]:
    return list(
        browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].filter((row) => !row.hidden)"
            ".map((row) => row.cells[arguments[1]].querySelector('summary, data, span')?.textContent"
            " ?? row.cells[arguments[1]].textContent)",
            TABLE,
            number,
        )
    )


def graph(browser: Any) -> None:
    """Bring the graph on the screen and wait until it is made."""
    browser.execute_script("document.getElementById('graph').scrollIntoView({behavior: 'instant'})")
    browser.execute_async_script(
        "const done = arguments[0]; const stage = document.getElementById('graph-stage');"
        "const look = () => stage.graph ? requestAnimationFrame(() => done()) : setTimeout(look, 20); look();"
    )


def click_node(browser: Any, name: str) -> None:
    """A real click at the node's place on the canvas."""

    canvas = browser.find_element("id", "graph-canvas")
    x, y = browser.execute_script(
        "const {model, drawing} = document.getElementById('graph-stage').graph;"
        "drawing.canvas.scrollIntoView({block: 'center'});"
        "const node = model.indexOf(arguments[0]); drawing.reveal(node); drawing.draw();"
        "return [(model.x[node] - drawing.left) * drawing.scale - drawing.canvas.clientWidth / 2,"
        "(model.y[node] - drawing.top) * drawing.scale - drawing.canvas.clientHeight / 2]",
        name,
    )
    webdriver.ActionChains(browser).move_to_element_with_offset(
        canvas, round(x) + 12, round(y) + 4
    ).click().perform()


@pytest.mark.parametrize("name", ["good", "busy", "hostile"])
def test_no_console_message(
    browser: Any, pages: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    opened(browser, pages / f"{name}.html")
    graph(browser)
    paint = browser.execute_script("return performance.getEntriesByName('first-paint')[0]?.startTime")  # fmt: skip
    record_property("first_paint_ms", paint)
    assert browser.get_log("browser") == []


def test_hostile_names_run_nothing(browser: Any, pages: Path) -> None:
    opened(browser, pages / "hostile.html")
    graph(browser)
    assert browser.title != "owned"
    assert browser.execute_script("return document.images.length") == 0
    name = browser.execute_script(
        "const stage = document.getElementById('graph-stage').graph; stage.select(3, true);"
        "return document.querySelector('#graph-detail dd').textContent"
    )
    assert name == "conv" + HOSTILE.replace("\x1b", "\ufffd").replace("\x00", "\ufffd").replace("\u202e", "\ufffd")  # fmt: skip
    assert (
        browser.execute_script("return document.querySelectorAll('#graph-detail img').length") == 0
    )


def test_sort(browser: Any, pages: Path) -> None:
    opened(browser, pages / "busy.html")
    heading = browser.find_element("css selector", "#kernels-1 th[data-column='0'] button")
    heading.click()
    assert column(browser, 1)[0] == "k0"
    heading.click()
    assert column(browser, 1)[:2] == ["k11", "k10"]
    state = browser.find_element("css selector", "#kernels-1 th[data-column='0']")
    assert state.get_attribute("aria-sort") == "descending"
    browser.find_element("css selector", "#kernels-1 th[data-column='4'] button").click()
    assert column(browser, 4)[:2] == ["100.0 \N{MICRO SIGN}s", "99.0 \N{MICRO SIGN}s"]
    assert state.get_attribute("aria-sort") == "none"


def test_filter_and_search(browser: Any, pages: Path) -> None:
    opened(browser, pages / "busy.html")
    search = browser.find_element("css selector", "#kernels-1 input[type=search]")
    search.send_keys("k1")
    assert column(browser, 1) == ["k1", "k10", "k11"]
    browser.execute_script(
        "const choice = document.querySelector('#kernels-1 select[data-column=\"2\"]');"
        "choice.value = 'quantize'; choice.dispatchEvent(new Event('change'));"
    )
    assert column(browser, 1) == ["k1", "k11"]
    shown = browser.find_element("css selector", "#kernels-1 .shown")
    assert shown.text == "2 of 12"
    search.clear()
    search.send_keys("n10 gemm")
    assert column(browser, 1) == []


def test_node_click_shows_its_details(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    graph(browser)
    detail = browser.find_element("id", "graph-detail")
    assert not detail.is_displayed()
    click_node(browser, "x_q")
    text = detail.text
    for part in ("QuantizeLinear", "x_q", "model.py:7", "int8, 8\N{MULTIPLICATION SIGN}3\N{MULTIPLICATION SIGN}8\N{MULTIPLICATION SIGN}8, 1.5 kB", "scale 0.0123", "4.1 \N{MICRO SIGN}s"):  # fmt: skip
        assert part in text
    detail.find_element("css selector", ".tool").click()
    assert not detail.is_displayed()


def test_keyboard_walks_the_graph(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    graph(browser)
    click_node(browser, "x_dq")
    canvas = browser.find_element("id", "graph-canvas")
    stage = browser.find_element("id", "graph-stage")
    canvas.send_keys(Keys.ARROW_DOWN)
    assert stage.get_attribute("data-selected") == "conv"
    canvas.send_keys(Keys.ARROW_UP)
    canvas.send_keys(Keys.ARROW_UP)
    assert stage.get_attribute("data-selected") == "x_q"
    canvas.send_keys(Keys.ESCAPE)
    assert stage.get_attribute("data-selected") == ""


def test_wheel_zooms_only_after_a_click_and_buttons_always(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    graph(browser)

    def scale() -> float:
        return float(browser.execute_script("return document.getElementById('graph-stage').graph.drawing.scale"))  # fmt: skip

    turn = (
        "document.getElementById('graph-canvas').dispatchEvent("
        "new WheelEvent('wheel', {deltaY: -100, offsetX: 9, cancelable: true}))"
    )
    assert scale() == 1.0
    browser.execute_script(turn)
    assert scale() == 1.0
    click_node(browser, "conv")
    browser.execute_script(turn)
    assert scale() == pytest.approx(math.exp(0.16))
    browser.find_element("css selector", "[data-graph='out']").click()
    assert scale() == pytest.approx(math.exp(0.16) / 1.4)


def test_pointing_at_a_number_shows_it_in_full(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    number = browser.find_element("css selector", ".card data[value='26.3125']")
    assert number.text == "26.3 \N{MICRO SIGN}s"
    webdriver.ActionChains(browser).move_to_element(number).perform()
    assert number.get_attribute("title") == "26.3125 us"


def test_search_in_the_graph(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    graph(browser)
    field = browser.find_element("id", "graph-search")
    field.send_keys("relu")
    assert browser.find_element("id", "graph-found").text == "1 found"
    field.send_keys(Keys.ENTER)
    assert browser.find_element("id", "graph-stage").get_attribute("data-selected") == "relu"


def test_finding_leads_to_the_graph_and_the_graph_to_the_table(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    browser.find_element("css selector", "a[data-node='x_q']").click()
    assert browser.find_element("id", "graph-stage").get_attribute("data-selected") == "x_q"
    browser.find_element("css selector", "#graph-detail a").click()
    row = browser.find_element("id", "kernel-1-0")
    assert "lit" in row.get_attribute("class")
    assert row.find_element("css selector", "details").get_attribute("open") is not None


def test_modules_collapse(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")

    def shown() -> list[str]:
        return list(browser.execute_script("return [...document.querySelectorAll('.tree tbody tr')].filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"))  # fmt: skip

    assert shown() == ["(whole model)", "encoder", "layer0", "head"]
    button = browser.find_elements("css selector", ".tree button")[1]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert shown() == ["(whole model)", "encoder", "head"]
    button.click()
    assert shown() == ["(whole model)", "encoder", "layer0", "head"]


def test_dark_mode(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    button = browser.find_element("id", "theme")

    def ground() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    assert (button.text, ground()) == ("Theme: system", "rgb(245, 246, 248)")
    button.click()
    button.click()
    assert (button.text, ground()) == ("Theme: dark", "rgb(14, 17, 22)")
    button.click()
    assert (button.text, ground()) == ("Theme: system", "rgb(245, 246, 248)")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert (button.text, ground()) == ("Theme: system", "rgb(14, 17, 22)")
    button.click()
    assert (button.text, ground()) == ("Theme: light", "rgb(245, 246, 248)")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_narrow_page_does_not_scroll_sideways(browser: Any, pages: Path) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    opened(browser, pages / "busy.html")
    wide, seen = browser.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert seen < 400
    assert wide == seen


def test_every_control_has_a_name(browser: Any, pages: Path) -> None:
    opened(browser, pages / "good.html")
    graph(browser)
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    wanted = {"button", "searchbox", "combobox", "link", "table", "treegrid", "application"}
    nodes = [n for n in tree if n.get("role", {}).get("value") in wanted]
    assert len(nodes) > 30
    assert [
        n["role"]["value"] for n in nodes if not n.get("name", {}).get("value", "").strip()
    ] == []
