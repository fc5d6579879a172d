"""An issuer of identity tokens that hangs or answers nonsense costs only the exchange."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from dejavu_service import identities
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from support.service import client_of

Write = Callable[[bytes], Any]


@contextmanager
def issuer(answer: Callable[[Write], None]) -> Iterator[str]:
    """Yield the URL of an issuer that begins to answer, and goes on as `answer` does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                self.send_response(200)
                self.end_headers()
                answer(self.wfile.write)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def client_for(url: str, database: str, folder: Path) -> Iterator[httpx.Client]:
    rules = folder / "oidc.toml"
    rules.write_text(f"""
[[issuers]]
issuer = "{url}"
audience = "here"
jwks = "{url}/keys"
rules = [{{ claims = {{ sub = "job" }}, grants = {{ main = "read" }} }}]
""")
    with client_of(create_app(ServerSettings(database=database, oidc=rules))) as client:
        yield client


def forged_token(url: str) -> str:
    """Return a token that anybody can write, by which the server asks for the issuer's keys."""
    parts = ({"alg": "RS256", "kid": "first"}, {"iss": url, "sub": "job"})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join([*(text.rstrip("=") for text in texts), "AAAA"])


def exchange(client: httpx.Client, url: str) -> httpx.Response:
    return client.post("/v1/token-exchange", json={"token": forged_token(url)})


def test_exchanges_that_wait_for_an_issuer_keep_no_other_request_waiting(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_TIMEOUT", 60.0)
    asked, over = threading.Event(), threading.Event()

    def hang(_: Write) -> None:
        asked.set()
        over.wait(60)

    with (
        issuer(hang) as url,
        client_for(url, sqlite_url, tmp_path) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        waiting = [pool.submit(exchange, client, url) for _ in range(50)]
        assert asked.wait(240)
        assert client.get("/v1/main/contexts").status_code == 200
        assert not any(exchanged.done() for exchanged in waiting)
        over.set()
        assert {exchanged.result().status_code for exchanged in waiting} == {503}


@pytest.mark.parametrize("text", ["{}", '{"keys": null}', '{"keys": 5}', "[" * 100_000, "7"])
def test_an_answer_without_keys_counts_as_none(sqlite_url: str, tmp_path: Path, text: str) -> None:
    with (
        issuer(lambda write: write(text.encode())) as url,
        client_for(url, sqlite_url, tmp_path) as client,
    ):
        answer = exchange(client, url)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "cannot be read" in answer.json()["detail"]
