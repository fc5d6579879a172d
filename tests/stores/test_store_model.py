"""Local stores answer any sequence of calls as a dictionary would."""

from __future__ import annotations

import pytest
from support.store_machine import StoreMachine, run_steps

from dejavu_cache.stores import FileStore, MemoryStore, Store, TieredStore


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
