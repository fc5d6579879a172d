"""Requests to a server whose speed is not measured."""

from __future__ import annotations

import httpx

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context

_CLIENT = httpx.Client()


def records_path(context: Context) -> str:
    """Return the path of a context's records."""
    return f"/v1/main/contexts/{context.digest}/records"


def post_records(port: int, token: str, context: Context, records: list[Record]) -> None:
    """Send records of a context."""
    record_set = RecordSet(context=context, records=tuple(records))
    _CLIENT.post(
        f"http://127.0.0.1:{port}/v1/main/records",
        content=record_set.model_dump_json(exclude_none=True),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        timeout=60,
    ).raise_for_status()
