"""Three replicas on one Postgres, while one of them and Postgres itself are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.service import Running, body, context, record, record_set, replicas, restart
from support.sweeping import wait_until

from dejavu_cache.model.record import RecordSet


@pytest.fixture(scope="module")
def three(own_postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    with replicas(
        own_postgres.get_uri(database="migrated"), tmp_path_factory.mktemp("logs"), 3
    ) as started:
        yield started


class Writer(threading.Thread):
    """Sends one record after the other to any replica, and again until one takes it."""

    def __init__(self, number: int, replicas: list[Running], ends: threading.Event) -> None:
        super().__init__()
        self.taken: list[int] = []
        self.refused: set[int] = set()
        self._number, self._replicas, self._ends = number, replicas, ends

    def run(self) -> None:
        with httpx.Client(timeout=240) as client:
            m = self._number * 10_000
            while not self._ends.is_set():
                m += 1
                while not self._send(client, m) and not self._ends.is_set():
                    time.sleep(0.05)

    def _send(self, client: httpx.Client, m: int) -> bool:
        base = self._replicas[(m + len(self.refused)) % 3].base
        try:
            answer = client.post(f"{base}/v1/main/records", json=body(record_set(record(m))))
        except httpx.TransportError:
            return False
        if answer.status_code == 200:
            self.taken.append(m)
            return True
        self.refused.add(answer.status_code)
        return False


def is_ready(replica: Running) -> bool:
    try:
        return httpx.get(f"{replica.base}/readyz", timeout=240).status_code == 200
    except httpx.TransportError:
        return False


def test_nothing_acknowledged_is_lost(three: list[Running], own_postgres: Any) -> None:
    ends = threading.Event()
    writers = [Writer(number, three, ends) for number in range(4)]
    for writer in writers:
        writer.start()
    time.sleep(1.5)
    three[2].kill()
    time.sleep(1)
    three[2].start()
    os.kill(own_postgres.get_pid(), signal.SIGKILL)
    own_postgres.get_postmaster_info().process.wait(240)
    restart(own_postgres)
    before = [len(writer.taken) + 1 for writer in writers]  # one may have been taken before
    wait_until(
        lambda: all(len(writer.taken) > was for writer, was in zip(writers, before, strict=True))
    )  # all go on by themselves
    wait_until(lambda: all(map(is_ready, three)))
    ends.set()
    for writer in writers:
        writer.join(240)
    logs = "".join(replica.log.read_text() for replica in three)
    assert set().union(*(writer.refused for writer in writers)) <= {503}, logs[
        logs.find("unforeseen") - 200 :
    ][:6000]
    accepted = {m for writer in writers for m in writer.taken}
    for replica in three:
        home = f"{replica.base}/v1/main/contexts/{context().digest}/records"
        answer = httpx.get(home, timeout=240)
        records = RecordSet.model_validate_json(answer.content).records
        assert accepted <= {writer.scenario.args["M"] for writer in records}
        assert len({writer.scenario for writer in records}) == len(records)


def test_a_write_to_one_replica_is_read_from_all_at_once(three: list[Running]) -> None:
    with httpx.Client() as client:
        for m in range(30):
            client.post(f"{three[m % 3].base}/v1/other/records", json=body(record_set(record(m))))
            for replica in three:
                rows = client.get(
                    f"{replica.base}/v1/other/contexts/{context().digest}/records"
                ).json()["records"]
                assert len(rows) == m + 1
