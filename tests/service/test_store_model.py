"""A server answers any sequence of calls of two clients as a dictionary would."""

import itertools
import time
from typing import cast

import pytest
from dejavu_client.http import remote_store
from dejavu_client.http.errors import RefusedError
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from hypothesis import strategies as st
from hypothesis.stateful import rule
from support.records import MOMENT
from support.service import Running
from support.store_machine import (
    CONFIGS,
    CONTEXTS,
    HANDLES,
    LAUNCHES,
    SCENARIOS,
    LocalModel,
    ServerModel,
    StoreMachine,
    run_steps,
)

from dejavu_cache.model.record import Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario, now
from dejavu_cache.stores import FileStore, MemoryStore, Store
from dejavu_cache.stores.copies import take_over

CLOCK = 0.002
"""Seconds that a database's clock may round away: two calls less apart have no order."""

_numbers = itertools.count()


class ServerMachine(StoreMachine):
    """Two clients of a namespace of its own, and copies that one of them revalidates."""

    base = ""

    def __init__(self) -> None:
        self.namespace = f"model{next(_numbers)}"
        super().__init__()
        self.copies: list[Store] = [MemoryStore(), FileStore(self.path / "copies")]
        self.server_model = cast(ServerModel, self.model)

    def make_model(self) -> LocalModel:
        return ServerModel()

    def open(self, number: int) -> Store:
        client = ProtocolClient(self.base, namespace=self.namespace)
        return RemoteStore(client, wait=30, spool=Spool(f"{number}", self.path / "spool"))

    def use(self, number: int) -> Store:
        for store in self.stores:
            assert isinstance(store, RemoteStore)
            assert store.sender.flush(240)
            assert len(store.spool) == 0
        return self.stores[number]

    def check_revision(
        self, store: Store, home: Context, before: list[Record], revision: object
    ) -> None:
        """Check nothing: a server's revision changes with the next listing."""

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenario=st.sampled_from(SCENARIOS),
          pinned=st.none() | st.sampled_from(CONFIGS))  # fmt: skip
    def pin(self, number: int, home: Context, scenario: Scenario, pinned: Config | None) -> None:
        record = Record(scenario=scenario, pin=Pin(config=pinned, at=now(), by="a@b"))
        before = self.model.record(home, scenario)
        try:
            self.use(number).put(home, [record])
        except RefusedError:
            assert before is None
            return
        assert before is not None
        self.take_pin(home, scenario, pinned, before.pin)

    def take_pin(
        self, home: Context, scenario: Scenario, pinned: Config | None, earlier: Pin | None
    ) -> None:
        """Check the pin that the server has, and expect it with the moment that it was given."""
        hit = self.use(0).get(home, scenario, fresh=True)
        pin = hit.record.pin if hit else None
        if pinned is None and (earlier is None or earlier.config is None):
            assert pin == earlier
            return
        assert pin is not None
        assert pin.config == pinned
        assert earlier is None or pin.at > earlier.at
        self.server_model.pin(home, scenario, pin)

    def delete_from(self, store: Store, home: Context, scenarios: list[Scenario] | None) -> int:
        time.sleep(CLOCK)
        deleted = store.delete(home, scenarios)
        time.sleep(CLOCK)
        return deleted

    def forget(self, home: Context, scenarios: list[Scenario] | None) -> int:
        return self.server_model.forget(home, scenarios, now())

    def expect_copies(self, store: Store, home: Context, copied: list[Record]) -> None:
        before = {record.scenario: record.pin for record in self.model.all_records(home)}
        for record in copied:
            self.model.put(home, record)
        for record in copied:
            present = self.model.record(home, record.scenario)
            earlier = before.get(record.scenario)
            sent = {item.config for item in record.measurements if not item.skipped}
            if record.pin is None or present is None or not sent <= present.by_config.keys():
                continue
            if earlier is None or (
                earlier.config != record.pin.config and record.pin.at > earlier.at
            ):
                self.take_pin(home, record.scenario, record.pin.config, earlier)

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS))
    def list_scenarios(self, number: int, home: Context) -> None:
        """Ask the server itself: a store answers as it last listed."""
        store = self.use(number)
        assert isinstance(store, RemoteStore)
        listing = store.client.scenario_texts(home)
        expected = [record.scenario.text for record in self.model.all_records(home)]
        assert sorted(listing) == expected

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenario=st.sampled_from(SCENARIOS))
    def miss(self, number: int, home: Context, scenario: Scenario) -> None:
        self.use(number).miss(home, scenario)
        self.server_model.missed.add((home, scenario))

    @rule(number=HANDLES)
    def list_misses(self, number: int) -> None:
        store = self.use(number)
        assert isinstance(store, RemoteStore)
        listed = {(miss.context, miss.scenario) for miss in store.client.misses()}
        assert listed == self.server_model.misses()

    @rule()
    def revalidate_copies(self) -> None:
        """Bring copies up to date by what has changed alone, as a launching process does.

        A look-up that began before that writes what it has read: recalls are repeated.
        """
        earlier = {home: list(self.copies[0].records(home)) for home in CONTEXTS}
        self.take_changes_over()
        for home, read in earlier.items():
            for copies in self.copies:
                copies.put(home, read)
        self.take_changes_over()

    def take_changes_over(self) -> None:
        changes = self.use(0).revalidate(dict.fromkeys(CONTEXTS, SCENARIOS))
        for copies in self.copies:
            for home, changed in changes.items():
                take_over(copies, home, SCENARIOS, changed)
            for home, scenario in itertools.product(CONTEXTS, SCENARIOS):
                self.check_copy(copies, home, scenario)

    def check_copy(self, copies: Store, home: Context, scenario: Scenario) -> None:
        hit, expected = copies.get(home, scenario), self.model.record(home, scenario)
        if expected is None:  # launches alone may stay: nothing is chosen by them
            assert hit is None or not (hit.record.measurements or hit.record.pinned)
            return
        assert hit is not None
        assert hit.record.pinned == expected.pinned
        assert hit.record.by_config.keys() == expected.by_config.keys()
        for config, measurement in expected.by_config.items():
            copy = hit.record.by_config[config]
            # A machine's later failure may be its own, and outlasts another machine's timing.
            assert copy == measurement or (copy.failure and copy.at >= measurement.at)


@pytest.fixture(autouse=True)
def parts_of_copies(shared_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask about copies in parts."""
    monkeypatch.setattr(remote_store, "MOST_COPIES", 4)
    monkeypatch.setattr(ServerMachine, "base", shared_server.base)


def test_a_server_agrees_after_the_calls_that_searches_have_found() -> None:
    """A scenario is missed until a config is chosen; a winner goes with its left out timing.

    What is deleted goes from each part of the copies.
    """
    machine, home, scenario = ServerMachine(), CONTEXTS[0], SCENARIOS[0]
    machine.miss(0, home, scenario)
    machine.put(0, home, [Record(scenario=scenario, launches=(LAUNCHES[0],))], False)
    machine.list_misses(0)
    machine.delete(0, home, None)
    old, new = (Measurement(config=config, median=1.0, p20=1.0, p80=1.0, at=at)
                for config, at in zip(CONFIGS, (MOMENT, now()), strict=False))  # fmt: skip
    winner = Winner(config=old.config, at=new.at)
    sent = Record(scenario=scenario, measurements=(old, new), winner=winner)
    machine.put(0, home, [sent], False)
    machine.list_misses(0)
    machine.put(0, CONTEXTS[-1], [sent.model_copy(update={"scenario": SCENARIOS[-1]})], False)
    machine.revalidate_copies()
    machine.delete(0, home, None)
    machine.delete(0, CONTEXTS[-1], SCENARIOS[-1:])
    machine.revalidate_copies()
    machine.teardown()


def test_a_server_agrees_with_a_dictionary_after_any_calls() -> None:
    run_steps(ServerMachine, 5)
