"""Replicas whose clocks are days apart agree on what is dated ahead."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import httpx
import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.transport import Transport

from dejavu_cache.model import scenario as clock


@pytest.mark.parametrize("days", [-400, -2, 0.5, 2, 4000])
def test_a_machine_whose_clock_is_days_off_dates_by_the_servers(
    days: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the server refuses all that it measures, and each of its processes tunes again."""
    monkeypatch.setattr(clock, "_corrections", [timedelta(days=days)])
    date = format_datetime(datetime.now(timezone.utc), usegmt=True)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers={"date": date}))
    ProtocolClient("http://server", transport=Transport(transport)).check_ready()
    error = abs(clock.now() - datetime.now(timezone.utc))
    assert error < (timedelta(minutes=1) if abs(days) > 1 else timedelta(days=1))
    assert caplog.text.count("set the clock right") == (abs(days) > 1)


@pytest.mark.parametrize(
    "date", ["", "soon", "Fri, 31 Dec 9999 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"]
)
def test_a_server_that_does_not_know_the_time_changes_nothing(
    date: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_corrections", [timedelta(0)])
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers={"date": date}))
    ProtocolClient("http://server", transport=Transport(transport)).check_ready()
    assert abs(clock.now() - datetime.now(timezone.utc)) < timedelta(minutes=1)
