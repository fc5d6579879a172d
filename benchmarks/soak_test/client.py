"""A program that writes records to a server or reads them, as a process of the soak test.

Arguments: ROLE URL FOLDER NAME FIRST SECONDS WAY: `writer` or `reader`; the server's URL; the
folder of spools and ledgers; the process's name; the number of its first record; how long it lives;
and how it ends.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from dejavu_client.http.errors import RemoteError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool

from dejavu_cache.model.selection import winner
from soak_test.workload import CONFIGS, Ledger, best_config, home_of, make_record, read_ledgers

EXIT_CODES = {"return": 0, "exit": 7, "raise": 1, "terminate": -15, "at once": 3}
PAUSE = 0.5
"""Seconds between two records of a writer, and between two looks of a reader."""


def open_store(url: str, folder: Path) -> RemoteStore:
    return RemoteStore(ProtocolClient(url), wait=2.0, spool=Spool(url, folder / "spool"))


def write(store: RemoteStore, ledger: Ledger, first: int, until: float) -> None:
    """Put records, every fifth so that the server has it when the call returns."""
    number = first
    while time.monotonic() < until:
        record = make_record(number)
        if number % 5:
            store.put(home_of(number), [record])
            ledger.write("spooled", number)
        else:
            try:
                store.put(home_of(number), [record], now=True)
                ledger.write("confirmed", number)
            except RemoteError:
                pass  # nothing was promised
        number += 1
        time.sleep(PAUSE)


def read(url: str, folder: Path, ledger: Ledger, until: float) -> None:
    """Look up records that the server has confirmed; each must be there, with its winner."""
    store, looks = open_store(url, folder), 0
    confirmed: list[int] = []
    while time.monotonic() < until:
        if looks % 40 == 0:
            confirmed = [int(number) for number in read_ledgers(folder)["confirmed"]]
            store.close()
            store = open_store(url, folder)
        looks += 1
        time.sleep(PAUSE)
        if not confirmed:
            continue
        number = random.choice(confirmed)
        try:
            hit = store.get(home_of(number), make_record(number).scenario, fresh=True)
        except RemoteError:
            continue
        if hit is None:
            ledger.write("lost", number)
        elif winner(hit.record, CONFIGS) != best_config(number):
            ledger.write("wrong", number)
        else:
            ledger.write("read", number)


def end(way: str) -> None:
    if way == "exit":
        sys.exit(EXIT_CODES[way])
    if way == "raise":
        raise RuntimeError("the program's own error")
    if way == "at once":
        os._exit(EXIT_CODES[way])
    if way == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    role, url, folder, name, first, seconds, way = sys.argv[1:]
    ledger = Ledger(Path(folder) / f"{name}.ledger")
    until = time.monotonic() + float(seconds)
    try:
        if role == "writer":
            write(open_store(url, Path(folder)), ledger, int(first), until)
        else:
            read(url, Path(folder), ledger, until)
    except Exception as error:
        ledger.write("failed", f"{role}: {error!r}"[:300].replace("\n", " "))
        raise
    end(way)


if __name__ == "__main__":
    main()
