"""Remote stores that a test opens and its end closes."""

from __future__ import annotations

from pathlib import Path

import httpx
from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from dejavu_client.http.transport import Transport

__all__ = ["close_all", "open_remote", "through"]

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
