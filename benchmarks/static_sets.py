"""Time to fetch and verify a signed set of 1,000 contexts, and what 10,000 changed sets do.

    python benchmarks/static_sets.py [--rounds 5] [--draws 10000]

A server on the same machine has the files, in a process of its own. Files are fetched one by one,
as launches do, and side by side, as `use` does, in turns. Each time is the least of all rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from dejavu_client.static_sets import StaticStore, make_key, publish  # noqa: E402
from dejavu_client.static_sets.sources import Files  # noqa: E402
from support.records import context, record  # noqa: E402
from support.service import free_port  # noqa: E402
from support.signed_sets import Publisher, draw_sets  # noqa: E402

from dejavu_cache.model.record import RecordSet  # noqa: E402

CONTEXTS = 1000
SERVER = """
import sys, uvicorn
from starlette.staticfiles import StaticFiles
uvicorn.run(StaticFiles(directory=sys.argv[1]), port=int(sys.argv[2]), log_level="critical")
"""


def one_by_one(store: StaticStore) -> None:
    for entry in store.entries(fresh=True):
        next(store.records(entry.context))


def side_by_side(store: StaticStore) -> None:
    store.fetch(store.entries(fresh=True))


def measure(
    read: Callable[[StaticStore], None], url: str, key: str, folder: Path
) -> tuple[float, float]:
    """Return the time in which a machine without copies has a set ready, and its CPU time."""
    store = StaticStore(Files(url, math.inf), key, folder=folder)
    start = time.perf_counter(), time.process_time()
    read(store)
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    assert len([*folder.glob("*.json")]) == CONTEXTS
    return seconds


def measure_fetches(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    make_key(folder / "key.pem")
    contexts = [context(kernel=f"pkg.kernel_{number}") for number in range(CONTEXTS)]
    sets = [RecordSet(context=context, records=(record(16),)) for context in contexts]
    start = time.perf_counter()
    key = publish(sets, folder / "set", folder / "key.pem")
    seconds = {"publish": {"seconds": time.perf_counter() - start}}
    port = free_port()
    server = subprocess.Popen([sys.executable, "-c", SERVER, folder / "set", str(port)])
    try:
        url = f"http://127.0.0.1:{port}"
        httpx.Client(transport=httpx.HTTPTransport(retries=10)).get(f"{url}/index.signed")
        ways = {"one by one": one_by_one, "side by side": side_by_side}
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(rounds):
            for way, read in ways.items():
                times[way].append(measure(read, url, key, folder / f"{way} {turn}"))
        for way, measured in times.items():
            least, of_cpu = map(min, zip(*measured, strict=True))
            seconds[way] = {"seconds": least, "of CPU": of_cpu}
    finally:
        server.terminate()
    return {
        way: {name: round(value, 2) for name, value in times.items()}
        for way, times in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fetches = measure_fetches(Path(folder), options.rounds)
        (Path(folder) / "drawn").mkdir()
        drawn = draw_sets(Publisher(Path(folder) / "drawn"), options.draws)
    result = {
        "machine": f"{os.cpu_count()} CPU cores, load {os.getloadavg()[1]:.0f}",
        "python": platform.python_version(),
        "contexts": CONTEXTS,
        **fetches,
        "changed sets": {"crashes": 0, **drawn},  # an error but a refusal ends this program
    }
    text = json.dumps(result, indent=1)
    (ROOT / "benchmarks" / "results" / "static-sets.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
