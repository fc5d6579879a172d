"""A fleet: replicas on one Postgres, many client processes, and what dies in the middle.

The suite runs a small fleet; FLEET_CLIENTS=32 in the environment makes it a large one.
"""

import json
import os
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.http.errors import UnreachableError
from dejavu_client.http.protocol_client import ProtocolClient, split_server_url
from support.fork_server import COMMAND, Child, kernel_nursery
from support.kernels import ADD
from support.processes import PROGRAMS
from support.service import Running, replicas, restart
from support.sweeping import wait_until

CLIENTS = int(os.environ.get("FLEET_CLIENTS", "8"))
SCENARIOS = 100 if CLIENTS >= 32 else 24


def start_client(folder: Path, number: int, url: str, wait: int) -> Child:
    """Start a client process with a local folder of its own, as on a machine of its own."""
    sizes = [1 + (number * 7 + index) % SCENARIOS for index in range(SCENARIOS)]
    mine = folder / f"client{number}"
    return kernel_nursery().start(
        (PROGRAMS / "tune_sizes.py").read_text(),
        str(folder / "kernels.py"),
        str(folder / "log"),
        json.dumps(sizes),
        folder=mine,
        TRITON_INTERPRET="1",
        XDG_CACHE_HOME=str(mine / "cache"),
        DEJAVU_CACHE_URL=f"{(mine / 'records').as_uri()},{url}",
        DEJAVU_CACHE_WAIT=f"{wait}",
    )


def held_by_the_server(url: str) -> list[Any]:
    base, namespace = split_server_url(url, "main")
    client = ProtocolClient(base, namespace=namespace)
    wait_until(lambda: is_ready(client))
    (context,) = client.contexts()
    return list(client.records(context))


def is_ready(client: ProtocolClient) -> bool:
    with suppress(UnreachableError):
        client.misses()
        return True
    return False


@pytest.fixture(scope="module")
def three(own_postgres: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    with replicas(
        own_postgres.get_uri(database="migrated"), tmp_path_factory.mktemp("logs"), 3
    ) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(textwrap.dedent(ADD))
    (tmp_path / "log").touch()
    return tmp_path


def finish(clients: list[Child]) -> list[dict[str, Any]]:
    return [json.loads(client.finish()) for client in clients]


@pytest.mark.timeout(400)
def test_each_scenario_is_tuned_once_and_all_agree(three: list[Running], folder: Path) -> None:
    urls = [f"{server.base}?namespace=quiet" for server in three]
    # Many processes on a few cores: what takes its time here is the machine.
    clients = [start_client(folder, number, urls[number % 3], wait=20) for number in range(CLIENTS)]
    results = finish(clients)
    benchmarks = Counter(line.split()[1] for line in (folder / "log").read_text().splitlines())
    assert len(benchmarks) == SCENARIOS * 3
    assert set(benchmarks.values()) == {1}
    assert sum(result["benchmarked"] for result in results) == SCENARIOS * 3
    assert all(result["winners"] == results[0]["winners"] for result in results)
    records = held_by_the_server(urls[0])
    assert [len(record.measurements) for record in records] == [3] * SCENARIOS


@pytest.mark.timeout(900)
def test_a_replica_and_postgres_die_in_the_middle_and_no_launch_fails(
    three: list[Running], own_postgres: Any, folder: Path
) -> None:
    urls = [f"{server.base}?namespace=disturbed" for server in three]
    clients = [start_client(folder, number, urls[number % 3], wait=3) for number in range(CLIENTS)]

    def disturb() -> None:
        while len((folder / "log").read_text().splitlines()) < SCENARIOS // 2:
            time.sleep(0.05)
        three[1].kill()
        os.kill(own_postgres.get_pid(), signal.SIGKILL)
        own_postgres.get_postmaster_info().process.wait(240)
        restart(own_postgres)
        three[1].start()

    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb)
        results = finish(clients)
        disturbing.result(240)
    for result in results:
        assert len(result["winners"]) == SCENARIOS
    # Clients that could not reach the server tuned alone; their spools arrive once it is back.
    syncing = [
        kernel_nursery().start(
            COMMAND,
            "sync",
            folder=folder,
            XDG_CACHE_HOME=str(folder / f"client{number}" / "cache"),
            DEJAVU_CACHE_URL=f"{(folder / f'client{number}' / 'records').as_uri()},{urls[0]}",
        )
        for number in range(CLIENTS)
    ]
    for client in syncing:
        client.finish()
    records = held_by_the_server(urls[0])
    assert [len(record.measurements) for record in records] == [3] * SCENARIOS
