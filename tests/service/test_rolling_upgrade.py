"""Replicas that are replaced one after the other, while the schema changes and clients go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from dejavu_service import app
from dejavu_service.app import StoppingServer, make_server
from dejavu_service.settings import ServerSettings
from dejavu_service.storage.database import Database
from sqlalchemy import text
from support.service import body, context, free_port, record, record_set, scenario

DRAIN = 10.0


class Clock:
    """The clock by which servers drain; it stands until a test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock()
    monkeypatch.setattr(app, "time", standing)
    return standing


class Replica:
    """A server in a thread, on a socket of its own."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock = clock
        self._settings = ServerSettings(
            database=url, port=free_port(), without_tokens=True, drain=DRAIN
        )
        self.base = f"http://127.0.0.1:{self._settings.port}"
        self.start()

    def start(self) -> None:
        self.server: StoppingServer = make_server(self._settings)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def begin_to_stop(self) -> None:
        """Drain, as after a signal."""
        self.server.should_exit = True
        while not self.server._server.stopping.is_set():
            time.sleep(0.01)
        time.sleep(0.05)

    def end(self) -> None:
        """Let the time to drain pass until the server has ended."""
        deadline = time.monotonic() + 240
        while self._thread.is_alive():
            assert time.monotonic() < deadline
            self._clock.now += 2 * DRAIN
            self._thread.join(0.2)


@pytest.fixture
def pair(postgres_url: str, clock: Clock) -> Iterator[list[Replica]]:
    started = [Replica(postgres_url, clock) for _ in range(2)]
    yield started
    for replica in started:
        replica.begin_to_stop()
        replica.end()


class Load:
    """Clients that read and write through a load balancer, which asks replicas for readiness."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        self._ready = list(replicas)
        self._ends = threading.Event()
        self.failures: list[str] = []
        self.answers = 0
        self.rounds = [0, 0, 0]

    def balance(self) -> None:
        while not self._ends.wait(0.05):
            self._ready = [replica for replica in self._replicas if is_ready(replica)]

    def work(self, number: int) -> None:
        with httpx.Client(timeout=240) as client:
            m = number * 10_000
            while not self._ends.is_set():
                m += 1
                self.rounds[number] += 1
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

    def wait_until_joined(self, *replicas: Replica) -> None:
        """Wait until replicas are known to be ready, and get requests."""
        while any(replica not in self._ready for replica in replicas):
            time.sleep(0.01)
        self._wait_for_rounds()

    def wait_until_left(self, replica: Replica) -> None:
        """Wait until no request is on its way to a replica that is not ready."""
        while replica in self._ready:
            time.sleep(0.01)
        self._wait_for_rounds()

    def _wait_for_rounds(self) -> None:
        before = list(self.rounds)
        while any(now < was + 2 for now, was in zip(self.rounds, before, strict=True)):
            time.sleep(0.01)

    def stop(self) -> None:
        self._ends.set()


def is_ready(replica: Replica) -> bool:
    try:
        return httpx.get(f"{replica.base}/readyz", timeout=240).status_code == 200
    except httpx.TransportError:
        return False


def test_no_request_fails_while_schema_and_replicas_change(
    pair: list[Replica], postgres_url: str
) -> None:
    database = Database(postgres_url)
    load = Load(pair)
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(load.balance), *(pool.submit(load.work, n) for n in range(3))]
        load.wait_until_joined(*pair)
        with database.write() as connection:  # as the next version's migration would
            connection.execute(text("ALTER TABLE records ADD COLUMN remark TEXT"))
            connection.execute(text("UPDATE alembic_version SET version_num = '1.9'"))
        for replica in pair:
            replica.begin_to_stop()
            load.wait_until_left(replica)
            replica.end()
            replica.start()
            load.wait_until_joined(replica)
        load.stop()
        for future in running:
            future.result(240)
    database.close()
    assert load.failures == []
    assert load.answers > 20
