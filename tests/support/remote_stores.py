"""Remote stores that a test opens and its end closes, and spools that wait for a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
from dejavu_client.http.circuit import ServerCalls
from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Sender, Spool
from dejavu_client.http.transport import Transport

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json

from .records import context, record
from .service import Running

_made: list[RemoteStore] = []


def open_remote(url: str, tmp_path: Path, wait: float = 5.0, token: str = "") -> RemoteStore:
    """Return a store on a server, with a spool in a folder."""
    base, namespace = split_server_url(url, "main")
    client = ProtocolClient(base, namespace=namespace, token=token)
    _made.append(RemoteStore(client, wait=wait, spool=Spool(url, tmp_path / "spool")))
    return _made[-1]


def close_all() -> None:
    """Close the stores that were opened."""
    while _made:
        _made.pop().close()


def through(client: httpx.Client) -> Transport:
    """Return a transport whose requests an application's test client answers."""

    def answer(request: httpx.Request) -> httpx.Response:
        content, headers = request.content, request.headers
        sent = client.request(request.method, request.url, headers=headers, content=content)
        sent.headers.pop("content-encoding", None)  # its content is decompressed
        return httpx.Response(sent.status_code, headers=sent.headers, content=sent.content)

    return Transport(httpx.MockTransport(answer))


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
