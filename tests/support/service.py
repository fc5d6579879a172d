"""Records to send, databases to keep them in, servers to send them to, and who may."""

import itertools
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.services.requests import Call
from dejavu_service.storage.database import Database
from fastapi import FastAPI

from dejavu_cache.model.record import Failure, Measurement, Record, RecordSet, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario
from support import records as made_up
from support.fork_server import Child, light_nursery

# A busy machine may let a request wait for longer than the 5 s that httpx gives it.
for _step in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _step, 240.0)

_FIRST_PORT, _MOST_WORKERS = 12_000, 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _MOST_WORKERS
_ports = itertools.count()

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def context(kernel: str = "shop.kernels.matmul", device: str = "NVIDIA H200") -> Context:
    return made_up.context(kernel=kernel, device=device)


def config(block: int = 64, warps: int = 4) -> Config:
    return Config(
        params={"BLOCK_M": block, "BLOCK_N": 64}, options={"num_warps": warps, "num_stages": 3}
    )


def scenario(m: int = 1) -> Scenario:
    return Scenario(
        args={"M": m, "N": 4096, "K": 4096}, dtypes={"a_ptr": "float16", "b_ptr": "float16"}
    )


def measurement(
    of: Config, median: float | None = 0.1, after: float = 0, by: str = "ann@h200-1"
) -> Measurement:
    at = START + timedelta(seconds=after)
    if median is None:
        failure = Failure(kind="out_of_resources", reason="shared memory: 295 KiB of 227 KiB")
        return Measurement(config=of, failure=failure, at=at, by=by)
    return Measurement(
        config=of, median=median, p20=median * 0.98, p80=median * 1.04, at=at, by=by, seconds=0.4
    )


def record(
    m: int = 1, median: float = 0.1, configs: int = 3, after: float = 0, by: str = "ann@h200-1"
) -> Record:
    """Return a record whose first config is the fastest."""
    declared = [config(16 * 2**power) for power in range(configs)]
    measured = [
        measurement(candidate, median * (1 + 0.1 * rank), after, by)
        for rank, candidate in enumerate(declared)
    ]
    winner = Winner(config=declared[0], at=START + timedelta(seconds=after)) if declared else None
    return Record(scenario=scenario(m), winner=winner, measurements=tuple(measured))


def record_set(*records: Record, of: Context | None = None) -> RecordSet:
    return RecordSet(context=of or context(), records=records or (record(),))


def home(of: Context | None = None, at: str = "main") -> str:
    """Return the path of a context in a namespace."""
    return f"/v1/{at}/contexts/{(of or context()).digest}"


HOME = home()
RECORDS = f"{HOME}/records"


def body(model: Any) -> dict[str, Any]:
    """Return the JSON value of a model, as a request carries it."""
    dumped: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    return dumped


def post(
    client: httpx.Client,
    *records: Record,
    to: str = "main",
    of: Context | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Send records of a context to a namespace, and return what the server counted."""
    sent = body(record_set(*records, of=of))
    answer = client.post(f"/v1/{to}/records", json=sent, headers=headers)
    assert answer.status_code == 200, answer.text
    counted: dict[str, Any] = answer.json()
    return counted


def pin(
    client: httpx.Client,
    block: int | None,
    m: int = 1,
    *,
    at: str = "main",
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """Pin a config to a scenario, or take its pin back."""
    wish = {"config": body(config(block)) if block else None, "by": "ann"}
    where = f"{home(at=at)}/pins/{scenario(m).digest}"
    return client.put(where, json=wish, headers=headers)


def miss(m: int, count: int = 1, *saving: object, of: Context | None = None) -> dict[str, Any]:
    """Return a miss of a scenario, as a request carries it; some have what a tune saves."""
    sent = {"context": body(of or context()), "scenario": body(scenario(m)), "count": count}
    named = dict(zip(("expected", "at_least", "takes"), saving, strict=False))
    return {**sent, "saving": named} if saving else sent


def lease_wish(m: int = 1, holder: str = "a", ttl: float = 30) -> dict[str, Any]:
    """Return the wish for a scenario's lease, as a request carries it."""
    return {"context": body(context()), "scenario": body(scenario(m)), "holder": holder, "ttl": ttl}


def read(
    client: httpx.Client, at: str = "main", headers: Mapping[str, str] | None = None
) -> list[Record]:
    """Return the records that a namespace has of the usual context."""
    answer = client.get(f"{home(at=at)}/records", headers=headers)
    if answer.status_code == 404:
        return []
    return list(RecordSet.model_validate_json(answer.content).records)


def read_one(client: httpx.Client) -> Record:
    """Return the only record of the usual context."""
    (stored,) = read(client)
    return stored


def free_port() -> int:
    """Return a port that nobody else gets while this process lives.

    Systems give ports from 32768 on to whoever asks for any. Of the others, each worker of
    pytest-xdist begins at its own, and a name that only one process has at a time keeps away the
    suites of other checkouts.
    """
    while True:
        port = _FIRST_PORT + (next(_ports) * _MOST_WORKERS + _WORKER) % 20_000
        reserved = socket.socket(socket.AF_UNIX)
        with suppress(OSError), socket.socket() as free:
            reserved.bind(f"\0dejavu-cache test port {port}")
            free.bind(("127.0.0.1", port))
            reserved.detach()  # open to the end of the process
            return port
        reserved.close()


class _Transport(httpx.BaseTransport):
    """Asks an app in this process, on an event loop of its own."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self._portal = portal
        self._transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._portal.call(self._handle, request)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        sent = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        answer = await self._transport.handle_async_request(sent)
        raw = b"".join([part async for part in answer.stream])  # type: ignore[union-attr]
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=httpx.ByteStream(raw)
        )


@contextmanager
def client_of(app: FastAPI, **headers: str) -> Iterator[httpx.Client]:
    """Yield a client of an app that runs in this process."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        httpx.Client(
            transport=_Transport(app, portal), base_url="http://localhost", headers=headers
        ) as client,
    ):
        yield client


def call_on(database: Database) -> Call:
    """Return the call of somebody on the server's machine, for functions of routes."""
    server: Any = SimpleNamespace(database=database)
    return Call(ANYBODY, server, server.database)


SERVER = "import runpy; runpy.run_module('dejavu_service', run_name='__main__', alter_sys=True)"
"""`python -m dejavu_service`."""


class Running:
    """A server in a process of its own, on loopback."""

    def __init__(
        self, url: str, log: Path, extra: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        self.port = port or free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._environ = {
            **os.environ,
            "DEJAVU_SERVER_DATABASE": url,
            "DEJAVU_SERVER_WITHOUT_TOKENS": "true",
            **(extra or {}),
        }
        self.start()

    def start(self, wait: bool = True) -> None:
        files, words = (Path(os.devnull), self.log), ("serve", "--port", self.port)
        self.process = Child(light_nursery(), *files, words, self._environ, code=SERVER)
        if not wait:
            return
        deadline = time.monotonic() + 240
        with httpx.Client(verify=False) as client:  # certificates take long to load
            while time.monotonic() < deadline:
                with suppress(httpx.TransportError):
                    if client.get(f"{self.base}/readyz").status_code == 200:
                        return
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.05)
        self.kill()
        raise TimeoutError(self.log.read_text())

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(240)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def running_server(
    url: str, log: Path, extra: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[Running]:
    server = Running(url, log, extra, port)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def replicas(url: str, folder: Path, count: int) -> Iterator[list[Running]]:
    """Several servers on one database; started, and stopped, all at once."""
    with ThreadPoolExecutor(count) as pool:
        started = list(
            pool.map(lambda number: Running(url, folder / f"replica{number}.log"), range(count))
        )
        try:
            yield started
        finally:
            list(pool.map(Running.stop, started))


def restart(postgres: Any) -> None:
    """Start a Postgres server that was killed."""
    deadline = time.monotonic() + 240
    while True:
        try:
            postgres.ensure_postgres_running()
            return
        except Exception:
            # Its children hold on to shared memory for a moment after it was killed.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def begin_post(
    server: Running,
    path: str,
    length: int,
    headers: Mapping[str, str] | None = None,
    sent: bytes = b"",
) -> socket.socket:
    """Connect to a server, and send a request's head and a part of its body."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=240)
    named = {"Host": "localhost", "Content-Type": "application/json", **(headers or {})}
    lines = [f"{name}: {value}" for name, value in named.items()]
    head = [f"POST {path} HTTP/1.1", f"Content-Length: {length}", *lines, "", ""]
    connection.sendall("\r\n".join(head).encode() + sent)
    return connection


def make_token(url: str, role: Any, *namespaces: str) -> str:
    """Return a new token for some namespaces of a database, or for all."""
    database = Database(url)
    issued = tokens.issue(database, ANYBODY, f"a {role}", dict.fromkeys(namespaces or "*", role))
    database.close()
    return issued.token


class Token(dict[str, str]):
    """The headers of requests with a new token, and the token's id.

    It has a role in some namespaces or in all, or several roles by their namespaces.
    """

    def __init__(
        self, database: Database, name: str, role: Any = "write", *namespaces: str
    ) -> None:
        grants = role if isinstance(role, dict) else dict.fromkeys(namespaces or "*", role)
        issued = tokens.issue(database, ANYBODY, name, grants)
        super().__init__(Authorization=f"Bearer {issued.token}")
        self.id = issued.id


def quarantine(client: httpx.Client, admin: Token, at: str = "main", **wish: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/{at}/quarantines", json=wish, headers=admin)
    assert answer.status_code == (200 if wish.get("preview") else 201), answer.text
    counted: dict[str, Any] = answer.json()
    return counted


def undo(client: httpx.Client, admin: Token, identity: str) -> httpx.Response:
    return client.delete(f"/v1/main/quarantines/{identity}", headers=admin)


def seconds_until(moment: str) -> float:
    """Return the seconds until a moment of an answer; Python 3.10 cannot read a `Z`."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() - time.time()
