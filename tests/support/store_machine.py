"""Random calls of a store, each compared with a dictionary that takes the same calls.

The dictionary has the contract of put, pin, delete and copy, without any storage.
"""

import itertools
import os
import tempfile
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from dejavu_client.cli.record_copy import merge_acknowledged
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dejavu_cache.model.record import Failure, Measurement, Pin, Record, RecordedLaunch, Winner
from dejavu_cache.model.scenario import Config, Context, Scenario, canonical_json, now
from dejavu_cache.stores import FileStore, Store
from dejavu_cache.stores.file_layout import read_set

from .records import MOMENT, config, context

CONTEXTS = [context(), context(source="1" * 32), context(kernel="pkg.kernels.adding")]
SCENARIOS = [Scenario(args={"M": m, "name": 'ü"x'}, dtypes={"x": "float16"}) for m in (4, 30, 100)]
CONFIGS = [config(block) for block in (16, 32, 64)]
LAUNCHES = [RecordedLaunch(wheel="triton 3.6.0 cp311", constants={"n": n}) for n in range(3)]

STEPS_PER_RUN = 30
HANDLES = st.integers(0, 1)
SOME_SCENARIOS = st.sampled_from(
    [list(chosen) for count in (1, 2) for chosen in itertools.permutations(SCENARIOS, count)]
)

# Few draws for each record, each from one list: hypothesis gives up on runs with many.
KINDS: list[Any] = ["timing"] * 4 + ["out_of_resources", "wrong", "skipped"]
# None is the moment of the call, which is later than any deletion before it.
AGES = [None, None, *range(0, 50, 5)]
CLAIMS = st.sampled_from(list(itertools.product(KINDS, AGES, range(1, 9, 2))))
CHOICES = st.sampled_from(
    [chosen for count in range(4) for chosen in itertools.permutations(CONFIGS, count)]
)


def _measurement(measured: Config, kind: Any, age: int | None, eighths: int) -> Measurement:
    at = now() if age is None else MOMENT + timedelta(seconds=age)
    if kind != "timing":
        return Measurement(config=measured, failure=Failure(kind=kind, reason=kind), at=at)
    median = eighths / 8
    return Measurement(config=measured, median=median, p20=median, p80=median, at=at, by="a@b")


@st.composite
def records(draw: st.DrawFn) -> Record:
    configs = draw(CHOICES)
    measured = tuple(_measurement(config, *draw(CLAIMS)) for config in configs)
    is_tuned = draw(st.booleans())
    winner = None
    if measured and is_tuned:
        winner = Winner(config=configs[0], at=max(item.at for item in measured))
    launches = draw(st.sampled_from(LAUNCHES)) if not measured else None
    return Record(
        scenario=draw(st.sampled_from(SCENARIOS)),
        measurements=measured,
        winner=winner,
        launches=(launches,) if launches else None,
    )


Key = tuple[Context, Scenario]


@dataclass
class ExpectedRecord:
    """A record whose parts can be changed."""

    measurements: dict[Config, Measurement] = field(default_factory=dict)
    winner: Winner | None = None
    pin: Pin | None = None
    launches: set[RecordedLaunch] = field(default_factory=set)

    def freeze(self, scenario: Scenario) -> Record:
        return Record(
            scenario=scenario,
            measurements=tuple(self.measurements.values()),
            winner=self.winner,
            pin=self.pin,
            launches=tuple(self.launches) or None,
        )

    @property
    def is_chosen(self) -> bool:
        """Whether a tune or a person has chosen a config; without one, the record is a miss."""
        return self.winner is not None or (self.pin is not None and self.pin.config is not None)


class LocalModel:
    """The newest measurement of a config stands."""

    def __init__(self) -> None:
        self.records: dict[Key, ExpectedRecord] = {}

    def record(self, context: Context, scenario: Scenario) -> Record | None:
        expected = self.records.get((context, scenario))
        return expected.freeze(scenario) if expected else None

    def all_records(self, context: Context) -> list[Record]:
        records = [
            expected.freeze(scenario)
            for (home, scenario), expected in self.records.items()
            if home == context
        ]
        return sorted(records, key=lambda record: record.scenario.text)

    def contexts(self) -> list[Context]:
        return sorted({context for context, _ in self.records}, key=lambda context: context.text)

    def put(self, context: Context, record: Record) -> None:
        expected = self.records.setdefault((context, record.scenario), ExpectedRecord())
        for theirs in record.measurements:
            ours = expected.measurements.get(theirs.config, theirs)
            expected.measurements[theirs.config] = _choose(ours, theirs)
        expected.winner = _later(expected.winner, record.winner)
        expected.pin = _later(expected.pin, record.pin)
        expected.launches |= set(record.launches or ())

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None) -> int:
        doomed = [
            key
            for key in self.records
            if key[0] == context and (scenarios is None or key[1] in scenarios)
        ]
        for key in doomed:
            del self.records[key]
        return len(doomed)


class ServerModel(LocalModel):
    """The first measurement of a config stands; what was deleted does not come back."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted_at: dict[Key, datetime] = {}
        self.deleted_configs: dict[Key, set[Config]] = {}
        self.missed: set[Key] = set()

    def put(self, context: Context, record: Record) -> None:
        key = context, record.scenario
        deleted_at = self.deleted_at.get(key)
        sent = [measurement for measurement in record.measurements if not measurement.skipped]
        measurements = [item for item in sent if deleted_at is None or item.at > deleted_at]
        left_out = {item.config for item in sent} - {item.config for item in measurements}
        winner = record.winner
        if winner and (winner.config in left_out or (deleted_at and winner.at <= deleted_at)):
            winner = None
        may_show = key in self.records or deleted_at is None or measurements
        expected = self.records.get(key) or ExpectedRecord()
        for theirs in measurements:
            ours = expected.measurements.get(theirs.config)
            if ours is None or _overrules(theirs, ours):
                expected.measurements[theirs.config] = theirs
        winners = [entry for entry in (expected.winner, winner) if entry is not None]
        expected.winner = next(
            (entry for entry in winners if self._may_win(key, expected, entry)), None
        )
        expected.launches |= set(record.launches or ()) if may_show else set()
        if expected.measurements or expected.winner or expected.pin or expected.launches:
            self.records[key] = expected
        if expected.is_chosen:
            self.missed.discard(key)

    def _may_win(self, key: Key, expected: ExpectedRecord, winner: Winner) -> bool:
        """Return whether a winner's config has a timing, or was never measured."""
        measurement = expected.measurements.get(winner.config)
        if measurement is None:
            return winner.config not in self.deleted_configs.get(key, ())
        return measurement.failure is None

    def misses(self) -> set[Key]:
        """Return what was missed since a config was last chosen for it, and has none now."""
        chosen = {key for key, expected in self.records.items() if expected.is_chosen}
        return self.missed - chosen

    def forget(self, context: Context, scenarios: Iterable[Scenario] | None, at: datetime) -> int:
        """Delete records at a moment before which nothing of them is taken again."""
        before = dict(self.records)
        deleted = self.delete(context, scenarios)
        for key in before.keys() - self.records.keys():
            self.deleted_at[key] = at
            self.deleted_configs.setdefault(key, set()).update(before[key].measurements)
        return deleted

    def pin(self, context: Context, scenario: Scenario, pin: Pin) -> None:
        self.records[context, scenario].pin = pin


def _choose(ours: Measurement, theirs: Measurement) -> Measurement:
    if ours.skipped != theirs.skipped:
        return theirs if ours.skipped else ours
    if ours.is_wrong != theirs.is_wrong:
        return ours if ours.is_wrong else theirs
    if len(ours.cases or ()) != len(theirs.cases or ()):
        return max(ours, theirs, key=lambda measurement: len(measurement.cases or ()))
    return max(ours, theirs, key=lambda measurement: (measurement.at, canonical_json(measurement)))


def _overrules(theirs: Measurement, ours: Measurement) -> bool:
    """Return whether a server lets `theirs` stand instead of the first measurement."""
    if ours.is_wrong or theirs.is_wrong:
        return theirs.is_wrong and not ours.is_wrong
    if theirs.failure is not None:
        return False
    return ours.failure is not None or {*(theirs.cases or ())} > {*(ours.cases or ())}


def _later(ours: Any, theirs: Any) -> Any:
    present = [entry for entry in (ours, theirs) if entry is not None]
    return max(present, key=lambda entry: (entry.at, canonical_json(entry)), default=None)


class StoreMachine(RuleBasedStateMachine):
    """Two openings of one store, a folder beside it, and what both should have.

    A subclass opens the store; one on a server replaces what a server does differently.
    """

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.stores = [self.open(0)]
        self.stores.append(self.open(1))
        self.other = FileStore(self.path / "other")
        self.model: LocalModel = self.make_model()
        self.other_model = LocalModel()
        self.leases: dict[tuple[Context, Scenario], ExitStack] = {}

    def open(self, number: int) -> Store:
        raise NotImplementedError

    def make_model(self) -> LocalModel:
        return LocalModel()

    def use(self, number: int) -> Store:
        """Return one opening, after the other one has written what it has queued."""
        return self.stores[number]

    def teardown(self) -> None:
        try:
            self.compare(0)
            self.compare(1)
        finally:
            for lease in self.leases.values():
                lease.close()
            for store in self.stores:
                store.close()
            self._folder.cleanup()

    def compare(self, number: int) -> None:
        store = self.use(number)
        assert list(store.contexts()) == self.model.contexts()
        for home in CONTEXTS:
            assert list(store.records(home)) == self.model.all_records(home)

    @invariant()
    def count_step(self) -> None:
        type(self).steps += 1

    @rule(
        number=HANDLES,
        home=st.sampled_from(CONTEXTS),
        sent=st.lists(records(), max_size=2),
        at_once=st.booleans(),
    )
    def put(self, number: int, home: Context, sent: list[Record], at_once: bool) -> None:
        store = self.use(number)
        before = self.model.all_records(home), store.revision(home)
        store.put(home, sent, now=at_once)
        for record in sent:
            self.model.put(home, record)
        self.check_revision(store, home, *before)

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenario=st.sampled_from(SCENARIOS),
          pinned=st.none() | st.sampled_from(CONFIGS))  # fmt: skip
    def pin(self, number: int, home: Context, scenario: Scenario, pinned: Config | None) -> None:
        record = Record(scenario=scenario, pin=Pin(config=pinned, at=now(), by="a@b"))
        self.use(number).put(home, [record])
        self.model.put(home, record)

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenarios=st.none() | SOME_SCENARIOS)
    def delete(self, number: int, home: Context, scenarios: list[Scenario] | None) -> None:
        store = self.use(number)
        before = self.model.all_records(home), store.revision(home)
        assert self.delete_from(store, home, scenarios) == self.forget(home, scenarios)
        self.check_revision(store, home, *before)

    def delete_from(self, store: Store, home: Context, scenarios: list[Scenario] | None) -> int:
        return store.delete(home, scenarios)

    def forget(self, home: Context, scenarios: list[Scenario] | None) -> int:
        return self.model.delete(home, scenarios)

    def check_revision(
        self, store: Store, home: Context, before: list[Record], revision: Any
    ) -> None:
        if self.model.all_records(home) != before:
            assert revision is None or store.revision(home) != revision

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenario=st.sampled_from(SCENARIOS))
    def get(self, number: int, home: Context, scenario: Scenario) -> None:
        hit = self.use(number).get(home, scenario, fresh=True)
        assert (hit.record if hit else None) == self.model.record(home, scenario)

    @rule(number=HANDLES)
    def list_all(self, number: int) -> None:
        self.compare(number)

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS))
    def list_scenarios(self, number: int, home: Context) -> None:
        expected = [record.scenario.text for record in self.model.all_records(home)]
        assert list(self.use(number).scenario_texts(home)) == expected

    @rule(number=HANDLES)
    def list_contexts_of_a_kernel(self, number: int) -> None:
        name = CONTEXTS[0].kernel.name
        expected = [home for home in self.model.contexts() if home.kernel.name == name]
        assert list(self.use(number).contexts(name)) == expected

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenario=st.sampled_from(SCENARIOS))
    def miss(self, number: int, home: Context, scenario: Scenario) -> None:
        self.use(number).miss(home, scenario)

    @rule(number=HANDLES, home=st.sampled_from(CONTEXTS), scenario=st.sampled_from(SCENARIOS))
    def lease(self, number: int, home: Context, scenario: Scenario) -> None:
        """Acquire a lease, or find it held and release it."""
        lease = self.leases.pop((home, scenario), None)
        if lease is None:
            lease = ExitStack()
            assert lease.enter_context(self.use(number).lease(home, scenario, wait=1))
            self.leases[home, scenario] = lease
            return
        assert not self.lease_in_thread(number, home, scenario, 0.0)
        lease.close()
        assert self.lease_in_thread(number, home, scenario, 20.0)

    def lease_in_thread(self, number: int, home: Context, scenario: Scenario, wait: float) -> bool:
        """Acquire and release a lease in another thread; the holder's own might get it again."""
        answers: list[bool] = []

        def ask() -> None:
            with self.use(number).lease(home, scenario, wait=wait) as granted:
                answers.append(granted)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return answers[0]

    @rule(home=st.sampled_from(CONTEXTS), sent=records())
    def put_into_folder(self, home: Context, sent: Record) -> None:
        self.other.put(home, [sent])
        self.other_model.put(home, sent)

    @rule(number=HANDLES)
    def merge_folder(self, number: int) -> None:
        """Copy the folder's records into the store, as `merge` and `import` do."""
        store = self.use(number)
        merge_acknowledged(self.other.record_sets(), store, must_take_all=False)
        for home in self.other_model.contexts():
            self.expect_copies(store, home, self.other_model.all_records(home))

    def expect_copies(self, store: Store, home: Context, copied: list[Record]) -> None:
        for record in copied:
            self.model.put(home, record)

    @rule(number=HANDLES)
    def export_to_folder(self, number: int) -> None:
        """Write the store's records as `export` does, and read the file into the folder."""
        file = self.path / "export.jsonl"
        sets = list(self.use(number).record_sets())
        file.write_text("".join(f"{canonical_json(item)}\n" for item in sets))
        lines = file.read_text().split("\n")
        merge_acknowledged((read_set(line, "export") for line in lines if line), self.other)
        for home in self.model.contexts():
            for record in self.model.all_records(home):
                self.other_model.put(home, record)
        assert [list(self.other.records(home)) for home in CONTEXTS] == [
            self.other_model.all_records(home) for home in CONTEXTS
        ]


def run_steps(machine: type[StoreMachine], runs: int) -> None:
    """Run a machine some times, each time anew, or for the number of steps in `STEPS`."""
    wanted = int(os.environ.get("STEPS") or 0)
    machine.steps = 0
    while not machine.steps or machine.steps < wanted:
        limits = settings(
            max_examples=max(runs, (wanted - machine.steps) // STEPS_PER_RUN),
            stateful_step_count=STEPS_PER_RUN,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(machine, settings=limits)
