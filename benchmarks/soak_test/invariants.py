"""What must hold at any moment of the test, and at its end."""

from __future__ import annotations

import random
import time
from pathlib import Path

from dejavu_client.http.errors import RemoteError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.model.selection import winner

from .deployment import Deployment
from .workload import (
    CONFIGS,
    RECALLED,
    Ledger,
    all_homes,
    best_config,
    home_of,
    make_record,
    number_of,
    read_ledgers,
)


class Checker:
    """Compares the ledgers with what the server and the spool have.

    Args:
        folder: where spools and ledgers are.
        url: the URL that the clients use.
        deployment: asked directly, without the faulty network.
    """

    def __init__(self, folder: Path, url: str, deployment: Deployment) -> None:
        """Begin without deleted records."""
        self._folder, self._url, self._deployment = folder, url, deployment
        self._ledger = Ledger(folder / "checker.ledger")
        self._next_recalled = RECALLED
        self._deleted: set[int] = set()

    def delete_some(self) -> None:
        """Write records, delete some of them, and remember which."""
        client = ProtocolClient(random.choice(self._deployment.replicas).base)
        try:
            number = self._next_recalled
            self._next_recalled += 2
            home = home_of(number)
            records = make_record(number), make_record(number + 1)
            client.send(RecordSet(context=home, records=records))
            self._ledger.write("confirmed", number + 1)
            if client.delete(home, [records[0].scenario]) == 1:
                self._deleted.add(number)
                self._ledger.write("deleted", number)
                # What another machine still has of it must not bring it back.
                client.send(RecordSet(context=home, records=records[:1]))
        except RemoteError:
            pass  # nothing was promised

    def check(self) -> tuple[int, int] | None:
        """Check once; return the numbers of acknowledged and of stored records.

        None means that the server did not answer.
        """
        events = read_ledgers(self._folder)
        confirmed = {int(number) for number in events["confirmed"]}
        spooled = {int(number) for number in events["spooled"]}
        deleted = set(self._deleted)
        waiting = self._waiting_numbers()  # before the server: what leaves the spool is there
        client = ProtocolClient(random.choice(self._deployment.replicas).base)
        try:
            stored = _stored_numbers(client)
        except RemoteError:
            return None
        for number in sorted(confirmed - stored):
            self._ledger.write("lost", f"{number}, which the server had confirmed")
        for number in sorted(spooled - stored - waiting):
            self._ledger.write("lost", f"{number}, which was spooled")
        for number in sorted(deleted & stored):
            self._ledger.write("risen", number)
        return len(confirmed | spooled), len(stored)

    def check_content(self) -> int:
        """Check every record of the server; return their number."""
        client = ProtocolClient(self._deployment.replicas[0].base)
        count = 0
        for home in all_homes():
            for record in client.records(home):
                count += 1
                number = number_of(record.scenario)
                if winner(record, CONFIGS) != best_config(number) or len(record.measurements) != 4:
                    self._ledger.write("wrong", number)
        return count

    def drain(self, seconds: float) -> tuple[int, int]:
        """Send what waits; return how many files still wait, and how many are set aside."""
        spool = Spool(self._url, self._folder / "spool")
        store = RemoteStore(ProtocolClient(self._url), wait=30, spool=spool)
        deadline = time.monotonic() + seconds
        while len(spool) and time.monotonic() < deadline:
            if store.sender.drain(wait=10):
                time.sleep(1)
        store.close()
        return len(spool), len(spool.set_aside())

    def _waiting_numbers(self) -> set[int]:
        numbers: set[int] = set()
        for file in Spool(self._url, self._folder / "spool").waiting():
            try:
                records = RecordSet.model_validate_json(file.path.read_bytes()).records
            except FileNotFoundError:  # it has just been sent
                continue
            numbers.update(number_of(record.scenario) for record in records)
        return numbers


def _stored_numbers(client: ProtocolClient) -> set[int]:
    numbers: set[int] = set()
    for home in all_homes():
        for text in client.scenario_texts(home):
            numbers.add(number_of(Scenario.model_validate_json(text)))
    return numbers
