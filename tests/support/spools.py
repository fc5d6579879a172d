"""Spools with records that wait for a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dejavu_client.http.circuit import ServerCalls
from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.sender import Sender, Spool

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json

from .records import context, record
from .service import Running

__all__ = ["deliver", "numbers", "singles", "spool_of"]


def numbers(url: str, token: str = "") -> set[int]:
    """Return M of each record that a server has."""
    base, namespace = split_server_url(url, "main")
    client = ProtocolClient(base, namespace=namespace, token=token)
    return {int(str(entry.scenario.args["M"])) for entry in client.records(context())}


def spool_of(url: str, folder: Path, *sets: RecordSet) -> Spool:
    """Return a spool in which record sets wait for a server."""
    spool = Spool(url, folder)
    for record_set in sets:
        assert spool.write(canonical_json(record_set).encode())
    return spool


class SendingTo(ProtocolClient):
    """Client of no server, whose record sets a function takes."""

    def __init__(self, send: Callable[[bytes, int], None]) -> None:
        super().__init__("http://server")
        self._take = send

    def send_json(self, body: bytes, records: int) -> None:
        self._take(body, records)


def deliver(spool: Spool, server: Running | Callable[[bytes, int], None]) -> tuple[int, list[str]]:
    """Send what waits in a spool to a server or to a function; return how much, and problems."""
    client = ProtocolClient(server.base) if isinstance(server, Running) else SendingTo(server)
    sender = Sender(ServerCalls(client, wait=30), spool)
    problems = sender.drain()
    return sender.sent, problems


def singles(*ms: int) -> list[RecordSet]:
    """Return record sets with one record each, by M."""
    return [RecordSet(context=context(), records=(record(m),)) for m in ms]
