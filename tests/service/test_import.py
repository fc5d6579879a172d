"""Imports of several lines of which one cannot be merged."""

from __future__ import annotations

from pathlib import Path

import httpx
from support.service import config, context, measurement, record, record_set, running_server

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import canonical_json

HALF = 50_001
"""More than half of the measurements that one record may have."""


def many_measurements(start: int) -> Record:
    """Return a record with half of the measurements that are too many for one."""
    one = measurement(config())
    params = ({"BLOCK": number} for number in range(start, start + HALF))
    configs = (config().model_copy(update={"params": values}) for values in params)
    return record(1, configs=0).model_copy(
        update={"measurements": tuple(one.model_copy(update={"config": each}) for each in configs)}
    )


def test_a_line_that_cannot_be_merged_is_named_with_what_was_imported(
    sqlite_url: str, tmp_path: Path
) -> None:
    full = context("shop.kernels.full")
    lines = [
        canonical_json(record_set(record(1), of=context("shop.kernels.first"))),
        canonical_json(record_set(many_measurements(0), of=full)),
        canonical_json(record_set(many_measurements(HALF), of=full)),
        canonical_json(record_set(record(1), of=context("shop.kernels.last"))),
    ]
    with running_server(sqlite_url, tmp_path / "log") as server:
        url = f"{server.base}/v1/main"
        answer = httpx.post(f"{url}/import", content="\n".join(lines), timeout=120)
        contexts = httpx.get(f"{url}/contexts").json()["contexts"]
    assert answer.status_code == 422
    assert "line 3" in answer.json()["detail"]
    assert "the 2 record sets before it are imported" in answer.json()["detail"]
    names = {found["kernel"]["name"] for found in contexts}
    assert names == {"shop.kernels.first", "shop.kernels.full"}
