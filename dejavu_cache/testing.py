"""Test suite of the store contract, for this package's stores and those of others.

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return MyStore(tmp_path)

    def reopen(self, store):
        return MyStore(store.path)
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

from .model.buckets import Pow2
from .model.merge import merge_records
from .model.record import Measurement, Pin, Record, RecordedLaunch, Winner
from .model.scenario import Config, Context, Device, Environment, Kernel, Problem, Scenario
from .model.worth import MissCount, Saving
from .stores import Store

_MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def _context(name: str = "pkg.add", source: str = "0" * 32) -> Context:
    return Context(
        kernel=Kernel(name=name, source=source),
        environment=Environment(
            device=Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140),
            triton="3.6.0",
            codegen="ptxas 12.9",
        ),
        problem=Problem(keys=("M",), buckets={"M": Pow2()}, method="events-cold"),
    )


def _measurement(block: int, median: float = 1.0, hours: int = 0) -> Measurement:
    config = Config(params={"BLOCK": block, "flag": None}, options={"num_warps": 4})
    return Measurement(
        config=config,
        median=median,
        p20=median,
        p80=median,
        at=_MOMENT + timedelta(hours=hours),
        by="a@b",
    )


def _recorded(store: Store, m: int) -> Record:
    found = store.get(_context(), _record(m).scenario, fresh=True)
    assert found is not None
    return found.record


def _may_lease(store: Store, m: int, wait: float) -> bool:
    """Ask for a lease in another thread, because a holder's own thread may get it again."""

    def ask() -> bool:
        with store.lease(_context(), _record(m).scenario, wait=wait) as granted:
            return granted

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ask).result()


def _record(m: int, *measurements: Measurement, **fields: Any) -> Record:
    scenario = Scenario(args={"M": m, "name": 'ünï"x', "none": None}, dtypes={"x": "float16"})
    return Record(scenario=scenario, measurements=measurements or (_measurement(16),), **fields)


class StoreContract:
    """Tests of the contract of `dejavu_cache.stores.Store`.

    A subclass defines a fixture `store` and the method `reopen`.

    Attributes:
        first_claim_stands: whether the store keeps the first of two timings of a config, as an
            append-only server does.
        exclusive_leases: whether a lease excludes other openings of the same store.
        believes_pins: whether a record's pin is kept, as that of a stranger is not.
    """

    first_claim_stands = False
    exclusive_leases = believes_pins = True

    def reopen(self, store: Store) -> Store:
        """Open the records of a store again, as another process would."""
        raise NotImplementedError

    def test_a_miss_is_none(self, store: Store) -> None:
        """Neither an unknown context nor an unknown scenario raises, and no launch waits long."""
        assert store.wait is not None or not store.remote
        assert store.get(_context(), _record(1).scenario) is None
        assert list(store.records(_context())) == []
        store.put(_context(), [_record(1)])
        assert store.get(_context(), _record(2).scenario, fresh=True) is None

    def test_what_was_put_is_got(self, store: Store) -> None:
        """Return an equal record with the URL of its store."""
        written = _record(
            1,
            _measurement(16),
            _measurement(32),
            winner=Winner(config=_measurement(32).config, at=_MOMENT),
        )
        store.put(_context(), [written])
        found = store.get(_context(), written.scenario, fresh=True)
        assert found is not None
        assert found.record == written
        assert found.store

    def test_put_merges(self, store: Store) -> None:
        """Keep earlier measurements, and lose nothing of two records of one scenario."""
        store.put(_context(), [_record(1, _measurement(16))])
        blocks = [_measurement(block) for block in (16, 32, 64)]
        store.put(_context(), [_record(1, blocks[1]), _record(1, blocks[2]), _record(2)])
        assert _recorded(store, 1) == _record(1, *blocks)
        assert len(list(store.records(_context()))) == 2

    def test_what_was_put_now_is_there_when_it_returns(self, store: Store) -> None:
        """Find records by another opening as soon as `put` returns."""
        store.put(_context(), [_record(1), _record(2)], now=True)
        assert list(self.reopen(store).records(_context())) == [_record(1), _record(2)]
        assert _recorded(store, 1) == _record(1)

    def test_launches_are_put_together(self, store: Store) -> None:
        """Merge the recorded launches of several writers."""
        launches = [
            RecordedLaunch(
                wheel="triton 3.6.0 cp311", signature={"x": f"*{dtype}"}, constants={"n": None}
            )
            for dtype in ("fp16", "bf16")
        ]
        for launch in (launches[0], *launches):
            store.put(_context(), [Record(scenario=_record(1).scenario, launches=(launch,))])
        store.put(_context(), [_record(1)])
        assert _recorded(store, 1) == _record(1, launches=tuple(launches))

    def test_the_same_put_twice_is_once(self, store: Store) -> None:
        """Accept records again, as from a client that got no answer; another opening has them."""
        for _ in range(2):
            store.put(_context(), [_record(1), _record(2)])
        store.close()
        other = self.reopen(store)
        assert list(other.contexts()) == [_context()]
        assert list(other.records(_context())) == [_record(1), _record(2)]

    def test_of_two_timings_one_stands(self, store: Store) -> None:
        """Keep the newest timing of a config; on an append-only store, the first."""
        first, second = (
            _record(1, _measurement(16, 1.0)),
            _record(1, _measurement(16, 2.0, hours=1)),
        )
        store.put(_context(), [first])
        store.close()
        store.put(_context(), [second])
        store.close()
        stands = first if self.first_claim_stands else merge_records(first, second)
        assert _recorded(self.reopen(store), 1) == stands

    def test_pins_are_kept_and_taken_back(self, store: Store) -> None:
        """Replace a pin by a later one, also by one without a config."""
        pinned = _record(1, pin=Pin(config=_measurement(16).config, at=_MOMENT, by="a@b"))
        store.put(_context(), [pinned])
        chosen = _measurement(16).config if self.believes_pins else None
        assert _recorded(store, 1).pinned == chosen
        unpinned = Record(scenario=pinned.scenario, pin=Pin(at=_MOMENT + timedelta(hours=1)))
        store.put(_context(), [unpinned])
        assert _recorded(store, 1).pinned is None

    def test_records_and_contexts_come_in_order(self, store: Store) -> None:
        """Sort records and contexts by their text."""
        for name in ("pkg.b", "pkg.a"):
            store.put(_context(name), [_record(m) for m in (30, 4, 100)])
        store.close()
        contexts = list(store.contexts())
        assert contexts == sorted(contexts, key=lambda context: context.text)
        records = list(store.records(contexts[0]))
        texts = [record.scenario.text for record in records]
        assert texts == sorted(texts)
        assert len(records) == 3

    def test_contexts_of_one_kernel(self, store: Store) -> None:
        """Select contexts by the kernel's full name; two sources are two contexts."""
        contexts = [_context("pkg.a"), _context("pkg.a", "1" * 32), _context("pkg.ab")]
        for context in contexts:
            store.put(context, [_record(1)])
        store.close()
        assert set(store.contexts("pkg.a")) == set(contexts[:2])
        assert list(store.contexts("pkg")) == []
        assert len(list(store.record_sets("pkg.ab"))) == 1

    def test_delete_says_how_many(self, store: Store) -> None:
        """Count the deleted records: of some scenarios, of a context, and of none."""
        store.put(_context(), [_record(m) for m in (1, 2, 3)])
        store.close()
        assert store.delete(_context(), []) == 0
        assert store.delete(_context(), [_record(m).scenario for m in (1, *range(9, 1209))]) == 1
        assert store.get(_context(), _record(1).scenario, fresh=True) is None
        assert store.delete(_context()) == 2
        assert list(store.contexts()) == []
        assert store.delete(_context()) == 0

    def test_nothing_put_is_nothing_written(self, store: Store) -> None:
        """Create no context for an empty `put`."""
        store.put(_context(), [])
        store.close()
        assert list(store.contexts()) == []

    def test_a_lease_shuts_others_out(self, store: Store) -> None:
        """Give a scenario's lease to one process until it is released; others are free."""
        other = self.reopen(store)
        with store.lease(_context(), _record(1).scenario, wait=1) as granted:
            assert granted
            assert _may_lease(other, 1, wait=0.2) != self.exclusive_leases
            assert _may_lease(other, 2, wait=1)
        assert _may_lease(other, 1, wait=5)

    def test_threads_lose_nothing(self, store: Store) -> None:
        """Merge the records of eight threads that write one context."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda m: store.put(_context(), [_record(m)]), range(40)))
        store.close()
        assert len(list(self.reopen(store).records(_context()))) == 40

    def test_a_miss_may_be_noted(self, store: Store) -> None:
        """Accept a miss; a store without a worklist ignores it."""
        saving = Saving(expected=1.0, at_least=0.5, takes=2.0)
        store.miss(_context(), _record(1).scenario, MissCount(3, saving))
        store.close()
        assert store.get(_context(), _record(1).scenario) is None
