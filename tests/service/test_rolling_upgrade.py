"""Replicas that are replaced one after the other, while the schema changes and clients go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from dejavu_service.serving import StoppingServer, make_server
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from sqlalchemy import text
from support.service import body, context, free_port, record, record_set, scenario

DRAIN = 0.6


class Replica:
    """A server in a thread, on a socket of its own."""

    def __init__(self, url: str, drain: float = DRAIN) -> None:
        self._settings = ServerSettings(
            database=url, port=free_port(), without_tokens=True, drain=drain
        )
        self.base = f"http://127.0.0.1:{self._settings.port}"
        self.start()

    def start(self) -> None:
        self.server: StoppingServer = make_server(self._settings)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """End as a signal does."""
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def pair(postgres_url: str) -> Iterator[list[Replica]]:
    started = [Replica(postgres_url) for _ in range(2)]
    yield started
    for replica in started:
        replica.stop()


class Load:
    """Clients that read and write through a load balancer, which asks replicas for readiness."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        self._ready = list(replicas)
        self._ends = threading.Event()
        self.failures: list[str] = []
        self.answers = 0

    def balance(self) -> None:
        while not self._ends.wait(0.05):
            self._ready = [replica for replica in self._replicas if is_ready(replica)]

    def work(self, number: int) -> None:
        with httpx.Client(timeout=20) as client:
            m = number * 10_000
            while not self._ends.is_set():
                m += 1
                ready = self._ready
                if not ready:
                    self.failures.append("no replica was ready")
                    time.sleep(0.05)
                    continue
                self._ask(client, ready[m % len(ready)].base, m)

    def _ask(self, client: httpx.Client, base: str, m: int) -> None:
        key = f"{base}/v1/main/contexts/{context().digest}/records/{scenario(m).digest}"
        try:
            posted = client.post(f"{base}/v1/main/records", json=body(record_set(record(m))))
            read = client.get(key)
        except httpx.TransportError as error:
            self.failures.append(repr(error))
            return
        self.failures += [answer.text for answer in (posted, read) if answer.status_code != 200]
        self.answers += 2

    def stop(self) -> None:
        self._ends.set()


def is_ready(replica: Replica) -> bool:
    try:
        return httpx.get(f"{replica.base}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_no_request_fails_while_schema_and_replicas_change(
    pair: list[Replica], postgres_url: str
) -> None:
    database = Database(postgres_url)
    load = Load(pair)
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(load.balance), *(pool.submit(load.work, n) for n in range(3))]
        time.sleep(0.3)
        with database.write() as connection:  # as the next version's migration would
            connection.execute(text("ALTER TABLE records ADD COLUMN remark TEXT"))
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
            connection.execute(text("UPDATE compatibility SET revision = '9999'"))
        for replica in pair:
            replica.stop()
            replica.start()
            time.sleep(0.3)
        load.stop()
        for future in running:
            future.result(20)
    database.close()
    assert load.failures == []
    assert load.answers > 20


def test_a_stopping_server_serves_and_is_not_ready(postgres_url: str) -> None:
    replica = Replica(postgres_url, drain=2)
    waiting = f"{replica.base}/v1/main/contexts/{context().digest}/records/{scenario().digest}"
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=replica.base) as client:
        poll = pool.submit(httpx.get, f"{waiting}?wait=30", timeout=20)
        assert client.get("/readyz").status_code == 200
        stopping = pool.submit(replica.stop)
        while client.get("/readyz").status_code == 200:
            time.sleep(0.01)
        assert "stopping" in client.get("/readyz").json()["detail"]
        posted = client.post("/v1/main/records", json=body(record_set(record(7))))
        assert (posted.status_code, posted.headers["connection"]) == (200, "close")
        assert not poll.done(), "it waits until the time to drain is over"
        assert poll.result(20).status_code == 404
        stopping.result(20)
