"""Spools with records that wait for a server."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.spool import Spool
from dejavu_client.http.spool_delivery import Delivery, deliver_spool

from dejavu_cache.model.record import RecordSet

from .records import context, record
from .service import Running

__all__ = ["deliver", "numbers", "singles", "spool_of"]


def numbers(url: str, token: str = "") -> set[int]:
    """Return M of each record that a server has."""
    base, namespace = split_server_url(url, "main")
    with closing(ProtocolClient(base, namespace=namespace, token=token)) as client:
        bulk = client.bulk(context())
    assert bulk is not None
    return {int(str(entry.scenario.args["M"])) for entry in bulk.records}


def spool_of(url: str, folder: Path, *sets: RecordSet) -> Spool:
    """Return a spool in which record sets wait for a server."""
    spool = Spool(url, folder)
    for record_set in sets:
        assert spool.add(record_set)
    return spool


def deliver(spool: Spool, server: Running) -> Delivery:
    """Send what waits in a spool."""
    with closing(ProtocolClient(server.base)) as client:
        return deliver_spool(spool, client.send_json, in_hand=0)


def singles(*ms: int) -> list[RecordSet]:
    """Return record sets with one record each, by M."""
    return [RecordSet(context=context(), records=(record(m),)) for m in ms]
