"""The pages in a headless Chromium."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import service
from support.browser import CHROMIUM, Browser, open_browser
from support.sweeping import wait_until

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Scenario

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here")

SCENARIO = f"/pages/main/contexts/{service.context().digest}/scenarios/{service.scenario(3).digest}"


@pytest.fixture
def base(sqlite_url: str, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a server with records, a miss, a costly pin and one token, an admin's."""
    with (
        service.running_server(sqlite_url, tmp_path / "log") as server,
        httpx.Client(base_url=server.base, timeout=60) as client,
    ):
        service.post(client, *map(service.record, range(1, 5)))
        service.post(client, *map(service.record, (1, 2, 3, 4, 8)), to="pr-7")
        service.pin(client, 64, 3)
        client.post("/v1/main/misses", json={"misses": [service.miss(9)]})
        yield server.base


def test_people_log_in_and_look_for_a_costly_pin(base: str, sqlite_url: str) -> None:
    token = service.make_token(sqlite_url, "admin")
    wait_until(lambda: httpx.get(f"{base}/pages/main").status_code == 401)
    with open_browser() as browser:
        assert "Token" in browser.open(f"{base}/pages/main?sort=seconds")
        browser.fill("#token", token)
        assert "4 of 5" in browser.click("main button")
        assert browser.path == "/pages/main?sort=seconds"
        browser.show(390)
        walk_to_the_pin(browser, base)
        require_no_page_wider_than(browser, base, 390)
        browser.show(1920, dark=True)
        assert "Token" in browser.click("footer button")
        assert "Token" in browser.open(f"{base}/pages/main"), "logged out"
        # The browser itself reports every answer with an error's status.
        assert all("401" in complaint for complaint in browser.complaints)


def walk_to_the_pin(browser: Browser, base: str) -> None:
    browser.open(f"{base}/pages/main?sort=seconds")
    browser.fill("input[name=q]", "matmul")
    assert "4 of 5" in browser.click(".filters button")
    assert "Which config wins where" in browser.click("tbody th a")
    assert "1 pinned config costs 5% or more" in browser.click("thead a")
    browser.click(".loud a")
    assert "sort=excess" in browser.path
    assert "This pin costs 20.0%" in browser.click("td a")


def require_no_page_wider_than(browser: Browser, base: str, width: int) -> None:
    home = f"/pages/main/contexts/{service.context().digest}"
    others = ("/pages/main/misses", "/pages/main/activity", "/pages/pr-7/compare?to=main")
    for path in ("/namespaces", "/pages/main", home, SCENARIO, f"{home}/compare?to=pr-7", *others):
        browser.open(f"{base}{path}")
        width_needed = browser.run("document.documentElement.scrollWidth")
        assert width_needed <= width, f"{path} is wider than {width} pixels"


def test_long_names_make_no_page_wider_than_its_window(base: str) -> None:
    name, device, by = "shop." + "k" * 200, "NVIDIA " + "g" * 100, "b" * 180
    scenario_of_text = Scenario(args={"M": 1, "a" * 60: "v" * 150}, dtypes={"x": "float16"})
    slow, fast = (
        service.measurement(service.config(block), block / 64, by=by) for block in (64, 16)
    )
    long = Record(scenario=scenario_of_text, measurements=(slow, fast))
    of = service.context(name, device)
    httpx.post(f"{base}/v1/main/records", json=service.body(service.record_set(long, of=of)))
    where = f"{base}/v1/main/contexts/{of.digest}/pins/{scenario_of_text.digest}"
    httpx.put(where, json={"config": service.body(slow.config), "by": "w" * 100})
    home = f"/pages/main/contexts/{of.digest}"
    with open_browser() as browser:
        for width in (390, 1400):
            browser.show(width)
            for path in ("/pages/main", home, f"{home}/scenarios/{scenario_of_text.digest}"):
                browser.open(f"{base}{path}")
                assert browser.run("document.documentElement.scrollWidth") <= width, path


def test_equal_shares_have_equal_bars_beside_whole_columns(base: str) -> None:
    many = service.record_set(
        *map(service.record, range(1, 200)), of=service.context("shop.attention.kernels.segmented")
    )
    httpx.post(f"{base}/v1/main/records", json=service.body(many))
    with open_browser() as browser:
        for width in (1100, 1280):
            browser.show(width)
            browser.open(f"{base}/pages/main")
            bars = "[...document.querySelectorAll('meter')].map(bar => bar.offsetWidth)"
            assert browser.run(f"new Set({bars}).size") == 1
            hidden = "document.querySelector('.wide').scrollWidth > innerWidth - 64"
            assert not browser.run(hidden), width
