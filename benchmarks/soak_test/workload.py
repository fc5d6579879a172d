"""Records whose content follows from their number, and the ledger of what was acknowledged."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import datetime
from pathlib import Path

from server_benchmark.made_up_records import make_context

from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario, now

CONFIGS = [Config(params={"BLOCK": 16 << power}, options={"num_warps": 4}) for power in range(4)]
HOMES = 8
RECALLED = 10**12
"""Numbers from here on belong to records that are deleted again."""


_HOMES = [make_context(f"soak.kernels.matmul{index}", ("M",)) for index in range(HOMES)]
_RECALLED_HOME = make_context("soak.kernels.recalled", ("M",))


def home_of(number: int) -> Context:
    """Return the context that a record belongs to."""
    return _RECALLED_HOME if number >= RECALLED else _HOMES[number % HOMES]


def all_homes() -> list[Context]:
    """Return the contexts of all records."""
    return [*_HOMES, _RECALLED_HOME]


def number_of(scenario: Scenario) -> int:
    """Return the number of a record."""
    return int(str(scenario.args["M"]))


def best_config(number: int) -> Config:
    """Return the config that must win."""
    return CONFIGS[number * 7 % len(CONFIGS)]


def make_record(number: int) -> Record:
    """Return a record, measured now, in which `best_config` is twice as fast as the others."""
    at: datetime = now()
    measurements = []
    for config in CONFIGS:
        median = 0.1 if config == best_config(number) else 0.2
        timing = {"median": median, "p20": median, "p80": median}
        measurements.append(Measurement(config=config, **timing, at=at, by="ann@h200-1"))
    return Record(
        scenario=Scenario(args={"M": number}, dtypes={"x": "float16"}),
        winner=Winner(config=best_config(number), at=at),
        measurements=tuple(measurements),
    )


class Ledger:
    """A client's append-only file of what happened; a line is in it once `write` returns.

    `spooled N` and `confirmed N` are acknowledged records; `deleted N`; `lost N` and `wrong N` are
    what a reader met; `failed TEXT` is an exception, `launches N` and `benchmarks N` are counts.
    """

    def __init__(self, file: Path) -> None:
        """Open the file for appending."""
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, value: object) -> None:
        """Append a line."""
        os.write(self._descriptor, f"{event} {value}\n".encode())


def read_ledgers(folder: Path) -> dict[str, list[str]]:
    """Return the values of all ledgers by event."""
    events: dict[str, list[str]] = defaultdict(list)
    for file in sorted(folder.glob("*.ledger")):
        for line in file.read_text().splitlines():
            event, _, value = line.partition(" ")
            events[event].append(value)
    return events
