"""A fleet: replicas on one Postgres, many client processes, and what dies in the middle.

The suite disturbs a small fleet; for a large one:  FLEET_CLIENTS=32 python -m pytest tests/service/test_fleet.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dejavu_client.client import Client
from nursery import Child, Nursery
from service_support import Running, restart
from support import ADD, environment

PROGRAM = """
    import json, os, sys, time
    from pathlib import Path
    import torch, triton
    from support import launch, load_file

    source, log, sizes = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    kernel = load_file(source).add

    def bench(kernel_call, quantiles):
        kernel_call()
        with open(log, "a") as file:  # appending a short line is atomic
            file.write(f"{os.getpid()} {kernel.latest}\\n")
        return [1.0 + kernel.latest % 1000 / 1000] * 3

    class Spy:
        # Tells the benchmark which launch it is timing.
        def __init__(self, fn):
            self.fn, self.arg_names = fn, fn.arg_names
        def run(self, *args, **kwargs):
            kernel.latest = args[2] * 1000 + kwargs["BLOCK"]
            return self.fn.run(*args, **kwargs)

    kernel.fn, kernel._do_bench = Spy(kernel.fn), bench
    for n in sizes:
        launch(kernel, n)
    x = torch.ones(1)
    winners = {n: kernel.explain(x, x, n).config.kwargs["BLOCK"] for n in sizes}
    print(json.dumps({"benchmarked": kernel.benchmarked, "winners": winners}))
"""

CLIENTS, SCENARIOS = 32, 100
DISTURBED = int(os.environ.get("FLEET_CLIENTS", "8"))
"""Clients of the fleet in which something dies."""


def start_client(nursery: Nursery, folder: Path, number: int, base: str) -> Child:
    """A process with a local folder of its own, as on a machine of its own."""
    sizes = [64 + (number * 7 + index) % SCENARIOS for index in range(SCENARIOS)]
    mine = folder / f"client{number}"
    return nursery.start(
        PROGRAM,
        str(folder / "kernels.py"),
        str(folder / "log"),
        json.dumps(sizes),
        folder=mine,
        TRITON_INTERPRET="1",
        XDG_CACHE_HOME=str(mine / "cache"),
        DEJAVU_CACHE_URL=f"{(mine / 'records').as_uri()},{base}",
        DEJAVU_CACHE_WAIT="20",  # 32 processes on a few cores: what is slow here is the machine
    )


def held_by_the_server(base: str) -> list[Any]:
    client = Client(base, attempts=10)
    (context,) = client.contexts()
    bulk = client.bulk(context)
    client.close()
    assert bulk is not None
    return list(bulk.records)


@pytest.fixture
def fleet(own_postgres: Any, tmp_path: Path) -> Any:
    database = own_postgres.get_uri(database="migrated")
    (tmp_path / "kernels.py").write_text(textwrap.dedent(ADD))
    (tmp_path / "log").touch()
    replicas = [Running(database, tmp_path / f"replica{index}.log") for index in range(3)]
    yield own_postgres, replicas, tmp_path
    for replica in replicas:
        replica.stop()


def finish(clients: list[Child]) -> list[dict[str, Any]]:
    return [json.loads(client.finish()) for client in clients]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_scenario_is_tuned_once_and_all_agree(fleet: Any, nursery: Nursery) -> None:
    _, replicas, folder = fleet
    clients = [start_client(nursery, folder, number, replicas[number % 3].base) for number in range(CLIENTS)]
    results = finish(clients)
    benchmarks = Counter(line.split()[1] for line in (folder / "log").read_text().splitlines())
    assert len(benchmarks) == SCENARIOS * 3
    assert set(benchmarks.values()) == {1}
    assert sum(result["benchmarked"] for result in results) == SCENARIOS * 3
    assert all(result["winners"] == results[0]["winners"] for result in results)
    records = held_by_the_server(replicas[0].base)
    assert [len(record.measurements) for record in records] == [3] * SCENARIOS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_and_postgres_die_in_the_middle_and_no_launch_fails(fleet: Any, nursery: Nursery) -> None:
    postgres, replicas, folder = fleet
    clients = [start_client(nursery, folder, number, replicas[number % 3].base) for number in range(DISTURBED)]

    def disturb() -> None:
        while len((folder / "log").read_text().splitlines()) < SCENARIOS // 2:
            time.sleep(0.05)
        replicas[1].kill()
        os.kill(postgres.get_pid(), signal.SIGKILL)
        postgres.get_postmaster_info().process.wait(10)
        restart(postgres)
        replicas[1].start()

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    results = finish(clients)
    disturbing.join(60)
    assert not disturbing.is_alive()
    for result in results:
        assert len(result["winners"]) == SCENARIOS
    # Whoever could not ask tuned alone; all of it reaches the server once it is back, with each client's spool.
    for number in range(DISTURBED):
        synced = subprocess.run(
            [sys.executable, "-m", "dejavu_client", "sync"],
            env=environment(
                XDG_CACHE_HOME=str(folder / f"client{number}" / "cache"),
                DEJAVU_CACHE_URL=f"{(folder / f'client{number}' / 'records').as_uri()},{replicas[0].base}",
            ),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert synced.returncode == 0, synced.stderr
    records = held_by_the_server(replicas[0].base)
    assert [len(record.measurements) for record in records] == [3] * SCENARIOS
