"""The pages in a headless Chromium."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from support.browser import CHROMIUM, open_browser
from support.service import body, config, context, record, record_set, running_server, scenario

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here")


def test_a_reader_walks_from_a_kernel_to_a_costly_pin(sqlite_url: str, tmp_path: Path) -> None:
    with running_server(sqlite_url, tmp_path / "log") as server, open_browser() as browser:
        sent = body(record_set(*map(record, range(1, 5))))
        httpx.post(f"{server.base}/v1/main/records", json=sent)
        pin = f"{server.base}/v1/main/contexts/{context().digest}/pins/{scenario(3).digest}"
        httpx.put(pin, json={"config": body(config(64)), "by": "ann"})
        miss = {"context": body(context()), "scenario": body(scenario(9))}
        httpx.post(f"{server.base}/v1/main/misses", json={"misses": [miss]})
        for width, dark in ((390, False), (1920, True)):
            browser.show(width, dark=dark)
            assert "4 of 5" in browser.open(f"{server.base}/pages/main?sort=tuning")
            browser.fill("input[name=q]", "matmul")
            assert "4 of 5" in browser.click(".filters button")
            assert "Which config wins where" in browser.click("tbody th a")
            assert "1 pinned config costs 5% or more" in browser.click("thead a")
            browser.click(".loud a")
            assert "sort=excess" in browser.path
            assert "This pin costs 20.0%" in browser.click("td a")
            for path in ("", "/misses", "/activity"):
                browser.open(f"{server.base}/pages/main{path}")
                width_needed = browser.run("document.documentElement.scrollWidth")
                assert width_needed <= width, f"{path} is wider than {width} pixels"
        assert browser.complaints == []
