"""Every local store keeps the contract after any calls, whoever else writes it or is killed."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

import pytest
from dejavu_client.static_sets import StaticStore, make_key, publish
from dejavu_client.static_sets.sources import Files
from support.processes import in_own_process
from support.records import context, record
from support.store_machine import StoreMachine, run_steps

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.stores import FileStore, MemoryStore, Store, TieredStore, open_store
from dejavu_cache.testing import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        return store  # it has no other opening


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FileStore(tmp_path / "store")

    def reopen(self, store: Store) -> Store:
        return open_store(store.url)


class TestTieredStore(StoreContract):
    """Folders may be tiered: a shared one before one's own, and a read-only one before both."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        read_only = FileStore(tmp_path / "shipped", read_only=True)
        return TieredStore([read_only, FileStore(tmp_path / "one"), FileStore(tmp_path / "two")])

    def reopen(self, store: Store) -> Store:
        return open_store(store.url)


class Publishing(StaticStore):
    """A signed set of a folder's records, which each write publishes anew."""

    def __init__(self, root: Path) -> None:
        self._source, self._turn = FileStore(root / "store"), Lock()
        self._paths = root / "set", root / "key.pem"
        make_key(root / "key.pem")
        source, key = Files((root / "set").as_uri(), wait=1), publish([], *self._paths)
        super().__init__(source, key, folder=root / "copies")

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        with self._turn:
            self._source.put(context, records)
            publish(self._source.record_sets(), *self._paths)
            self.entries(fresh=True)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        count = self._source.delete(context, scenarios)
        self.put(context, [])
        return count


class TestStaticStore(StoreContract):
    exclusive_leases = believes_pins = False  # nobody tunes into it, or chooses for others

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Publishing(tmp_path)

    def reopen(self, store: Store) -> Store:
        return open_store(store.url)


class MemoryMachine(StoreMachine):
    def open(self, number: int) -> Store:
        return self.stores[0] if number else MemoryStore()  # it has no other opening


class FileMachine(StoreMachine):
    def open(self, number: int) -> Store:
        return FileStore(self.path / "store")


class TieredMachine(StoreMachine):
    """A read-only folder before two writable ones."""

    def open(self, number: int) -> Store:
        shipped = FileStore(self.path / "shipped", read_only=True)
        return TieredStore(
            [shipped, FileStore(self.path / "first"), FileStore(self.path / "second")]
        )


@pytest.mark.parametrize("machine", [MemoryMachine, FileMachine, TieredMachine])
def test_a_store_agrees_with_a_dictionary_after_any_calls(machine: type[StoreMachine]) -> None:
    run_steps(machine, 5)


def start(call: Callable[[], object]) -> int:
    """Call a function in a forked child, and return its process number."""
    child = os.fork()
    if not child:
        call()
        os._exit(0)
    return child


def sizes(root: str) -> set[object]:
    return {entry.scenario.args["M"] for entry in FileStore(root).records(context())}


@in_own_process()
def test_processes_that_write_one_file_lose_nothing(tmp_path: str) -> None:
    def write(first: int) -> None:
        store = FileStore(tmp_path)
        for m in range(first, first + 25):
            store.put(context(), [record(m)])

    children = [start(lambda first=1000 * n: write(first)) for n in range(4)]  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(sizes(tmp_path)) == 100


@in_own_process()
def test_killing_writers_at_random_leaves_a_readable_store(tmp_path: str) -> None:
    """200 writers are killed; everything that one had acknowledged is there afterwards."""
    acknowledged: set[object] = set()
    for repetition in range(200):
        reading, writing = os.pipe()

        def write(first: int = 1000 * (repetition + 1), to: int = writing) -> None:
            store = FileStore(tmp_path)
            for m in range(first, first + 1000):
                store.put(context(), [record(m)])
                os.write(to, f"{m} ".encode())

        child, said = start(write), b""
        os.close(writing)
        # Wait for its progress and not by the clock: on a busy machine it would get nowhere.
        for _ in range(random.randint(0, 2)):
            said += os.read(reading, 1 << 20)
        time.sleep(random.uniform(0, 0.005))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += os.read(reading, 1 << 20)
        os.close(reading)
        acknowledged |= {*map(int, said.split())}
        assert repetition % 20 < 19 or acknowledged <= sizes(tmp_path)
    assert len(acknowledged) > 100
    assert FileStore(tmp_path).problems() == {}
    FileStore(tmp_path).put(context(), [record(1)])
