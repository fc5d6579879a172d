"""Imports of several lines of which one cannot be merged."""

from __future__ import annotations

from pathlib import Path

import httpx
from support.service import START, context, record, record_set, running_server, scenario

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, canonical_json

LINES, PART = 5, 20_001
"""Together more measurements than one record may have."""


def many_measurements(part: int) -> Record:
    """Return a record with a part of the measurements that are too many for one."""
    configs = (Config(params={"BLOCK": part * PART + number}) for number in range(PART))
    measurements = (Measurement(config=config, median=1.0, at=START) for config in configs)
    return Record(scenario=scenario(), measurements=tuple(measurements))


def test_a_line_that_cannot_be_merged_is_named_with_what_was_imported(
    sqlite_url: str, tmp_path: Path
) -> None:
    full = context("shop.kernels.full")
    lines = [
        canonical_json(record_set(record(1), of=context("shop.kernels.first"))),
        *(canonical_json(record_set(many_measurements(part), of=full)) for part in range(LINES)),
        canonical_json(record_set(record(1), of=context("shop.kernels.last"))),
    ]
    with running_server(sqlite_url, tmp_path / "log") as server:
        url = f"{server.base}/v1/main"
        answer = httpx.post(f"{url}/import", content="\n".join(lines), timeout=120)
        contexts = httpx.get(f"{url}/contexts").json()["contexts"]
    assert answer.status_code == 422
    assert f"line {LINES + 1}" in answer.json()["detail"]
    assert f"the {LINES} record sets before it are imported" in answer.json()["detail"]
    names = {found["kernel"]["name"] for found in contexts}
    assert names == {"shop.kernels.first", "shop.kernels.full"}
